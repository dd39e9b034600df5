"""Why is one node slower than another: what differs, the most probable reason first. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sm120patch.fleet.node import Details, Level, Measurement, NodeFacts
from sm120patch.fleet.reasons import Reason, reasons
from sm120patch.fleet.words import age_words
from sm120patch.verify import effect

NOT_COLLECTED = "not collected"


@dataclass(frozen=True)
class Speed:
    """One workload that both nodes have measured alike."""

    workload: str
    one: float
    """Output tokens per second, mean over all repeats."""
    other: float
    interval: effect.Interval
    """Ratio of the other node over the one."""
    kind: str
    """Kind of the evidence that both figures are from; only `real` ones are of GPUs."""

    @property
    def beyond_noise(self) -> bool:
        """The wider interval leaves no difference out."""
        low, high = self.interval.sure_low, self.interval.sure_high
        return self.interval.bounded and not low <= 1 <= high


@dataclass(frozen=True)
class Comparison:
    """What the facts say about two nodes; `reasons` begin with the most probable one."""

    one: NodeFacts
    other: NodeFacts
    speeds: tuple[Speed, ...]
    not_compared: tuple[str, ...]
    """Measured levels that say nothing about each other, and why."""
    slower: str
    """Name of the node that is slower beyond noise; empty: none, or it depends on the load."""
    reasons: tuple[Reason, ...]
    missing: tuple[str, ...]
    """What was not collected, so that it may still be the reason."""

    @property
    def kind(self) -> str:
        """Kind of the figures; empty where there are none."""
        return self.speeds[0].kind if self.speeds else ""

    @property
    def unknown(self) -> bool:
        """At least one of the nodes is unknown, and nothing was compared."""
        return bool(self.one.unknown or self.other.unknown)


def compare(one: NodeFacts, other: NodeFacts) -> Comparison:
    """Compare two nodes whose facts were read `deep`."""
    if one.unknown or other.unknown:
        return Comparison(one, other, (), (), "", (), ())
    mine, theirs = one.details or Details(), other.details or Details()
    speeds, not_compared = _speeds(mine.measurement, theirs.measurement)
    slower = _slower(one.name, other.name, speeds)
    found = list(reasons(one, other))
    # A reason that speaks against the slower node comes before all that speak against the other.
    found.sort(key=lambda r: (bool(slower and r.slower) and r.slower != slower, r.rank))
    return Comparison(
        one, other, speeds, not_compared, slower, tuple(found), tuple(_missing(one, other))
    )


# --- how fast -----------------------------------------------------------------------------------


def _speeds(
    one: Measurement | None, other: Measurement | None
) -> tuple[tuple[Speed, ...], tuple[str, ...]]:
    if one is None and other is None:
        return (), ("neither node has a measurement with figures",)
    if one is None or other is None:
        return (), ("one of the nodes has no measurement with figures",)
    if one.kind != other.kind:
        return (), (f"one measurement is {one.kind}, the other {other.kind}",)
    theirs = {level.workload: level for level in other.levels}
    pairs = [(level, theirs[level.workload]) for level in one.levels if level.workload in theirs]
    alike = [pair for pair in pairs if _alike(*pair)]
    reasons = [f"{a.workload}: not the same load ({a.shape}, {a.client}; {b.shape}, {b.client})"
               for a, b in pairs if not _alike(a, b)]  # fmt: skip
    if not pairs:
        reasons.append("no workload was measured on both")
    return tuple(_speed(a, b, len(alike), one.kind) for a, b in alike), tuple(reasons)


def _alike(one: Level, other: Level) -> bool:
    return (one.shape, one.client) == (other.shape, other.client)


def _speed(one: Level, other: Level, workloads: int, kind: str) -> Speed:
    # Equal positions: a drift over the starts of one host says nothing about the other.
    starts = [
        effect.Start(patched, 0, values)
        for patched, level in ((False, one), (True, other))
        for values in level.starts
    ]
    interval = effect.interval(starts, effect.Look(workloads=workloads), _floor(one, other))
    return Speed(one.workload, _mean(one), _mean(other), interval, kind)


def _floor(one: Level, other: Level) -> effect.Floor | None:
    """Noise of both hosts that was known before they were measured; the larger of the two."""
    known = [effect.Floor(*level.floor, "recorded") for level in (one, other) if level.floor]
    return max(known, key=lambda floor: floor.sd) if len(known) == 2 else None


def _mean(level: Level) -> float:
    values = [value for start in level.starts for value in start]
    return sum(values) / len(values)


def _slower(one: str, other: str, speeds: tuple[Speed, ...]) -> str:
    found = {other if s.interval.ratio < 1 else one for s in speeds if s.beyond_noise}
    return found.pop() if len(found) == 1 else ""


def _missing(one: NodeFacts, other: NodeFacts) -> Iterator[str]:
    for node in (one, other):
        collected = node.details.collected if node.details is not None else ()
        absent = [c for c in ("doctor", "history", "caches") if c not in collected]
        if absent:
            yield f"{node.name}: {', '.join(absent)} {NOT_COLLECTED}"
        found = node.details.measurement if node.details is not None else None
        if found is not None and not found.current:
            yield f"{node.name}: its newest measurement is not of what is on disk now"
    if one.collected_at is not None and other.collected_at is not None:
        apart = abs(one.collected_at - other.collected_at)
        if apart.total_seconds() > 3600:
            yield f"the facts were gathered {age_words(apart)} apart"
