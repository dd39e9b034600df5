"""Run a command with a fault at every numbered call and say where each environment has ended."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.command import Ran
from tests.support.faults import seam as seams
from tests.support.faults.lossy import Disk
from tests.support.faults.seam import Call, Seam
from tests.support.faults.world import Judge, Runner, World, judge


@dataclass
class Trial:
    """One command on one world, and how to run it."""

    world: World
    seam: Seam
    command: tuple[str, ...]
    before: str = ""
    """Python that the process runs first: hooks that stand in for a server, say."""
    prepare: Callable[[], None] = lambda: None
    """Makes the state that the command starts from, after a reset."""
    court: Callable[[World, Runner], Judge] = Judge
    """Knows what must hold afterwards."""
    repeated: bool = False
    """^C leaves the rest to the next run of the same command, which is what it says."""
    calls: list[Call] = field(default_factory=list)
    disk: Disk | None = None
    """The disk before the first of `calls`; set by `judge`."""

    def run(self, **fault: int) -> Ran:
        return self.seam.run(*self.command, *self.world.options, before=self.before, **fault)

    def next(self, *arguments: str | Path, before: str = "") -> Ran:
        """Run one of the next commands, by which a judge finds out what is left."""
        return self.seam.run(*arguments, before=before, known=self.world.known)

    def judge(self) -> Judge:
        """Learn both sides, and the calls that the undisturbed command makes."""
        self.prepare()
        self.disk = Disk(self.world.prefix, self.world.workspace)
        trace = self.world.root / "trace"

        def traced() -> Ran:
            return self.seam.run(
                *self.command, *self.world.options, before=self.before, trace=trace
            )

        made = judge(self.court(self.world, self.seam.run), self.seam.run, traced)
        self.calls = seams.read_trace(trace)
        return made

    def again(self) -> None:
        self.world.reset()
        self.prepare()


def killed_everywhere(trial: Trial, judged: Judge, step: int = 1) -> Iterator[tuple[str, str]]:
    """Kill before every call (and within every write); yield (call, outcome).

    A sync changes nothing that a reader can see: the kill after it is the kill before it, and
    counts once. What a power failure makes of it is `lost_everywhere`.
    """
    synced = {call.number + 1 for call in trial.calls if call.op == "fsync"}
    for call in [c for c in trial.calls if c.number not in synced][::step]:
        for action in (seams.KILL, *([seams.TEAR] if call.op == "write" else [])):
            trial.again()
            killed = trial.run(at=call.number, action=action)
            assert killed.code == -9, f"{call.label} was never reached: {killed.err}"
            how = "within" if action == seams.TEAR else "before"
            yield f"{how} {call.op}", f"{judged.verdict(trial.next)}"


def lost_everywhere(
    trial: Trial, judged: Judge, selections: int, step: int = 1
) -> Iterator[tuple[str, str]]:
    """Lose what was not synced, at every call; yield (call, outcome). Equal disks count once."""
    chance = random.Random(0)
    disk = trial.disk
    assert disk is not None
    seen: set[str] = set()
    for number, call in enumerate(trial.calls):
        disk.replay(call)
        if number % step:
            continue
        for image in disk.crashes(chance, selections):
            if image.digest in seen:
                continue
            seen.add(image.digest)
            image.lay_down()
            yield call.label, judged.verdict(trial.next)


def outcomes(found: Iterator[tuple[str, str]]) -> Counter[str]:
    """Count outcomes; a wrong one carries where it happened."""
    counted: Counter[str] = Counter()
    for where, outcome in found:
        counted[outcome if outcome in ("old", "new") else f"{where}: {outcome}"] += 1
    return counted


def failing_everywhere(
    trial: Trial, judged: Judge, code: int, action: int = seams.FAIL, step: int = 1
) -> Iterator[tuple[str, str]]:
    """Let every call fail with errno `code`; yield (call, outcome)."""
    for call in trial.calls[::step]:
        trial.again()
        ran = trial.run(at=call.number, action=action, code=code)
        yield call.label, _said(ran, judged.verdict(trial.next), trial)


def interrupted_everywhere(
    trial: Trial, judged: Judge, number: int, step: int = 1
) -> Iterator[tuple[str, str]]:
    """Raise signal `number` at every call; yield (call, outcome)."""
    for call in trial.calls[::step]:
        trial.again()
        ran = trial.run(at=call.number, action=seams.SIGNAL, code=number)
        left = [] if trial.repeated and ran.code == 130 else trial.world.litter()
        outcome = _said(ran, judged.verdict(trial.next), trial)
        yield call.label, f"left to recover: {left}" if left else outcome


def _said(ran: Ran, side: str, trial: Trial) -> str:
    """The outcome, unless the command said something else than what is so."""
    if side not in ("old", "new"):
        return f"{side} ({ran.code}: {ran.err[-300:]})"
    if "Traceback" in ran.err or ran.code not in (0, 1, 6, 7, 8, 9, 10, 130):
        return f"exit {ran.code}: {ran.err[-300:]}"
    claims = {0: ("new",), 8: ("new",), 6: ("old",)}.get(ran.code, ("old", "new"))
    if side not in claims and not (trial.repeated and ran.code):  # the judge went on with it
        return f"exit {ran.code}, but the content is {side}: {ran.err[-300:]}"
    return side
