"""After every server start: is the answer clear, is it hopeless, or does the run go on? Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sm120patch.model import Goal
from sm120patch.verify.commandline import Arm
from sm120patch.verify.effect import Look, undecidable
from sm120patch.verify.record import Record
from sm120patch.verify.schedule import Schedule
from sm120patch.verify.verdict import Decision, decide, passes, safety_of

_PATIENCE = 2  # pairs before a run is given up: with fewer nothing is known of the noise


@dataclass(frozen=True)
class Seen:
    """What one look at the data came to."""

    decision: Decision
    pairs: int
    stop: bool
    why: str | None
    """`clear` or `hopeless` where the run ends before its schedule; else None."""


def look(record: Record, schedule: Schedule, goal: Goal, margin: float) -> Seen:
    """Judge what is there after a server start; sets `record.look` to the look that this is.

    A look counts when a pair has been completed. Before that, and before the sets may pass, only
    effects beyond all known noise end the run.
    """
    pairs = schedule.pairs([block.arm for block in record.blocks])
    record.look = schedule.look(pairs, len(record.workloads))
    decision = decide(goal, margin, record.findings())
    verdict = decision.verdict
    if record.baseline_failure is not None:
        enough = len(record.of(Arm.PATCHED)) >= schedule.least
        return Seen(decision, pairs, enough, "clear" if enough else None)
    if verdict.passed or verdict.rejected:
        return Seen(decision, pairs, True, "clear")
    hopeless = pairs >= max(schedule.least, _PATIENCE) and _hopeless(
        record, schedule, record.look, goal, margin
    )
    return Seen(decision, pairs, hopeless, "hopeless" if hopeless else None)


def given_up(decision: Decision, schedule: Schedule) -> Decision:
    """The decision of a run that was ended because no further start was expected to decide."""
    most = schedule.most
    reason = f"given up: no further start, up to {most} an arm, was expected to decide"
    advice = f"more than {most} server starts an arm (blocks), a quieter host, or a wider margin"
    return replace(decision, reasons=(*decision.reasons, reason), advice=advice)


def _hopeless(record: Record, schedule: Schedule, now: Look, goal: Goal, margin: float) -> bool:
    """No workload can still be shown to lose too much, and not all can still be shown not to."""
    final = len(schedule.order)
    found = record.intervals()
    open_ = [i for i in found.values() if not passes(i, margin)]
    safety = safety_of(margin)
    if open_:
        return all(undecidable(i, now, final, 1 - margin, safety) for i in open_)
    # All of them pass already: only the improvement that the goal demands is missing.
    return goal is Goal.SPEED and all(undecidable(i, now, final, 1.0, 1.0) for i in found.values())
