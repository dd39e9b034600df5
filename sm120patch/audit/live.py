"""Running servers that do not run what is on disk. Reads /proc only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from sm120patch.audit import carriers
from sm120patch.audit.findings import EnvironmentReport, FileState, Finding, Kind
from sm120patch.audit.tree import Tree

if TYPE_CHECKING:
    from sm120patch.host import LiveProcess, ServerProcess

_QUIET = frozenset((FileState.MISSING, FileState.UNREADABLE))
"""Files that have no time to compare with."""


class Live(NamedTuple):
    """Servers of this host, and the libraries that processes have mapped."""

    servers: tuple[ServerProcess, ...]
    gone: tuple[tuple[LiveProcess, str], ...]
    """Processes with a library of the packages that is not where it was loaded from any more."""


def look() -> Live:
    """Look at all processes once."""
    from sm120patch import host

    return Live(host.running_sglang_servers(), host.gone_libraries(("sglang", "flashinfer")))


def in_environment(
    live: Live, environment: EnvironmentReport, changed_at: str
) -> Iterator[Finding]:
    """Find servers of one environment that run older code, and overlays in their variables."""
    changed, what = _last_change(environment, changed_at)
    for server in live.servers:
        if not _belongs(server, environment):
            continue
        name = f"pid {server.pid} (port {server.port})"
        if changed and server.create_time < changed:
            detail = (
                f"started at {_time(server.create_time)}, before {what} at {_time(changed)}:"
                " it runs the code from before"
            )
            yield Finding(Kind.STALE_SERVER, "-", name, detail, (), "restart the server")
        yield from carriers.in_variables(Tree(), server.environ, name)


def gone_libraries(live: Live, below: Sequence[str]) -> Iterator[Finding]:
    """Find processes that map a library that is not there any more, below one of the places."""
    starts = tuple(f"{place.rstrip('/')}/" for place in below)
    for process, path in live.gone:
        if not path.startswith(starts):
            continue
        detail = f"maps {path}, which is not what a start would load now"
        name = f"pid {process.pid}"
        yield Finding(Kind.STALE_SERVER, "-", name, detail, (), "restart the server")


def _last_change(environment: EnvironmentReport, changed_at: str) -> tuple[float, str]:
    """When the environment's files last changed, in seconds, and what did."""
    times = [(_seconds(changed_at), "the last change of sm120patch")] if changed_at else []
    for package in environment.packages:
        for file in package.files:
            if file.state in _QUIET or (file.state is FileState.OURS and changed_at):
                continue
            try:
                status = os.lstat(f"{package.root}/{file.path}")
            except OSError:
                continue
            # A time can be put back, but a further name on the file system changes ctime too.
            changed = max(status.st_mtime, status.st_ctime if status.st_nlink == 1 else 0.0)
            times.append((changed, f"{file.path} changed"))
    return max(times, default=(0.0, ""))


def _belongs(server: ServerProcess, environment: EnvironmentReport) -> bool:
    """Tell whether a server was started with the environment's Python."""
    names = (environment.prefix, *environment.names)
    prefixes = tuple(f"{name.rstrip('/')}/bin/" for name in names)
    words = [word for word in server.cmdline[:2] if "/" in word]
    if any(word.startswith(prefixes) for word in words):
        return True
    return server.environ.get("VIRTUAL_ENV") in names


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
