"""Who listens on a port, since when, and in which session. Reads /proc only."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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
    import psutil

    found = []
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return []
    for connection in connections:
        local = connection.laddr
        if connection.status != psutil.CONN_LISTEN or not local or local.port != port:
            continue
        found.append(Listener(connection.pid, _command(connection.pid)))
    return list(dict.fromkeys(found))


def group_members(group: int) -> list[int]:
    """Living processes of a process group; zombies do not count."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            state, owner = fields[0], fields[2]
            if owner == str(group) and state not in ("Z", "X"):
                members.append(int(entry.name))
    return members


def descendants(pid: int) -> list[int]:
    """A process and all that it has started, directly or through others, as far as they live."""
    parents = {
        int(entry.name): int(fields[1])
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and (fields := _stat(int(entry.name)))
    }
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
        if (fields := _stat(pid)) and fields[0] in ("Z", "X"):
            names.append(f"{_name(pid)} (PID {pid})")
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
    fields = _stat(pid)
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def started_after(pid: int, moment: float) -> bool | None:
    """True when a process started after `moment` of `boot_clock`; None when unknown."""
    start = started_at(pid)
    return None if start is None else start + _TICK >= moment


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the command name, state first; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip() or "unnamed"
    except OSError:
        return "unnamed"


def _command(pid: int | None) -> str:
    import psutil

    if pid is None:
        return "unknown"
    try:
        return " ".join(psutil.Process(pid).cmdline())[:120] or "unknown"
    except psutil.Error:
        return "unknown"
