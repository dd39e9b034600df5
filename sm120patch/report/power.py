"""What the GPUs did in both arms: power over time, clocks, load, throttling, memory. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sm120patch.recorded import Record, items, number, record, records, text
from sm120patch.report.measured import ARMS, blocks_of
from sm120patch.report.scales import Axis, Tick, axis

_LEFT, _RIGHT, _TOP, _BASE = 96.0, 700.0, 22.0, 150.0
_MOST = 2000  # points of one line
_ROWS = (
    ("power_w", "power of all GPUs, W", 1.0, True),
    ("sm_mhz", "SM clock, MHz", 1.0, False),
    ("util", "load, %", 1.0, False),
    ("temp_c", "temperature, °C", 1.0, False),
    ("mem_bytes", "memory of all GPUs, GiB", 2.0**-30, True),
)


@dataclass(frozen=True)
class Bar:
    """Watts of one arm, all GPUs together."""

    arm: str
    y: float
    width: float
    words: str


@dataclass(frozen=True)
class Curve:
    """Watts of all GPUs over one server start."""

    arm: str
    points: str
    """As the `points` of an SVG polyline."""
    words: str


@dataclass(frozen=True)
class PowerChart:
    """Power of both arms: one bar each, or one curve a server start where it was sampled."""

    height: float
    bars: tuple[Bar, ...]
    curves: tuple[Curve, ...]
    ticks: tuple[Tick, ...]
    times: tuple[Tick, ...]
    base: float
    source: str


@dataclass(frozen=True)
class GpuRow:
    """One figure of the GPUs, the mean over the server starts of each arm, in words."""

    name: str
    baseline: str
    patched: str


def power_chart(data: Record) -> PowerChart | None:
    """Chart of the power drawn; None when nobody measured or declared it."""
    watts = {arm: _watts(data, arm) for arm in ARMS}
    known = {arm: value for arm, value in watts.items() if value is not None}
    if not known:
        return None
    source = _source(data)
    curves = _series(data)
    if curves:
        return _curves(curves, source)
    scale = axis(list(known.values()), _LEFT, _RIGHT, zero=True)
    bars = tuple(
        Bar(arm, 8 + 30.0 * index, round(scale.at(value) - _LEFT, 1), f"{arm}: {value:.0f} W")
        for index, (arm, value) in enumerate(known.items())
    )
    height = 8 + 30 * len(bars) + 22
    return PowerChart(height, bars, (), scale.ticks(), (), height - 20, source)


def gpu_rows(data: Record) -> tuple[GpuRow, ...]:
    """Figures of the GPUs in both arms, those that nobody recorded left out."""
    rows = []
    for name, words, factor, together in _ROWS:
        values = [_figure(data, arm, name, together) for arm in ARMS]
        if any(value is not None for value in values):
            shown = ["-" if value is None else f"{value * factor:.0f}" for value in values]
            rows.append(GpuRow(words, shown[0], shown[1]))
    throttled = [_throttled(data, arm) for arm in ARMS]
    if any(throttled):
        rows.append(GpuRow("throttled, share of readings", *(t or "never" for t in throttled)))
    return tuple(rows)


def _telemetry(data: Record, arm: str) -> list[Record]:
    return [record(block, "telemetry") for _, name, block in blocks_of(data) if name == arm]


def _source(data: Record) -> str:
    found = {text(t, "source") for arm in ARMS for t in _telemetry(data, arm)}
    if "nvml" in found:
        return "read from the driver while it was measured"
    return "declared by the server"


def _watts(data: Record, arm: str) -> float | None:
    measured = _figure(data, arm, "power_w", together=True)
    if measured is not None:
        return measured
    # Evidence of the first releases has only what a simulated server declares.
    gpus = records(data, "arms", arm, "server_info", "gpus")
    known = [w for gpu in gpus if (w := number(gpu, "power_watts")) is not None]
    return sum(known) if known else None


def _figure(data: Record, arm: str, name: str, together: bool) -> float | None:
    """Mean over the server starts; summed over the GPUs when `together`, else their mean."""
    found = []
    for telemetry in _telemetry(data, arm):
        values = [number(gpu, name, "mean") for gpu in records(telemetry, "gpus")]
        known = [value for value in values if value is not None]
        if known:
            found.append(sum(known) if together else statistics.fmean(known))
    return statistics.fmean(found) if found else None


def _throttled(data: Record, arm: str) -> str:
    worst: dict[str, float] = {}
    for telemetry in _telemetry(data, arm):
        for gpu in records(telemetry, "gpus"):
            for reason in record(gpu, "throttled"):
                share = number(gpu, "throttled", reason) or 0.0
                worst[reason] = max(share, worst.get(reason, 0.0))
    return ", ".join(f"{reason} {share:.0%}" for reason, share in sorted(worst.items()) if share)


def _series(data: Record) -> list[tuple[str, int, list[tuple[float, float]]]]:
    """(arm, number of the start, (seconds, watts of all GPUs)) for every start that has them."""
    found = []
    for number_, arm, block in blocks_of(data):
        times = items(block, "telemetry", "series", "t")
        lists = items(block, "telemetry", "series", "power_w")
        columns = [column for column in lists if isinstance(column, list)]
        line = []
        for index, moment in enumerate(times[:_MOST]):
            at = number(moment)
            values = [number(c[index]) for c in columns if index < len(c)]
            known = [value for value in values if value is not None]
            if at is not None and known:
                line.append((at, sum(known)))
        if len(line) > 1:
            found.append((arm, number_, line))
    return found


def _curves(found: Sequence[tuple[str, int, list[tuple[float, float]]]], source: str) -> PowerChart:
    watts = axis([w for _, _, line in found for _, w in line], _BASE, _TOP, zero=True)
    moments = [at for _, _, line in found for at, _ in line]
    low, high = min(moments), max(moments)
    seconds = Axis(low, high if high > low else low + 1.0, _LEFT, _RIGHT)
    curves = tuple(
        Curve(
            arm,
            " ".join(f"{seconds.at(at)},{watts.at(value)}" for at, value in line),
            f"{arm}, server start {start}: {statistics.fmean(w for _, w in line):.0f} W on average",
        )
        for arm, start, line in found
    )
    return PowerChart(_BASE + 26, (), curves, watts.ticks(5), seconds.ticks(8), _BASE, source)
