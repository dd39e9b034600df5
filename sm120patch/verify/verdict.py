"""From intervals, answers and engagement to one of six verdicts. Pure.

The rules, in this order; the first that fits decides:

1. `broken`: the patched server does not run, or its answers are wrong where the baseline's
   are right. Garbage at high speed is broken.
2. `not-engaged`: the patched code was not seen running. Whatever was measured, it is not it.
3. `regressed`: for some workload the whole interval lies below 1 - margin (for the goal
   `speed`: below 1, since a certain slow-down cannot be the improvement that is demanded).
   An interval that lies below 1 but reaches above 1 - margin is a loss inside the margin.
4. `improved`: no workload may lose more than the margin, and for at least one the whole
   interval lies above 1.
5. `no-regression`: no workload may lose more than the margin. For the goal `speed` this is
   not enough: the verdict is `inconclusive` until an improvement is shown.
6. `inconclusive`: everything else, with what would decide it. A run that the time limit cut
   off is never more than that: half a measurement hides the order effect.

The goals `capacity` and `correctness` are judged like `no-regression`: their own effect is not
measured here, the margin is what the set may cost. `crash-fix` is judged like `no-regression`
too, unless the baseline does not run: then a patched server that runs, answers and is engaged
is `improved`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from sm120patch.model import Goal
from sm120patch.verify.stats import Interval, units_needed


class Verdict(str, Enum):
    """The six words a verification can end in."""

    IMPROVED = "improved"
    NO_REGRESSION = "no-regression"
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    BROKEN = "broken"
    NOT_ENGAGED = "not-engaged"

    @property
    def passed(self) -> bool:
        """True when the set counts as applied."""
        return self in (Verdict.IMPROVED, Verdict.NO_REGRESSION)

    @property
    def rejected(self) -> bool:
        """True when the baseline's content must be put back."""
        return self in (Verdict.REGRESSED, Verdict.BROKEN, Verdict.NOT_ENGAGED)


@dataclass(frozen=True)
class Findings:
    """Everything a verdict is drawn from."""

    effects: Mapping[str, Interval]
    """Workload -> ratio of output throughput, patched over baseline."""
    broken: tuple[str, ...] = ()
    """Why the patched arm is unusable: it died, failed requests, answered wrongly."""
    not_engaged: tuple[str, ...] = ()
    """Engagement probes that did not hold in the patched arm."""
    baseline_failure: str | None = None
    """Why the baseline does not run (crash-fix sets only; otherwise that is an error)."""
    unfinished: str | None = None
    """Why not everything was measured, when the time ran out."""
    blocks: int = 1
    """Server starts an arm that went into the intervals."""


@dataclass(frozen=True)
class Decision:
    """A verdict with its reasons and, where it is inconclusive, what would decide it."""

    verdict: Verdict
    reasons: tuple[str, ...]
    advice: str | None
    goal: Goal
    margin: float

    def as_dict(self) -> dict[str, object]:
        """JSON-ready form."""
        return {
            "verdict": self.verdict.value,
            "passed": self.verdict.passed,
            "reasons": list(self.reasons),
            "advice": self.advice,
            "goal": self.goal.value,
            "margin": self.margin,
        }


def decide(goal: Goal, margin: float, findings: Findings) -> Decision:
    """Apply the rules of this module to one verification."""
    verdict, reasons, advice = _judge(goal, margin, findings)
    return Decision(verdict, tuple(reasons), advice, goal, margin)


def describe(name: str, interval: Interval) -> str:
    """One effect in words: `c64: +4.9 % (95 % interval +3.8 .. +6.1 %)`."""
    if not interval.bounded:
        return f"{name}: not enough measurements for an interval"
    return (
        f"{name}: {_percent(interval.ratio)} % ({interval.confidence * 100:.0f} % interval "
        f"{_percent(interval.low)} .. {_percent(interval.high)} %)"
    )


def collapsed(interval: Interval, limit: float = 0.7) -> bool:
    """True when the interval lies so far below 1 that measuring on would only cost time."""
    return interval.bounded and interval.high < limit


_Judged = tuple[Verdict, list[str], str | None]


def _judge(goal: Goal, margin: float, findings: Findings) -> _Judged:
    if findings.broken:
        return Verdict.BROKEN, list(findings.broken), None
    if findings.not_engaged:
        return Verdict.NOT_ENGAGED, list(findings.not_engaged), None
    if findings.baseline_failure is not None and findings.unfinished is None:
        reason = f"the baseline does not run ({findings.baseline_failure}); the patched arm does"
        return Verdict.IMPROVED, [reason], None
    return _judge_speed(goal, margin, findings)


def _judge_speed(goal: Goal, margin: float, findings: Findings) -> _Judged:
    effects = findings.effects
    reasons = [describe(name, interval) for name, interval in effects.items()]
    floor = 1.0 if goal is Goal.SPEED else 1 - margin
    slow = [name for name, i in effects.items() if i.bounded and i.high < floor]
    if findings.unfinished is not None:
        return Verdict.INCONCLUSIVE, [*reasons, findings.unfinished], "allow more time (max_time)"
    if slow:
        reasons.append(f"slower than allowed at {', '.join(slow)}: limit {_percent(floor)} %")
        return Verdict.REGRESSED, reasons, None
    if not effects:
        return Verdict.INCONCLUSIVE, ["no workload was measured in both arms"], None
    open_ = {n: i for n, i in effects.items() if not (i.bounded and i.low >= 1 - margin)}
    if open_:
        reasons.append(f"the interval reaches below {_percent(1 - margin)} % at {', '.join(open_)}")
        return Verdict.INCONCLUSIVE, reasons, _advice(open_, 1 - margin, findings.blocks)
    if any(i.low > 1 for i in effects.values()):
        return Verdict.IMPROVED, reasons, None
    if goal is Goal.SPEED:
        reasons.append("no improvement is shown at any workload, and the goal demands one")
        return Verdict.INCONCLUSIVE, reasons, _advice_speed(effects, findings.blocks)
    return Verdict.NO_REGRESSION, reasons, None


def _advice(open_: Mapping[str, Interval], threshold: float, blocks: int) -> str:
    needed = [units_needed(i, threshold, blocks) for i in open_.values()]
    known = [n for n in needed if n is not None]
    if not known or len(known) < len(needed):
        return (
            f"the effect is about the limit of {_percent(threshold)} % or lost in the noise: "
            "quiet the host, or decide with a wider margin"
        )
    return f"about {max(known)} server starts an arm (blocks = {max(known)}; now {blocks})"


def _advice_speed(effects: Mapping[str, Interval], blocks: int) -> str:
    best = max(effects.values(), key=lambda interval: interval.ratio)
    return _advice({"best": best}, 1.0, blocks) if best.ratio > 1 else "there is none to be seen"


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f}"
