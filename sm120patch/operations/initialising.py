"""`init`: write a verification profile, from a running server when there is one.

Reads /proc through psutil; writes the one file that was named.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from sm120patch.disk import write_file
from sm120patch.errors import HostError, UsageError
from sm120patch.host.processes import ServerProcess, running_sglang_servers
from sm120patch.verify.template import template


@dataclass(frozen=True)
class Written:
    """What `init` wrote, and from which server."""

    path: Path
    pid: int | None
    servers: tuple[int, ...]
    """Every SGLang server that runs here."""
    text: str


def write_profile(path: Path, *, pid: int | None, force: bool) -> Written:
    """Write the profile; an existing file is kept unless `force`."""
    if path.exists() and not force:
        raise UsageError(
            f"{path} exists already", hint="name another file with --profile, or add --force"
        )
    servers = running_sglang_servers()
    chosen = _choose(servers, pid)
    text = template() if chosen is None else _from_server(chosen)
    try:
        write_file(path.absolute(), text.encode())
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from error
    found = tuple(s.pid for s in servers)
    return Written(path, chosen.pid if chosen else None, found, _message(path, chosen))


def _choose(servers: tuple[ServerProcess, ...], pid: int | None) -> ServerProcess | None:
    if pid is None:
        if len(servers) > 1:
            listed = "\n".join(f"  - pid {s.pid}, port {s.port}" for s in servers)
            raise UsageError(
                f"several SGLang servers run here:\n{listed}", hint="choose one with --pid"
            )
        return servers[0] if servers else None
    chosen = next((s for s in servers if s.pid == pid), None)
    if chosen is None:
        raise UsageError(
            f"process {pid} is no SGLang server that can be read",
            hint="run as its user or as root; leave --pid out to be shown what was found",
        )
    return chosen


def _from_server(server: ServerProcess) -> str:
    return template(
        server.cmdline,
        server.environ,
        cwd=server.cwd,
        user=server.username,
        home=server.environ.get("HOME"),
    )


def _message(path: Path, server: ServerProcess | None) -> str:
    origin = (
        "no SGLang server runs here, so it is an example: fill in your command line"
        if server is None
        else f"from the SGLang server with pid {server.pid}; read it before you use it"
    )
    named = shlex.quote(str(path))
    return f"wrote {path} ({origin})\nnext: sm120patch apply SET --dry-run --profile {named}"
