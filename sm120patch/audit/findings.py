"""What an audit answers: findings, files, packages, sets, environments, the host. Pure.

Paths of files are relative to the import root of their package, as everywhere; other paths are
absolute as seen from the audited root (`/opt/venv` in an image that lies unpacked elsewhere).
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple


class Kind(str, Enum):
    """What a finding is about; the words of `--fail-on` and of every output."""

    FOREIGN = "foreign"
    """A file was edited, and neither the ledger nor a known set explains it."""
    BY_HAND = "by-hand"
    """A content that a known set makes, without a ledger that has it; or the set as a whole."""
    MISSING = "missing"
    ADDED = "added"
    UNREADABLE = "unreadable"
    RECORD = "record"
    """RECORD itself is not what was published: rewritten, damaged, or contradicting itself."""
    LOST = "lost"
    """Patched once; reinstalled, upgraded or uninstalled since."""
    DRIFTED = "drifted"
    """Ours once, and edited since."""
    UNVERIFIED = "unverified"
    """On disk, without a passed verification of this content on this host."""
    INTERRUPTED = "interrupted"
    CHANGED_PAYLOAD = "changed-payload"
    """The catalogue's set is no longer the one that was applied."""
    COPIES = "copies"
    """A second copy of a package, or metadata of a second version."""
    SHARED = "shared"
    """An edit that other places hold through the same inode, or that an installer's cache holds."""
    CARRIER = "carrier"
    """Code or a variable that changes the packages from outside at start."""
    STALE_BYTECODE = "stale-bytecode"
    STALE_BUILD = "stale-build"
    STALE_SERVER = "stale-server"
    """A running server that started before the change, or maps a file that is gone."""
    UNKNOWN = "unknown"
    """Something could not be told. Never OK: no choice of `--fail-on` leaves it out."""


class FileState(str, Enum):
    """What a file that is not simply upstream's is."""

    OURS = "ours"
    BY_HAND = "by-hand"
    FOREIGN = "foreign"
    MISSING = "missing"
    ADDED = "added"
    UNREADABLE = "unreadable"
    LOST = "lost"
    DRIFTED = "drifted"


class Finding(NamedTuple):
    """One thing that should not be so."""

    kind: Kind
    target: str
    """Distribution, or `-` when it is not about one."""
    path: str
    """File below the import root, id of a set, another absolute path, or `-`."""
    detail: str
    sets: tuple[str, ...] = ()
    hint: str = ""
    """Next command or step, where there is one."""


class FileReport(NamedTuple):
    """One file that does not hold what upstream shipped, or that the ledger says does not."""

    target: str
    path: str
    state: FileState
    sha256: str | None
    """What it holds; None when it is not there or cannot be read."""
    pristine_sha256: str | None
    """What upstream shipped: None when it did not ship the file, or nobody knows."""
    changes: tuple[str, ...] = ()
    """`set/change` ids in the content: of the ledger, or recognised."""
    known_as: str = ""
    """What the content is recognised as, in words."""


class Verification(NamedTuple):
    """The newest conclusive evidence for a set as it is on disk, wherever it was gathered."""

    verdict: str
    passed: bool
    kind: str
    """`real`, `simulated` or `rehearsal`."""
    host: str
    """Fingerprint of the host it was gathered on."""
    machine_id: str | None
    here: bool
    """It was gathered on this host as it is now; False for an image that is looked at from outside.
    """
    at: str
    event: int


class SetReport(NamedTuple):
    """One set that is on disk in an environment, wholly or in part."""

    id: str
    state: str
    """A word of `model.State`, or `by-hand`."""
    label: str
    """State for people: evidence that is not real is named with it."""
    counts: bool
    """True only when applied with real evidence on this host."""
    reason: str = ""
    revision: int = 0
    role: str = ""
    selected: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    """By hand: ids of its changes that are there."""
    lacking: tuple[str, ...] = ()
    """By hand: ids of its changes that are needed here and are not there."""
    verification: Verification | None = None


class PackageReport(NamedTuple):
    """One copy of a target."""

    target: str
    version: str
    kind: str
    """`wheel` (compared with RECORD) or `editable` (compared with the HEAD of its checkout)."""
    root: str
    """Import root: the directory that holds the package."""
    origin: str
    """What it was compared with: path of RECORD, or commit and work tree."""
    compared: int
    """Files that upstream shipped and that were compared."""
    bytes: int
    """Size of the files that were hashed or, with the stat cache, believed."""
    files: tuple[FileReport, ...] = ()
    """Only those that are not simply upstream's."""
    same_as: tuple[str, ...] = ()
    """Other places that are this copy: through links, or with shared inodes."""

    @property
    def pristine(self) -> int:
        """Files that hold what upstream shipped."""
        shipped = [f for f in self.files if f.pristine_sha256 is not None]
        return self.compared - sum(f.state is not FileState.LOST for f in shipped)


class EnvironmentReport(NamedTuple):
    """One Python environment and everything found in it."""

    prefix: str
    kind: str
    """`venv`, `conda`, `uv-tool`, `pipx`, `system`, `user`, `python`, `directory`, `checkout`."""
    python: str
    """`3.11`, or empty when nothing tells."""
    names: tuple[str, ...] = ()
    """Other paths that lead to it."""
    packages: tuple[PackageReport, ...] = ()
    sets: tuple[SetReport, ...] = ()
    findings: tuple[Finding, ...] = ()
    ledger: bool = False

    @property
    def versions(self) -> dict[str, str]:
        """Target -> version."""
        return {p.target: p.version for p in self.packages}

    @property
    def files(self) -> Iterator[FileReport]:
        """Every file that is not simply upstream's."""
        return (f for p in self.packages for f in p.files)


class Skipped(NamedTuple):
    """A place that was not looked into, and why."""

    path: str
    reason: str


class HostReport(NamedTuple):
    """Result of an audit; empty `all_findings` are the only clean answer."""

    root: str
    """`/`, or where the audited file system lies on this host."""
    environments: tuple[EnvironmentReport, ...]
    skipped: tuple[Skipped, ...] = ()
    findings: tuple[Finding, ...] = ()
    """Those that belong to no single environment."""
    directories: int = 0
    """Directories that the search looked into; 0 when the environment was named."""

    @property
    def not_looked_at(self) -> tuple[str, ...]:
        """What belongs to a running host, and so to no other root."""
        return () if self.root == "/" else ("running servers", "FlashInfer builds")

    @property
    def all_findings(self) -> Iterator[tuple[EnvironmentReport | None, Finding]]:
        """Every finding with the environment it is about."""
        yield from ((None, f) for f in self.findings)
        yield from ((e, f) for e in self.environments for f in e.findings)


ALWAYS = frozenset({Kind.UNKNOWN})
"""Kinds that fail whatever is chosen."""


class FailOn(NamedTuple):
    """Which kinds of findings make an audit fail."""

    kinds: frozenset[Kind] = frozenset(Kind)

    def fails(self, findings: Iterable[Finding]) -> bool:
        """Tell whether any of the findings is one to fail on; what is unknown always is."""
        return any(f.kind in self.kinds or f.kind in ALWAYS for f in findings)


# --- JSON-ready forms --------------------------------------------------------------------------


def finding_dict(finding: Finding) -> dict[str, object]:
    """JSON-ready form of a finding."""
    return {
        "kind": finding.kind.value,
        "target": finding.target,
        "path": finding.path,
        "detail": finding.detail,
        "sets": list(finding.sets),
        "hint": finding.hint,
    }


def environment_dict(environment: EnvironmentReport) -> dict[str, object]:
    """JSON-ready form of an environment."""
    return {
        "prefix": environment.prefix,
        "kind": environment.kind,
        "python": environment.python,
        "names": list(environment.names),
        "ledger": environment.ledger,
        "packages": [_package_dict(p) for p in environment.packages],
        "sets": [_set_dict(s) for s in environment.sets],
        "findings": [finding_dict(f) for f in environment.findings],
    }


def host_dict(report: HostReport) -> dict[str, object]:
    """JSON-ready form of a whole audit."""
    return {
        "root": report.root,
        "directories": report.directories,
        "not_looked_at": list(report.not_looked_at),
        "environments": [environment_dict(e) for e in report.environments],
        "skipped": [{"path": s.path, "reason": s.reason} for s in report.skipped],
        "findings": [
            {"environment": None if e is None else e.prefix, **finding_dict(f)}
            for e, f in report.all_findings
        ],
    }


def _package_dict(package: PackageReport) -> dict[str, object]:
    return {
        "target": package.target,
        "version": package.version,
        "kind": package.kind,
        "root": package.root,
        "origin": package.origin,
        "compared": package.compared,
        "pristine": package.pristine,
        "bytes": package.bytes,
        "files": [_file_dict(f) for f in package.files],
        "same_as": list(package.same_as),
    }


def _file_dict(file: FileReport) -> dict[str, object]:
    return {
        "path": file.path,
        "state": file.state.value,
        "sha256": file.sha256,
        "pristine_sha256": file.pristine_sha256,
        "changes": list(file.changes),
        "known_as": file.known_as,
    }


def _set_dict(entry: SetReport) -> dict[str, object]:
    return {
        "id": entry.id,
        "state": entry.state,
        "label": entry.label,
        "counts": entry.counts,
        "reason": entry.reason,
        "revision": entry.revision,
        "role": entry.role,
        "with": list(entry.selected),
        "present": list(entry.present),
        "lacking": list(entry.lacking),
        "verification": None if entry.verification is None else entry.verification._asdict(),
    }
