"""Tells on stderr what a verification is doing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sm120patch.verify.answers import Examination
from sm120patch.verify.commandline import Arm, Arms
from sm120patch.verify.effect import Interval
from sm120patch.verify.reporting import Silent
from sm120patch.verify.verdict import Decision, describe


def duration(seconds: float) -> str:
    """Seconds for people: `45 s`, `12 min`, `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Progress(Silent):
    """Reporter for a terminal or a log: one line for each thing that happened."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def on_start(self, arms: Arms, order: Sequence[Arm], seconds: float) -> None:
        """Print both command lines before anything is started."""
        self._say(f"baseline: {arms.baseline.shown}")
        self._say(f"patched:  {arms.patched.shown}")
        self._say(f"order:    {' '.join(a.value for a in order)}, about {duration(seconds)}")

    def on_block(self, block: int, blocks: int, arm: Arm) -> None:
        """Name the server start."""
        self._say(f"[{block}/{blocks}] {arm.value}: starting the server")

    def on_ready(self, arm: Arm, seconds: float, info: Mapping[str, object]) -> None:
        """Say how long it took."""
        simulated = " (simulated)" if info.get("simulated") is True else ""
        self._say(f"      {arm.value}: ready after {duration(seconds)}{simulated}")

    def on_answers(self, arm: Arm, examination: Examination) -> None:
        """Mention answers only when something is wrong with them; the verdict counts them."""

    def on_warmup(self, arm: Arm, workload: str) -> None:
        """Say that figures do not count yet."""
        self._say(f"      {arm.value}: {workload}: warming up")

    def on_repeat(
        self, arm: Arm, workload: str, repeat: int, repeats: int, metrics: Mapping[str, float]
    ) -> None:
        """Print the figures of a repeat."""
        self._say(
            f"      {arm.value}: {workload} {repeat}/{repeats}:"
            f" {metrics.get('output_throughput', 0.0):.1f} tok/s output"
        )

    def on_block_done(self, block: int, blocks: int, remaining: float) -> None:
        """Say what is left."""
        if block < blocks:
            self._say(f"      about {duration(remaining)} to go")

    def on_excluded(self, arm: Arm, workload: str, reason: str) -> None:
        """Say what does not count."""
        self._say(f"      {arm.value}: {workload}: not counted: {reason}")

    def on_look(
        self, pairs: int, most: int, intervals: Mapping[str, Interval], decision: Decision
    ) -> None:
        """Print the intervals so far and what is still needed."""
        for name, interval in intervals.items():
            if interval.bounded:
                self._say(f"      so far: {describe(name, interval)}")
        if intervals and not (decision.verdict.passed or decision.verdict.rejected):
            self._say(f"      {pairs} of at most {most} pairs: {decision.advice or 'not decided'}")

    def on_verdict(self, decision: Decision) -> None:
        """Print the verdict with its reasons."""
        self._say(f"verdict: {decision.verdict.value}")
        for reason in decision.reasons:
            self._say(f"  {reason}")
        if decision.advice:
            self._say(f"  {decision.advice}")
