"""Servers that go wrong under load: a verdict or an error, no process left, files as before."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sm120patch.errors import BusyError, HostError
from sm120patch.verify import processes
from sm120patch.verify.commandline import Arm
from sm120patch.verify.profile import Profile
from sm120patch.verify.reporting import Reporter
from sm120patch.verify.runner import Outcome, run
from tests.support.command import CHECKOUT
from tests.support.serving import GOOD, Host, assert_no_baseline, assert_untouched
from tests.support.simulated import (
    FLAG,
    duty,
    fake_environment,
    free_port,
    simulated_profile,
    swapper,
)

SCRIPT = Path(__file__).parents[1] / "support" / "misbehaving.py"
WORK = "[workload.w]\ninput_len = 8\noutput_len = 8\nconcurrency = 4\nprompts = 8\nwarmup = 2\n"


def words(mode: str, arm: str, speed: float) -> list[str]:
    return ["{tool_python}", str(SCRIPT), "{port}", mode, arm, str(speed)]


def profile_of(
    prefix: Path, mode: str, arm: str = "patched", *, speed: float = 500, work: str = WORK,
    verify: str = "blocks = 1\nnull_run = false\nmargin = 0.5",
) -> Profile:  # fmt: skip
    base = simulated_profile(prefix, GOOD, workloads=work, verify=verify, port=free_port())
    return replace(base, server=replace(base.server, command=(*words(mode, arm, speed), FLAG)))


@pytest.fixture
def prefix(tmp_path: Path) -> Iterator[Path]:
    fake_environment(tmp_path)
    yield tmp_path
    left = [p for p in Path("/proc").iterdir() if p.name.isdigit() and serves(p, tmp_path)]
    assert left == [], "server processes are left"


def serves(entry: Path, prefix: Path) -> bool:
    try:
        return (
            str(SCRIPT).encode() in (entry / "cmdline").read_bytes()
            and str(prefix).encode() in (entry / "environ").read_bytes()
        )
    except OSError:
        return False


def verify(prefix: Path, profile: Profile, reporter: Reporter | None = None) -> Outcome:
    try:
        outcome = run(profile, duty(), swapper(prefix / "site"), reporter)
    finally:
        assert not processes.answers("127.0.0.1", profile.server.port)
    json.dumps(outcome.summary, allow_nan=False)
    return outcome


def reasons(outcome: Outcome) -> str:
    return " | ".join(outcome.decision.reasons)


def measured(outcome: Outcome) -> bool:
    """Both arms were measured to the end; on a busy machine that need not decide anything."""
    intervals: Any = outcome.summary["intervals"]
    return not outcome.rejected and intervals["w"]["ratio"] is not None


def test_a_server_that_behaves_is_measured(prefix: Path) -> None:
    outcome = verify(prefix, profile_of(prefix, "nothing"))
    assert measured(outcome), reasons(outcome)
    assert outcome.summary["clock"] == "wall" and outcome.kind.value == "simulated"


BROKEN = [
    ("dies", "the server died while serving w (exit status 139)"),
    ("errors", r"[23] of 8 requests failed while serving w: HTTP 500: CUDA error"),
    ("all-fail", "8 of 8 requests failed while serving w: HTTP 503: queue is full"),
    ("empty", "8 of 8 requests failed while serving w: no meta_info.completion_tokens"),
    ("cuts", "8 of 8 requests failed while serving w: "),
    ("nan", "8 of 8 requests failed while serving w: completion_tokens is nan"),
]


@pytest.mark.parametrize(("mode", "reason"), BROKEN)
def test_a_patched_server_that_goes_wrong_is_broken(prefix: Path, mode: str, reason: str) -> None:
    outcome = verify(prefix, profile_of(prefix, mode))
    assert outcome.verdict == "broken" and outcome.rejected
    pattern = reason if "[" in reason else re.escape(reason)
    assert re.search(pattern, reasons(outcome)), reasons(outcome)


def test_a_baseline_that_goes_wrong_leaves_nothing_to_compare_with(prefix: Path) -> None:
    with pytest.raises(HostError, match=r"the baseline does not run.*HTTP 500") as caught:
        verify(prefix, profile_of(prefix, "errors", "baseline"))
    assert caught.value.exit_code == 10 and caught.value.code == "baseline-failed"


def test_a_server_that_hangs_is_broken_and_not_waited_for(prefix: Path) -> None:
    limited = "blocks = 1\nnull_run = false\nhang_timeout = 2"
    outcome = verify(prefix, profile_of(prefix, "hangs", verify=limited))
    assert outcome.verdict == "broken"
    assert re.search(r"the server hangs: not one token in \d s while serving w", reasons(outcome))


def test_questions_that_are_never_answered_are_a_hang_too(prefix: Path) -> None:
    """Tokens at this speed never come; with no load there is only the examination."""
    limited = "blocks = 1\nnull_run = false\nhang_timeout = 1"
    profile = profile_of(prefix, "nothing", speed=0.01, verify=limited)
    server = replace(profile.server, ready_timeout=8.0)
    with pytest.raises(HostError, match="the correctness questions are not answered"):
        verify(prefix, replace(profile, server=server))


def test_what_is_no_number_does_not_reach_the_record(prefix: Path) -> None:
    outcome = verify(prefix, profile_of(prefix, "nan-info", "both"))
    assert measured(outcome), reasons(outcome)
    arms: Any = outcome.summary["arms"]
    assert arms["patched"]["server_info"]["power"] is None


def test_a_collapse_is_seen_within_the_first_repeat(prefix: Path) -> None:
    """A repeat of the patched server would take over a minute; it is broken off."""
    work = WORK.replace("output_len = 8", "output_len = 400").replace("prompts = 8", "prompts = 4")
    profile = profile_of(prefix, "crawls", work=work, speed=110)
    outcome = verify(prefix, profile)
    assert outcome.verdict == "regressed", reasons(outcome)
    collapse: Any = outcome.summary["collapse"]
    assert collapse["factor"] > 3 and collapse["tokens"] < 4 * 400 and not collapse["cold"]
    assert outcome.summary["blocks_run"] == ["baseline", "patched"]
    intervals: Any = outcome.summary["intervals"]
    assert intervals["w"]["unit"] == "course" and intervals["w"]["high"] < 0.7
    assert "w: collapsed: " in reasons(outcome) and outcome.summary["ended"] == "clear"


class Excluded(Reporter):
    """Keeps what did not count."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def on_excluded(self, arm: Arm, workload: str, reason: str) -> None:
        self.said.append(f"{arm.value} {workload}: {reason}")


@pytest.mark.slow
def test_a_compile_is_not_counted_and_said(prefix: Path) -> None:
    """The first request of the warm-up and one of a repeat wait for seven seconds."""
    one_at_a_time = WORK.replace("concurrency = 4", "concurrency = 1")
    listener = Excluded()
    outcome = verify(prefix, profile_of(prefix, "stalls", work=one_at_a_time), listener)
    assert len(listener.said) == 2, listener.said
    repeat, warm_up = listener.said
    assert re.fullmatch(r"patched w: warm-up: [78] s without a token, a compile", warm_up)
    assert re.fullmatch(r"patched w: [78] s without a token, a stall", repeat)
    arms: Any = outcome.summary["arms"]
    (block,) = arms["patched"]["blocks"]
    assert len(block["workloads"]["w"]) == 3, "another repeat took its place"
    assert [e["workload"] for e in block["excluded"]] == ["w", "w"]
    assert block["warmups"]["w"]["stall_s"] > 6
    slowest = min(m["output_throughput"] for m in block["workloads"]["w"])
    assert slowest > block["excluded"][0]["output_throughput"]


# --- clocks and ports --------------------------------------------------------------------------


def test_a_wall_clock_that_jumps_changes_nothing(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = time.time, iter(range(10**9))

    def jumping() -> float:
        return real() + (-7200 if next(calls) % 2 else 86400)

    monkeypatch.setattr(time, "time", jumping)
    outcome = verify(prefix, profile_of(prefix, "nothing"))
    assert measured(outcome), reasons(outcome)
    duration: Any = outcome.summary["duration"]
    assert 0 < duration < 600
    assert processes.started_after(os.getpid(), processes.boot_clock()) is False


class LogOfFirst(Reporter):
    """Remembers what the first server said: the process that outlives it."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix

    def other(self) -> int:
        (log,) = (self.prefix / "logs").glob("*1-baseline*")
        found = re.search(r"another server is (\d+)", log.read_text())
        assert found is not None
        return int(found[1])


def test_a_second_server_on_the_port_ends_the_run_and_is_left_alone(prefix: Path) -> None:
    profile = profile_of(prefix, "leaves-another", "baseline")
    log = LogOfFirst(prefix)
    try:
        with pytest.raises(BusyError) as caught:
            run(profile, duty(), swapper(prefix / "site"))
        assert caught.value.details["pids"] == [log.other()]
        assert processes.started_at(log.other()) is not None, "it is not ours to kill"
    finally:
        os.kill(log.other(), signal.SIGKILL)


# --- whole commands ----------------------------------------------------------------------------


def apply(host: Host, mode: str, arm: str) -> Any:
    command = [*words(mode, arm, 500), "{set_args}"]
    profile = host.profile(GOOD, command=command, workloads=WORK, verify="blocks = 1")
    return host.run("apply", "fusion", "--profile", profile)


def test_a_server_that_dies_in_the_middle_leaves_every_file_as_it_was(host: Host) -> None:
    done = apply(host, "dies", "patched")
    assert done.code == 8 and done.result["outcome"] == "rejected", done.err
    assert done.result["verification"]["verdict"] == "broken"
    assert_untouched(host)


def test_a_baseline_that_fails_requests_leaves_every_file_as_it_was(host: Host) -> None:
    done = apply(host, "all-fail", "baseline")
    assert_no_baseline(host, done)
    assert "8 of 8 requests failed" in done.error["message"]


def test_a_port_that_is_taken_between_two_starts_leaves_every_file_as_it_was(host: Host) -> None:
    done = apply(host, "leaves-another", "baseline")
    try:
        assert done.code == 9 and done.error["code"] == "port-taken", done.out + done.err
        assert_untouched(host)
    finally:
        for pid in done.error["details"]["pids"]:
            os.kill(pid, signal.SIGKILL)


def test_a_terminal_shows_what_comes_in_while_it_comes(host: Host) -> None:
    """A server that behaves, slowly enough for the live line, on a real terminal."""
    work = WORK.replace("output_len = 8", "output_len = 100").replace("prompts = 8", "prompts = 4")
    command = [*words("nothing", "both", 40), "{set_args}"]
    profile = host.profile(GOOD, command=command, workloads=work, verify="max_time = 12")
    master, slave = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "sm120patch", "apply", "fusion", "--profile", str(profile),
             *host.options],
            stdin=slave, stdout=slave, stderr=slave, cwd=host.root,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "PYTHONPATH": str(CHECKOUT)},
        )  # fmt: skip
        os.close(slave)
        shown = read_all(master)
        assert process.wait(timeout=60) == 8, shown
    finally:
        os.close(master)
    live = [part for part in shown.split("\r\x1b[K") if "tok/s for" in part]
    assert any(re.match(r"\[1/\d+\] baseline: w [\w/ ]+: \d+\.\d tok/s for \d s", x) for x in live)


def read_all(master: int) -> str:
    text = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other side is closed
            part = b""
        if not part:
            return text.decode("utf-8", "replace")
        text += part


# --- the noise of a host -----------------------------------------------------------------------


def test_noise_that_is_on_record_spares_the_next_verification_the_null_run(host: Host) -> None:
    command = [*words("nothing", "both", 500), "{set_args}"]
    profile = host.profile(
        GOOD, command=command, workloads=WORK, verify="blocks = 1", kind="rehearsal"
    )
    first = host.run("apply", "fusion", "--gpu", "12.0", "--profile", profile)
    found = first.result["verification"]
    assert found["blocks_run"] == ["baseline", "baseline", "patched"], first.err
    assert found["noise"]["w"]["df"] == 1 and found["noise"]["w"]["floor"] is None
    assert first.result["outcome"] == "staged", "one start an arm decides nothing so small"

    again = host.run("verify", "fusion", "--gpu", "12.0", "--profile", profile)
    found = again.result["verification"]
    assert found["blocks_run"] == ["baseline", "patched"], again.err
    assert found["noise"]["w"]["floor"]["source"] == "recorded"

    # Another command line is another server: its noise is not known.
    other = host.profile(
        GOOD, command=[*command, "--other"], workloads=WORK, verify="blocks = 1", kind="rehearsal"
    )
    done = host.run("verify", "fusion", "--gpu", "12.0", "--profile", other)
    assert done.result["verification"]["schedule"]["null_run"] is True
