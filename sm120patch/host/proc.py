"""What the kernel says of single processes: empty where it is gone, or not ours to look at."""

import os

ENDED = ("Z", "X")
"""States of a process that is dead, but not collected by its parent."""
STATE, PARENT, GROUP, SESSION, START = 0, 1, 2, 3, 19
"""Where they stand among the fields of `stat`."""


def pids() -> list[int]:
    """Numbers of all processes, the lowest first."""
    return sorted(int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())


def read(pid: int, name: str) -> bytes:
    """The content of a file of /proc/PID."""
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(fd)


def stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat behind the name."""
    # The name of a process stands in brackets and may hold anything.
    return read(pid, "stat").rpartition(b")")[2].decode("ascii", "replace").split()


def since_boot(fields: list[str]) -> float | None:
    """Seconds from the boot of the machine to the start of the process of these fields."""
    return int(fields[START]) / os.sysconf("SC_CLK_TCK") if len(fields) > START else None


def living(field: int, value: int) -> list[int]:
    """Processes of which a field of `stat` has that value; those that have ended do not count."""
    return [
        pid
        for pid in pids()
        if (fields := stat(pid)) and fields[field] == str(value) and fields[STATE] not in ENDED
    ]


def mapped(maps: bytes) -> frozenset[str]:
    """Paths of the files in /proc/PID/maps; ` (deleted)` stands behind those that are gone."""
    lines = (line.split(None, 5) for line in maps.split(b"\n"))
    return frozenset(os.fsdecode(f[5]) for f in lines if len(f) == 6 and f[5].startswith(b"/"))
