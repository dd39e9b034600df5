"""Times and memory of commands, measured in turns so that a busy machine is busy for all."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Linux counts what a process held before `exec` to its peak, so it must be started by a small one.
_PEAK = (
    "import os, sys\n"
    "null = os.open(os.devnull, os.O_RDWR)\n"
    "ends = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]\n"
    "pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=ends)\n"
    "_, status, usage = os.wait4(pid, 0)\n"
    "print(usage.ru_maxrss)\n"
    "sys.exit(os.waitstatus_to_exitcode(status))\n"
)


@dataclass
class Case:
    """One command, with what has to be done before and after it, unmeasured."""

    name: str
    does: str
    command: Sequence[str]
    cwd: Path
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None
    codes: tuple[int, ...] = (0,)
    environ: dict[str, str] = field(default_factory=dict)
    ours: bool = False
    repeat: int = 1
    """Rounds from one to the next in which it runs: slow ones need not run in all."""
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak: int = 0
    """Largest resident set of it or a child of it, in KiB."""

    def run(self) -> None:
        """Run once and keep wall time and CPU time, children included, in seconds."""
        self.before()
        with Path(os.devnull).open("r+b") as null:
            begun = time.perf_counter()
            child = subprocess.Popen(
                self.command, cwd=self.cwd, env=self.environ, stdin=null, stdout=null, stderr=null
            )
            _, status, usage = os.wait4(child.pid, 0)
            self.wall.append(time.perf_counter() - begun)
        child.returncode = os.waitstatus_to_exitcode(status)
        self.cpu.append(usage.ru_utime + usage.ru_stime)
        self._check(child.returncode)
        self.after()

    def weigh(self) -> None:
        """Run once more for the peak of its memory."""
        self.before()
        words = [sys.executable, "-I", "-S", "-c", _PEAK, *self.command]
        done = subprocess.run(
            words, cwd=self.cwd, env=self.environ, capture_output=True, check=False, text=True
        )
        self._check(done.returncode)
        self.peak = int(done.stdout)
        self.after()

    def _check(self, code: int) -> None:
        if code not in self.codes:
            raise SystemExit(f"{self.name}: exit status {code}: {' '.join(self.command)}")

    @property
    def typical(self) -> float:
        """Median of the CPU time, in seconds."""
        return statistics.median(self.cpu)

    @property
    def queued(self) -> bool:
        """True when it never ran without waiting half as long as it worked, or longer."""
        return min(self.wall) > 1.5 * self.typical

    @property
    def least(self) -> float:
        """Smallest CPU time, in seconds: what other work on the machine has disturbed least."""
        return min(self.cpu)


def measure(cases: Sequence[Case], rounds: int, say: Callable[[str], None]) -> None:
    """Run all cases in turns; the first round warms up and is thrown away."""
    for number in range(rounds + 1):
        for case in cases:
            if number % case.repeat == 0 or number == 1:
                case.run()
        if number == 0:
            for case in cases:
                case.wall.clear()
                case.cpu.clear()
        say(f"round {number} of {rounds}")
    for case in cases:
        case.weigh()


def floor(environ: dict[str, str], cwd: Path) -> int:
    """Smallest peak (KiB) that can be told from none: that of the process that measures."""
    case = Case("true", "", ["/bin/true"], cwd, environ=environ)
    case.weigh()
    return case.peak


def conditions() -> str:
    """What else this machine had to do, for the head of a document."""
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    processes = sum(place.name.isdigit() for place in Path("/proc").iterdir())
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    return f"load {load} (1, 5, 15 minutes), {processes} processes at the end; " + (
        f"everything measured ran with nice {nice}" if nice else "nobody had priority"
    )


def milliseconds(seconds: float) -> str:
    """For a table: three digits are more than can be repeated."""
    value = 1000 * seconds
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def spread(values: Sequence[float]) -> str:
    """Median, and between which values the middle half lies, in milliseconds."""
    if len(values) < 4:
        return milliseconds(statistics.median(values))
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{milliseconds(middle)} ({milliseconds(low)}-{milliseconds(high)})"


def table(cases: Sequence[Case], smallest: int) -> list[str]:
    """Markdown lines: what each case took."""
    lines = [
        "| command | does | CPU best | CPU median (middle half) | wall best | wall median | peak |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        memory = f"{case.peak / 1024:.0f} MB" if case.peak > smallest else f"< {smallest >> 10} MB"
        cells = [
            f"`{case.name}`",
            case.does,
            milliseconds(case.least),
            spread(case.cpu),
            milliseconds(min(case.wall)),
            milliseconds(statistics.median(case.wall)),
            memory,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
