"""Bootstrap interval of a throughput ratio, and the small statistics around it. Pure."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Blocks = Sequence[Sequence[float]]
"""Measurements of one arm: one inner sequence of repeats per server start (block)."""

CONFIDENCE = 0.90
"""Two-sided: each bound alone is wrong in about one case of twenty."""
DRAWS = 2000
_FLOOR = 1e-9  # a measured zero is a collapse, not a missing value: keep it, on the log scale


@dataclass(frozen=True)
class Interval:
    """Ratio patched / baseline with its bounds; without enough data the bounds are 0 and inf."""

    ratio: float
    low: float
    high: float
    confidence: float
    unit: str
    """What was resampled: `block`, `repeat`, or `none` when there is no spread to look at."""

    @property
    def bounded(self) -> bool:
        """True when the data gave bounds at all."""
        return math.isfinite(self.high) and math.isfinite(self.ratio)

    def as_dict(self) -> dict[str, object]:
        """JSON-ready form; an unbounded or unknown number is null."""
        numbers = {"ratio": self.ratio, "low": self.low, "high": self.high}
        return {
            **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            "confidence": self.confidence,
            "unit": self.unit,
        }


def ratio_interval(
    baseline: Blocks,
    patched: Blocks,
    *,
    seed: int = 0,
    confidence: float = CONFIDENCE,
    draws: int = DRAWS,
) -> Interval:
    """Percentile bootstrap of the ratio of geometric means, patched over baseline.

    The server start is the unit where both arms have two or more: blocks are resampled, then
    repeats inside them, because repeats of one start share its luck. With fewer starts the
    repeats are the unit, which says nothing about restarts. A bootstrap over a handful of
    units is too sure of itself; two standard corrections make up for it: deviations are
    widened by sqrt(n / (n - 1)), the bounds by Student's t over the normal quantile. The
    tests measure that the nominal confidence holds from two starts an arm on. Swapping the
    arms inverts the interval exactly. Values that are not finite are left out.
    """
    arms = [_logs(baseline), _logs(patched)]
    if not (arms[0] and arms[1]):
        return Interval(math.nan, 0.0, math.inf, confidence, "none")
    unit = "block" if min(map(len, arms)) >= 2 else "repeat"
    if unit == "repeat":
        arms = [[[value] for block in arm for value in block] for arm in arms]
    point = _centre(arms[1]) - _centre(arms[0])
    if min(map(len, arms)) < 2:
        return Interval(_exp(point), 0.0, math.inf, confidence, "none")
    # Either arm uses either random stream once: swapping the arms then mirrors every draw.
    differences = sorted(
        b - a
        for first, second in ((0, 1), (1, 0))
        for a, b in zip(
            _resample(arms[0], random.Random(f"{seed}/{first}"), draws // 2),
            _resample(arms[1], random.Random(f"{seed}/{second}"), draws // 2),
            strict=True,
        )
    )
    cut = int((1 - confidence) / 2 * (len(differences) - 1))
    widen = _student(confidence, sum(map(len, arms)) - 2)
    low = point + widen * (differences[cut] - point)
    high = point + widen * (differences[-1 - cut] - point)
    return Interval(_exp(point), _exp(low), _exp(high), confidence, unit)


def units_needed(interval: Interval, threshold: float, units: int) -> int | None:
    """Roughly how many units an arm would bring the bounds off `threshold`.

    Assumes that the width shrinks with the square root of the number of units. None when the
    estimate sits so close to the threshold that no reasonable number would decide.
    """
    if not interval.bounded or interval.low <= 0:
        return max(2 * units, 2)
    distance = abs(math.log(interval.ratio / threshold))
    half_width = math.log(interval.high / interval.low) / 2
    if distance == 0 or (factor := (half_width / distance) ** 2) > 16:
        return None
    return max(units + 1, math.ceil(units * factor))


def median(values: Sequence[float]) -> float:
    """Median; NaN of nothing."""
    return statistics.median(values) if values else math.nan


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Sample standard deviation over mean; NaN where it is not defined."""
    if len(values) < 2 or not (mean := statistics.fmean(values)):
        return math.nan
    return statistics.stdev(values) / mean


def percentile(values: Sequence[float], percent: float) -> float:
    """Percentile with linear interpolation (numpy's default); 0 of nothing, as bench_serving."""
    if not values:
        return 0.0
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _logs(blocks: Blocks) -> list[list[float]]:
    logs = [[math.log(max(v, _FLOOR)) for v in block if math.isfinite(v)] for block in blocks]
    return [block for block in logs if block]


def _centre(blocks: Sequence[Sequence[float]]) -> float:
    return statistics.fmean(statistics.fmean(block) for block in blocks)


def _resample(blocks: list[list[float]], rng: random.Random, draws: int) -> list[float]:
    means = [statistics.fmean(block) for block in blocks]
    count = len(blocks)
    centre = statistics.fmean(means)
    widen = math.sqrt(count / (count - 1))
    results = []
    for _ in range(draws):
        total = 0.0
        for _ in range(count):
            index = rng.randrange(count)
            block = blocks[index]
            inner = sum(rng.choices(block, k=len(block))) / len(block) - means[index]
            total += widen * (means[index] - centre) + inner
        results.append(centre + total / count)
    return results


def _student(confidence: float, freedom: int) -> float:
    """Quantile of Student's t over that of the normal distribution, by Fisher's expansion."""
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return (z + first + second + third) / z


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))
