"""Runs compilers with progress and a time limit, each in a process group of its own.

Starts and ends what it started, nothing else.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120patch.errors import HostError
from sm120patch.host import proc

Say = Callable[[str], None]
HEARTBEAT = 30.0
"""Seconds between signs of life while nothing is finished."""


@dataclass(frozen=True)
class Owner:
    """User and group that a compiler runs as; None means ours."""

    user: int | None = None
    group: int | None = None
    extra_groups: Sequence[int] | None = None


@dataclass(frozen=True)
class Limit:
    """When everything must have ended."""

    seconds: float
    end: float

    @classmethod
    def of(cls, seconds: float) -> Limit:
        """Begin to count now."""
        return cls(seconds, time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Seconds until then."""
        return self.end - time.monotonic()

    def error(self, doing: str) -> HostError:
        """Error for a compile that took too long."""
        return HostError(
            f"{doing} did not end within {self.seconds:.0f} s and was stopped",
            code="compile-timeout",
            hint="repeat with a longer --compile-timeout; finished objects are kept",
        )


def lines_of(
    command: Sequence[str],
    environ: Mapping[str, str],
    cwd: Path,
    owner: Owner,
    limit: Limit,
    say: Say,
) -> Iterator[str]:
    """Run a command and yield its lines, both streams; the last one is its exit status in words.

    Raises HostError when it cannot be started or outlasts the limit.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            cwd=cwd,
            start_new_session=True,
            user=owner.user,
            group=owner.group,
            extra_groups=owner.extra_groups,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError(f"cannot run {command[0]}: {error}") from error
    found: queue.Queue[bytes | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, found), daemon=True)
    reader.start()
    began = time.monotonic()
    try:
        while True:
            if limit.left <= 0:
                raise limit.error("the compile")
            try:
                line = found.get(timeout=max(0.01, min(HEARTBEAT, limit.left)))
            except queue.Empty:
                say(f"      still compiling after {time.monotonic() - began:.0f} s")
                continue
            if line is None:
                break
            yield line.decode("utf-8", "replace").rstrip("\n")
        yield f"exit status {process.wait()}"
    finally:
        end_group(process)
        reader.join(timeout=5)
        if process.stdout is not None:
            process.stdout.close()


def _read(process: subprocess.Popen[bytes], found: queue.Queue[bytes | None]) -> None:
    with contextlib.suppress(OSError, ValueError):
        for line in process.stdout or ():
            found.put(line)
    found.put(None)


def end_group(process: subprocess.Popen[bytes], patience: float = 5.0) -> None:
    """End a process that was started in a session of its own, with everything in that session.

    ninja gives each compiler a process group of its own and ends them itself when it is asked to;
    what is left after `patience` seconds is killed.
    """
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    end = time.monotonic() + patience
    while (left := proc.living(proc.SESSION, process.pid)) and time.monotonic() < end:
        process.poll()
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True)
class Job:
    """One compiler run that leaves a file."""

    name: str
    command: Sequence[str]


def run_all(
    jobs: Sequence[Job], environ: Mapping[str, str], cwd: Path, limit: Limit, say: Say
) -> None:
    """Run the jobs, as many at once as the machine has room for; HostError for the first failure.

    MAX_JOBS bounds them, as it does FlashInfer's; each takes about 1.2 GB.
    """
    named = environ.get("MAX_JOBS", "")
    most = int(named) if named.isdigit() and int(named) else min(4, os.cpu_count() or 1)
    waiting, running = deque(jobs), dict[str, tuple[Job, subprocess.Popen[bytes], float]]()
    try:
        while waiting or running:
            while waiting and len(running) < most:
                job = waiting.popleft()
                running[job.name] = (job, _start(job, environ, cwd), time.monotonic())
            time.sleep(0.1)
            if limit.left <= 0:
                raise limit.error("the proof from PTX")
            for name, (job, process, began) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[name]
                if process.returncode != 0:
                    raise _failed(job, cwd, process.returncode)
                say(f"      {name} ({time.monotonic() - began:.0f} s)")
    finally:
        for _, process, _ in running.values():
            end_group(process)


def _start(job: Job, environ: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    try:
        with (cwd / "compiler.log").open("ab") as log:
            return subprocess.Popen(
                job.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environ),
                cwd=cwd,
                start_new_session=True,
            )
    except OSError as error:
        raise HostError(f"cannot run {job.command[0]}: {error}") from error


def _failed(job: Job, cwd: Path, status: int) -> HostError:
    text = (cwd / "compiler.log").read_text(encoding="utf-8", errors="replace")
    return HostError(
        f"{job.name}: the compiler ended with status {status}:\n{worst(text.splitlines())}",
        code="compile-failed",
    )


def worst(lines: Sequence[str], most: int = 12) -> str:
    """Lines of a compiler's output that tell why it failed."""
    wrong = [line[:400] for line in lines if "error" in line.lower() and "-o " not in line]
    return "\n".join(wrong[:most] or [line[:400] for line in lines[-most:]])
