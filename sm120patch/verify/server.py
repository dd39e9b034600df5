"""The server of one arm: ready, and proven to have started after the content was swapped in.

Starts and stops it through `spawn`, or has an external one restarted; talks HTTP to it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sm120patch.errors import BusyError, HostError
from sm120patch.verify import processes
from sm120patch.verify.commandline import ArmCommand
from sm120patch.verify.http import get, get_object
from sm120patch.verify.profile import Profile, ServerSettings
from sm120patch.verify.spawn import (
    ServerError,
    api_key,
    exit_status,
    hide_secrets,
    log_path,
    run_restart,
    spawn,
    stop,
    tail,
)

_COLLECTING = 0.5  # seconds within which a parent that looks after its children collects them

_WRECKED = 2.0  # seconds for what is left of a server whose engine died


class OutOfTime(Exception):  # noqa: N818 - an outcome, not an error
    """The time for the whole verification is used up."""


@dataclass(frozen=True)
class Server:
    """A server that is ready and proven to have been started after the swap."""

    pid: int
    url: str
    info: Mapping[str, object]
    log: Path | None
    log_offset: int
    seconds: float
    """From start to ready."""
    process: subprocess.Popen[bytes] | None
    """None for an external server."""
    family: tuple[int, ...] = ()
    """Processes of its group when it was ready; none for an external server."""

    @property
    def processes(self) -> tuple[int, ...]:
        """Its processes now, the one that was started or that listens first."""
        if self.process is None:
            return tuple(processes.descendants(self.pid))
        return tuple(dict.fromkeys([self.pid, *processes.group_members(self.pid)]))

    def check_alive(self, doing: str) -> None:
        """Raise ServerError when the process is gone, or one of its own died unnoticed by it."""
        if processes.died_unnoticed(self.family):
            time.sleep(_COLLECTING)
            if lost := processes.died_unnoticed(self.family):
                text = f"{' and '.join(lost)} of the server died while {doing}"
                raise failed(text, self.log, self.log_offset)
        if self.process is not None:
            gone = exit_status(self.process) is not None
        else:
            gone = processes.started_at(self.pid) is None
        if gone:
            text = f"the server died while {doing}{_status(self.process)}"
            raise failed(text, self.log, self.log_offset)


@contextlib.contextmanager
def running(
    profile: Profile,
    command: ArmCommand,
    *,
    swapped_at: float,
    label: str,
    deadline: float | None = None,
) -> Iterator[Server]:
    """Server of one arm, ready; stopped again when the block ends, however it ends.

    `swapped_at` is the time of `processes.boot_clock` at which the content was in place, `label`
    names the log file, `deadline` is a time of `time.monotonic`. Raises BusyError when the port
    is taken, ServerError when the server does not come up, HostError when it cannot be proved
    that it started after the swap, OutOfTime at the deadline. An external server is restarted and
    left running.
    """
    if profile.server.external:
        yield _restarted(profile, command, swapped_at, deadline)
        return
    settings = profile.server
    _require_free_port(settings)
    log = log_path(profile, label)
    began = time.monotonic()
    process = spawn(profile, command, log)
    family: tuple[int, ...] = ()
    try:
        info = _await_ready(settings, process, log, began, deadline)
        _prove_ours(settings, process, log)
        seconds = time.monotonic() - began
        family = tuple(pid for pid in processes.group_members(process.pid) if pid != process.pid)
        yield Server(process.pid, settings.url, info, log, 0, seconds, process, family)
    except ServerError as error:
        hide_secrets(error, command, settings)
        raise
    finally:
        # Without one of its processes a server only waits for it: there is no grace to be had.
        wrecked = bool(processes.died_unnoticed(family))
        stop(process, min(settings.stop_timeout, _WRECKED) if wrecked else settings.stop_timeout)


def failed(text: str, log: Path | None, offset: int = 0, *, hint: str | None = None) -> ServerError:
    """ServerError with the end of the server's log in it."""
    end = tail(log, offset)
    return ServerError(
        text + (f"; its log ends with:{os.linesep}{end}" if end else ""),
        hint=hint or (f"the whole log is in {log}" if log else None),
        details={"log": str(log) if log else None, "tail": end},
    )


# --- started by us -----------------------------------------------------------------------------


def _require_free_port(settings: ServerSettings) -> None:
    if not processes.answers(settings.host, settings.port):
        return
    holders = processes.listeners(settings.port)
    who = ", ".join(map(str, holders)) or "a process that cannot be seen from here"
    raise BusyError(
        f"port {settings.port} is needed for the verification, but {who} listens on it",
        hint="stop that server, or give the profile another port; sm120patch never kills it",
        code="port-taken",
        details={"port": settings.port, "pids": [h.pid for h in holders if h.pid]},
    )


def _await_ready(
    settings: ServerSettings,
    process: subprocess.Popen[bytes],
    log: Path,
    began: float,
    deadline: float | None,
) -> Mapping[str, object]:
    for _ in _polling(settings, began, deadline):
        if exit_status(process) is not None:
            raise failed(f"the server ended before it was ready{_status(process)}", log)
        if _is_ready(settings):
            return _info(settings, log)
    raise _never_ready(settings, log)


def _prove_ours(settings: ServerSettings, process: subprocess.Popen[bytes], log: Path) -> None:
    """The listener must be of our session: another server may have taken the port first."""
    holders = processes.listeners(settings.port)
    if any(h.pid and processes.session_of(h.pid) == process.pid for h in holders):
        return
    who = ", ".join(map(str, holders)) or "nobody that can be seen from here"
    raise HostError(
        f"port {settings.port} is answered, but not by the server that was just started: {who}",
        hint='is `url` the address this server listens on? A container is mode = "external"',
        code="unproved-server",
        details={"log": str(log)},
    )


# --- run by somebody else ----------------------------------------------------------------------


def _restarted(
    profile: Profile, command: ArmCommand, swapped_at: float, deadline: float | None
) -> Server:
    settings = profile.server
    log = Path(settings.log) if settings.log else None
    offset = log.stat().st_size if log is not None and log.exists() else 0
    began = time.monotonic()
    run_restart(profile, command)
    problem: HostError | None = None
    for _ in _polling(settings, time.monotonic(), deadline):
        proof = _proof(settings, swapped_at)
        if isinstance(proof, int) and _is_ready(settings):
            info = _info(settings, log)
            seconds = time.monotonic() - began
            return Server(proof, settings.url, info, log, offset, seconds, None)
        problem = proof if isinstance(proof, HostError) else None
    raise problem or _never_ready(settings, log, offset)


def _proof(settings: ServerSettings, swapped_at: float) -> int | HostError | None:
    """PID of a listener that started after the swap, or why it is not accepted (yet)."""
    holders = processes.listeners(settings.port)
    for holder in holders:
        if holder.pid is not None and processes.started_after(holder.pid, swapped_at):
            return holder.pid
    if any(holder.pid is not None for holder in holders):
        return HostError(
            f"{holders[0]} on port {settings.port} was started before the patch was swapped in: "
            "a server that started before the patch is not accepted as evidence",
            hint="server.restart_command must really restart it",
            code="stale-server",
            details={"pid": holders[0].pid, "port": settings.port},
        )
    if processes.answers(settings.host, settings.port):
        return HostError(
            f"the process that listens on port {settings.port} cannot be seen from here, so its "
            "start time cannot be proved: there is no evidence",
            hint="run sm120patch as the serving user or as root, on the host that serves",
            code="unproved-server",
        )
    return None


# --- shared ------------------------------------------------------------------------------------


def _polling(settings: ServerSettings, began: float, deadline: float | None) -> Iterator[None]:
    """Turns with growing pauses until the server's time is up; OutOfTime at the deadline."""
    pause = 0.05
    while (now := time.monotonic()) - began <= settings.ready_timeout:
        if deadline is not None and now > deadline:
            raise OutOfTime
        yield
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)


def _is_ready(settings: ServerSettings) -> bool:
    return get(settings.url + settings.ready, 5, api_key(settings))[0] == 200


def _info(settings: ServerSettings, log: Path | None) -> Mapping[str, object]:
    """What the server says about itself; older SGLang and other servers have other names."""
    for path in ("/server_info", "/get_server_info", "/v1/models"):
        found = get_object(settings.url + path, 30, api_key(settings))
        if found is not None:
            return found
    raise failed(
        f"{settings.url} answers {settings.ready}, but not /server_info or /v1/models with JSON: "
        "that is neither SGLang nor an OpenAI-compatible server",
        log,
    )


def _never_ready(settings: ServerSettings, log: Path | None, offset: int = 0) -> ServerError:
    return failed(
        f"the server was not ready after {settings.ready_timeout:g} s "
        f"({settings.url}{settings.ready} never answered 200)",
        log,
        offset,
        hint="raise server.ready_timeout if it only needs longer",
    )


def _status(process: subprocess.Popen[bytes] | None) -> str:
    code = exit_status(process) if process is not None else None
    if code is None:
        return ""
    return f" (signal {-code})" if code < 0 else f" (exit status {code})"
