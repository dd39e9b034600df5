"""Frozen value objects that every layer shares: catalogue, snapshot, plan. Pure.

Paths of target files are always *relative POSIX paths below the import root of their
distribution* (`sglang/srt/layers/communicator.py`), never absolute: the root belongs to the
environment, the path to the catalogue.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

IMPORT_NAMES: Mapping[str, str] = {"sglang": "sglang", "flashinfer-python": "flashinfer"}
"""Distribution name -> the top-level package it installs. These are the targets known today."""


def sha256_hex(data: bytes) -> str:
    """Hex digest by which contents are named in plans, journals, store and ledger."""
    return hashlib.sha256(data).hexdigest()


def digest_of(value: object) -> str:
    """Hex digest of the canonical JSON of `value`; equal values have equal digests."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256_hex(text.encode("ascii"))


class PayloadKind(str, Enum):
    """How a variant changes its file."""

    DIFF = "diff"
    CODEMOD = "codemod"


class Goal(str, Enum):
    """What a set must show before it counts as applied."""

    SPEED = "speed"
    NO_REGRESSION = "no-regression"
    CRASH_FIX = "crash-fix"
    CAPACITY = "capacity"
    CORRECTNESS = "correctness"


class State(str, Enum):
    """State of a set in an environment, in the vocabulary of the README."""

    ABSENT = "absent"
    STAGED = "staged"
    APPLIED = "applied"
    REJECTED = "rejected"
    UPSTREAM = "upstream"
    NOT_APPLICABLE = "not-applicable"
    DRIFTED = "drifted"
    LOST = "lost"
    INTERRUPTED = "interrupted"


class EvidenceKind(str, Enum):
    """Where an evidence comes from; only `real` is ever counted by audit, metrics or fleet."""

    REAL = "real"
    SIMULATED = "simulated"
    REHEARSAL = "rehearsal"


# --- results of an edit ------------------------------------------------------------------------


@dataclass(frozen=True)
class Changed:
    """The edit applied: complete new bytes of the file and how many places it touched."""

    data: bytes = field(repr=False)
    sites: int


@dataclass(frozen=True)
class Unchanged:
    """The content already satisfies the post-conditions: somebody (upstream) has it."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """The edit does not fit this content; nothing is changed. A value, not an exception."""

    reason: str


EditResult = Changed | Unchanged | Refused


# --- catalogue ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """The payload of one change for one range of versions of its target."""

    versions: str
    """PEP 440 specifier over the version of the change's target, half-open (`>=a,<b`)."""
    kind: PayloadKind
    path: str
    """File it changes, relative to the import root."""
    payload: str
    """Payload file relative to the catalogue's `patches/`."""
    sha256: str
    """Digest of the payload file: a codemod is code that runs, so it is pinned like a diff."""
    data: bytes = field(repr=False)
    """Bytes of the payload, already checked against `sha256`."""
    present: Mapping[str, int] = field(default_factory=dict)
    """Diffs: literal text -> exact number of occurrences once applied (post-condition)."""
    absent: tuple[str, ...] = ()
    """Diffs: literal text that must not occur once applied (post-condition)."""
    requires: Mapping[str, str] = field(default_factory=dict)
    """Other distribution -> specifier that must hold for this variant to make sense."""


@dataclass(frozen=True)
class Window:
    """Versions for which a change has nothing to do, and why."""

    versions: str
    outcome: str
    """`upstream` (the target already has it), `not-needed` (the gate does not exist there) or
    `refused` (the change would be wrong there, for instance because upstream decided otherwise)."""
    reason: str


@dataclass(frozen=True)
class Advice:
    """What to set instead of patching, or why what people ask for is refused, for some versions."""

    target: str
    versions: str
    outcome: str
    """`set` (`args` and `env` do it without a patch) or `refused` (it does harm, or nothing)."""
    args: tuple[str, ...]
    env: Mapping[str, str]
    reason: str
    requires: Mapping[str, str] = field(default_factory=dict)
    """Other distribution -> specifier that must hold for the advice to work."""


@dataclass(frozen=True)
class Change:
    """One logical edit of a set; exactly one file per variant."""

    id: str
    target: str
    summary: str
    description: str
    """What it does and, where the public recipe overclaims, what it does not do."""
    optional: bool
    """Optional changes are off unless selected with `--with`."""
    variants: tuple[Variant, ...]
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True)
class LaunchOptions:
    """Launch options and variables without which the set does nothing, for one version range."""

    target: str
    versions: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    strip: Mapping[str, int]
    """Option -> number of values that follow it. Removed from the baseline's command line."""
    strip_env: tuple[str, ...] = ()


@dataclass(frozen=True)
class Engagement:
    """How it is seen that the patched code really runs, for one version range of `target`.

    At least one of the probes is given; every probe given must hold in the patched arm, and
    `server_info` must *not* hold in the baseline arm.
    """

    target: str
    versions: str
    server_info: Mapping[str, object] = field(default_factory=dict)
    """Field of the server's `/server_info` (dots descend) -> value it must have."""
    log: str | None = None
    """Regular expression that some line of the server's log must match."""
    log_absent: str | None = None
    """Regular expression that no line of the log may match (the "falling back" message)."""


@dataclass(frozen=True)
class VerificationPolicy:
    """What a set's verification must show, and how hard it looks."""

    goal: Goal = Goal.NO_REGRESSION
    margin: float = 0.03
    """Non-inferiority margin as a fraction: 0.03 lets the interval reach down to 97 %."""
    repeats: int = 3
    """Measured repeats of each workload per server start."""
    blocks: int = 2
    """Server starts per arm, in the order A B B A ..."""


@dataclass(frozen=True)
class KnownResult:
    """A published or recorded result, matched against the topology of the host."""

    topology: str
    effect: str
    source: str
    harmful: bool = False


@dataclass(frozen=True)
class PatchSet:
    """A named, revisioned unit of changes: one manifest file."""

    id: str
    revision: int
    title: str
    description: str
    type: str
    compute_capability: tuple[str, ...]
    """Exact capabilities it is for (`12.0`, `12.1`); empty means any."""
    depends: tuple[str, ...]
    conflicts: tuple[str, ...]
    changes: tuple[Change, ...]
    launch: tuple[LaunchOptions, ...]
    engagement: tuple[Engagement, ...]
    verification: VerificationPolicy
    known_results: tuple[KnownResult, ...]
    upstream_status: str
    upstream_reason: str
    last_checked: str
    """ISO date on which the windows were last compared with the published packages."""
    digest: str
    """Digest of the manifest and all its payloads: what the ledger pins."""
    advice: tuple[Advice, ...] = ()
    """Beside changes: another way to the same end. Without any: all that the entry has."""

    @property
    def only_advice(self) -> bool:
        """True for an entry that changes nothing: it says what to set, or why not to patch."""
        return not self.changes and not self.depends

    def change(self, change_id: str) -> Change | None:
        """Return the change of that id, if the set has it."""
        return next((c for c in self.changes if c.id == change_id), None)


# --- snapshot ----------------------------------------------------------------------------------


class Obstacle(str, Enum):
    """Why a file on disk must not be replaced by us."""

    SYMLINK = "symlink"
    NOT_REGULAR = "not-regular"
    MISSING = "missing"
    OUTSIDE = "outside"


@dataclass(frozen=True)
class FileSnapshot:
    """One target file as it was read: bytes, identity, and what upstream shipped."""

    path: str
    data: bytes = field(repr=False)
    sha256: str
    mode: int
    """Permission bits only (`stat.S_IMODE`)."""
    mtime_ns: int
    nlink: int
    pristine_sha256: str | None
    """Digest from RECORD or of the HEAD blob; None when neither knows the file."""
    pristine: bytes | None = field(repr=False, default=None)
    """Upstream's bytes: the file itself when it is pristine, else from the store or git."""
    obstacle: Obstacle | None = None


@dataclass(frozen=True)
class TargetSnapshot:
    """One installed distribution: the copy that the environment's Python imports."""

    target: str
    version: str
    root: str
    """Absolute directory that holds the import package."""
    kind: str
    """`wheel` (RECORD is pristine) or `editable` (git HEAD is pristine)."""
    files: Mapping[str, FileSnapshot]
    pristine_origin: str = ""
    """Where upstream's contents are known from, or `unknown: ` and why they are not."""


@dataclass(frozen=True)
class Snapshot:
    """Everything the planner may know about an environment; no handle to the disk."""

    prefix: str
    targets: Mapping[str, TargetSnapshot]
    missing: Mapping[str, str] = field(default_factory=dict)
    """Target -> reason why it was not found."""
    compute_capability: str | None = None
    """`12.0` when known (probe, `--gpu`, simulated host), None when not."""


# --- ledger view -------------------------------------------------------------------------------


class Role(str, Enum):
    """Why a set is on disk."""

    REQUESTED = "requested"
    DEPENDENCY = "dependency"


@dataclass(frozen=True)
class ActiveSet:
    """A set whose changes are on disk, as the ledger records it."""

    id: str
    revision: int
    role: Role
    selected: tuple[str, ...]
    """Optional changes chosen with `--with`, sorted."""
    digest: str
    """`PatchSet.digest` at the time it was staged."""


@dataclass(frozen=True)
class OwnedFile:
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


@dataclass(frozen=True)
class History:
    """What the ledger says is on disk: the planner's third input."""

    active: Mapping[str, ActiveSet] = field(default_factory=dict)
    files: Mapping[tuple[str, str], OwnedFile] = field(default_factory=dict)


# --- plan --------------------------------------------------------------------------------------


class Outcome(str, Enum):
    """What the planner decided about one change."""

    PATCHED = "patched"
    UPSTREAM = "upstream"
    NOT_NEEDED = "not-needed"
    NOT_SELECTED = "not-selected"
    NOT_APPLICABLE = "not-applicable"
    REFUSED = "refused"


@dataclass(frozen=True)
class ChangeDecision:
    """Outcome of one change of one set, with the reason in words."""

    set_id: str
    change_id: str
    target: str
    path: str | None
    outcome: Outcome
    reason: str
    sites: int = 0
    """Places in the file that the change edits."""


@dataclass(frozen=True)
class FileStep:
    """One file that the transaction will replace; `before` and `after` are both complete."""

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
    before: bytes = field(repr=False)
    after: bytes = field(repr=False)
    pristine: bytes = field(repr=False)
    diff: str = field(repr=False)
    changes: tuple[str, ...] = ()
    """`set/change` ids that shape the new content, in order of application."""

    @property
    def to_pristine(self) -> bool:
        """True when the step gives back upstream's bytes."""
        return self.after_sha256 == self.pristine_sha256


@dataclass(frozen=True)
class Launch:
    """What the patched server must be started with, and what the baseline must not have."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    strip: Mapping[str, int] = field(default_factory=dict)
    strip_env: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
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
    settled: Mapping[tuple[str, str], str]
    """Every file that holds our content once the plan is done -> its sha256."""
    shaped_by: Mapping[tuple[str, str], tuple[str, ...]]
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


def content_digest(files: Mapping[tuple[str, str], str], versions: Mapping[str, str]) -> str:
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
