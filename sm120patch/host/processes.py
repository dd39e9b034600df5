"""Live processes that matter: users of an environment or a GPU, servers, owners of a port.

Reads /proc and NVML only; no process is ever signalled. Whatever is returned is free of secrets.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sm120patch.host import nvml
from sm120patch.host.redaction import redact_arguments, redact_environment
from sm120patch.values import dataclass

if TYPE_CHECKING:
    import psutil

SGLANG_DEFAULT_PORT = 30000


@dataclass(frozen=True)
class LiveProcess:
    """A process that would be affected, or would disturb a measurement."""

    pid: int
    create_time: float
    """Seconds since the epoch; with the pid it names one process for good."""
    cmdline: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Listener:
    """Owner of a listening socket; both None when it belongs to a user we may not look into."""

    pid: int | None
    create_time: float | None


@dataclass(frozen=True)
class ServerProcess:
    """A running SGLang server, as `init` copies it."""

    pid: int
    create_time: float
    cmdline: tuple[str, ...]
    environ: Mapping[str, str]
    """Empty when it may not be read."""
    cwd: str | None
    username: str | None
    port: int


def processes_using(
    roots: Sequence[Path],
    prefix: Path,
    cache_dirs: Iterable[Path] = (),
    ours: Collection[int] = (),
) -> tuple[LiveProcess, ...]:
    """Name the processes that use an environment, its builds or a GPU, by pid.

    `roots` are package directories (`.../site-packages/sglang`), `prefix` the environment,
    `cache_dirs` JIT workspaces. Processes of other users are seen as far as /proc lets us. This
    process, its ancestors and those of `ours` are left out.
    """
    ignored = {*_ancestry(os.getpid()), *ours}
    holders = _gpu_holders()
    places = {
        spelling: what
        for what, paths in (("package", roots), ("JIT build", cache_dirs))
        for path in paths
        for spelling in (f"{path.absolute()}/", f"{os.path.realpath(path)}/")
    }
    wanted = [os.fsencode(place) for place in places]
    found = []
    for pid in sorted(int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()):
        maps, command = _proc(pid, "maps"), _proc(pid, "cmdline")
        # A container may have its own process with a number that the driver means elsewhere.
        holds = holders.pop(pid, None) if _may_use_gpu(maps) else None
        if pid in ignored:
            continue
        # Few processes are worth a closer look.
        if holds or b"sglang" in command or any(place in maps for place in wanted):
            live = _live(pid, _words(command), _mapped(maps), places, prefix, holds)
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
    import psutil

    try:
        process = psutil.Process(pid)
        started = process.create_time()
    except psutil.Error:
        return None  # gone meanwhile
    why = [_mapping(maps, places), _serving(process, command, maps, prefix), holds]
    reasons = [reason for reason in why if reason]
    if not reasons:
        return None
    return LiveProcess(pid, started, redact_arguments(command), "; ".join(reasons))


def _ancestry(pid: int) -> list[int]:
    """The process and its ancestors, as far as they can be seen."""
    found = []
    while pid > 0 and pid not in found:
        found.append(pid)
        # The name of a process stands in brackets and may hold anything.
        fields = _proc(pid, "stat").rpartition(b")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return found


def _proc(pid: int, name: str) -> bytes:
    """A file of /proc; empty when it may not be read or the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


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
    import psutil

    places = {f"{os.path.realpath(path)}/" for path in cache_dirs}
    found = []
    for process in psutil.process_iter(["cmdline", "create_time"]):
        for path in sorted(_mapped_files(process.pid)):
            if path.startswith(tuple(places)) and ".so" in Path(path).name:
                command = redact_arguments(tuple(process.info["cmdline"] or ()))
                since = process.info["create_time"] or 0.0
                found.append((LiveProcess(process.pid, since, command, f"maps {path}"), path))
    return tuple(found)


def gone_libraries(packages: Sequence[str]) -> tuple[tuple[LiveProcess, str], ...]:
    """Name every process that maps a library of one of the packages that is gone or put away.

    Libraries below a directory of that name count, and those of JIT caches (`.cache/NAME`).
    """
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline", "create_time"]):
        for path in sorted(_mapped_files(process.pid)):
            gone = path.endswith(" (deleted)") or "/.sm120patch/" in path
            if gone and ".so" in Path(path).name and any(f"/{p}/" in path for p in packages):
                command = redact_arguments(tuple(process.info["cmdline"] or ()))
                since = process.info["create_time"] or 0.0
                found.append((LiveProcess(process.pid, since, command, f"maps {path}"), path))
    return tuple(found)


def listening_pid(port: int) -> Listener | None:
    """Return who listens on a TCP port of this host, None when nobody does."""
    import psutil

    owners = {
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,)
    }
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
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline", "create_time", "ppid", "username"]):
        command = process.info["cmdline"] or []
        if is_server_command(command):
            found.append(process)
    pids = {process.pid for process in found}
    servers = [_server(process) for process in found if process.info["ppid"] not in pids]
    return tuple(sorted(servers, key=lambda server: server.create_time))


def is_server_command(command: Sequence[str]) -> bool:
    """Tell whether a command line starts an SGLang server: module, script or `sglang serve`."""
    if not command or not Path(command[0]).name.startswith(("python", "sglang")):
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


def _server(process: psutil.Process) -> ServerProcess:
    import psutil

    try:
        environ = redact_environment(process.environ())
        cwd: str | None = process.cwd()
    except (psutil.Error, OSError):
        environ, cwd = {}, None
    command = process.info["cmdline"]
    return ServerProcess(
        pid=process.pid,
        create_time=process.info["create_time"] or 0.0,
        cmdline=redact_arguments(command),
        environ=environ,
        cwd=cwd,
        username=process.info["username"],
        port=port_of(command),
    )


def _gpu_holders() -> dict[int, str]:
    if not nvml.has_driver():
        return {}
    gpus: dict[int, list[str]] = {}
    for index, pid, memory in nvml.facts()["processes"]:
        size = f" ({memory / 2**30:.1f} GiB)" if memory else ""
        gpus.setdefault(pid, []).append(f"GPU {index}{size}")
    return {pid: f"holds {', '.join(names)}" for pid, names in gpus.items()}


def _mapped_files(pid: int) -> frozenset[str]:
    """Files that a process maps; empty when it may not be read or is gone."""
    return _mapped(_proc(pid, "maps"))


def _mapped(maps: bytes) -> frozenset[str]:
    lines = maps.decode("utf-8", "surrogateescape").splitlines()
    return frozenset(fields[5] for line in lines if len(fields := line.split(None, 5)) == 6)


def _may_use_gpu(maps: bytes) -> bool:
    return not maps or b"/libcuda" in maps or b"/dev/nvidia" in maps


def _mapping(maps: Iterable[str], places: Mapping[str, str]) -> str | None:
    for path in sorted(maps):
        for place, what in places.items():
            if path.startswith(place):
                return f"maps {what} {path}"
    return None


def _serving(
    process: psutil.Process, command: Sequence[str], maps: Iterable[str], prefix: Path
) -> str | None:
    """Say that a process runs SGLang with the environment's Python.

    Workers rename themselves (`sglang::scheduler`): then the extension modules they map tell.
    """
    if not any("sglang" in argument for argument in command):
        return None
    prefixes = tuple(f"{place}/" for place in (prefix.absolute(), os.path.realpath(prefix)))
    for path in (*_programs(process, command), *_extensions(maps)):
        if path.startswith(prefixes):
            return f"runs SGLang with {prefix}"
    return None


def _programs(process: psutil.Process, command: Sequence[str]) -> Iterator[str]:
    import psutil

    yield from command[:2]
    if "/" not in command[0]:
        try:
            found = shutil.which(command[0], path=process.environ().get("PATH", ""))
        except (psutil.Error, OSError):
            found = None
        if found:
            yield found


def _extensions(maps: Iterable[str]) -> Iterator[str]:
    return (path for path in maps if "/site-packages/" in path or "/dist-packages/" in path)
