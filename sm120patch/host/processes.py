"""Live processes that matter: users of an environment or a GPU, servers, owners of a port.

Reads /proc and NVML only; no process is ever signalled. Whatever is returned is free of secrets.
"""

import contextlib
import os
import pwd
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sm120patch.environment import child
from sm120patch.host import driver, nvml, proc

SGLANG_DEFAULT_PORT = 30000
_WORKER = "sglang::"
"""Begin of the names that workers of SGLang give themselves."""


class LiveProcess(NamedTuple):
    """A process that would be affected, or would disturb a measurement."""

    pid: int
    create_time: float
    """Seconds since the epoch; with the pid it names one process for good."""
    cmdline: tuple[str, ...]
    why: str


class Listener(NamedTuple):
    """Owner of a listening socket; both None when it belongs to a user we may not look into."""

    pid: int | None
    create_time: float | None


class ServerProcess(NamedTuple):
    """A running SGLang server, as `init` copies it."""

    pid: int
    create_time: float
    cmdline: tuple[str, ...]
    environ: Mapping[str, str]
    """Empty when it may not be read."""
    cwd: str | None
    username: str | None
    port: int
    workers_since: float | None = None
    """When the first Python process below it started; None without one.

    A script that becomes the server by `exec` has started long before the server's code was read.
    """


def processes_using(
    roots: Sequence[Path],
    prefix: Path,
    cache_dirs: Iterable[Path] = (),
) -> tuple[LiveProcess, ...]:
    """Name the processes that use an environment, its builds or a GPU, by pid.

    `roots` are package directories (`.../site-packages/sglang`), `prefix` the environment,
    `cache_dirs` JIT workspaces. Processes of other users are seen as far as /proc lets us. This
    process and its ancestors are left out.
    """
    ignored = _ancestry(os.getpid())
    holders = _gpu_holders()
    places = {
        spelling: what
        for what, paths in (("package", roots), ("JIT build", cache_dirs))
        for path in paths
        for spelling in (f"{path.absolute()}/", f"{os.path.realpath(path)}/")
    }
    wanted = [os.fsencode(place) for place in places]
    found = []
    for pid in proc.pids():
        maps, command = proc.read(pid, "maps"), proc.read(pid, "cmdline")
        # A container may have its own process with a number that the driver means elsewhere.
        holds = holders.pop(pid, None) if _may_use_gpu(maps) else None
        if pid in ignored:
            continue
        # Few processes are worth a closer look.
        if holds or b"sglang" in command or any(place in maps for place in wanted):
            live = _live(pid, _words(command), proc.mapped(maps), places, prefix, holds)
            found += [live] if live is not None else []
    outside = (
        LiveProcess(pid, 0.0, (), f"{holds}, not visible from here")
        for pid, holds in sorted(holders.items())
    )
    return (*found, *outside)


def _live(
    pid: int,
    command: tuple[str, ...],
    maps: Collection[str],
    places: Mapping[str, str],
    prefix: Path,
    holds: str | None,
) -> LiveProcess | None:
    started = _started(pid)
    if started is None:
        return None  # gone meanwhile
    why = [_mapping(maps, places), _serving(pid, command, maps, prefix), holds]
    reasons = [reason for reason in why if reason]
    if not reasons:
        return None
    return LiveProcess(pid, started, _shown(command), "; ".join(reasons))


def _shown(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command without its secrets."""
    from sm120patch.redaction import redact_arguments  # loads what most looks never need

    return redact_arguments(command)


def _ancestry(pid: int) -> list[int]:
    """The process and its ancestors, as far as they can be seen."""
    found = []
    while pid > 0 and pid not in found:
        found.append(pid)
        fields = proc.stat(pid)
        pid = int(fields[proc.PARENT]) if len(fields) > 1 else 0
    return found


def _started(pid: int) -> float | None:
    """Seconds since the epoch when the process started, to a hundredth; None when it is gone.

    The time of the boot in /proc/stat, which psutil goes by, is in whole seconds.
    """
    after_boot = proc.since_boot(proc.stat(pid))
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return None if after_boot is None else booted + after_boot


def command_of(pid: int) -> tuple[str, ...]:
    """The command line of a process without its secrets; empty when it is gone."""
    return _shown(_words(proc.read(pid, "cmdline")))


def _words(command: bytes) -> tuple[str, ...]:
    """Split what /proc says; a process that renamed itself leaves spaces between its words."""
    text = os.fsdecode(command)
    words = text.rstrip("\0").split("\0") if text.endswith("\0") else text.split(" ")
    return tuple(words if len(words) > 1 else words[0].split(" ")) if text else ()


def mapping_libraries(cache_dirs: Iterable[Path]) -> tuple[tuple[LiveProcess, str], ...]:
    """Name every process that maps a library below one of the directories, with that file.

    The kernel follows a rename, so a build that was put away since is named where it is now;
    `(deleted)` stands behind one that is gone.
    """
    places = tuple(f"{os.path.realpath(path)}/" for path in cache_dirs)
    return _libraries(places, lambda path: path.startswith(places))


def gone_libraries(packages: Sequence[str]) -> tuple[tuple[LiveProcess, str], ...]:
    """Name every process that maps a library of one of the packages that is gone or put away.

    Libraries below a directory of that name count, and those of JIT caches (`.cache/NAME`).
    """

    def gone(path: str) -> bool:
        away = path.endswith(" (deleted)") or "/.sm120patch/" in path
        return away and any(f"/{package}/" in path for package in packages)

    return _libraries([f"/{package}/" for package in packages], gone)


def _libraries(
    hints: Sequence[str], wanted: Callable[[str], bool]
) -> tuple[tuple[LiveProcess, str], ...]:
    """Mapped libraries that are wanted; only where one of the `hints` stands we look closer."""
    needles = [os.fsencode(hint) for hint in hints]
    found = []
    for pid in proc.pids():
        maps = proc.read(pid, "maps")
        if not any(needle in maps for needle in needles):
            continue
        for path in sorted(proc.mapped(maps)):
            if wanted(path) and ".so" in Path(path).name:
                live = LiveProcess(pid, _started(pid) or 0.0, command_of(pid), f"maps {path}")
                found.append((live, path))
    return tuple(found)


def listening_pids(port: int) -> tuple[int | None, ...]:
    """Who listens on a TCP port of this host; None for processes that we may not look into."""
    import psutil

    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return ()
    listening = (c for c in connections if c.status == psutil.CONN_LISTEN)
    return tuple(dict.fromkeys(c.pid for c in listening if c.laddr[1:2] == (port,)))


def listening_pid(port: int) -> Listener | None:
    """Return who listens on a TCP port of this host, None when nobody does."""
    import psutil

    owners = set(listening_pids(port))
    if not owners:
        return None
    started = []
    for pid in owners - {None}:
        try:
            started.append((psutil.Process(pid).create_time(), pid))
        except psutil.Error:
            continue
    # Worker processes inherit the socket: the oldest is the server.
    create_time, pid = min(started, default=(None, None))
    return Listener(pid, create_time)


def running_sglang_servers() -> tuple[ServerProcess, ...]:
    """Find SGLang servers that run on this host, the oldest first."""
    commands = {pid: _words(proc.read(pid, "cmdline")) for pid in proc.pids()}
    found = {pid for pid, words in commands.items() if is_server_command(words)}
    parents = {pid: _ancestry(pid)[1:2] for pid in found}
    pythons = [pid for pid, words in commands.items() if _is_python(words)]
    servers = [_server(pid, pythons) for pid in sorted(found) if not set(parents[pid]) & found]
    return tuple(sorted(filter(None, servers), key=lambda server: server.create_time))


def embedded_workers() -> tuple[ServerProcess, ...]:
    """Find workers of SGLang that no server of its own has started, the oldest of each parent.

    They are those of programs that load it as a library. Their port is 0.
    """
    commands = {pid: _words(proc.read(pid, "cmdline")) for pid in proc.pids()}
    servers = {pid for pid, words in commands.items() if is_server_command(words)}
    first: dict[int, ServerProcess] = {}
    for pid, words in commands.items():
        if not words or not words[0].startswith(_WORKER):
            continue
        above = _ancestry(pid)[1:]
        started_here = servers & set(above)
        worker = None if started_here else _server(pid, ())
        if worker is not None:
            parent = above[0] if above else 0
            if worker.create_time < first.setdefault(parent, worker).create_time:
                first[parent] = worker
    return tuple(worker._replace(port=0) for worker in first.values())


def _is_python(command: Sequence[str]) -> bool:
    """Tell whether Python runs; workers of SGLang rename themselves."""
    return bool(command) and Path(command[0]).name.startswith(("python", "sglang"))


def is_server_command(command: Sequence[str]) -> bool:
    """Tell whether a command line starts an SGLang server: module, script or `sglang serve`."""
    if not _is_python(command):
        return False
    for position, argument in enumerate(command):
        following = command[position + 1] if position + 1 < len(command) else ""
        if argument == "-m" and following == "sglang.launch_server":
            return True
        if Path(argument).name == "sglang" and following == "serve":
            return True
        if argument.endswith("sglang/launch_server.py"):
            return True
    return False


def port_of(command: Sequence[str]) -> int:
    """Port in an SGLang command line, or SGLang's default."""
    port = SGLANG_DEFAULT_PORT
    for position, argument in enumerate(command):
        name, equals, value = argument.partition("=")
        if name == "--port":
            value = value if equals else "".join(command[position + 1 : position + 2])
            port = int(value) if value.isascii() and value.isdigit() else port
    return port


def _server(pid: int, pythons: Iterable[int]) -> ServerProcess | None:
    from sm120patch.redaction import redact_environment

    command, started = _words(proc.read(pid, "cmdline")), _started(pid)
    if not command or started is None:
        return None  # gone meanwhile
    pairs = (entry.partition("=") for entry in os.fsdecode(proc.read(pid, "environ")).split("\0"))
    environ = redact_environment({name: value for name, equals, value in pairs if equals})
    cwd = user = None
    with contextlib.suppress(OSError):
        cwd = os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115 - it may end in " (deleted)"
    with contextlib.suppress(OSError, KeyError):
        user = pwd.getpwuid(Path(f"/proc/{pid}").stat().st_uid).pw_name
    return ServerProcess(
        pid=pid,
        create_time=started,
        cmdline=_shown(command),
        environ=environ,
        cwd=cwd,
        username=user,
        port=port_of(command),
        workers_since=min(filter(None, map(_started, _below(pid, pythons))), default=None),
    )


def _below(pid: int, others: Iterable[int]) -> list[int]:
    """Those of the other processes that a process has started, directly or through others."""
    return [other for other in others if pid in _ancestry(other)[1:]]


def _gpu_holders() -> dict[int, str]:
    if not driver.is_present():
        return {}
    gpus: dict[int, list[str]] = {}
    for index, pid, memory in nvml.facts()["processes"]:
        size = f" ({memory / 2**30:.1f} GiB)" if memory else ""
        gpus.setdefault(pid, []).append(f"GPU {index}{size}")
    return {pid: f"holds {', '.join(names)}" for pid, names in gpus.items()}


def _may_use_gpu(maps: bytes) -> bool:
    return not maps or b"/libcuda" in maps or b"/dev/nvidia" in maps


def _mapping(maps: Iterable[str], places: Mapping[str, str]) -> str | None:
    for path in sorted(maps):
        for place, what in places.items():
            if path.startswith(place):
                return f"maps {what} {path}"
    return None


_QUESTION = (child.__doc__ or "").partition("\n")[0]
"""First line of the program that the environment's interpreter runs for us."""


def _serving(pid: int, command: Sequence[str], maps: Iterable[str], prefix: Path) -> str | None:
    """Say that a process runs SGLang with the environment's Python.

    Workers rename themselves (`sglang::scheduler`): then the extension modules they map tell.
    """
    if not any("sglang" in argument for argument in command):
        return None
    if any(_QUESTION in argument for argument in command):
        return None  # another command of ours asks the interpreter what it would import
    prefixes = tuple(f"{place}/" for place in (prefix.absolute(), os.path.realpath(prefix)))
    for path in (*programs_of(pid, command), *_extensions(maps)):
        if path.startswith(prefixes):
            return f"runs SGLang with {prefix}"
    return None


def programs_of(pid: int, command: Sequence[str]) -> Iterator[str]:
    """Name the interpreter and the script of a process, as absolute paths; links are not followed.

    A relative one is taken from where the process is now, a name without a slash from its PATH.
    """
    for word in command[:2]:
        if word.startswith("/"):
            yield word
        elif "/" in word:
            with contextlib.suppress(OSError):
                here = os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115 - it may end in " (deleted)"
                yield os.path.normpath(f"{here}/{word}")
    if "/" not in command[0]:
        variables = proc.read(pid, "environ").split(b"\0")
        path = next((v[5:] for v in variables if v.startswith(b"PATH=")), b"")
        import shutil  # it loads three kinds of compression

        found = shutil.which(command[0], path=os.fsdecode(path))
        if found:
            yield found


def _extensions(maps: Iterable[str]) -> Iterator[str]:
    return (path for path in maps if "/site-packages/" in path or "/dist-packages/" in path)
