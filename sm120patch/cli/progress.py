"""Tells on stderr what a verification is doing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence

from sm120patch.cli.liveline import LiveLine
from sm120patch.verify.answers import Examination
from sm120patch.verify.commandline import Arm, Arms
from sm120patch.verify.effect import Interval
from sm120patch.verify.reporting import Reporter
from sm120patch.verify.verdict import Decision, brief, describe


def duration(seconds: float) -> str:
    """Seconds for people: `45 s`, `12 min`, `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Progress(Reporter):
    """Reporter for a terminal or a log: one line for each thing that happened.

    On a terminal the last line is alive: start, arm, workload, tokens per second, the time left at
    most, the interval so far and what is still needed.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        live: LiveLine | None = None,
        other: str = Arm.PATCHED.value,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._print = say
        self._other = other
        """What the second arm is called: in an experiment nothing is patched."""
        self._live = live or LiveLine(sys.stderr)
        self._place = ""
        self._repeat = "warming up"
        self._so_far = ""
        self._simulated = False
        self._clock = clock
        self._until: float | None = None
        """When it ends at the latest, by the pace so far; None before anything is known."""

    def _left(self) -> str:
        """Time left at most, as the live line shows it."""
        if self._until is None:
            return ""
        return f"| at most {duration(max(self._until - self._clock(), 0.0))} left "

    def _name(self, arm: Arm) -> str:
        return self._other if arm is Arm.PATCHED else arm.value

    def _say(self, line: str) -> None:
        self._live.clear()
        self._print(line)

    def on_start(self, arms: Arms, order: Sequence[Arm], seconds: float) -> None:
        """Print both command lines before anything is started."""
        self._say(f"baseline: {arms.baseline.shown}")
        self._say(f"{self._other + ':':9} {arms.patched.shown}")
        self._until = self._clock() + seconds
        letters = " ".join("B" if arm is Arm.PATCHED else "A" for arm in order[:8])
        more = " ..." if len(order) > 8 else ""
        self._say(
            f"order:    {letters}{more} (A baseline, B {self._other}), at most {len(order)} server"
            f" starts and {duration(seconds)}; it ends as soon as it is clear"
        )

    def on_block(self, block: int, blocks: int, arm: Arm) -> None:
        """Name the server start."""
        self._place = f"[{block}/{blocks}] {self._name(arm)}"
        self._say(f"{self._place}: starting the server")
        self._live.show(f"{self._place}: waiting for the server {self._left()}{self._so_far}")

    def on_ready(self, arm: Arm, seconds: float, info: Mapping[str, object]) -> None:
        """Say how long it took."""
        self._simulated = info.get("simulated") is True
        simulated = " (simulated)" if self._simulated else ""
        self._say(f"      {self._name(arm)}: ready after {duration(seconds)}{simulated}")
        self._live.show(f"{self._place}: asking questions {self._left()}{self._so_far}")

    def on_answers(self, arm: Arm, examination: Examination) -> None:
        """Mention answers only when something is wrong with them; the verdict counts them."""

    def on_warmup(self, arm: Arm, workload: str) -> None:
        """Say that figures do not count yet."""
        self._repeat = "warming up"
        self._say(f"      {self._name(arm)}: {workload}: warming up")

    def on_repeat(
        self, arm: Arm, workload: str, repeat: int, repeats: int, metrics: Mapping[str, float]
    ) -> None:
        """Print the figures of a repeat."""
        self._repeat = f"{min(repeat + 1, repeats)}/{repeats}"
        self._say(
            f"      {self._name(arm)}: {workload} {repeat}/{repeats}:"
            f" {metrics.get('output_throughput', 0.0):.1f} tok/s output"
        )

    def on_excluded(self, arm: Arm, workload: str, reason: str) -> None:
        """Say what does not count."""
        self._say(f"      {self._name(arm)}: {workload}: not counted: {reason}")

    def on_pulse(self, arm: Arm, workload: str, seconds: float, tokens: int) -> None:
        """Show what comes in. Simulated time has no rate that means anything to a watch."""
        rate = tokens / seconds if seconds > 0 else 0.0
        speed = f"{tokens} tokens" if self._simulated else f"{rate:.1f} tok/s"
        self._live.show(
            f"{self._place}: {workload} {self._repeat}: {speed} for {duration(seconds)}"
            f" {self._left()}{self._so_far}"
        )

    def on_telemetry(self, arm: Arm, text: str) -> None:
        """Print what the GPUs did."""
        self._say(f"      {self._name(arm)}: {text}")

    def on_block_done(self, block: int, blocks: int, remaining: float) -> None:
        """Say what is left: the pace of the starts so far replaces the first estimate."""
        self._until = self._clock() + remaining
        if block < blocks:
            self._say(f"      at most {duration(remaining)} to go")

    def on_look(
        self, pairs: int, most: int, intervals: Mapping[str, Interval], decision: Decision
    ) -> None:
        """Print the intervals so far and what is still needed."""
        bounded = {name: interval for name, interval in intervals.items() if interval.bounded}
        early = [name for name, interval in bounded.items() if interval.unit != "start"]
        if early:
            shown = ", ".join(f"{n} {100 * (bounded[n].ratio - 1):+.1f} %" for n in early)
            self._say(f"      so far: {shown}: too early for an interval")
        for name, interval in bounded.items():
            if name not in early:
                self._say(f"      so far: {describe(name, interval)}")
        need = "" if decision.verdict.passed or decision.verdict.rejected else decision.advice
        if bounded and need:
            self._say(f"      {pairs} of at most {most} pairs; still needed: {need}")
        shown = ", ".join(brief(name, interval) for name, interval in bounded.items())
        self._so_far = f"| {shown} | {pairs} of {most} pairs" if shown else ""

    def on_verdict(self, decision: Decision) -> None:
        """Print the verdict with its reasons."""
        self._say(f"verdict: {decision.verdict.value}")
        for reason in decision.reasons:
            self._say(f"  {reason}")
        if decision.advice:
            self._say(f"  {decision.advice}")
