"""Watts of the GPUs in both arms, from telemetry or as a simulated host declares them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sm120patch.report.facts import Record, number, records
from sm120patch.report.measured import ARMS
from sm120patch.report.scales import Tick, axis

_LEFT, _RIGHT = 96.0, 700.0


@dataclass(frozen=True)
class Bar:
    """Watts of one arm, all GPUs together."""

    arm: str
    y: float
    width: float
    words: str


@dataclass(frozen=True)
class PowerChart:
    """Power of both arms."""

    height: float
    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    source: str


def power_chart(data: Record) -> PowerChart | None:
    """Chart of the power drawn; None when nobody measured or declared it."""
    watts = {arm: _declared(data, arm) for arm in ARMS}
    known = {arm: value for arm, value in watts.items() if value is not None}
    if not known:
        return None
    scale = axis(list(known.values()), _LEFT, _RIGHT, zero=True)
    bars = tuple(
        Bar(arm, 8 + 30.0 * index, round(scale.at(value) - _LEFT, 1), f"{arm}: {value:.0f} W")
        for index, (arm, value) in enumerate(known.items())
    )
    return PowerChart(8 + 30 * len(bars) + 22, bars, scale.ticks(), "declared by the server")


def _declared(data: Record, arm: str) -> float | None:
    gpus = records(data, "arms", arm, "server_info", "gpus")
    watts = [number(gpu, "power_watts") for gpu in gpus]
    known = [value for value in watts if value is not None]
    return sum(known) if known else None
