"""Running servers that do not run what is on disk. Reads /proc and times of files only."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sm120patch.audit import carriers
from sm120patch.audit.findings import EnvironmentReport, FileState, Finding, Kind
from sm120patch.audit.tree import Tree

if TYPE_CHECKING:
    from sm120patch.audit.examine import Examined
    from sm120patch.audit.layout import Copy
    from sm120patch.host.processes import LiveProcess, ServerProcess

_QUIET = frozenset((FileState.MISSING, FileState.UNREADABLE))
"""Files that have no time to compare with."""
_PRECISION = 0.05
"""Seconds. The kernel tells the start of a process to a tick, and so the times of files."""


class Live(NamedTuple):
    """Servers of this host, and the libraries that processes have mapped."""

    servers: "tuple[ServerProcess, ...]"
    gone: "tuple[tuple[LiveProcess, str], ...]"
    """Processes with a library of the packages that is not where it was loaded from any more."""


def look() -> Live:
    """Look at all processes once."""
    from sm120patch.host import processes

    return Live(
        (*processes.running_sglang_servers(), *processes.embedded_workers()),
        processes.gone_libraries(("sglang", "flashinfer")),
    )


def in_environment(live: Live, examined: "Examined") -> Iterator[Finding]:
    """Find servers of one environment that run older or other code than is examined there."""
    report, copies = examined.report, examined.layout.copies
    changed, what = max((*_changes(examined), *_installations(examined)), default=(0.0, ""))
    for server in live.servers:
        if not _belongs(server, report, [copy.root for copy in copies]):
            continue
        known = f"port {server.port}" if server.port else server.cmdline[0]
        name = f"pid {server.pid} ({known})"
        # What becomes a server by `exec` is older than the code that it has read.
        started = server.workers_since or server.create_time
        if started + _PRECISION < changed:
            detail = (
                f"started at {_time(started)}, before {what} at {_time(changed)}:"
                " it runs the code from before"
            )
            yield Finding(Kind.STALE_SERVER, "-", name, detail, (), "restart the server")
        yield from carriers.in_variables(Tree(), server.environ, name, server.cwd or "/")
        for copy in copies if _looks_where_it_is(server) else ():
            yield from _in_its_directory(server, copy, name)


def untold(live: Live) -> Iterator[Finding]:
    """Find servers of other users of which this user may not see which environment they run."""
    from sm120patch.host import proc
    from sm120patch.host.processes import programs_of

    for server in live.servers:
        told = server.environ or any(programs_of(server.pid, server.cmdline))
        if told or proc.read(server.pid, "maps") or not Path(f"/proc/{server.pid}").exists():
            continue
        detail = "which environment it runs cannot be told: run the audit as root or as its user"
        yield Finding(Kind.UNKNOWN, "-", f"pid {server.pid}", detail)


def gone_libraries(live: Live, below: Sequence[str]) -> Iterator[Finding]:
    """Find processes that map a library that is not there any more, below one of the places."""
    starts = tuple(f"{place.rstrip('/')}/" for place in below)
    for process, path in live.gone:
        if not path.startswith(starts):
            continue
        detail = f"maps {path}, which is not what a start would load now"
        name = f"pid {process.pid}"
        yield Finding(Kind.STALE_SERVER, "-", name, detail, (), "restart the server")


def _changes(examined: "Examined") -> Iterator[tuple[float, str]]:
    """When files that are not simply upstream's changed, in seconds, and what did it."""
    changed_at = examined.changed_at
    if changed_at:
        yield _seconds(changed_at), "the last change of sm120patch"
    for package in examined.report.packages:
        for file in package.files:
            if file.state in _QUIET or (file.state is FileState.OURS and changed_at):
                continue
            try:
                status = os.lstat(f"{package.root}/{file.path}")
            except OSError:
                continue
            # A time can be put back, but a further name on the file system changes ctime too.
            changed = max(status.st_mtime, status.st_ctime if status.st_nlink == 1 else 0.0)
            yield changed, f"{file.path} changed"


def _installations(examined: "Examined") -> Iterator[tuple[float, str]]:
    """When packages came to hold what they hold: files that are upstream's may replace others."""
    for copy in examined.layout.copies:
        if copy.kind == "wheel":
            # Whoever installs makes this directory, whatever times the files bring along.
            with contextlib.suppress(OSError):
                installed = os.lstat(copy.metadata).st_mtime
                yield installed, f"{copy.target} {copy.version} was installed"
        elif newest := examined.comparisons[copy.target].newest:
            yield newest, f"files of {copy.root} were written"


def _belongs(server: "ServerProcess", report: EnvironmentReport, roots: Sequence[str]) -> bool:
    """Tell whether a server was started with the environment's Python, or imports from it."""
    if not _sees(server.pid, report.prefix):
        return False
    from sm120patch.host import proc
    from sm120patch.host.processes import programs_of

    names = (report.prefix, *report.names)
    programs = list(programs_of(server.pid, server.cmdline))
    directories = {os.path.realpath(f"{name}/bin") for name in names}
    if any(os.path.realpath(program.rpartition("/")[0]) in directories for program in programs):
        return True
    searched = [os.path.realpath(place) for place in _searched_first(server)]
    if any(os.path.realpath(root) in searched for root in roots):
        return True
    if report.kind == "user" and _has_user_site(server, programs, report.prefix):
        return True
    if programs:
        return False
    # A worker that has renamed itself has no more to tell than the libraries that it maps.
    places = tuple(f"{os.path.realpath(root)}/" for root in roots)
    mapped = proc.mapped(proc.read(server.pid, "maps"))
    return server.environ.get("VIRTUAL_ENV") in names or any(p.startswith(places) for p in mapped)


def _has_user_site(server: "ServerProcess", programs: Sequence[str], prefix: str) -> bool:
    """Tell whether a server looks into its user's own site; in a virtual environment none does."""
    home = server.environ.get("HOME")
    if not home or server.environ.get("PYTHONNOUSERSITE"):
        return False
    virtual = any(Path(p).parent.parent.joinpath("pyvenv.cfg").exists() for p in programs)
    return not virtual and os.path.realpath(f"{home}/.local") == os.path.realpath(prefix)


def _sees(pid: int, prefix: str) -> bool:
    """Tell whether a process has the same directory there: in a container it may be another."""
    try:
        return os.path.samestat(Path(f"/proc/{pid}/root{prefix}").stat(), Path(prefix).stat())
    except PermissionError:
        return True
    except OSError:
        return False


def _searched_first(server: "ServerProcess") -> Iterator[str]:
    """Directories that a server searches before the installed packages."""
    here = server.cwd or "/"
    if _looks_where_it_is(server):
        yield here
    for place in server.environ.get("PYTHONPATH", "").split(":"):
        if place:
            yield f"{here}/{place}" if not place.startswith("/") else place


def _looks_where_it_is(server: "ServerProcess") -> bool:
    """Tell whether Python searches the working directory: for `-m`, and for an empty entry."""
    variables, words = server.environ, server.cmdline
    if "-m" in words:
        options = "".join(w for w in words[: words.index("-m")] if w.startswith("-"))
        return not ({"I", "P"} & set(options) or variables.get("PYTHONSAFEPATH"))
    path = variables.get("PYTHONPATH", "")
    return bool(path) and "" in path.split(":")


def _in_its_directory(server: "ServerProcess", copy: "Copy", name: str) -> Iterator[Finding]:
    """Find a copy of a package in the working directory of a server that looks there first."""
    other = f"{server.cwd}/{copy.package}"
    if not Path(other, "__init__.py").is_file():
        return
    if os.path.realpath(other) != os.path.realpath(f"{copy.root}/{copy.package}"):
        detail = f"{name} runs in {server.cwd} and looks there first; {copy.root} has another copy"
        yield Finding(Kind.COPIES, copy.target, other, detail)


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
