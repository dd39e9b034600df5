"""Load on the server of one start: warm-up, measured repeats, what does not count, what ends it.

Drives the load generator; writes into the record and tells the reporter.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sm120patch.verify.clients import Pass, drive
from sm120patch.verify.commandline import Arm
from sm120patch.verify.loadgen import Repeat, Target, measure
from sm120patch.verify.profile import Profile, Workload
from sm120patch.verify.record import Block, Collapse, Record
from sm120patch.verify.reporting import Reporter
from sm120patch.verify.samples import kept
from sm120patch.verify.server import OutOfTime, Server, failed
from sm120patch.verify.tally import Tally, collapsed

FAILED_SHARE = 0.02
"""Share of requests of a repeat that may fail before the server counts as unusable."""
_STALL = 5.0  # seconds without any token
_STALL_FACTOR = 3.0  # times the longest silence of the other repeats
_DYING = 1.0  # seconds in which a server whose connections broke is seen to be gone
_EXTRA = 2  # repeats in the place of stalled ones; after that they count


@dataclass(frozen=True)
class Loading:
    """One server start under load."""

    profile: Profile
    record: Record
    report: Reporter
    number: int
    block: Block
    server: Server
    target: Target
    deadline: float | None

    def warm_up(self, workload: Workload) -> bool:
        """Send the unmeasured requests; True when they show a collapse already."""
        if workload.warmup_requests == 0:
            return False
        self.report.on_warmup(self.block.arm, workload.name)
        result = self._measure(workload, 0, prompts=workload.warmup_requests)
        if result is None:
            return True
        self.block.warmups[workload.name] = {
            "seconds": result.duration,
            "stall_s": result.tally.longest,
            "output_throughput": result.metrics["output_throughput"],
        }
        return False

    def repeats(self, workload: Workload) -> bool:
        """Measure all repeats; True when one of them shows a collapse."""
        wanted = workload.repeats or 1
        results: list[Repeat] = []
        extra = 0
        while len(results) < wanted:
            result = self._measure(workload, len(results) + 1 + extra)
            if result is None:
                return True
            results.append(result)
            self.report.on_repeat(
                self.block.arm, workload.name, len(results), wanted, result.metrics
            )
            if len(results) == wanted and not self.target.virtual:
                hit = stalled(results)[: _EXTRA - extra]
                results = [result for result in results if result not in hit]
                extra += len(hit)
                for result in hit:
                    reason = f"{result.tally.longest:.0f} s without a token, a stall"
                    self._exclude(workload, result.metrics, reason)
        self._note_compile(workload, results)
        self.block.repeats[workload.name] = [result.metrics for result in results]
        self.block.samples[workload.name] = [kept(result.samples) for result in results]
        if self.block.arm is Arm.BASELINE:
            self._remember(workload, "repeat", [result.tally for result in results])
        return False

    def _measure(
        self, workload: Workload, repeat: int, *, prompts: int | None = None
    ) -> Repeat | None:
        """One pass over a workload; None when it showed a collapse and was broken off."""
        cold = prompts is not None
        doing = f"warming up {workload.name}" if cold else f"serving {workload.name}"
        if not (cold or self.profile.driver.native):
            return self._drive(workload, repeat, doing)
        result = measure(
            self.target,
            workload,
            seed=self.profile.seed,
            tag=f"b{self.number}.{workload.name}" + ("-warmup" if cold else ""),
            repeat=repeat,
            prompts=prompts,
            deadline=self.deadline,
            watch=partial(self.server.check_alive, doing),
            pulse=partial(self._pulse, workload, cold, doing),
        )
        if result.stopped:
            return None
        self._check(result, doing, workload.prompts)
        if cold and self.block.arm is Arm.BASELINE:
            self._remember(workload, "warmup", [result.tally])
        return result

    def _drive(self, workload: Workload, repeat: int, doing: str) -> Repeat:
        """Have another client run a repeat; a collapse shows at its end only."""
        watch = partial(self.server.check_alive, doing)
        info, deadline = self.server.info, self.deadline
        result = drive(Pass(self.profile, self.target, workload, repeat, info, deadline, watch))
        self._check(result, doing, workload.prompts)
        return result

    def _pulse(self, workload: Workload, cold: bool, doing: str, tally: Tally, now: float) -> bool:
        """Look at the tokens so far; True when the repeat need not be finished."""
        self.report.on_pulse(self.block.arm, workload.name, now - tally.begin, tally.tokens)
        patience = self.profile.hang_timeout
        if cold:
            patience = max(patience, self.profile.server.ready_timeout)
        if now - tally.last > patience:
            raise failed(
                f"the server hangs: not one token in {now - tally.last:.0f} s while {doing}",
                self.server.log,
                self.server.log_offset,
            )
        if self.block.arm is Arm.BASELINE or self.target.virtual:
            return False
        known = self.record.courses.get((workload.name, "warmup" if cold else "repeat"), [])
        factor = collapsed(tally, now, known, cold=cold)
        if factor is not None:
            self.record.collapse = Collapse(
                workload.name, factor, tally.steady(now), tally.tokens, cold
            )
        return factor is not None

    def _remember(self, workload: Workload, phase: str, tallies: Sequence[Tally]) -> None:
        self.record.courses.setdefault((workload.name, phase), []).extend(tallies)

    def _note_compile(self, workload: Workload, results: Sequence[Repeat]) -> None:
        """Say of a warm-up that was silent as no repeat is afterwards what it was: a compile."""
        warmup = self.block.warmups.get(workload.name)
        if warmup is None or self.target.virtual or not self.profile.driver.native:
            return
        usual = statistics.median(result.tally.longest for result in results)
        silence = warmup["stall_s"]
        if silence > max(_STALL, _STALL_FACTOR * usual):
            reason = f"warm-up: {silence:.0f} s without a token, a compile"
            self._exclude(workload, warmup, reason)

    def _exclude(self, workload: Workload, metrics: Mapping[str, float], reason: str) -> None:
        self.report.on_excluded(self.block.arm, workload.name, reason)
        self.block.excluded.append(
            {
                "workload": workload.name,
                "reason": reason,
                "output_throughput": metrics["output_throughput"],
            }
        )

    def _await_death(self, doing: str) -> None:
        """Raise ServerError if the server is gone: that says more than that requests failed.

        Its connections break a moment before the kernel shows its end.
        """
        patience = time.monotonic() + _DYING
        while time.monotonic() < patience:
            self.server.check_alive(doing)
            time.sleep(0.05)

    def _check(self, result: Repeat, doing: str, asked: int) -> None:
        """A repeat that was cut off is no measurement; one with failures is a broken server."""
        failures = result.metrics["failed"]
        asked = len(result.samples) if result.told else asked
        if not result.cut and failures <= FAILED_SHARE * asked:
            return
        self.server.check_alive(doing)
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise OutOfTime
        self._await_death(doing)
        raise failed(
            f"{failures:g} of {asked} requests failed while {doing}: "
            + "; ".join(result.failures[:3]),
            self.server.log,
            self.server.log_offset,
        )


def stalled(results: Sequence[Repeat]) -> list[Repeat]:
    """Repeats with a silence that the others of this start do not have: a compile, a hiccup."""
    found = []
    for result in results:
        others = [other.tally.longest for other in results if other is not result]
        usual = statistics.median(others) if others else result.tally.longest
        if result.tally.longest > max(_STALL, _STALL_FACTOR * usual):
            found.append(result)
    return found
