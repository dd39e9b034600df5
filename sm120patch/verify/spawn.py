"""Processes of the profile: start one in a session of its own, stop its whole group.

Starts and signals what it started, nothing else; writes the log file of the server.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sm120patch.errors import HostError, UsageError
from sm120patch.redaction import redact_output
from sm120patch.store import StateDirectory
from sm120patch.verify.commandline import ArmCommand
from sm120patch.verify.processes import group_members
from sm120patch.verify.profile import Profile, ServerSettings

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ServerError(HostError):
    """The server itself is at fault: it died, never got ready, or does not speak HTTP."""

    default_code = "server-failed"


class Identity(NamedTuple):
    """User, group and supplementary groups for Popen; all None means ours."""

    user: int | None = None
    group: int | None = None
    extra_groups: list[int] | None = None


def spawn(profile: Profile, command: ArmCommand, log: Path) -> subprocess.Popen[bytes]:
    """Start the server in its own session, stdout and stderr to `log`. Raises ServerError."""
    settings = profile.server
    argv = _resolved(command, settings)
    identity = server_identity(settings)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as stream:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=server_environment(command, settings),
                cwd=settings.cwd,
                start_new_session=True,
                user=identity.user,
                group=identity.group,
                extra_groups=identity.extra_groups,
                preexec_fn=_die_with_parent(),
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerError(
            f"the server cannot be started: {error}",
            hint=f"check server.command in {profile.origin}: {command.shown}",
        ) from error


def _die_with_parent() -> Callable[[], None]:
    """Have the kernel end the server when sm120patch is killed: nobody else would stop it.

    Everything is loaded here: the child may be a user who cannot read our interpreter's files.
    """
    import ctypes

    prctl = ctypes.CDLL(None).prctl

    def ask_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask_kernel


def stop(process: subprocess.Popen[bytes], timeout: float) -> None:
    """SIGTERM to the leader, then to its whole group, SIGKILL to what is left of the group.

    The leader comes first and alone: SGLang's finishes its open requests, for which it needs
    its children, and ends them itself. Once it is gone, or half the time is over, the whole
    group gets the signal. The leader is reaped last: until then its number cannot be given to
    another process, so that no signal ever reaches a stranger. A ^C during the wait goes
    straight to SIGKILL.
    """
    if process.returncode is not None:
        return
    began = time.monotonic()
    try:
        _signal_group(process, signal.SIGTERM, leader_only=True)
        _await_end(process, began + timeout / 2, leader_only=True)
        if group_members(process.pid):
            _signal_group(process, signal.SIGTERM)
            _await_end(process, began + timeout)
    finally:
        if group_members(process.pid):
            _signal_group(process, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)


def exit_status(process: subprocess.Popen[bytes]) -> int | None:
    """Exit status, negative for a signal; None while it runs. Does not reap, see `stop`."""
    if process.returncode is not None:
        return process.returncode
    try:
        found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return process.poll()
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def run_restart(profile: Profile, command: ArmCommand) -> None:
    """Run the restart command of an external server, exactly as configured, no shell."""
    settings = profile.server
    with tempfile.TemporaryFile() as output:  # a pipe would be held open by the new server
        try:
            done = subprocess.run(
                _resolved(command, settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=server_environment(command, settings),
                cwd=settings.cwd,
                timeout=settings.ready_timeout,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServerError(
                f"the restart command does not work: {error}",
                hint=f"check server.restart_command in {profile.origin}: {command.shown}",
            ) from error
        if done.returncode != 0:
            output.seek(max(0, output.seek(0, os.SEEK_END) - 4000))
            said = output.read().decode("utf-8", "replace").strip()
            said = redact_output(said, server_environment(command, settings))
            raise ServerError(
                f"the restart command ended with status {done.returncode}"
                + (f":{os.linesep}{said}" if said else ""),
                hint="run it by hand: " + command.shown,
            )


def log_path(profile: Profile, label: str) -> Path:
    """Log file of one start: the profile's name with the label before its suffix.

    Without a name in the profile it lies in the state directory of the environment.
    """
    if profile.server.log:
        base = Path(profile.server.log)
    else:
        logs = StateDirectory.of(Path(profile.prefix)).logs
        base = logs / f"server-{profile.server.port}.log"
    return base.with_name(f"{base.stem}.{label}{base.suffix or '.log'}")


def tail(log: Path | None, offset: int = 0, lines: int = 30) -> str:
    """Last lines of a log without credentials, for error messages."""
    if log is None:
        return ""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(offset if offset <= size else 0, size - 16384))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return os.linesep.join(redact_output(text, os.environ).splitlines()[-lines:])


def api_key(settings: ServerSettings) -> str | None:
    """Value of the variable named by `api_key_env`; None without one."""
    if settings.api_key_env is None:
        return None
    value = os.environ.get(settings.api_key_env)
    if not value:
        raise UsageError(
            f"the variable {settings.api_key_env}, named by server.api_key_env, is not set",
            hint=f"export {settings.api_key_env}=... and try again",
            code="profile",
        )
    return value


def hide_secrets(error: ServerError, command: ArmCommand, settings: ServerSettings) -> None:
    """Take the secrets of a profile out of the words of an error that is on its way, in place."""
    environ = {**server_environment(command, settings), "API_KEY": api_key(settings) or ""}
    error.message = redact_output(error.message, environ)
    error.args = (error.message,)
    error.details = {
        name: redact_output(value, environ) if isinstance(value, str) else value
        for name, value in error.details.items()
    }


def _resolved(command: ArmCommand, settings: ServerSettings) -> list[str]:
    key = api_key(settings)
    return [word.replace("{api_key}", key) if key else word for word in command.argv]


def server_environment(command: ArmCommand, settings: ServerSettings) -> dict[str, str]:
    """Variables that the server of an arm gets, ours included."""
    import pwd

    key = api_key(settings) or ""
    environment = {k: v for k, v in os.environ.items() if k not in command.unset}
    if settings.user is not None and server_identity(settings).user is not None:
        home = pwd.getpwnam(settings.user).pw_dir
        environment.update(HOME=home, USER=settings.user, LOGNAME=settings.user)
    environment.update((k, v.replace("{api_key}", key)) for k, v in command.env.items())
    return environment


def server_identity(settings: ServerSettings) -> Identity:
    """User of the serving process; only root can start it as somebody else."""
    import pwd

    if settings.user is None:
        return Identity()
    try:
        entry = pwd.getpwnam(settings.user)
    except KeyError:
        raise UsageError(
            f"server.user names {settings.user}, who does not exist here", code="profile"
        ) from None
    if entry.pw_uid == os.geteuid():
        return Identity()
    if os.geteuid() != 0:
        raise UsageError(
            f"the server must run as {settings.user}, which only root can arrange",
            hint=f"run sm120patch as {settings.user} or as root",
            code="profile",
        )
    groups = os.getgrouplist(settings.user, entry.pw_gid)
    return Identity(entry.pw_uid, entry.pw_gid, groups)


def _signal_group(
    process: subprocess.Popen[bytes], number: signal.Signals, *, leader_only: bool = False
) -> None:
    with contextlib.suppress(ProcessLookupError):
        (os.kill if leader_only else os.killpg)(process.pid, number)


def _await_end(
    process: subprocess.Popen[bytes], deadline: float, *, leader_only: bool = False
) -> None:
    while time.monotonic() < deadline:
        if not group_members(process.pid):
            return
        if leader_only and exit_status(process) is not None:
            return
        time.sleep(0.05)
