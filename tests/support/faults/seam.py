"""Faults at numbered file-system calls of real commands: kill, tear, fail, interrupt, trace."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.command import CHECKOUT, Ran

NOTHING, KILL, TEAR, FAIL, FAIL_FROM, SIGNAL = range(6)
_SOURCE = Path(__file__).with_name("seam.c")


@dataclass(frozen=True)
class Call:
    """One file-system call that succeeded, as the trace has it."""

    number: int
    op: str
    path: str
    other: str
    """Second path of a rename or link; the time of a `utime`."""
    inode: int
    value: int
    """Offset of a write, size of a truncate, mode of a chmod or mkdir."""
    data: bytes

    @property
    def label(self) -> str:
        path = self.other if self.op in ("rename", "link") else self.path
        return f"{self.op} {path}"


@cache
def library() -> Path | None:
    """Compile the seam; None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    built = Path(tempfile.gettempdir()) / f"sm120patch-seam-{os.getuid()}-{digest}.so"
    if not built.exists():
        fresh = built.with_suffix(f".{os.getpid()}")
        options = ["-O1", "-fno-builtin", "-shared", "-fPIC", "-w"]
        subprocess.run(
            [compiler, *options, "-o", str(fresh), str(_SOURCE), "-ldl"],
            check=True,
            capture_output=True,
        )
        fresh.replace(built)
    return built


class Seam:
    """A warm process whose forked copies run commands with a fault armed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(
        self,
        *arguments: str | Path,
        at: int = 0,
        action: int = NOTHING,
        code: int = 0,
        trace: Path | None = None,
        before: str = "",
        known: Path | None = None,
    ) -> Ran:
        """Run `sm120patch ARGUMENTS`; `at` numbers calls from 1, `before` is Python run first.

        `known`: prefix whose interpreter is asked once for all commands which imports it has.
        """
        request: dict[str, Any] = {
            "arguments": [str(a) for a in arguments],
            "at": at,
            "action": action,
            "code": code,
            "trace": None if trace is None else str(trace),
            "before": before,
            "known": None if known is None else str(known),
        }
        answer = self._ask(request)
        return Ran(answer["code"], answer["out"], answer["err"])

    def pause(self, *arguments: str | Path, at: int) -> Ran | int:
        """Run a command until right before its call number `at`; return what resumes it.

        Where it makes fewer calls than that it has ended, and what it said is returned.
        """
        request: dict[str, Any] = {"arguments": [str(a) for a in arguments], "at": at}
        answer = self._ask({**request, "action": SIGNAL, "code": signal.SIGSTOP})
        if "paused" in answer:
            return int(answer["paused"])
        return Ran(answer["code"], answer["out"], answer["err"])

    def resume(self, paused: Ran | int) -> Ran:
        """Let it go on to its end."""
        if isinstance(paused, Ran):
            return paused
        answer = self._ask({"resume": paused})
        return Ran(answer["code"], answer["out"], answer["err"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def traced(self, trace: Path, *arguments: str | Path) -> tuple[Ran, list[Call]]:
        """Run without a fault and return every call that changed something."""
        ran = self.run(*arguments, trace=trace)
        return ran, read_trace(trace)


def read_trace(trace: Path) -> list[Call]:
    calls = []
    for line in trace.read_text().splitlines():
        number, op, path, other, inode, value, data = line.split("\t")
        calls.append(
            Call(int(number), op, path, other, int(inode), int(value), bytes.fromhex(data))
        )
    return calls


@contextmanager
def seam(*roots: Path) -> Iterator[Seam]:
    """Start the warm process; only calls below `roots` count."""
    built = library()
    assert built is not None
    words = [sys.executable, "-m", "tests.support.faults.server", *map(str, roots)]
    environ = {**os.environ, "LD_PRELOAD": str(built), "PYTHONPATH": str(CHECKOUT)}
    process = subprocess.Popen(
        words,
        cwd=CHECKOUT,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Seam(process)
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()
