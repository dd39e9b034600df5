from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sm120patch.errors import BusyError, HostError, UsageError
from sm120patch.plan import Launch
from sm120patch.verify import processes
from sm120patch.verify.commandline import Arm, arms
from sm120patch.verify.profile import Profile, parse
from sm120patch.verify.server import OutOfTime, Server, running
from sm120patch.verify.spawn import ServerError, stop
from tests.support.simulated import free_port

SERVER = r"""
import http.server, json, os, signal, subprocess, sys, threading, time
port, mode = int(sys.argv[1]), sys.argv[2]
print("starting", mode, os.environ.get("MARK"), os.environ.get("GONE"), sys.argv[3:], flush=True)
if mode == "dies":
    sys.exit(3)
if mode == "tells":
    print("ServerArgs(api_key='abcdefgh')", os.environ["TOLD_TOKEN"], flush=True)
    sys.exit(3)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode in ("family", "stubborn"):
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code if mode == "stubborn" else
                              "import time; time.sleep(600)"])
    print("child", child.pid, flush=True)
if mode == "drains":  # as SGLang does: it needs its child until its last request is answered
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    def drain(*_):
        time.sleep(0.5)
        print("drained with its child", "dead" if child.poll() else "alive", flush=True)
        child.kill()
        os._exit(0)
    signal.signal(signal.SIGTERM, drain)
if mode == "waits":  # as a shell with a trap does: it ends when its child has ended
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                             preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    def wait():
        print("child ended with", child.wait(), flush=True)
        os._exit(0)
    threading.Thread(target=wait).start()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"<html>hello</html>" if mode == "garbage" else b'{"version": "0.5.9"}'
        missing = mode == "old" and self.path == "/server_info"
        starting = mode == "never" and self.path == "/health"
        keyed = mode != "keyed" or self.headers.get("Authorization") == "Bearer s3cret"
        self.send_response(404 if missing else 503 if starting else 200 if keyed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Profile]:
    (tmp_path / "serve.py").write_text(SERVER)

    def build(mode: str = "plain", port: int | None = None, **changes: object) -> Profile:
        settings: dict[str, object] = {
            "command": ["{tool_python}", str(tmp_path / "serve.py"), "{port}", mode, "{set_args}"],
            "url": f"http://127.0.0.1:{port or free_port()}",
            "log": str(tmp_path / "logs" / "server.log"),
            "ready_timeout": 20,
            "stop_timeout": 5,
            **changes,
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        return parse("[server]\n" + "\n".join(lines), origin="p", python=sys.executable, prefix="/")

    return build


@contextlib.contextmanager
def started(profile: Profile, launch: Launch | None = None, **more: object) -> Iterator[Server]:
    command = arms(profile, launch or Launch()).of(Arm.PATCHED)
    arguments: dict[str, object] = {
        "swapped_at": processes.boot_clock(),
        "label": "1-patched",
        **more,
    }
    with running(profile, command, **arguments) as server:
        yield server


def child_of(server: Server) -> int:
    assert server.log is not None
    return int(server.log.read_text().split("child ")[1].split()[0])


def wait_gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while processes.started_at(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    return processes.started_at(pid) is None


# --- started by us -----------------------------------------------------------------------------


def test_a_server_is_ready_in_its_own_session_and_gone_afterwards(make):
    profile = make()
    with started(profile, Launch(("--extra",))) as server:
        assert server.info == {"version": "0.5.9"}
        assert os.getsid(server.pid) == server.pid != os.getsid(0)
        assert server.log is not None and server.log.name == "server.1-patched.log"
        assert "'--extra'" in server.log.read_text()
        server.check_alive("testing")
    assert wait_gone(server.pid)
    assert not processes.answers("127.0.0.1", profile.server.port)


def test_the_environment_is_ours_with_the_changes_of_the_arm(make, monkeypatch):
    monkeypatch.setenv("GONE", "still here")
    launch = Launch((), {"MARK": "set"}, {}, ("GONE",))
    with started(make(), launch) as server:
        assert server.log is not None
        assert server.log.read_text().startswith("starting plain set None")


def test_children_of_the_server_are_stopped_with_it(make):
    with started(make("family")) as server:
        child = child_of(server)
        assert processes.started_at(child) is not None
    assert wait_gone(child) and wait_gone(server.pid)


def test_a_server_that_ignores_sigterm_is_killed_with_its_children(make):
    with started(make("stubborn", stop_timeout=0.3)) as server:
        child = child_of(server)
    assert wait_gone(child) and wait_gone(server.pid)


def log_after(profile: Profile) -> str:
    with started(profile) as server:
        log = server.log
    assert log is not None and wait_gone(server.pid)
    return log.read_text()


def test_the_leader_may_finish_with_its_children_before_they_are_told(make):
    assert "drained with its child alive" in log_after(make("drains", stop_timeout=30))


def test_a_leader_that_waits_for_its_children_ends_with_them(make):
    assert f"child ended with {-signal.SIGTERM}" in log_after(make("waits", stop_timeout=2))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_the_server_is_stopped_whatever_ends_the_block(make, error):
    with pytest.raises(error), started(make("family")) as server:
        child = child_of(server)
        raise error
    assert wait_gone(server.pid) and wait_gone(child)


def test_secrets_in_the_log_do_not_get_into_the_error(make, monkeypatch):
    monkeypatch.setenv("TOLD_TOKEN", "value-of-a-token")
    with pytest.raises(ServerError) as caught, started(make("tells")):
        pass
    said = caught.value.message + json.dumps(caught.value.details)
    assert "starting tells" in said, "the rest of the log is there"
    assert "ServerArgs(api_key='***') ***" in said
    assert "abcdefgh" not in said and "value-of-a-token" not in said


def test_secrets_of_the_profile_do_not_get_into_the_error_either(make):
    profile = make("tells")
    settings = dataclasses.replace(profile.server, env={"TOLD_TOKEN": "value-of-a-token"})
    with (
        pytest.raises(ServerError) as caught,
        started(dataclasses.replace(profile, server=settings)),
    ):
        pass
    said = str(caught.value) + caught.value.message + json.dumps(caught.value.details)
    assert "starting tells" in said and "value-of-a-token" not in said


def test_a_server_that_dies_in_use_is_noticed(make):
    with started(make()) as server:
        os.kill(server.pid, signal.SIGKILL)
        assert wait_gone(server.pid)
        with pytest.raises(ServerError, match=r"died while counting \(signal 9\)"):
            server.check_alive("counting")


def test_a_child_whose_death_the_server_does_not_see_is_noticed(make):
    """A signal or a kernel ends SGLang's scheduler; its front end accepts requests for ever."""
    with started(make("stubborn", stop_timeout=3600)) as server:
        server.check_alive("counting")
        child = child_of(server)
        os.kill(child, signal.SIGKILL)
        assert wait_gone(child)
        with pytest.raises(ServerError, match=rf"\(PID {child}\) of the server died while count"):
            server.check_alive("counting")
    assert wait_gone(server.pid), "no grace for what only waits for the dead"


def test_a_child_that_ended_and_was_collected_is_no_loss(make):
    with started(make("waits", stop_timeout=2)) as server:
        for pid in server.family:
            os.kill(pid, signal.SIGTERM)
        assert wait_gone(server.family[0]) and wait_gone(server.pid)
        with pytest.raises(ServerError, match=r"the server died while counting \(exit status 0\)"):
            server.check_alive("counting")


def test_children_of_a_dead_server_are_stopped_too(make):
    with started(make("family")) as server:
        child = child_of(server)
        os.kill(server.pid, signal.SIGKILL)
        wait_gone(server.pid)
    assert wait_gone(child)


def test_a_server_that_ends_early_shows_its_log(make):
    profile = make("dies")
    with pytest.raises(ServerError, match=r"\(exit status 3\)") as caught, started(profile):
        pass
    assert caught.value.exit_code == 10
    assert "starting dies" in caught.value.message and "log is in" in (caught.value.hint or "")


def test_a_server_that_never_gets_ready_is_given_up_and_stopped(make):
    profile = make("never", ready_timeout=1)
    with pytest.raises(ServerError, match="not ready after 1 s") as caught, started(profile):
        pass
    assert "ready_timeout" in (caught.value.hint or "")
    assert not processes.answers("127.0.0.1", profile.server.port)


def test_the_deadline_ends_the_waiting(make):
    with pytest.raises(OutOfTime), started(make("never"), deadline=time.monotonic() + 0.5):
        pass


def test_a_server_that_is_no_inference_server_is_refused(make):
    profile = make("garbage")
    with pytest.raises(ServerError, match="neither SGLang nor an OpenAI"), started(profile):
        pass


def test_an_older_sglang_is_asked_at_its_older_address(make):
    with started(make("old")) as server:
        assert server.info["version"] == "0.5.9"


def test_a_command_that_does_not_exist_is_a_host_error(make):
    profile = make(command=["/no/such/program"])
    with pytest.raises(ServerError, match="cannot be started") as caught, started(profile):
        pass
    assert "server.command" in (caught.value.hint or "")


def test_a_taken_port_names_its_holder_and_leaves_it_alone(make):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        profile = make(port=port)
        with pytest.raises(BusyError, match=f"PID {os.getpid()}") as caught, started(profile):
            pass
        assert caught.value.exit_code == 9 and caught.value.details["pids"] == [os.getpid()]
        assert processes.answers("127.0.0.1", port)


def test_a_port_answered_by_somebody_else_is_no_evidence(make):
    """The started process lives on, but another server took the port first."""
    port = free_port()
    other = subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep(0.4)\n{SERVER}", str(port), "plain"],
        stdout=subprocess.DEVNULL,
    )
    try:
        profile = make(port=port, command=["sleep", "60"])
        with pytest.raises(HostError, match="not by the server") as caught, started(profile):
            pass
        assert caught.value.code == "unproved-server"
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_the_api_key_reaches_server_and_requests_but_no_text(make, monkeypatch):
    profile = make(
        "keyed",
        api_key_env="TEST_KEY",
        command=["{tool_python}", make().server.command[1], "{port}", "keyed", "{api_key}"],
    )
    with pytest.raises(UsageError, match="TEST_KEY"), started(profile):
        pass
    monkeypatch.setenv("TEST_KEY", "s3cret")
    assert "s3cret" not in arms(profile, Launch()).patched.shown
    with started(profile) as server:
        assert server.log is not None and "s3cret" in server.log.read_text()


def test_only_root_can_serve_as_somebody_else(make):
    with pytest.raises(UsageError, match="does not exist"), started(make(user="nobody-here-42")):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the user")
def test_root_serves_as_the_serving_user(make):
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("no interpreter that every user may run")
    command = [python, "-c", SERVER, "{port}", "plain"]
    with started(make(user="nobody", command=command, cwd="/")) as server:
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
        environ = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
        assert b"USER=nobody" in environ


def test_stopping_twice_is_harmless():
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    stop(process, 5)
    stop(process, 5)
    assert process.returncode == -signal.SIGTERM


def test_start_times_are_exact_to_a_few_hundredths():
    before = processes.boot_clock()
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert processes.started_after(process.pid, before)
        time.sleep(0.1)
        assert processes.started_after(process.pid, processes.boot_clock()) is False
    finally:
        process.kill()
        process.wait()
    assert processes.started_after(process.pid, before) is None


# --- run by somebody else ----------------------------------------------------------------------

RESTART = r"""
import os, signal, subprocess, sys
from pathlib import Path
script, port, pidfile, mode = sys.argv[1:5]
pidfile = Path(pidfile)
if pidfile.exists():
    if mode == "lazy":
        sys.exit(0)
    os.kill(int(pidfile.read_text()), signal.SIGKILL)
server = subprocess.Popen([sys.executable, script, port, "plain", *sys.argv[5:]],
                          start_new_session=True)
pidfile.write_text(str(server.pid))
sys.exit(4 if mode == "fails" else 0)
"""


@pytest.fixture
def external(make, tmp_path) -> Iterator[Callable[..., Profile]]:
    (tmp_path / "restart.py").write_text(RESTART)
    pidfile = tmp_path / "pid"

    def build(mode: str = "good", **changes: object) -> Profile:
        port = changes.pop("port", None) or free_port()
        command = ["{tool_python}", str(tmp_path / "restart.py"), str(tmp_path / "serve.py"),
                   "{port}", str(pidfile), mode, "{set_args}"]  # fmt: skip
        settings = {"mode": "external", "restart_command": command, "ready_timeout": 10,
                    "url": f"http://127.0.0.1:{port}", **changes}  # fmt: skip
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        return parse("[server]\n" + "\n".join(lines), origin="p", python=sys.executable, prefix="/")

    yield build
    if pidfile.exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pidfile.read_text()), signal.SIGKILL)


def test_an_external_server_is_restarted_proved_and_left_running(external):
    profile = external()
    with started(profile) as first:
        assert first.process is None
    assert processes.started_at(first.pid) is not None
    with started(profile) as second:
        assert second.pid != first.pid
    assert processes.answers("127.0.0.1", profile.server.port)


def test_a_server_that_started_before_the_swap_is_no_evidence(external):
    port = free_port()
    with started(external(port=port)):
        pass
    time.sleep(0.1)
    lazy = external("lazy", port=port, ready_timeout=3)
    with pytest.raises(HostError, match="not accepted as evidence") as caught, started(lazy):
        pass
    assert caught.value.code == "stale-server" and caught.value.exit_code == 10
    assert processes.answers("127.0.0.1", port)


def test_secrets_that_a_restart_command_prints_are_not_repeated(external, monkeypatch):
    monkeypatch.setenv("RESTART_TOKEN", "value-of-a-token")
    command = ["sh", "-c", "echo using $RESTART_TOKEN; exit 4", "{set_args}"]
    profile = external(restart_command=command)
    with pytest.raises(ServerError, match=r"status 4:\n?using \*\*\*$"), started(profile):
        pass


def test_a_restart_command_that_fails_says_what_it_said(external):
    with pytest.raises(ServerError, match="ended with status 4"), started(external("fails")):
        pass
    missing = external(restart_command=["/no/such/program", "{set_args}"])
    with pytest.raises(ServerError, match="does not work"), started(missing):
        pass


def test_the_log_of_an_external_server_counts_from_the_restart(external, tmp_path):
    log = tmp_path / "external.log"
    log.write_text("old lines\n")
    with started(external(log=str(log))) as server:
        assert server.log == log and server.log_offset == len("old lines\n")
