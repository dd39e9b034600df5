"""What one evidence says about each workload, arm by arm and in the order measured. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sm120patch.recorded import Record, items, number, record, records, text

ARMS = ("baseline", "patched")
METRIC = "output_throughput"


@dataclass(frozen=True)
class Point:
    """One measured repeat."""

    arm: str
    block: int
    """Server start it belongs to, counted from 1 over both arms."""
    repeat: int
    value: float
    """Output tokens per second."""
    seconds: float
    figures: Mapping[str, object]
    samples: Mapping[str, object]
    """Columns of single requests, where they were kept."""


@dataclass(frozen=True)
class Effect:
    """Ratio patched over baseline as decided on; bounds are None where there are none."""

    ratio: float
    low: float | None
    high: float | None
    confidence: float | None
    sure: tuple[float, float] | None
    """Bounds of the wider interval that decides whether there is a difference at all."""
    noise: float | None
    """Spread between equal starts, as a fraction."""
    smallest: float | None
    """The smallest effect that the run would have seen, as a fraction."""


@dataclass(frozen=True)
class Measured:
    """All repeats of one workload."""

    name: str
    shape: str
    """Tokens in and out, concurrency, requests, in words."""
    points: tuple[Point, ...]
    effect: Effect | None

    def values(self, arm: str) -> list[float]:
        """Throughput of every repeat of an arm."""
        return [point.value for point in self.points if point.arm == arm]

    def median(self, arm: str) -> float | None:
        """Median throughput of an arm; None when nothing was measured."""
        values = self.values(arm)
        return statistics.median(values) if values else None

    def figure(self, arm: str, name: str) -> float | None:
        """Median over the repeats of an arm of another recorded figure."""
        found = [number(p.figures, name) for p in self.points if p.arm == arm]
        known = [value for value in found if value is not None]
        return statistics.median(known) if known else None


def measured(data: Record) -> tuple[Measured, ...]:
    """Workloads of an evidence in the order of its profile, those without figures included."""
    shapes = {text(w, "name"): _shape(w) for w in records(data, "workloads")}
    blocks = list(blocks_of(data))
    found = {name for _, _, block in blocks for name in record(block, "workloads")}
    names = [*shapes, *sorted(found - set(shapes))]
    effects = record(data, "intervals")
    return tuple(
        Measured(name, shapes.get(name, ""), tuple(_points(blocks, name)), _effect(effects, name))
        for name in names
    )


def block_order(data: Record) -> list[str]:
    """Arm of every server start that was measured, in the order in which they ran."""
    return [arm for _, arm, _ in blocks_of(data)]


def blocks_of(data: Record) -> Iterator[tuple[int, str, Record]]:
    """Number, arm and content of the server starts; each arm lists its own, in order."""
    left = {arm: records(data, "arms", arm, "blocks") for arm in ARMS}
    order = [text(arm) for arm in items(data, "blocks_run")]
    # A record that does not say the order is read one arm after the other.
    order += [arm for arm in ARMS for _ in range(len(left[arm]) - order.count(arm))]
    number_ = 0
    for arm in order:
        if left.get(arm):
            number_ += 1
            yield number_, arm, left[arm].pop(0)


def _points(blocks: list[tuple[int, str, Record]], name: str) -> Iterator[Point]:
    for block, arm, content in blocks:
        samples = items(content, "samples", name)
        for repeat, figures in enumerate(records(content, "workloads", name), start=1):
            value = number(figures, METRIC)
            kept = record(samples[repeat - 1]) if repeat <= len(samples) else {}
            if value is not None:
                seconds = max(number(figures, "duration") or 0.0, 0.0)
                yield Point(arm, block, repeat, max(value, 0.0), seconds, figures, kept)


def _effect(effects: Record, name: str) -> Effect | None:
    ratio = number(effects, name, "ratio")
    if ratio is None:
        return None
    low, high = number(effects, name, "low"), number(effects, name, "high")
    # Without a bound above, the one below is no bound either: it says "nothing is known".
    bounded = low is not None and high is not None
    sure_low, sure_high = (number(effects, name, f"sure_{side}") for side in ("low", "high"))
    known = bounded and sure_low is not None and sure_high is not None
    return Effect(
        ratio,
        low if bounded else None,
        high if bounded else None,
        number(effects, name, "confidence"),
        (sure_low or 0.0, sure_high or 0.0) if known else None,
        number(effects, name, "noise"),
        number(effects, name, "smallest_effect"),
    )


def _shape(workload: Record) -> str:
    known = {key: text(workload, key) or "?" for key in
             ("input_len", "output_len", "concurrency", "prompts")}  # fmt: skip
    return (
        f"{known['input_len']} tokens in, {known['output_len']} out, "
        f"{known['concurrency']} at a time, {known['prompts']} requests a repeat"
    )
