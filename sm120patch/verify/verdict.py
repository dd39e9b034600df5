"""From intervals, answers and engagement to one of six verdicts. Pure.

Every effect has two intervals (see `effect`): the 90 % one is held against the margin, the 99 %
one says whether there is a difference at all. The rules, in this order; the first that fits
decides:

1. `broken`: the patched server does not run, or its answers are wrong where the baseline's
   are right. Garbage at high speed is broken.
2. `not-engaged`: the patched code was not seen running. Whatever was measured, it is not it.
3. `regressed`: it collapsed, or for some workload the 90 % interval lies below 1 - margin and
   the 99 % interval below 1 (for the goal `speed` the second is enough, since a certain slow-down
   cannot be the improvement that is demanded).
4. `improved`: no workload may lose more than the margin, and for at least one the whole 99 %
   interval lies above 1.
5. `no-regression`: no workload may lose more than the margin: the 90 % interval of each stays
   above 1 - margin, and the 99 % interval above 90 % (or twice the margin), so that noise
   alone hardly ever lets a grave loss pass. For the goal `speed` this is not enough: the verdict is
   `inconclusive` until an improvement is shown.
6. `inconclusive`: everything else, with what would decide it. A run that the time limit cut
   off is never more than that: half a measurement hides the order effect.

Several workloads are decided together: what all of them must show needs no correction; what one
of them can show alone is held against an interval whose error is shared among them.

The goals `capacity` and `correctness` are judged like `no-regression`: their own effect is not
measured here, the margin is what the set may cost. `crash-fix` is judged like `no-regression`
too, unless the baseline does not run: then a patched server that runs, answers and is engaged
is `improved`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from sm120patch.model import Goal
from sm120patch.verify.effect import SURE, Interval, units_needed

GRAVE = 0.10
"""Loss that may pass in less than one run of a hundred, whatever the noise."""


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
    collapses: tuple[str, ...] = ()
    """Why measuring was broken off: the patched server was far slower from the first seconds."""


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


def safety_of(margin: float) -> float:
    """Ratio that the 99 % interval of every workload must stay above for a pass."""
    return min(1 - GRAVE, (1 - margin) ** 2)


def passes(interval: Interval, margin: float) -> bool:
    """True when the workload does not lose more than the margin."""
    return (
        interval.bounded and interval.low >= 1 - margin and interval.sure_low >= safety_of(margin)
    )


def describe(name: str, interval: Interval) -> str:
    """One effect in words: `c64: +4.9 % (90 % interval +3.8 .. +6.1 %, 99 % +2.1 .. +7.8 %)`."""
    if not interval.bounded:
        return f"{name}: not enough measurements for an interval"
    text = (
        f"{name}: {_percent(interval.ratio)} % ({interval.confidence * 100:.0f} % interval "
        f"{_percent(interval.low)} .. {_percent(interval.high)} %"
    )
    if interval.sure is not None:
        sure = f"{_percent(interval.sure_low)} .. {_percent(interval.sure_high)} %"
        text += f", {SURE * 100:.0f} % {sure}"
    text += ")"
    if interval.unit == "bound":
        text += ": far beyond what equal starts differ by" if _rough_verdict(interval) else ""
    noise = "not known yet"
    if math.isfinite(interval.noise):
        noise = f"{interval.noise * 100:.1f} %"
    text += f"; noise between starts {noise}"
    if interval.smallest > 1:
        return text + ", even an effect of 100 % need not have been seen"
    if math.isfinite(interval.smallest):
        text += f", an effect of {interval.smallest * 100:.1f} % would have been seen"
    return text


def brief(name: str, interval: Interval) -> str:
    """One effect in few words: `c64 +4.9 % (+3.8 .. +6.1)`."""
    bounds = f"{_percent(interval.low)} .. {_percent(interval.high)}"
    return f"{name} {_percent(interval.ratio)} % ({bounds})"


def collapsed(interval: Interval, limit: float = 0.7) -> bool:
    """True when the interval lies so far below 1 that measuring on would only cost time."""
    return interval.bounded and interval.high < limit


def _rough_verdict(interval: Interval) -> bool:
    return interval.high < 1 or interval.low > 1


_Judged = tuple[Verdict, list[str], str | None]


def _judge(goal: Goal, margin: float, findings: Findings) -> _Judged:
    if findings.broken and findings.baseline_failure is not None:
        alone = (
            f"the baseline does not run either ({findings.baseline_failure}): what is wrong need"
            " not be the set's doing"
        )
        return Verdict.BROKEN, [alone, *findings.broken], None
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
    if findings.collapses:
        return Verdict.REGRESSED, [*findings.collapses, *reasons], None
    if findings.unfinished is not None:
        return (
            Verdict.INCONCLUSIVE,
            [*reasons, findings.unfinished],
            ("allow more time (--max-time, or max_time in the profile)"),
        )
    if slow := [name for name, i in effects.items() if _slower(goal, margin, i)]:
        limit = 1.0 if goal is Goal.SPEED else 1 - margin
        reasons.append(f"slower than allowed at {', '.join(slow)}: limit {_percent(limit)} %")
        return Verdict.REGRESSED, reasons, None
    if not effects:
        return Verdict.INCONCLUSIVE, ["no workload was measured in both arms"], None
    if open_ := {n: i for n, i in effects.items() if not passes(i, margin)}:
        reasons.append(f"a loss beyond {_percent(1 - margin)} % is not excluded at "
                       f"{', '.join(open_)}")  # fmt: skip
        return Verdict.INCONCLUSIVE, reasons, _advice(open_, 1 - margin, findings.blocks)
    if any(i.sure_low > 1 for i in effects.values()):
        return Verdict.IMPROVED, reasons, None
    if goal is Goal.SPEED:
        reasons.append("no improvement is shown at any workload, and the goal demands one")
        return Verdict.INCONCLUSIVE, reasons, _advice_speed(effects, findings.blocks)
    return Verdict.NO_REGRESSION, reasons, None


def _slower(goal: Goal, margin: float, interval: Interval) -> bool:
    if not interval.bounded or interval.sure_high >= 1:
        return False
    return goal is Goal.SPEED or interval.high < 1 - margin


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
