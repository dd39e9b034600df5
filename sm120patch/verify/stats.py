"""Small statistics in plain Python: quantiles, a robust centre, Student's t. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache

_CLIP = 1.5  # pooled deviations beyond which a value counts as just that far out (Huber's k)
_ROUNDS = 3
_MAD = 1.4826  # median absolute deviation to standard deviation of a normal distribution
_FLOOR = 1e-9  # a measured zero is a collapse, not a missing value: keep it, on the log scale


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


def logs(values: Sequence[float]) -> list[float]:
    """Natural logarithms of the finite values; zero and less become a very small number."""
    return [math.log(max(value, _FLOOR)) for value in values if math.isfinite(value)]


def pooled_scale(groups: Sequence[Sequence[float]]) -> float:
    """Robust standard deviation inside groups that may have different centres; 0 without any.

    Deviations are taken from the median of each group. That is one of the values when their
    number is odd: its zero says nothing and is left out. An even number has two values that lie
    equally near to it, and nearer than to the true centre; the factors were found by simulation.
    """
    deviations: list[float] = []
    for group in groups:
        size = len(group)
        if size < 2:
            continue
        middle = statistics.median(group)
        factor = 1.0 if size % 2 else math.sqrt(2) if size == 2 else 1 + 1.6 / size
        found = sorted(abs(value - middle) for value in group)[size % 2 :]
        deviations += [value * factor for value in found]
    return _MAD * statistics.median(deviations) if deviations else 0.0


def centre(values: Sequence[float], scale: float) -> float:
    """Huber's centre: the mean of values that are clipped to a span around it.

    Nearly as efficient as the mean for well-behaved values, and one run that hit a stall pulls
    it no further than 1.5 deviations. `scale` is the deviation of one value, see `pooled_scale`.
    """
    found = statistics.median(values)
    for _ in range(_ROUNDS):
        low, high = found - _CLIP * scale, found + _CLIP * scale
        found = statistics.fmean(min(max(value, low), high) for value in values)
    return found


def student(tail: float, freedom: float) -> float:
    """Value that Student's t exceeds with probability `tail` (below one half); inf without freedom.

    By bisection on the exact distribution: the series expansions are far off where it matters
    here, at one or two degrees of freedom and one in a thousand.
    """
    if freedom <= 0:
        return math.inf
    if freedom > 1e5:
        return statistics.NormalDist().inv_cdf(1 - tail)
    return _student(tail, freedom)


@lru_cache(maxsize=1024)
def _student(tail: float, freedom: float) -> float:
    low, high = 0.0, 1.0
    while _beyond(high, freedom) > tail and high < 1e12:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        if _beyond(middle, freedom) > tail:
            low = middle
        else:
            high = middle
    return high


def _beyond(t: float, freedom: float) -> float:
    """Probability that Student's t exceeds `t` >= 0: half a regularised incomplete beta."""
    x = freedom / (freedom + t * t)
    a, b = freedom / 2, 0.5
    front = math.exp(
        math.lgamma(a + b)
        - math.lgamma(a)
        - math.lgamma(b)
        + (a * math.log(x) if x > 0 else -math.inf)
        + (b * math.log1p(-x) if x < 1 else -math.inf)
    )
    if x < (a + 1) / (a + b + 2):
        return 0.5 * front * _fraction(a, b, x) / a
    return 0.5 * (1 - front * _fraction(b, a, 1 - x) / b)


def _fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    found = d
    for m in range(1, 300):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            found *= d * c
        if abs(d * c - 1) < 1e-13:
            break
    return found
