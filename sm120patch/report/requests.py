"""How long single requests took in both arms: the share that was done within a time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sm120patch.recorded import items, number
from sm120patch.report.measured import ARMS, Measured
from sm120patch.report.scales import Axis, Tick, axis

_LEFT, _RIGHT, _TOP, _BASE = 96.0, 700.0, 12.0, 120.0
_STEPS = 100
_FIGURES = (
    ("latency_ms", "time for a whole request, ms"),
    ("ttft_ms", "time to first token, ms"),
    ("tpot_ms", "time per output token, ms"),
)


@dataclass(frozen=True)
class Share:
    """One arm: the share of requests (upward) that took at most a time (to the right)."""

    arm: str
    points: str
    """As the `points` of an SVG polyline."""
    words: str


@dataclass(frozen=True)
class RequestChart:
    """One figure of all single requests that were kept."""

    caption: str
    height: float
    base: float
    shares: tuple[Share, ...]
    times: tuple[Tick, ...]
    ticks: tuple[Tick, ...]


def request_charts(workload: Measured) -> tuple[RequestChart, ...]:
    """A chart for each figure that both arms have; none where no single requests were kept."""
    charts = []
    for name, caption in _FIGURES:
        values = {arm: sorted(_values(workload, arm, name)) for arm in ARMS}
        if all(len(found) > 1 for found in values.values()):
            charts.append(_chart(caption, values))
    return tuple(charts)


def _values(workload: Measured, arm: str, name: str) -> list[float]:
    cells = (
        cell for p in workload.points if p.arm == arm for cell in items(p.samples, name)[:1000]
    )
    return [value for cell in cells if (value := number(cell)) is not None and value >= 0]


def _chart(caption: str, values: dict[str, list[float]]) -> RequestChart:
    # The slowest hundredth would squeeze all others into a corner.
    shown = [v for found in values.values() for v in found[: max(2, round(len(found) * 0.99))]]
    times = axis(shown, _LEFT, _RIGHT)
    shares = Axis(0.0, 100.0, _BASE, _TOP)
    lines = tuple(
        Share(arm, _points(found, times, shares), _words(arm, found))
        for arm, found in values.items()
    )
    return RequestChart(
        caption, _BASE + 24, _BASE, lines, times.ticks(), shares.ticks(4, percent=False)
    )


def _points(found: Sequence[float], times: Axis, shares: Axis) -> str:
    places = []
    for step in range(_STEPS + 1):
        value = found[round(step / _STEPS * (len(found) - 1))]
        if value > times.high:
            break
        places.append(f"{times.at(value)},{shares.at(100.0 * step / _STEPS)}")
    return " ".join(places)


def _words(arm: str, found: Sequence[float]) -> str:
    half, most = found[len(found) // 2], found[round(0.95 * (len(found) - 1))]
    return f"{arm}: half within {half:.1f} ms, 95 % within {most:.1f} ms, {len(found)} requests"
