"""Frozen value objects that every layer shares: results, catalogue, snapshot. Pure.

Paths of target files are always *relative POSIX paths below the import root of their
distribution* (`sglang/srt/layers/communicator.py`), never absolute: the root belongs to the
environment, the path to the catalogue.

Values are named tuples: Python defines one in a quarter of the time of a frozen dataclass, and
every command defines all of them. Two of different types with equal fields compare equal, so
alternatives such as `EditResult` are told apart by `isinstance`, never by `==`.
"""

import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

IMPORT_NAMES: Mapping[str, str] = {"sglang": "sglang", "flashinfer-python": "flashinfer"}
"""Distribution name -> the top-level package it installs. These are the targets known today."""
ID = r"[a-z0-9]+(-[a-z0-9]+)*"
"""Pattern of the names of sets and changes."""


def sha256_hex(data: bytes) -> str:
    """Hex digest by which contents are named in plans, journals, store and ledger."""
    return hashlib.sha256(data).hexdigest()


def is_rehearsal(version: str) -> bool:
    """Tell whether an installed version is a copy made for a rehearsal, by its local part."""
    return version.partition("+")[2].startswith("rehearsal")


ABSENT = "absent"
"""Stands in place of a sha256 for a file that is not there: before it is added, or upstream's."""


def digest_of(value: object) -> str:
    """Hex digest of the canonical JSON of `value`; equal values have equal digests."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256_hex(text.encode("ascii"))


class PayloadKind(str, Enum):
    """How a variant changes its file."""

    DIFF = "diff"
    CODEMOD = "codemod"
    FILE = "file"
    """Adds a file that upstream did not ship; taking the set off removes it."""


class Goal(str, Enum):
    """What a set must show before it counts as applied."""

    SPEED = "speed"
    NO_REGRESSION = "no-regression"
    CRASH_FIX = "crash-fix"
    CAPACITY = "capacity"
    CORRECTNESS = "correctness"


class Answers(str, Enum):
    """How close the answers of a server with a set must be to those without it."""

    BIT_EXACT = "bit-exact"
    TOLERANCE = "tolerance"
    """Equal up to rounding."""
    BEHAVIOUR_CHANGE = "behaviour-change"
    """They may differ; right answers must stay right, and text must stay text."""


class State(str, Enum):
    """State of a set in an environment, in the vocabulary of the README."""

    ABSENT = "absent"
    STAGED = "staged"
    APPLIED = "applied"
    REJECTED = "rejected"
    UPSTREAM = "upstream"
    NOT_APPLICABLE = "not-applicable"
    EDITED = "edited"
    """A file of it was edited, and there is no ledger that could explain the edit."""
    DRIFTED = "drifted"
    LOST = "lost"
    INTERRUPTED = "interrupted"
    UNKNOWN = "unknown"
    """A file of it, or what upstream shipped, cannot be read. Never OK."""


class EvidenceKind(str, Enum):
    """Where an evidence comes from; only `real` is ever counted by audit, metrics or fleet."""

    REAL = "real"
    SIMULATED = "simulated"
    REHEARSAL = "rehearsal"


# --- results of an edit ------------------------------------------------------------------------


class Changed(NamedTuple):
    """The edit applied: complete new bytes of the file and how many places it touched."""

    data: bytes
    sites: int


class Unchanged(NamedTuple):
    """The content already satisfies the post-conditions: somebody (upstream) has it."""

    reason: str


class Refused(NamedTuple):
    """The edit does not fit this content; nothing is changed. A value, not an exception."""

    reason: str


EditResult = Changed | Unchanged | Refused


# --- catalogue ---------------------------------------------------------------------------------


class Variant(NamedTuple):
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
    data: bytes
    """Bytes of the payload, already checked against `sha256`."""
    present: Mapping[str, int] = {}
    """Diffs: literal text -> exact number of occurrences once applied (post-condition)."""
    absent: tuple[str, ...] = ()
    """Diffs: literal text that must not occur once applied (post-condition)."""
    requires: Mapping[str, str] = {}
    """Other distribution -> specifier that must hold for this variant to make sense."""


class Window(NamedTuple):
    """Versions for which a change has no variant although they are known, and why."""

    versions: str
    outcome: str
    """`upstream` (the target already has it), `not-needed` (the gate does not exist there),
    `not-applicable` (nothing that can be patched would make it work there) or `refused` (the
    change would be wrong there, for instance because upstream decided otherwise)."""
    reason: str


class Advice(NamedTuple):
    """What to set instead of patching, or why what people ask for is refused, for some versions."""

    target: str
    versions: str
    outcome: str
    """`set` (`args` and `env` do it without a patch) or `refused` (it does harm, or nothing)."""
    args: tuple[str, ...]
    env: Mapping[str, str]
    reason: str
    requires: Mapping[str, str] = {}
    """Other distribution -> specifier that must hold for the advice to work."""


class Change(NamedTuple):
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
    tactics: bool = False
    """It changes which tactics FlashInfer's autotuner has to choose from, or when it runs: what
    was measured without it must not be used with it."""


class LaunchOptions(NamedTuple):
    """Launch options and variables without which the set does nothing, for one version range."""

    target: str
    versions: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    strip: Mapping[str, int]
    """Option -> number of values that follow it. Removed from the baseline's command line."""
    strip_env: tuple[str, ...] = ()


class Engagement(NamedTuple):
    """How it is seen that the patched code really runs, for one version range of `target`.

    At least one of the probes is given; every probe given must hold in the patched arm, and
    `server_info` must *not* hold in the baseline arm.
    """

    target: str
    versions: str
    server_info: Mapping[str, object] = {}
    """Field of the server's `/server_info` (dots descend) -> value it must have."""
    log: str | None = None
    """Regular expression that some line of the server's log must match."""
    log_absent: str | None = None
    """Regular expression that no line of the log may match (the "falling back" message)."""
    loaded: str | None = None
    """Regular expression that the path of a file mapped by some process of the server matches."""
    jit_module: str | None = None
    """FlashInfer module that a process of the server must have loaded, in the build of the content
    that is in place: compiled after it was put there, or put back with it."""
    of: str = ""
    """Set that asks for it, once it is part of a plan."""


class PtxCount(NamedTuple):
    """What the compiler must make of one source for one architecture, without and with a change.

    Counts are those of lines with `text` in the PTX that nvcc writes; they were measured with the
    published packages.
    """

    change: str
    """Change of the set that makes the difference; without it on disk nothing is to be shown."""
    source: str
    """File name of the source among those of the module."""
    arch: str
    """As nvcc spells it: `120a`."""
    text: str
    before: int
    after: int
    same: bool
    """The PTX must be the same with and without the change, apart from names made of hashes."""


class CompileCheck(NamedTuple):
    """How a module that a set changes is compiled ahead of the server, for one version range."""

    target: str
    versions: str
    module: str
    """Name of the JIT module, which is that of its directory."""
    generator: str
    """`package.module:function` that returns FlashInfer's specification of the module."""
    ptx: tuple[PtxCount, ...]


class VerificationPolicy(NamedTuple):
    """What a set's verification must show, and how hard it looks."""

    goal: Goal = Goal.NO_REGRESSION
    margin: float = 0.03
    """Non-inferiority margin as a fraction: 0.03 lets the interval reach down to 97 %."""
    repeats: int = 3
    """Measured repeats of each workload per server start."""
    blocks: int = 2
    """Server starts per arm, in the order A B B A ..."""
    answers: Answers = Answers.TOLERANCE


class KnownResult(NamedTuple):
    """A published or recorded result, matched against the topology of the host."""

    topology: str
    effect: str
    source: str
    harmful: bool = False
    where: tuple[str, ...] = ()
    """Words of `host.Host.topology` that must all be there, `a|b` is either; empty where no
    topology decides."""
    tp: tuple[int, ...] = ()
    """Tensor parallel sizes that it is for; empty means any."""


class PatchSet(NamedTuple):
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
    compile: tuple[CompileCheck, ...] = ()
    """Modules that can be compiled ahead of the server, and what must be seen in them."""
    devices: tuple[str, ...] = ()
    """Names of the GPUs it was measured for, as torch and NVML spell them; empty means any."""
    min_gpus: int = 1
    """GPUs that a host must have for the set to do anything; 2 for what is between GPUs."""
    rehearsal: bool = False
    """It can be applied to copies made for a rehearsal and to nothing else, see `is_rehearsal`."""

    @property
    def only_advice(self) -> bool:
        """True for an entry that changes nothing: it says what to set, or why not to patch."""
        return not self.changes and not self.depends

    @property
    def tactics(self) -> tuple[str, ...]:
        """Changes that make earlier measured tactics void."""
        return tuple(change.id for change in self.changes if change.tactics)

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
    UNREADABLE = "unreadable"


class FileSnapshot(NamedTuple):
    """One target file as it was read: bytes, identity, and what upstream shipped."""

    path: str
    data: bytes
    sha256: str
    mode: int
    """Permission bits only (`stat.S_IMODE`)."""
    mtime_ns: int
    nlink: int
    pristine_sha256: str | None
    """Digest from RECORD or of the HEAD blob; `ABSENT` when they say that upstream did not ship
    the file, None when nobody knows."""
    pristine: bytes | None = None
    """Upstream's bytes: the file itself when it is pristine, else from the store or git."""
    obstacle: Obstacle | None = None
    why: str = ""
    """What the kernel said where the obstacle is `UNREADABLE`."""


class TargetSnapshot(NamedTuple):
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

    @property
    def why_unknown(self) -> str:
        """Why nobody knows what upstream shipped of a file without a pristine content."""
        why = self.pristine_origin.partition("unknown: ")[2]
        return why or "neither RECORD nor git knows the file"


class Snapshot(NamedTuple):
    """Everything the planner may know about an environment; no handle to the disk."""

    prefix: str
    targets: Mapping[str, TargetSnapshot]
    missing: Mapping[str, str] = {}
    """Target -> reason why it was not found."""
    compute_capability: str | None = None
    """`12.0` when known (probe, `--gpu`, simulated host), None when not."""
    devices: tuple[str, ...] | None = None
    """Names of the host's GPUs, None when nobody knows."""

    @property
    def versions(self) -> dict[str, str]:
        """Target -> version on disk."""
        return {name: target.version for name, target in self.targets.items()}

    def unfit(self, patch_set: PatchSet) -> str | None:
        """Say why the GPUs here are not those that the set is for; None when they may be."""
        if patch_set.rehearsal and (released := self._released(patch_set)):
            return f"is for copies made for a rehearsal, and {released} is none"
        wanted, found = patch_set.compute_capability, self.compute_capability
        if found is not None and wanted and found not in wanted:
            return f"is for compute capability {' or '.join(wanted)}, found {found}"
        others = [name for name in self.devices or () if name not in patch_set.devices]
        if patch_set.devices and others:
            return f"was measured for {' or '.join(patch_set.devices)}, found {others[0]}"
        return None

    def _released(self, patch_set: PatchSet) -> str:
        """Name a target of the set, any for a bundle, that is no copy made for a rehearsal."""
        concerned = {change.target for change in patch_set.changes} or set(self.targets)
        versions = {n: t.version for n, t in sorted(self.targets.items()) if n in concerned}
        return next((f"{n} {v}" for n, v in versions.items() if not is_rehearsal(v)), "")
