"""The verification itself: swap, start, ask, warm up, measure, stop, decide.

Drives server and load generator; knows neither ledger nor planner. The content is swapped by
the caller's function, so that every swap is a transaction of its own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from sm120patch.errors import HostError, UsageError
from sm120patch.model import (
    Engagement,
    EvidenceKind,
    Goal,
    VerificationPolicy,
)
from sm120patch.plan import Launch
from sm120patch.verify import engagement as engaged
from sm120patch.verify.answers import examine
from sm120patch.verify.commandline import Arm, Arms, adds_nothing, arms
from sm120patch.verify.deadstart import same_failure
from sm120patch.verify.deciding import given_up, look
from sm120patch.verify.effect import Floor, Look, interval
from sm120patch.verify.loadgen import Target
from sm120patch.verify.loading import Loading
from sm120patch.verify.origin import foreign, origin_of
from sm120patch.verify.processes import boot_clock
from sm120patch.verify.profile import UNSET_MODEL, Profile
from sm120patch.verify.record import Block, Record
from sm120patch.verify.reporting import Reporter
from sm120patch.verify.schedule import estimate, schedule_for, style_for
from sm120patch.verify.server import OutOfTime, Server, failed, running
from sm120patch.verify.spawn import ServerError, api_key
from sm120patch.verify.summary import account, served_model, virtual, workload_dict
from sm120patch.verify.telemetry import Meter, declared, in_words, metering
from sm120patch.verify.verdict import Decision, collapsed, decide

COLLAPSE = 0.7
"""An upper bound below this ends the run: more measurements would only cost time."""
_LOG_PATIENCE = 2.0  # seconds for a line to reach the log after the first requests


@dataclass(frozen=True)
class Duty:
    """What has to be shown, and how the patched server is started."""

    policy: VerificationPolicy
    launch: Launch
    engagement: tuple[Engagement, ...]
    versions: Mapping[str, str]
    """Target -> version on disk; goes into the summary."""
    base: Launch = field(default_factory=Launch)
    """What other sets on disk need: both arms are started with it."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Package -> directory of the copy that is patched: the server must import that one."""
    must_differ: bool = False
    """The second server must say something else of itself, or its options changed nothing."""


@dataclass(frozen=True)
class Outcome:
    """Verdict of a verification, the worth of its evidence, and all it measured."""

    decision: Decision
    kind: EvidenceKind
    summary: dict[str, object]
    """JSON-ready: metrics per arm, block and repeat, intervals, command lines, servers."""

    @property
    def verdict(self) -> str:
        """The verdict as a word."""
        return self.decision.verdict.value

    @property
    def passed(self) -> bool:
        """True when the set counts as applied."""
        return self.decision.verdict.passed

    @property
    def rejected(self) -> bool:
        """True when the baseline's content must be put back; else B stays, staged."""
        return self.decision.verdict.rejected


def run(
    profile: Profile,
    duty: Duty,
    swap: Callable[[Arm], float],
    report: Reporter | None = None,
    *,
    deadline: float | None = None,
    floors: Mapping[str, Floor] | None = None,
) -> Outcome:
    """Verify one plan on this host.

    `swap` puts the content of an arm in place and returns the epoch time at which it was;
    it is called before every server start. `floors` is the noise of workloads on this host as
    far as earlier verifications recorded it; without, the baseline is measured against itself
    first. `deadline` (of `time.monotonic`) and the profile's
    `max_time` end the run as inconclusive. Whatever happens, KeyboardInterrupt included, the
    server that was started here is stopped before this returns or raises; the content is
    left as the last swap made it. Raises HostError when the baseline does not run or there is
    no evidence to be had, BusyError when the port is taken, UsageError for a profile that
    cannot show what the set demands.
    """
    return _Run(profile, duty, swap, report or Reporter(), deadline, floors or {}).run()


def check(profile: Profile, duty: Duty) -> Arms:
    """Refuse before anything is written what could only fail later; both command lines."""
    if profile.server.external and engaged.needs_log(duty.engagement) and not profile.server.log:
        raise UsageError(
            f"whether the patched code runs is seen in the server's log, and {profile.origin} "
            "does not say where an external server writes it",
            hint='set log = "/path/to/server.log" under [server]',
            code="profile",
        )
    if any(UNSET_MODEL in word for word in profile.server.command):
        raise UsageError(
            f"{profile.origin} still says {UNSET_MODEL}: it does not name the model you serve",
            hint=f"put your model's path in the place of {UNSET_MODEL} in {profile.origin}",
            code="profile",
        )
    api_key(profile.server)
    return arms(profile, duty.launch, duty.base)


class _Run:
    """State of one verification; `run` is the only entrance."""

    def __init__(
        self,
        profile: Profile,
        duty: Duty,
        swap: Callable[[Arm], float],
        report: Reporter,
        deadline: float | None,
        floors: Mapping[str, Floor],
    ) -> None:
        self.profile = profile
        self.duty = duty
        self.swap = swap
        self.report = report
        self.began = time.monotonic()
        limits = [deadline, profile.max_time and self.began + profile.max_time]
        self.deadline = min((limit for limit in limits if limit), default=None)
        self.arms = check(profile, duty)
        _, self.margin, self.workloads = profile.with_policy(duty.policy)
        names = [workload.name for workload in self.workloads]
        self.record = Record(
            names, profile.seed, profile.server.kind, duty.policy.answers, floors=floors
        )
        simulated = profile.server.kind is EvidenceKind.SIMULATED
        known = simulated or all(name in floors for name in names)
        self.schedule = schedule_for(profile, duty.policy, known=known)
        self.meter = Meter()
        self.looks: list[dict[str, object]] = []
        self.ended: str | None = None
        self.dead_start: ServerError | None = None
        """Why the baseline did not get ready, where that is no error by itself."""

    def run(self) -> Outcome:
        order = self.schedule.order
        seconds = estimate(self.profile, self.duty.policy, len(order))
        self.report.on_start(self.arms, order, seconds)
        with metering() as self.meter:
            self._all_blocks()
        decision = decide(self.duty.policy.goal, self.margin, self.record.findings())
        if self.ended == "hopeless":
            decision = given_up(decision, self.schedule)
        self.report.on_verdict(decision)
        return Outcome(decision, self.record.kind, self._summary(decision))

    def _all_blocks(self) -> None:
        try:
            for number in range(1, len(self.schedule.order) + 1):
                arm = self.schedule.order[number - 1]
                if arm is Arm.BASELINE and self.record.baseline_failure is not None:
                    continue
                self.report.on_block(number, len(self.schedule.order), arm)
                if self._block(number, arm) or self._enough(number):
                    break
                self._settle_order()
                left = len(self.schedule.order) - number
                remaining = (time.monotonic() - self.began) / number * left
                self.report.on_block_done(number, len(self.schedule.order), remaining)
        except OutOfTime:
            self.record.unfinished = "the time ran out before everything was measured"

    def _enough(self, number: int) -> bool:
        """Look at the data after a start; True when the run can end."""
        seen = look(self.record, self.schedule, self.duty.policy.goal, self.margin)
        self.ended = seen.why
        found = self.record.intervals()
        self.looks.append(
            {
                "after_start": number,
                "pairs": seen.pairs,
                "look": self.record.look.number,
                "looks": self.record.look.looks,
                "verdict": seen.decision.verdict.value,
                "intervals": {name: interval.as_dict() for name, interval in found.items()},
            }
        )
        self.report.on_look(seen.pairs, self.schedule.most, found, seen.decision)
        return seen.stop

    def _settle_order(self) -> None:
        """Choose the order by what the first restart cost; a simulated one costs nothing real."""
        blocks = self.record.blocks
        if len(blocks) == 1 and self.record.kind is not EvidenceKind.SIMULATED:
            ready = blocks[0].ready_seconds
            style = style_for(ready, blocks[0].seconds - ready)
            self.schedule = replace(self.schedule, style=style)

    def _block(self, number: int, arm: Arm) -> bool:
        """One server start; True when the verdict is clear and measuring can end."""
        block = Block(arm)
        self._check_time()
        block.swapped_at = self.swap(arm)
        swapped_at = boot_clock()  # the wall clock may be set meanwhile; this one cannot
        block.began = time.monotonic() - self.began
        try:
            with running(
                self.profile,
                self.arms.of(arm),
                swapped_at=swapped_at,
                label=f"{number}-{arm.value}",
                deadline=self.deadline,
            ) as server:
                self.record.blocks.append(block)
                with self._metered(block, server):
                    return self._measure(number, block, server)
        except ServerError as error:
            return self._server_failed(arm, block, error)

    @contextlib.contextmanager
    def _metered(self, block: Block, server: Server) -> Iterator[None]:
        ready = time.monotonic()
        try:
            yield
        finally:
            now = time.monotonic()
            block.seconds = now - self.began - block.began
            block.telemetry = declared(server.info) or self.meter.between(ready, now)
            if words := in_words(block.telemetry):
                self.report.on_telemetry(block.arm, words)

    def _server_failed(self, arm: Arm, block: Block, error: ServerError) -> bool:
        if arm is Arm.PATCHED:
            self._require_own_fault(block, error)
            self.record.patched_faults.append(error.message)
            return True
        if self.duty.policy.goal is Goal.CRASH_FIX:
            self.record.baseline_failure = error.message.splitlines()[0]
            if block in self.record.blocks:
                self.record.blocks.remove(block)
            else:
                self.dead_start = error
            return False
        raise HostError(
            f"the baseline does not run, so there is nothing to compare with: {error.message}",
            hint=error.hint,
            code="baseline-failed",
            details={**error.details, "command": self.arms.baseline.shown},
        ) from error

    def _require_own_fault(self, block: Block, error: ServerError) -> None:
        """Refuse to blame the sets for a start that fails as it does without them."""
        baseline = self.dead_start
        started = block in self.record.blocks or self.record.of(Arm.PATCHED)
        if baseline is None or started or not same_failure(baseline.message, error.message):
            return
        logs = {"baseline": baseline.details.get("log"), "patched": error.details.get("log")}
        named = "".join(f"\n  log of the {arm} server: {log}" for arm, log in logs.items() if log)
        raise HostError(
            "neither server starts, and the baseline fails in the same way as the patched one, so"
            f" nothing was shown about the sets: {error.message}{named}",
            hint="make the server start without the sets first; its command line is"
            f" {self.arms.baseline.shown}",
            code="baseline-failed",
            details={**error.details, "logs": logs, "command": self.arms.baseline.shown},
        ) from error

    def _measure(self, number: int, block: Block, server: Server) -> bool:
        block.ready_seconds = server.seconds
        self.record.note_info(block, server.info)
        self.report.on_ready(block.arm, server.seconds, block.info)
        if self._check_origin(block.arm, server) or self._check_info(block.arm, server):
            return True
        target = _target(self.profile, server)
        self._ask(number, block, server, target, "before")
        if self._clear():
            return True
        load = Loading(
            self.profile, self.record, self.report, number, block, server, target, self.deadline
        )
        self._leave_out(block)
        for position, workload in enumerate(self.workloads):
            slow = load.warm_up(workload)
            if position == 0 and self._check_running(block, server):
                return True
            if slow or load.repeats(workload) or self._clear(workload.name):
                self.ended = "clear"
                return True
        self._ask(number, block, server, target, "after")
        return self._check_running(block, server) or self._clear()

    def _check_origin(self, arm: Arm, server: Server) -> bool:
        """True when the patched server imports other files than those that were patched."""
        if server.info.get("simulated") is True:
            return False  # it looks into the environment itself
        origin = origin_of(server.processes, sorted(self.duty.copies))
        self.record.origin = dict(origin.places) or {"unknown": origin.unknown or ""}
        found = foreign(origin, self.duty.copies)
        if found and arm is Arm.BASELINE:
            raise HostError(
                "; ".join(found) + ": what is patched is not what is served",
                hint="look for PYTHONPATH, another interpreter, or a directory `sglang` where the "
                f"server is started: {self.arms.baseline.shown}",
                code="other-copy",
                details={"imports": dict(origin.places), "patched": dict(self.duty.copies)},
            )
        self.record.not_engaged += found
        return bool(found)

    def _leave_out(self, block: Block) -> None:
        """Drop default workloads that the first server has no room for."""
        if len(self.record.blocks) > 1:
            return
        for workload in self.workloads:
            if reason := self.profile.too_long(workload, block.info):
                self.record.left_out[workload.name] = reason
                self.report.on_excluded(block.arm, workload.name, reason)
        self.workloads = tuple(w for w in self.workloads if w.name not in self.record.left_out)
        self.record.workloads = [workload.name for workload in self.workloads]

    def _check_info(self, arm: Arm, server: Server) -> bool:
        if arm is Arm.PATCHED:
            return self._note(engaged.info_seen(self.duty.engagement, server.info)) or self._same()
        found = engaged.engaged_baseline(self.duty.engagement, server.info)
        if found and not adds_nothing(self.duty.launch, self.duty.base):
            raise HostError(
                "the baseline server already has the option that only the patched arm may have "
                f"({', '.join(found)}): the two arms would be the same",
                hint="take the option out of the profile's command, environment or config file",
                code="baseline-engaged",
                details={"command": self.arms.baseline.shown, "fields": found},
            )
        return False

    def _same(self) -> bool:
        """True when options were to be tried that do not show in what the server says of itself."""
        told = self.record.of(Arm.PATCHED)[-1].info
        if not self.duty.must_differ or "model_path" not in told or self.record.differences():
            return False
        self.record.not_engaged.append(
            "the server says the same of itself with and without the options: "
            + " ".join(self.duty.launch.args)
        )
        return True

    def _check_running(self, block: Block, server: Server) -> bool:
        """True when log and processes do not show the patched code after the first requests."""
        if block.arm is Arm.BASELINE:
            return False
        patience = time.monotonic() + _LOG_PATIENCE
        while engaged.failures(seen := self._look(block, server)):
            if time.monotonic() > patience:
                break
            time.sleep(0.2)
        return self._note(seen)

    def _look(self, block: Block, server: Server) -> list[engaged.Seen]:
        probes = self.duty.engagement
        seen = engaged.log_seen(probes, server.log, server.log_offset) if server.log else []
        if server.info.get("simulated") is not True:  # it compiles and loads nothing
            seen += engaged.process_seen(probes, server.processes, block.swapped_at)
        return seen

    def _note(self, seen: list[engaged.Seen]) -> bool:
        """Keep what was seen; True when something did not hold."""
        self.record.engagement.update((item.probe, item) for item in seen)
        self.record.not_engaged += engaged.failures(seen)
        return bool(self.record.not_engaged)

    def _ask(self, number: int, block: Block, server: Server, target: Target, moment: str) -> None:
        self._check_time()
        watch = partial(self._watch_answers, server, time.monotonic())
        examination = examine(target, f"b{number}.probe-{moment}", self.deadline, watch)
        self._check_time()
        watch()
        block.examinations.append(examination)
        self.report.on_answers(block.arm, examination)

    def _clear(self, workload: str | None = None) -> bool:
        """True when more measuring cannot change the verdict: broken, or a collapse."""
        if self.record.findings().broken:
            return True
        starts = self.record.starts(workload) if workload else []
        found = interval(starts, Look(0))
        if collapsed(found, min(COLLAPSE, 1 - self.margin)):
            self.record.look = Look(0)
            return True
        return False

    def _watch_answers(self, server: Server, began: float) -> None:
        server.check_alive("answering the correctness questions")
        # The first question after a start may have to wait for a compile.
        patience = self.profile.server.ready_timeout + self.profile.hang_timeout
        if (seconds := time.monotonic() - began) > patience:
            raise failed(
                "the server hangs: the correctness questions are not answered after "
                f"{seconds:.0f} s",
                server.log,
                server.log_offset,
            )

    def _check_time(self) -> None:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise OutOfTime

    def _summary(self, decision: Decision) -> dict[str, object]:
        return {
            **account(self.profile, self.record, self.schedule, decision),
            "versions": dict(self.duty.versions),
            "client": self.profile.driver.kind,
            "looks": self.looks,
            "ended": self.ended,
            "commands": {arm.value: self.arms.of(arm).shown for arm in Arm},
            "workloads": [workload_dict(workload) for workload in self.workloads],
            "duration": time.monotonic() - self.began,
            **self.record.summary(),
        }


def _target(profile: Profile, server: Server) -> Target:
    return Target(
        base_url=server.url,
        endpoint=profile.endpoint,
        model=profile.model or served_model(server.info),
        api_key=api_key(profile.server),
        virtual=virtual(server.info),
        request_timeout=profile.request_timeout,
        logprobs=profile.logprobs,
    )
