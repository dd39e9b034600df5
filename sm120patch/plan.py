"""Value objects of a change: what the ledger says is on disk, decisions, steps, the plan. Pure."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from sm120patch.model import Engagement, State, VerificationPolicy, digest_of

FileKey = tuple[str, str]
"""Target, and path below its import root."""


class Role(str, Enum):
    """Why a set is on disk."""

    REQUESTED = "requested"
    DEPENDENCY = "dependency"


class ActiveSet(NamedTuple):
    """A set whose changes are on disk, as the ledger records it."""

    id: str
    revision: int
    role: Role
    selected: tuple[str, ...]
    """Optional changes chosen with `--with`, sorted."""
    digest: str
    """`PatchSet.digest` at the time it was staged."""


class OwnedFile(NamedTuple):
    """A file that holds our content, as the ledger records it."""

    target: str
    path: str
    root: str
    version: str
    pristine_sha256: str
    pristine_mode: int
    pristine_mtime_ns: int
    current_sha256: str
    changes: tuple[str, ...]
    """`set/change` ids that shaped the content."""


class History(NamedTuple):
    """What the ledger says is on disk: the planner's third input."""

    active: Mapping[str, ActiveSet] = {}
    files: Mapping[FileKey, OwnedFile] = {}

    def content(self, versions: Mapping[str, str]) -> str:
        """Digest of the patched files as the ledger records them: what evidence is valid for."""
        return content_digest({k: f.current_sha256 for k, f in self.files.items()}, versions)


def sets_of(changes: Iterable[str]) -> tuple[str, ...]:
    """Sets that `set/change` ids are of, each once, in their order."""
    return tuple(dict.fromkeys(change.partition("/")[0] for change in changes))


# --- plan --------------------------------------------------------------------------------------


class Outcome(str, Enum):
    """What the planner decided about one change."""

    PATCHED = "patched"
    UPSTREAM = "upstream"
    NOT_NEEDED = "not-needed"
    NOT_SELECTED = "not-selected"
    NOT_APPLICABLE = "not-applicable"
    REFUSED = "refused"


class ChangeDecision(NamedTuple):
    """Outcome of one change of one set, with the reason in words."""

    set_id: str
    change_id: str
    target: str
    path: str | None
    outcome: Outcome
    reason: str
    sites: int = 0
    """Places in the file that the change edits."""


class FileStep(NamedTuple):
    """One file that the transaction will replace, add or remove.

    `before`, `after` and `pristine` are complete contents; where a digest is `ABSENT` the file is
    not there and its content is empty.
    """

    target: str
    path: str
    root: str
    version: str
    before_sha256: str
    after_sha256: str
    pristine_sha256: str
    mode: int
    pristine_mtime_ns: int
    """mtime that a return to pristine gives back, so that restored build caches stay fresh."""
    before: bytes
    after: bytes
    pristine: bytes
    changes: tuple[str, ...] = ()
    """`set/change` ids that shape the new content, in order of application."""

    @property
    def to_pristine(self) -> bool:
        """True when the step gives back upstream's bytes."""
        return self.after_sha256 == self.pristine_sha256

    def owned(self, sha256: str, changes: tuple[str, ...]) -> OwnedFile:
        """Return what the ledger records of the file while it holds that content of ours."""
        return OwnedFile(
            target=self.target,
            path=self.path,
            root=self.root,
            version=self.version,
            pristine_sha256=self.pristine_sha256,
            pristine_mode=self.mode,
            pristine_mtime_ns=self.pristine_mtime_ns,
            current_sha256=sha256,
            changes=changes,
        )


class Launch(NamedTuple):
    """What the patched server must be started with, and what the baseline must not have."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    strip: Mapping[str, int] = {}
    strip_env: tuple[str, ...] = ()


class Plan(NamedTuple):
    """Everything an `apply` or `revert` will do, as data. Printed, dumped, tested, executed."""

    action: str
    """`apply` or `revert`."""
    requested: tuple[str, ...]
    prefix: str
    versions: Mapping[str, str]
    """Target -> version on disk."""
    add: tuple[ActiveSet, ...]
    """Sets that the ledger will record as active, or whose record changes."""
    remove: tuple[str, ...]
    """Sets whose record is dropped."""
    decisions: tuple[ChangeDecision, ...]
    files: tuple[FileStep, ...]
    settled: Mapping[FileKey, str]
    """Every file that holds our content once the plan is done -> its sha256."""
    shaped_by: Mapping[FileKey, tuple[str, ...]]
    """Every file that was planned -> the `set/change` ids in its new content."""
    states: Mapping[str, State]
    """Set -> `absent` (something to do), `upstream`, `not-applicable`, or its present state."""
    launch: Launch
    base_launch: Launch
    """What other sets on disk need; both arms of a verification get it."""
    engagement: tuple[Engagement, ...]
    verification: VerificationPolicy
    based_on: str
    """`history_digest` of the ledger state that the plan starts from."""
    applicability: str
    """`confirmed`, or `unconfirmed` while the GPU is unknown."""
    notes: tuple[str, ...] = ()

    @property
    def is_noop(self) -> bool:
        """True when neither a file nor a record changes."""
        return not (self.files or self.add or self.remove)

    @property
    def digest(self) -> str:
        """Names this plan; equal digests replace equal bytes by equal bytes for equal sets."""
        return digest_of(
            {
                "action": self.action,
                "prefix": self.prefix,
                "versions": dict(self.versions),
                "add": [[s.id, s.role.value, list(s.selected), s.digest] for s in self.add],
                "remove": list(self.remove),
                "files": [[f.target, f.path, f.before_sha256, f.after_sha256] for f in self.files],
            }
        )

    @property
    def content(self) -> str:
        """Digest of what the environment holds once the plan is done, wherever it lies.

        Equal on all nodes that are to run the same code, and the same whether the plan has been
        carried out or not. Evidence is filed under it.
        """
        return content_digest(self.settled, self.versions)


def content_digest(files: Mapping[FileKey, str], versions: Mapping[str, str]) -> str:
    """Digest of all patched files of an environment: what a verification is valid for.

    `files` maps (target, path) to sha256, `versions` target to version. An environment without
    patched files has a digest as well (that of its versions).
    """
    return digest_of(
        {
            "files": [[t, p, files[t, p]] for t, p in sorted(files)],
            "versions": dict(sorted(versions.items())),
        }
    )


def history_digest(history: History) -> str:
    """Digest of what the ledger says is on disk; a plan made from another state is stale."""
    return digest_of(
        {
            "active": [
                [s.id, s.revision, s.role.value, list(s.selected), s.digest]
                for _, s in sorted(history.active.items())
            ],
            "files": [
                [f.target, f.path, f.version, f.current_sha256, list(f.changes)]
                for _, f in sorted(history.files.items())
            ],
        }
    )
