"""How much faster the patched server is, with what certainty, judged by its starts. Pure.

The server start is the unit: runs inside one share its luck. A start's level is Huber's centre
of the logarithms of its runs. The effect is the difference of the arms in a least-squares fit of
the levels, with a straight drift over the starts once there are six of them; its error comes from
what the fit leaves over, pooled with a noise floor where one is known. Two intervals are drawn:

- `low..high`, 90 %: what decides about the margin;
- `sure_low..sure_high`, 99 %, corrected for the number of workloads: what decides whether there
  is a difference at all.

Both hold although the run looks at them after every pair of starts and stops when they are clear:
the looks share the permitted error equally. Where even that little is not known, a bound on what
equal starts have ever been seen to differ by (`ROUGH`) decides about effects that are far beyond
it. `benchmarks/verdict_rates.py` measures the error rates of all this.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sm120patch.verify.stats import centre, logs, pooled_scale, student

CONFIDENCE = 0.90
SURE = 0.99
ROUGH = 0.15
"""Standard deviation between equal starts that the bound allows for. The largest recorded are 13 %,
of clean suites on one host that were 20 % apart, and 16 % where one of five equal starts on a GPU
was slow (docs/gpu-results.md). With `_ROUGH_Z` two equal starts may be 1.85 times apart; those were
1.5 times."""
_ROUGH_Z = 2.9
_ROUGH_RUNS = 0.25  # between single runs where there is only one a start: 23 % were recorded
_TREND_FROM = 6  # starts; with fewer a drift cannot be told from noise
_FLOOR_WEIGHT = 2.0  # a floor counts for at most so many times the degrees of freedom of this run
_FLOOR_FITS = 2.5  # times the variance of the floor: beyond that it is not this noise any more
_POWER_TAIL = 0.2  # the smallest effect that would have been seen in four runs of five
KNOWN = 1e6
"""Degrees of freedom of a floor that is declared, not measured."""


@dataclass(frozen=True)
class Start:
    """The runs of one workload after one server start."""

    patched: bool
    position: int
    """Which start of the verification it was: the time axis of the drift."""
    values: tuple[float, ...]
    """Output throughput of every run that counts."""


@dataclass(frozen=True)
class Floor:
    """Standard deviation of the logarithm of a start's level on this host, for one workload."""

    sd: float
    df: float
    """Degrees of freedom behind it; `KNOWN` for a declared one."""
    source: str
    """`recorded` by earlier verifications or `declared` by a simulated host."""


@dataclass(frozen=True)
class Look:
    """Which of how many looks at the data this is, and at how many workloads."""

    number: int = 1
    """0: a look before its time, for which only effects beyond all known noise count."""
    looks: int = 1
    workloads: int = 1

    @property
    def margin_tail(self) -> float:
        """Error permitted to either bound of the 90 % interval at this look."""
        return (1 - CONFIDENCE) / 2 / self.looks

    @property
    def sure_tail(self) -> float:
        """Error permitted to either bound of the 99 % interval at this look and workload."""
        return (1 - SURE) / 2 / self.looks / self.workloads


@dataclass(frozen=True)
class Interval:
    """Ratio patched / baseline with its bounds; without enough data the bounds are 0 and inf."""

    ratio: float
    low: float
    high: float
    confidence: float = CONFIDENCE
    unit: str = "start"
    """`start`; `bound` when only the bound on all known noise was used, `course` when that was of
    the first seconds of a repeat; `none` without data."""
    sure: tuple[float, float] | None = None
    """The same at 99 %; None: `low` and `high` hold for it as well."""
    smallest: float = math.nan
    """Smallest effect that this run would have told from none, as a fraction."""
    noise: float = math.nan
    """Standard deviation between equal starts, as a fraction."""
    error: float = math.nan
    """Standard error of the logarithm of the ratio."""
    rough: float = math.inf
    """Half width, on the log scale, that the bound on all known noise allows."""
    starts: int = 0

    @property
    def bounded(self) -> bool:
        """True when the data gave bounds at all."""
        return math.isfinite(self.high) and math.isfinite(self.ratio)

    @property
    def sure_low(self) -> float:
        """Lower bound at 99 %."""
        return self.low if self.sure is None else self.sure[0]

    @property
    def sure_high(self) -> float:
        """Upper bound at 99 %."""
        return self.high if self.sure is None else self.sure[1]

    def as_dict(self) -> dict[str, object]:
        """JSON-ready form; an unbounded or unknown number is null."""
        numbers = {
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "sure_low": self.sure_low,
            "sure_high": self.sure_high,
            "smallest_effect": self.smallest,
            "noise": self.noise,
        }
        return {
            **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            "confidence": self.confidence,
            "sure_confidence": SURE,
            "unit": self.unit,
            "starts": self.starts,
        }


@dataclass(frozen=True)
class Fit:
    """Least squares over starts: the effect on the log scale and what is left over."""

    effect: float
    squares: float
    """Sum of the squared residuals."""
    df: int
    factor: float
    """Variance of the effect for a variance of one between starts."""


def interval(
    starts: Sequence[Start], look: Look | None = None, floor: Floor | None = None
) -> Interval:
    """Ratio of both arms with its intervals; swapping the arms inverts all of it exactly.

    Values that are not finite are left out, and starts without any value with them.
    """
    look = look or Look()
    levels = start_levels(starts)
    if not (levels[0] and levels[1]):
        return Interval(math.nan, 0.0, math.inf, unit="none")
    fit = _fit([*levels[0], *levels[1]], len(levels[0]))
    count = len(levels[0]) + len(levels[1])
    rough = _ROUGH_Z * math.sqrt(
        (ROUGH**2 + 1.5 * _within(starts)) * (1 / len(levels[0]) + 1 / len(levels[1]))
    )
    variance, df = _variance(fit, floor)
    if look.number == 0 or df <= 0:
        bounds = _bounds(fit.effect, rough)
        smallest = math.expm1(rough)
        return Interval(
            math.exp(fit.effect),
            *bounds,
            unit="bound",
            smallest=smallest,
            rough=rough,
            starts=count,
        )
    error = math.sqrt(variance * fit.factor)
    halves = [student(tail, df) * error for tail in (look.margin_tail, look.sure_tail)]
    near, sure = (_bounds(fit.effect, min(half, rough)) for half in halves)
    smallest = halves[1] + student(_POWER_TAIL, df) * error
    return Interval(
        math.exp(fit.effect),
        *near,
        sure=sure,
        smallest=math.expm1(min(smallest, 50.0)),
        noise=math.sqrt(variance),
        error=error,
        rough=rough,
        starts=count,
    )


def from_course(ratio: float) -> Interval:
    """Ratio that was seen between the courses of two single starts, with all known noise."""
    half = _ROUGH_Z * ROUGH * math.sqrt(2)
    return Interval(ratio, ratio * math.exp(-half), ratio * math.exp(half), unit="course", starts=2)


def between_starts(starts: Sequence[Start]) -> tuple[float, int]:
    """Variance between equal starts of this run alone, and its degrees of freedom (0: unknown).

    This is what is recorded as the noise floor of host and workload.
    """
    levels = start_levels(starts)
    if levels[0] and levels[1]:
        fit = _fit([*levels[0], *levels[1]], len(levels[0]))
        return (fit.squares / fit.df if fit.df else 0.0), fit.df
    values = [level for _, level in levels[0] or levels[1]]
    if len(values) < 2:
        return 0.0, 0
    return statistics.variance(values), len(values) - 1


def pooled(found: Sequence[tuple[float, int]], source: str = "recorded") -> Floor | None:
    """One floor from variances and degrees of freedom; None when nothing is known."""
    df = sum(freedom for _, freedom in found)
    if df <= 0:
        return None
    variance = sum(value * freedom for value, freedom in found) / df
    return Floor(math.sqrt(variance), df, source)


def start_levels(
    starts: Sequence[Start],
) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Position and level of every start with values: of the baseline, and of the patched arm."""
    found = [(start, logs(start.values)) for start in starts]
    scale = pooled_scale([values for _, values in found])
    arms: tuple[list[tuple[int, float]], list[tuple[int, float]]] = ([], [])
    for start, values in found:
        if values:
            arms[start.patched].append((start.position, centre(values, scale)))
    return arms


def undecidable(found: Interval, look: Look, final: int, limit: float, safety: float) -> bool:
    """True when measuring up to `final` starts is not expected to bring a bound off `limit`.

    `limit` and `safety` are ratios that the 90 % and the 99 % interval must stay above for a
    pass. The estimate may still move by one standard deviation of what is to come.
    """
    if not found.bounded or not math.isfinite(found.error) or found.starts >= final:
        return False
    shrink = math.sqrt(found.starts / final)
    error, rough = found.error * shrink, found.rough * shrink
    move = math.sqrt(max(found.error**2 - error**2, 0.0))
    near, sure = (
        min(student(tail, final - 3) * error, rough) for tail in (look.margin_tail, look.sure_tail)
    )
    effect = math.log(found.ratio)
    passes = effect + move - near >= math.log(limit) and effect + move - sure >= math.log(safety)
    rejects = effect - move + near < math.log(limit) and effect - move + sure < 0
    return not passes and not rejects


def units_needed(found: Interval, threshold: float, units: int) -> int | None:
    """Roughly how many starts an arm would bring the 90 % interval off `threshold`.

    Assumes that the width shrinks with the square root of the number of starts. None when the
    estimate sits so close to the threshold that no reasonable number would decide.
    """
    if not found.bounded or found.low <= 0 or found.unit != "start":
        return max(units + 1, 2)
    distance = abs(math.log(found.ratio / threshold))
    half_width = math.log(found.high / found.low) / 2
    if distance == 0 or (factor := (half_width / distance) ** 2) > 16:
        return None
    return max(units + 1, math.ceil(units * factor))


def _fit(levels: Sequence[tuple[int, float]], baselines: int) -> Fit:
    count = len(levels)
    columns = [[1.0] * count, [float(index >= baselines) for index in range(count)]]
    positions = [float(position) for position, _ in levels]
    if count >= _TREND_FROM and len(set(positions)) > 2:
        middle = statistics.fmean(positions)
        columns.append([position - middle for position in positions])
    values = [level for _, level in levels]
    inverse = _invert([[_dot(a, b) for a in columns] for b in columns])
    sides = [_dot(column, values) for column in columns]
    weights = [_dot(row, sides) for row in inverse]
    left = [
        value - _dot(weights, [column[index] for column in columns])
        for index, value in enumerate(values)
    ]
    return Fit(weights[1], _dot(left, left), count - len(columns), inverse[1][1])


def _variance(fit: Fit, floor: Floor | None) -> tuple[float, float]:
    """Variance between equal starts, and its degrees of freedom."""
    if floor is not None and floor.df >= KNOWN:
        return floor.sd**2, floor.df
    own = fit.squares / fit.df if fit.df else 0.0
    if floor is None or fit.df == 0 or own > _FLOOR_FITS * floor.sd**2:
        return own, fit.df
    weight = min(floor.df, _FLOOR_WEIGHT * fit.df)
    return (fit.squares + weight * floor.sd**2) / (fit.df + weight), fit.df + weight


def _within(starts: Sequence[Start]) -> float:
    """Mean variance of a start's level that comes from its runs, by their robust scale."""
    found = [values for start in starts if (values := logs(start.values))]
    scale = pooled_scale(found) if any(len(v) > 1 for v in found) else _ROUGH_RUNS
    return statistics.fmean(scale**2 / len(values) for values in found)


def _bounds(effect: float, half: float) -> tuple[float, float]:
    low, high = effect - half, effect + half
    return math.exp(max(low, -700.0)), math.exp(high) if high < 700 else math.inf


def _invert(matrix: list[list[float]]) -> list[list[float]]:
    """Inverse of a small positive definite matrix, by Gauss and Jordan."""
    size = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        pivot = rows[i][i]
        rows[i] = [value / pivot for value in rows[i]]
        for j in range(size):
            if j != i:
                factor = rows[j][i]
                rows[j] = [a - factor * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [row[size:] for row in rows]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))
