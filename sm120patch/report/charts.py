"""Geometry of the charts: values in, places in a drawing of 720 units width out. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sm120patch.recorded import Record, items, number
from sm120patch.report.measured import ARMS, Measured, Point, measured
from sm120patch.report.scales import Axis, Tick, axis

WIDTH = 720.0
_LEFT, _RIGHT = 96.0, 700.0
_ROW = 34.0
_WIDEST = 4.0  # a ratio: bounds beyond it only say that nothing is known
_WINDOWS = 200
_MOST = 4000  # marks of one chart: a page is for reading, and a record may hold anything


@dataclass(frozen=True)
class Row:
    """One workload of the effect chart; `low` and `high` are None without an interval."""

    label: str
    y: float
    ratio: float
    low: float | None
    high: float | None
    sure: tuple[float, float] | None
    words: str


@dataclass(frozen=True)
class EffectChart:
    """Every workload's change in percent, with the band that the margin allows."""

    height: float
    zero: float
    limit: float
    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]


@dataclass(frozen=True)
class Mark:
    """One measured repeat."""

    x: float
    y: float
    arm: str
    words: str


@dataclass(frozen=True)
class Box:
    """Quartiles of one arm; without enough values only the median."""

    arm: str
    y: float
    median: float
    low: float | None
    high: float | None
    words: str


@dataclass(frozen=True)
class SpreadChart:
    """Both arms of one workload on one axis of tokens per second."""

    height: float
    boxes: tuple[Box, ...]
    marks: tuple[Mark, ...]
    ticks: tuple[Tick, ...]


@dataclass(frozen=True)
class Span:
    """One repeat on the axis of time; `course` are the points of a polyline, or empty."""

    x: float
    width: float
    y: float
    arm: str
    course: str
    words: str


@dataclass(frozen=True)
class Start:
    """One server start, or block, on the axis of time."""

    x: float
    width: float
    arm: str
    label: str


@dataclass(frozen=True)
class TimeChart:
    """Throughput of one workload in the order measured."""

    height: float
    base: float
    starts: tuple[Start, ...]
    spans: tuple[Span, ...]
    ticks: tuple[Tick, ...]


def effect_chart(workloads: Sequence[Measured], margin: float) -> EffectChart | None:
    """Forest of the effects; None when no workload has one."""
    known = [(w, w.effect) for w in workloads if w.effect is not None]
    if not known:
        return None
    shown = [
        _percent(v)
        for _, e in known
        for v in (e.ratio, e.low, e.high, *(e.sure or ()))
        if v is not None and v < _WIDEST
    ]
    scale = axis([*shown, 0.0, -100 * margin], _LEFT, _RIGHT)
    rows = []
    for index, (workload, effect) in enumerate(known):
        low, high = (
            None if b is None else scale.at(_percent(b)) for b in (effect.low, effect.high)
        )
        rows.append(
            Row(
                workload.name, 18 + index * _ROW, scale.at(_percent(effect.ratio)), low, high,
                None if effect.sure is None else _both(scale, effect.sure),
                effect_words(workload),
            )
        )  # fmt: skip
    height = 18 + len(rows) * _ROW + 22
    limit = scale.at(-100 * margin)
    return EffectChart(height, scale.at(0.0), limit, tuple(rows), scale.ticks(percent=True))


def _both(scale: Axis, bounds: tuple[float, float]) -> tuple[float, float]:
    return scale.at(_percent(bounds[0])), scale.at(_percent(bounds[1]))


def effect_words(workload: Measured) -> str:
    """`c64: +4.9 % (+3.8 % to +6.1 %)`."""
    effect = workload.effect
    if effect is None:
        return f"{workload.name}: not measured in both arms"
    words = f"{workload.name}: {_percent(effect.ratio):+.1f} %"
    if effect.low is None or effect.high is None:
        return words + " (no interval)"
    words += f" ({_percent(effect.low):+.1f} % to {_percent(effect.high):+.1f} %)"
    if effect.smallest is not None and effect.smallest > 1:
        words += "; even an effect of 100% need not have been seen"
    elif effect.smallest is not None:
        words += f"; an effect of {effect.smallest:.1%} would have been seen"
    return words


def effects_text(data: Record) -> str:
    """Effects of all workloads of an evidence in one line; empty when there are none."""
    return "; ".join(effect_words(w) for w in measured(data) if w.effect is not None)


def spread_chart(workload: Measured) -> SpreadChart | None:
    """Strip of all repeats with quartiles; None when nothing was measured."""
    points = workload.points[:_MOST]
    if not points:
        return None
    scale = axis([p.value for p in points], _LEFT, _RIGHT)
    lines = {arm: 22 + 44.0 * index for index, arm in enumerate(ARMS)}
    marks = tuple(
        Mark(scale.at(p.value), lines[p.arm] + _aside(p), p.arm, _point_words(p)) for p in points
    )
    boxes = tuple(
        _box(arm, workload.values(arm), lines[arm], scale) for arm in ARMS if workload.values(arm)
    )
    return SpreadChart(22 + 44 * len(ARMS) + 14, boxes, marks, scale.ticks())


def time_chart(workload: Measured) -> TimeChart | None:
    """Repeats one after the other; the time between server starts is left out."""
    points = workload.points[:_MOST]
    if not points:
        return None
    base, top = 150.0, 22.0
    courses = [_course(p) for p in points]
    # Peaks of single moments may stand out; the axis is for the repeats.
    most = 1.5 * max(p.value for p in points)
    shown = [p.value for p in points] + [r for c in courses for r in c if r <= most]
    values = axis(shown, base, top, zero=True)
    # A repeat whose duration nobody knows is as wide as a usual one.
    usual = statistics.median(p.seconds for p in points) or 1.0
    widths = [p.seconds or usual for p in points]
    scale = Axis(0.0, sum(widths), _LEFT, _RIGHT)
    spans, at = [], 0.0
    for point, width, course in zip(points, widths, courses, strict=True):
        x = scale.at(at)
        at += width
        wide = round(scale.at(at) - x, 1)
        step = wide / len(course) if course else 0.0
        line = " ".join(
            f"{x + (n + 0.5) * step:.1f},{values.at(rate)}" for n, rate in enumerate(course)
        )
        y, words = values.at(point.value), _point_words(point)
        spans.append(Span(x, wide, y, point.arm, line, words))
    starts = _starts(points, spans)
    return TimeChart(base + 26, base, starts, tuple(spans), values.ticks(5))


def _course(point: Point) -> list[float]:
    """Tokens per second from window to window of a repeat."""
    rates = items(point.samples, "course", "tok_s")[:_WINDOWS]
    return [rate for cell in rates if (rate := number(cell)) is not None and rate >= 0]


def _starts(points: Sequence[Point], spans: Sequence[Span]) -> tuple[Start, ...]:
    found: dict[int, list[Span]] = {}
    for point, span in zip(points, spans, strict=True):
        found.setdefault(point.block, []).append(span)
    return tuple(
        Start(own[0].x, round(own[-1].x + own[-1].width - own[0].x, 1), own[0].arm,
              "A" if own[0].arm == ARMS[0] else "B")
        for own in found.values()
    )  # fmt: skip


def _box(arm: str, values: Sequence[float], y: float, scale: Axis) -> Box:
    middle = statistics.median(values)
    words = f"{arm}: median {middle:.1f} tok/s of {len(values)} repeats"
    if len(values) < 4:
        return Box(arm, y, scale.at(middle), None, None, words)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    words += f", quartiles {low:.1f} and {high:.1f}"
    return Box(arm, y, scale.at(middle), scale.at(low), scale.at(high), words)


def _aside(point: Point) -> float:
    """Keeps equal values apart: server starts alternate around the line."""
    return (-6.0, 6.0, -2.5, 2.5)[(point.block // 2 + point.repeat) % 4]


def _point_words(point: Point) -> str:
    return (
        f"{point.arm}, server start {point.block}, repeat {point.repeat}: {point.value:.1f} tok/s"
    )


def _percent(ratio: float) -> float:
    return (ratio - 1) * 100
