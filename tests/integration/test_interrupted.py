"""Verifications that end early, meet other commands, or measure servers of others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.command import CHECKOUT
from tests.support.serving import (
    FILES,
    FUSION,
    GOOD,
    LONG,
    LONGER,
    QUICK,
    SLOWLY,
    Host,
    Running,
    apply,
    assert_applied,
    assert_no_baseline,
    assert_nothing_written,
    assert_untouched,
    stage,
    wait_for,
)
from tests.support.simulated import COMMUNICATOR, JIT, JIT_CLOSED

# --- interrupted -------------------------------------------------------------------------------


@contextmanager
def met_half_way(host: Host, arm: str, *command: str, workloads: str = LONG) -> Iterator[Running]:
    """A verification that serves requests in the given arm just now."""
    profile = host.profile(GOOD, *SLOWLY, workloads=workloads, verify=QUICK)
    running = host.start(*(command or ("apply", "fusion")), "--profile", profile)
    try:
        running.wait_said(f"{arm}: long: warming up")
        assert len(host.servers()) == 1
        assert host.patched() == (FUSION if arm == "patched" else set())
        yield running
    finally:
        running.kill()
        running.finish()
        wait_for(lambda: host.servers() == [])


@pytest.mark.parametrize(
    ("arm", "number"),
    [
        ("baseline", signal.SIGINT),
        ("baseline", signal.SIGTERM),
        pytest.param("patched", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("patched", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("patched", signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_interrupted_in_either_arm_everything_is_put_back(
    host: Host, arm: str, number: signal.Signals
) -> None:
    with met_half_way(host, arm) as running:
        running.send(number)
        done = running.finish()
    assert done.code == 130, done.out + done.err
    assert done.error["code"] == "interrupted" and done.json["exit_code"] == 130
    assert_untouched(host)
    assert host.states()["fusion"] == "absent"
    assert host.events()[0]["kind"] == "interrupted"


@pytest.mark.slow
def test_an_interrupted_verify_leaves_the_set_staged(host: Host) -> None:
    stage(host, "fusion")
    before = host.facts()
    with met_half_way(host, "baseline", "verify", "fusion") as running:
        running.send(signal.SIGINT)
        assert running.finish().code == 130
    assert host.facts() == before and host.litter() == []
    assert host.states()["fusion"] == "staged"


@pytest.mark.slow
def test_an_impatient_user_loses_nothing(host: Host) -> None:
    with met_half_way(host, "patched") as running:
        while running.process.poll() is None:
            running.send(signal.SIGINT)
            time.sleep(0.03)
        done = running.finish()
    assert done.code in (130, -signal.SIGINT, 7), done.err
    assert host.servers() == []
    if host.journal.exists():
        assert host.run("status").code == 7
        assert host.run("recover").code == 0
    else:
        assert done.code != 7
    assert host.facts() == host.pristine and not host.journal.exists()
    assert host.states()["fusion"] == "absent"


@pytest.mark.slow
def test_killed_in_the_patched_arm_the_next_command_says_so_and_recover_restores(
    host: Host,
) -> None:
    with met_half_way(host, "patched") as running:
        running.send(signal.SIGKILL)
        assert running.finish().code == -signal.SIGKILL
    wait_for(lambda: host.servers() == [])
    assert host.journal.exists() and host.patched() == FUSION
    status = host.run("status")
    assert status.code == 7
    assert status.result["interrupted"].startswith("sm120patch apply fusion")
    assert {s["state"] for s in status.result["sets"] if s["id"] in FUSION} == {"interrupted"}
    for command in (("apply", "fusion"), ("revert", "--all"), ("verify", "fusion")):
        refused = host.run(*command)
        assert refused.code == 7 and "sm120patch recover" in refused.error["hint"]
    assert host.patched() == FUSION, "only `recover` settles it"
    recovered = host.run("recover")
    assert recovered.code == 0 and recovered.result["outcome"] == "undone"
    assert_untouched(host)
    assert host.states()["fusion"] == "absent"
    assert host.events()[0]["kind"] == "recovered"
    assert apply(host, GOOD).code == 0


def test_a_file_that_is_edited_while_the_baseline_serves_is_kept(host: Host) -> None:
    with met_half_way(host, "baseline") as running:
        (host.site / COMMUNICATOR).write_text("mine = True\n")
        done = running.finish()
    assert done.code == 5, done.err
    assert "communicator.py" in done.error["message"]
    assert host.content(COMMUNICATOR) == "mine = True\n" and host.content(JIT) == JIT_CLOSED
    assert host.servers() == [] and host.litter() == []


def test_while_a_verification_runs_every_other_change_is_refused(host: Host) -> None:
    with met_half_way(host, "baseline", workloads=LONGER) as running:
        profile = host.profile(GOOD, verify=QUICK, name="second.toml")
        for command in (
            ("apply", "other", "--no-verify"),
            ("apply", "fusion", "--profile", profile),
            ("revert", "--all"),
            ("recover",),
        ):
            refused = host.run(*command)
            assert refused.code == 9, refused.out
            assert f"pid {running.process.pid}" in refused.error["message"]
        assert host.patched() == set()
        assert running.process.poll() is None


def test_while_a_verification_runs_status_names_it(host: Host) -> None:
    with met_half_way(host, "baseline", workloads=LONGER) as running:
        status = host.text("status")
        assert running.process.poll() is None
    assert f"pid {running.process.pid}" in status.out
    assert status.code == 0 and "sm120patch recover" not in status.out, "nothing was interrupted"


@pytest.mark.parametrize("where", ["option", pytest.param("profile", marks=pytest.mark.slow)])
def test_max_time_bounds_the_verification(host: Host, where: str) -> None:
    option = ("--max-time", "2") if where == "option" else ()
    limit = "" if where == "option" else "max_time = 2"
    profile = host.profile(GOOD, "--time-scale", "0.5", workloads=LONG, verify=limit)
    # The whole of it would take many minutes.
    done = host.run("apply", "fusion", "--profile", profile, *option)
    assert done.code == 8 and done.result["outcome"] == "staged", done.out + done.err
    assert done.result["verification"]["verdict"] == "inconclusive"
    assert "max_time" in done.result["verification"]["advice"]
    assert host.states()["fusion"] == "staged"


# --- servers that others run -------------------------------------------------------------------


@contextmanager
def served_by_others(host: Host) -> Iterator[subprocess.Popen[bytes]]:
    words = [w.format(tool_python=sys.executable, prefix=host.prefix, port=host.port)
             for w in host.server_command(GOOD)[:-1]]  # fmt: skip
    with (host.root / "theirs.log").open("wb") as log:
        theirs = subprocess.Popen(
            words, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(CHECKOUT)}
        )
    try:
        wait_for(lambda: b"ready to roll" in (host.root / "theirs.log").read_bytes())
        yield theirs
    finally:
        theirs.terminate()
        theirs.wait()


def external(host: Host, *restart: str) -> Path:
    lines = f'mode = "external"\nlog = "{host.root}/theirs.log"\nready_timeout = 2'
    return host.profile(GOOD, command=[*restart, "{set_args}"], server=lines, verify=QUICK)


def test_a_server_that_started_before_the_patch_is_no_evidence(host: Host) -> None:
    with served_by_others(host) as theirs:
        done = host.run("apply", "fusion", "--profile", external(host, "/bin/true"))
        assert theirs.poll() is None, "it was not ours to stop"
    assert_no_baseline(host, done, "stale-server")
    assert f"PID {theirs.pid}" in done.error["message"]


RESTART = """
import os, pathlib, signal, subprocess, sys, time
pidfile, log, *words = sys.argv[1:]
old = pathlib.Path(pidfile)
if old.exists():
    pid = int(old.read_text())
    os.kill(pid, signal.SIGTERM)
    stat = pathlib.Path(f"/proc/{pid}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.02)
with open(log, "ab") as stream:
    new = subprocess.Popen(words, stdout=stream, stderr=stream, start_new_session=True)
old.write_text(str(new.pid))
"""


@pytest.mark.slow
def test_a_server_that_is_really_restarted_is_evidence(host: Host) -> None:
    (host.root / "restart.py").write_text(RESTART)
    words = ["{tool_python}", str(host.root / "restart.py"), str(host.root / "pid"),
             str(host.root / "theirs.log"), *host.server_command(GOOD)[:-1]]  # fmt: skip
    done = host.run("apply", "fusion", "--profile", external(host, *words))
    (kept,) = host.servers()
    host.kill_servers()
    assert_applied(host, done, "improved")
    assert kept == int((host.root / "pid").read_text()), "an external server is left running"


def test_processes_that_hold_the_old_code_are_named_before_any_write(host: Host) -> None:
    program = "import time; time.sleep(600)"
    with subprocess.Popen([host.prefix / "bin" / "python3", "-c", program, "sglang"]) as serving:
        try:
            refused = host.run("apply", "fusion", "--no-verify")
            assert refused.code == 9 and refused.error["code"] == "in-use"
            assert f"pid {serving.pid}" in refused.error["message"]
            assert_nothing_written(host)
            allowed = host.run("apply", "fusion", "--no-verify", "--allow-running")
            assert allowed.code == 0 and f"pid {serving.pid}" in allowed.err
            assert serving.poll() is None
        finally:
            serving.kill()


@pytest.mark.slow
def test_a_package_that_is_installed_again_while_its_patch_is_measured_is_not_applied(
    host: Host,
) -> None:
    with met_half_way(host, "patched") as running:
        (host.site / COMMUNICATOR).write_text(FILES[COMMUNICATOR])
        done = running.finish()
    assert done.code == 5, done.out + done.err
    assert "communicator.py was changed by something else" in done.error["message"]
    assert host.patched() == set() and host.litter() == []
    assert host.states()["fusion"] == "absent"
