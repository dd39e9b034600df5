"""Who listens on a port, since when, and in which session. Reads /proc only."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass

from sm120patch.host import proc
from sm120patch.host.processes import command_of, listening_pids

_TICK = 0.02  # kernel start times have a granularity of 10 ms


@dataclass(frozen=True)
class Listener:
    """The process behind a listening port, as far as this user may see it."""

    pid: int | None
    command: str

    def __str__(self) -> str:
        return f"PID {self.pid} ({self.command})" if self.pid else "a process of another user"


def answers(host: str, port: int) -> bool:
    """True when something accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


def listeners(port: int) -> list[Listener]:
    """Processes that listen on a TCP port of this host."""
    return [
        Listener(pid, " ".join(command_of(pid))[:120] or "unknown" if pid else "unknown")
        for pid in listening_pids(port)
    ]


def group_members(group: int) -> list[int]:
    """Living processes of a process group; zombies do not count."""
    return proc.living(proc.GROUP, group)


def descendants(pid: int) -> list[int]:
    """A process and all that it has started, directly or through others, as far as they live."""
    parents = {p: int(fields[proc.PARENT]) for p in proc.pids() if (fields := proc.stat(p))}
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found


def died_unnoticed(pids: Iterable[int]) -> list[str]:
    """Names of those processes that are dead while their parent has not collected them yet.

    That lasts where the parent does not look: SGLang's front end keeps accepting requests when
    the kernel or a signal has ended a scheduler. A process that is gone altogether was collected.
    """
    names = []
    for pid in pids:
        if (fields := proc.stat(pid)) and fields[proc.STATE] in proc.ENDED:
            name = proc.read(pid, "comm").decode("utf-8", "replace").strip()
            names.append(f"{name or 'unnamed'} (PID {pid})")
    return names


def session_of(pid: int) -> int | None:
    """Session id of a process; None when it is gone or hidden."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def boot_clock() -> float:
    """Seconds since this machine was booted; nobody can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def started_at(pid: int) -> float | None:
    """Time of `boot_clock` at which a living process started, good to 10 ms; None when unknown."""
    fields = proc.stat(pid)
    return proc.since_boot(fields) if fields and fields[proc.STATE] not in proc.ENDED else None


def started_after(pid: int, moment: float) -> bool | None:
    """True when a process started after `moment` of `boot_clock`; None when unknown."""
    start = started_at(pid)
    return None if start is None else start + _TICK >= moment
