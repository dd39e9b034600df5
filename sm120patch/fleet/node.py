"""What is known of one node: states, contents, versions, host, and what was measured. Pure.

Everything here was said by the node itself, through a file; texts are clipped, never cleaned: who
prints them does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sm120patch.model import EvidenceKind, State


@dataclass(frozen=True)
class SetFacts:
    """One patch set on one node."""

    id: str
    state: str
    """A word of `model.State`, or `by-hand`."""
    kind: str = ""
    """Kind of the evidence: `real`, `simulated`, `rehearsal`, or empty without evidence."""
    verdict: str = ""
    passed: bool = False
    counted: bool = False
    """The node says that it counts; see `counts`."""
    at: datetime | None = None
    """When the evidence was gathered, by the clock of the node."""
    evidence: str = ""
    """Number of the evidence in the ledger of the node."""
    profile: str = ""
    revision: int = 0
    role: str = ""
    selected: tuple[str, ...] = ()
    reason: str = ""
    digest: str = ""
    """Digest of the files that it shaped, as they are; empty when it shaped none."""

    @property
    def counts(self) -> bool:
        """Applied, by real evidence that passed.

        Facts in which `status` and `audit` do not agree on that never come this far: see
        `agreement`.
        """
        real = self.kind == EvidenceKind.REAL.value
        return self.state == State.APPLIED.value and self.counted and self.passed and real

    @property
    def label(self) -> str:
        """State for people; `applied` alone only where it counts."""
        simulated = self.kind not in ("", EvidenceKind.REAL.value)
        if self.state == State.REJECTED.value and simulated:
            return f"{self.state} ({self.kind})"
        if self.state != State.APPLIED.value or self.counts:
            return self.state
        return f"{self.state} ({self.kind if self.kind != 'real' else 'not counted'})"

    @property
    def verdict_words(self) -> str:
        """Verdict with the kind of its evidence; empty without one."""
        return f"{self.verdict} ({self.kind or 'of no known kind'})" if self.verdict else ""

    @property
    def is_quiet(self) -> bool:
        """Nothing of it is on disk, and nobody asked for it."""
        quiet = {State.ABSENT.value, State.UPSTREAM.value, State.NOT_APPLICABLE.value}
        return self.state in quiet and not self.role


@dataclass(frozen=True)
class Trouble:
    """One finding of the audit of a node."""

    kind: str
    target: str
    path: str
    detail: str
    hint: str = ""


@dataclass(frozen=True)
class HostFacts:
    """GPUs, driver and topology as `doctor` found them."""

    gpus: tuple[str, ...] = ()
    driver: str = ""
    topology: tuple[str, ...] = ()

    @property
    def gpu_words(self) -> str:
        """`8 x NAME`; empty without GPUs."""
        names = dict.fromkeys(self.gpus)
        return ", ".join(f"{self.gpus.count(name)} x {name}" for name in names)


@dataclass(frozen=True)
class Level:
    """Output throughput of one workload by the server that holds what is on disk now."""

    workload: str
    shape: str
    """Load in words: only equal shapes can be compared."""
    client: str
    starts: tuple[tuple[float, ...], ...]
    """Tokens per second of every repeat, one tuple a server start."""
    floor: tuple[float, float] | None = None
    """Noise known before the measurement: standard deviation of the logarithm, and its freedom."""


@dataclass(frozen=True)
class Measurement:
    """The newest verification on a node, as far as a comparison needs it."""

    at: datetime | None
    event: str
    kind: str
    verdict: str
    current: bool
    """Its content is what the sets on disk rest on."""
    levels: tuple[Level, ...] = ()
    command: str = ""
    """Command line of the server that holds what is on disk."""
    server: Mapping[str, str] = field(default_factory=dict)
    """What that server said of itself, volatile fields left out."""
    gpus: Mapping[str, float] = field(default_factory=dict)
    """Means over the GPUs that worked while it was measured: `power_w`, `sm_mhz`, `mem_mhz`,
    `temp_c`, `power_limit_w`; and how many there were, `at_work`."""
    throttled: Mapping[str, float] = field(default_factory=dict)
    """Reason -> largest share of the readings on one GPU."""
    profile: str = ""


@dataclass(frozen=True)
class Module:
    """One compiled module that depends on a patched file."""

    name: str
    arch: str
    live: str
    """`nothing`, `upstream`, `patched` or `unowned`."""


@dataclass(frozen=True)
class Check:
    """One line of `doctor`."""

    status: str
    summary: str


@dataclass(frozen=True)
class Details:
    """What only a comparison of two nodes needs; None or empty where it was not collected."""

    measurement: Measurement | None = None
    modules: tuple[Module, ...] | None = None
    cache_notes: tuple[str, ...] = ()
    checks: Mapping[str, Check] = field(default_factory=dict)
    idle_flags: tuple[str, ...] = ()
    collected: tuple[str, ...] = ()
    """Commands whose answer is there."""


@dataclass(frozen=True)
class NodeFacts:
    """One node. Where `unknown` is not empty, it says why, and nothing else may be relied on."""

    name: str
    source: str
    """File that the facts are from, or empty."""
    unknown: str = ""
    groups: tuple[str, ...] = ()
    prefix: str = ""
    collected_at: datetime | None = None
    tool: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    sets: Mapping[str, SetFacts] = field(default_factory=dict)
    content: str = ""
    """`content` of status: digest of what the files of its sets hold, and of the versions."""
    code: str = ""
    """Digest of all that the packages hold, foreign edits too; empty when it cannot be told."""
    troubles: tuple[Trouble, ...] = ()
    more_troubles: int = 0
    """Findings beyond those that are kept."""
    host: HostFacts | None = None
    details: Details | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What tells one answer from another: a node may hold several environments."""
        return self.name, self.prefix
