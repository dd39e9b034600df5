"""Axes of the charts: where a value lies, and which round values are marked. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tick:
    """A marked value of an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Axis:
    """A linear axis from `low` at `start` to `high` at `end` (in units of the drawing)."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Place of a value, inside the axis whatever the value."""
        share = (value - self.low) / (self.high - self.low)
        place = self.start + min(1.0, max(0.0, share)) * (self.end - self.start)
        return round(place, 1)

    def ticks(self, most: int = 6, *, percent: bool = False) -> tuple[Tick, ...]:
        """At most `most` round values; as signed percentages of a change when `percent`."""
        step = _round_up((self.high - self.low) / max(most, 1))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return tuple(
            Tick(self.at(n * step), _label(n * step, step, percent=percent))
            for n in range(first, last + 1)
        )


def axis(values: Sequence[float], start: float, end: float, *, zero: bool = False) -> Axis:
    """Axis that holds all values with a little room; from 0 on when `zero`."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low = min(low, 0.0) if zero else low
    room = (high - low) * 0.06 or max(abs(high) * 0.05, 1e-6)
    return Axis(low if zero and low == 0 else low - room, high + room, start, end)


def _round_up(step: float) -> float:
    """Smallest of 1, 2, 5 times a power of ten that is not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * (1 - 1e-9))


def _label(value: float, step: float, *, percent: bool) -> str:
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    shown = f"{value + 0.0:.{decimals}f}"
    if not percent:
        return shown
    return f"{value:+.{decimals}f} %" if float(shown) else "0 %"
