from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from sm120patch.errors import BusyError, HostError, UsageError
from sm120patch.model import Engagement, EvidenceKind, Goal
from sm120patch.plan import Launch
from sm120patch.verify import processes
from sm120patch.verify.commandline import Arm
from sm120patch.verify.effect import Floor
from sm120patch.verify.profile import Profile, parse
from sm120patch.verify.reporting import Reporter
from sm120patch.verify.runner import Outcome, check, run
from tests.support.simulated import (
    FLAG,
    LAUNCH,
    duty,
    fake_environment,
    simulated_profile,
    swapper,
)


class Recorder(Reporter):
    """Keeps the order of events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_start(self, arms, order, seconds):
        self.events.append(f"start {len(order)}")
        assert FLAG in arms.patched.argv and FLAG not in arms.baseline.argv and seconds > 0

    def on_block(self, block, blocks, arm):
        self.events.append(f"block {block} {arm.value}")

    def on_ready(self, arm, seconds, info):
        self.events.append("ready")

    def on_repeat(self, arm, workload, repeat, repeats, metrics):
        self.events.append(f"{workload} {repeat}/{repeats}")

    def on_verdict(self, decision):
        self.events.append(decision.verdict.value)


def verify(tmp_path: Path, scenario: str, *, goal: Goal = Goal.NO_REGRESSION, blocks: int = 2,
           **profile: object) -> Outcome:  # fmt: skip
    swap = swapper(fake_environment(tmp_path))
    chosen = simulated_profile(tmp_path, scenario, **profile)
    try:
        outcome = run(chosen, duty(goal, blocks), swap)
    finally:
        assert not processes.answers("127.0.0.1", chosen.server.port)
    json.dumps(outcome.summary, allow_nan=False)
    return outcome


def reasons(outcome: Outcome) -> str:
    return " | ".join(outcome.decision.reasons)


# --- one scenario a verdict --------------------------------------------------------------------


def test_improved(tmp_path):
    outcome = verify(tmp_path, "root-complex-2gpu")
    assert outcome.verdict == "improved" and outcome.passed and not outcome.rejected
    assert outcome.kind is EvidenceKind.SIMULATED
    interval = outcome.summary["intervals"]["tiny"]
    assert interval["unit"] == "start" and 1 < interval["low"] < 1.05 < interval["high"] < 1.1
    assert outcome.summary["blocks_run"] == ["baseline", "patched", "patched", "baseline"]
    assert outcome.summary["order"] == 5 * outcome.summary["blocks_run"], "had it not been clear"
    assert outcome.summary["ended"] == "clear"
    looks = outcome.summary["looks"]
    assert [look["pairs"] for look in looks] == [0, 1, 1, 2]
    assert looks[-1]["intervals"] == outcome.summary["intervals"]
    assert interval["smallest_effect"] < 0.05 and interval["sure_low"] < interval["low"]
    assert outcome.summary["clock"] == "virtual" and outcome.summary["time_scale"] == 2000
    commands = outcome.summary["commands"]
    assert isinstance(commands, dict)
    assert FLAG in commands["patched"] and FLAG not in commands["baseline"]
    differences = outcome.summary["server_differences"]
    assert differences["enable_flashinfer_allreduce_fusion"] == [False, True]
    arm = outcome.summary["arms"]["patched"]
    assert len(arm["blocks"]) == 2 and len(arm["blocks"][0]["workloads"]["tiny"]) == 3
    assert arm["workloads"]["tiny"]["completed"] == 8
    samples = arm["blocks"][1]["samples"]["tiny"]
    assert [s["of"] for s in samples] == [8, 8, 8] and len(samples[0]["ttft_ms"]) == 8
    assert arm["blocks"][1]["telemetry"]["source"] == "declared"
    assert [b["start"] for b in arm["blocks"]] == [2, 3]


def test_no_regression(tmp_path):
    outcome = verify(tmp_path, "null")
    assert outcome.verdict == "no-regression" and outcome.passed


def test_no_effect_does_not_satisfy_the_goal_speed(tmp_path):
    outcome = verify(tmp_path, "null", goal=Goal.SPEED)
    assert outcome.verdict == "inconclusive" and not outcome.passed
    assert "no improvement" in reasons(outcome)


def test_regressed_by_a_little(tmp_path):
    outcome = verify(tmp_path, "slow-mild-regression")
    assert outcome.verdict == "regressed" and outcome.rejected
    assert len(outcome.summary["blocks_run"]) == 4


def test_a_collapse_ends_the_run_after_the_first_workload_of_the_patched_arm(tmp_path):
    second = "[workload.later]\ninput_len = 4\noutput_len = 4\n"
    swap = swapper(fake_environment(tmp_path))
    recorder = Recorder()
    from tests.support.simulated import TINY

    profile = simulated_profile(tmp_path, "vm-8gpu-no-p2p", workloads=TINY + second)
    outcome = run(profile, duty(), swap, recorder)
    assert outcome.verdict == "regressed" and outcome.rejected
    assert outcome.summary["blocks_run"] == ["baseline", "patched"]
    assert "-87" in reasons(outcome)
    expected = ["start 20", "block 1 baseline", "ready", "tiny 1/3", "tiny 2/3", "tiny 3/3",
                "later 1/3", "later 2/3", "later 3/3", "block 2 patched", "ready",
                "tiny 1/3", "tiny 2/3", "tiny 3/3", "regressed"]  # fmt: skip
    assert recorder.events == expected


def test_inconclusive(tmp_path):
    outcome = verify(tmp_path, "noisy")
    assert outcome.verdict == "inconclusive" and not outcome.passed and not outcome.rejected
    assert outcome.decision.advice
    assert outcome.summary["ended"] == "hopeless", "it is not measured to the end in vain"
    assert "more than 10 server starts an arm" in (outcome.decision.advice or "")
    assert "given up" in reasons(outcome)
    assert len(outcome.summary["blocks_run"]) < len(outcome.summary["order"]) / 2


def test_the_baseline_is_measured_against_itself_where_the_noise_is_unknown(tmp_path):
    swap = swapper(fake_environment(tmp_path))
    profile = simulated_profile(tmp_path, "root-complex-2gpu", verify="null_run = true")
    silent = replace(
        profile,
        server=replace(profile.server, command=(*profile.server.command, "--undeclared-noise")),
    )
    outcome = run(silent, duty(), swap)
    assert outcome.passed, reasons(outcome)
    run_ = outcome.summary["blocks_run"]
    assert run_[:3] == ["baseline", "baseline", "patched"]
    noise = outcome.summary["noise"]["tiny"]
    assert noise["floor"] is None and noise["df"] >= 3
    assert noise["null_ratio"] == pytest.approx(1, abs=0.02)
    # What was recorded serves the next verification: it needs no null run.
    floor = Floor(noise["variance"] ** 0.5, noise["df"], "recorded")
    unknown = replace(silent, null_run=None)
    again = run(unknown, duty(), swap, floors={"tiny": floor})
    assert again.passed and again.summary["noise"]["tiny"]["floor"]["source"] == "recorded"
    assert again.summary["blocks_run"][:2] == ["baseline", "patched"]
    assert len(again.summary["blocks_run"]) <= len(run_)


def test_broken_by_garbage_at_high_speed(tmp_path):
    outcome = verify(tmp_path, "garbage")
    assert outcome.verdict == "broken" and outcome.rejected
    assert "arithmetic: the baseline answers right" in reasons(outcome)
    assert outcome.summary["blocks_run"] == ["baseline", "patched"]


def test_broken_by_a_server_that_does_not_start(tmp_path):
    outcome = verify(tmp_path, "crash-when-patched")
    assert outcome.verdict == "broken"
    assert "No supported CUDA architectures" in reasons(outcome)


def test_broken_by_a_server_that_dies_in_the_middle(tmp_path):
    outcome = verify(tmp_path, "dies-under-load")
    assert outcome.verdict == "broken"
    assert "died while serving tiny (exit status 139)" in reasons(outcome)
    assert "illegal memory access" in reasons(outcome)


def test_not_engaged_when_the_feature_falls_back(tmp_path):
    outcome = verify(tmp_path, "flag-ignored")
    assert outcome.verdict == "not-engaged" and outcome.rejected
    assert "falling back" in reasons(outcome)


def test_not_engaged_when_the_swap_changes_nothing(tmp_path):
    """The plan's content never reaches the server: the flag alone must not count."""
    fake_environment(tmp_path)
    profile = simulated_profile(tmp_path, "root-complex-2gpu")
    outcome = run(profile, duty(), lambda arm: time.time())
    assert outcome.verdict == "not-engaged"


def test_a_crash_fix_needs_no_running_baseline(tmp_path):
    outcome = verify(tmp_path, "crash-unless-patched", goal=Goal.CRASH_FIX)
    assert outcome.verdict == "improved" and outcome.passed
    assert outcome.summary["blocks_run"] == ["patched", "patched"]
    assert "exit status 1" in str(outcome.summary["baseline_failure"])


def test_a_start_that_fails_alike_in_both_arms_says_nothing_about_a_crash_fix(tmp_path):
    with pytest.raises(HostError, match="the baseline fails in the same way") as caught:
        verify(tmp_path, "crash-at-start", goal=Goal.CRASH_FIX)
    assert caught.value.exit_code == 10 and caught.value.code == "baseline-failed"
    logs = caught.value.details["logs"]
    assert all(Path(log).exists() and log in caught.value.message for log in logs.values())
    assert set(logs) == {"baseline", "patched"} and logs["baseline"] != logs["patched"]


def test_a_profile_that_names_no_model_is_refused_before_the_first_start(tmp_path):
    profile = simulated_profile(tmp_path, "null")
    command = (*profile.server.command, "--model-path", "/models/your-model")
    profile = replace(profile, server=replace(profile.server, command=command))
    with pytest.raises(UsageError, match="does not name the model") as caught:
        run(profile, duty(), lambda arm: pytest.fail(f"{arm} was swapped in"))
    assert caught.value.hint and "/models/your-model" in caught.value.hint


def test_the_same_verification_gives_the_same_figures(tmp_path):
    first, second = (verify(tmp_path / str(n), "null", blocks=1) for n in range(2))
    assert first.summary["intervals"] == second.summary["intervals"]
    assert first.decision == second.decision


# --- no verdict --------------------------------------------------------------------------------


def test_a_baseline_that_does_not_run_is_a_host_error(tmp_path):
    with pytest.raises(HostError, match="the baseline does not run") as caught:
        verify(tmp_path, "crash-at-start")
    assert caught.value.exit_code == 10 and caught.value.code == "baseline-failed"
    assert "RuntimeError" in caught.value.message


def test_a_baseline_that_is_never_ready_is_a_host_error(tmp_path):
    with pytest.raises(HostError, match="not ready after 1 s"):
        verify(tmp_path, "never-ready", ready_timeout=1)


def test_a_taken_port_ends_the_run_before_anything_starts(tmp_path):
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        profile = simulated_profile(tmp_path, "null", port=holder.getsockname()[1])
        with pytest.raises(BusyError):
            run(profile, duty(), swapper(fake_environment(tmp_path)))


def test_a_baseline_with_the_option_on_compares_nothing(tmp_path):
    """The profile smuggles the option past the stripping, as a config file would."""
    profile = simulated_profile(tmp_path, "null")
    smuggled = replace(duty(), launch=LAUNCH._replace(strip={}))
    with pytest.raises(HostError, match="already has the option") as caught:
        run(profile, smuggled, swapper(fake_environment(tmp_path)))
    assert caught.value.code == "baseline-engaged"


def test_an_option_that_another_set_needs_in_both_arms_is_no_fault(tmp_path):
    shared = replace(duty(), base=LAUNCH, engagement=(Engagement(
        "sglang", "", server_info={"enable_flashinfer_allreduce_fusion": True}),))  # fmt: skip
    profile = simulated_profile(tmp_path, "null")
    outcome = run(profile, shared, swapper(fake_environment(tmp_path)))
    assert outcome.verdict == "no-regression"


def test_an_external_server_without_a_log_cannot_show_engagement():
    text = '[server]\nmode = "external"\nrestart_command = ["r", "{set_args}"]'
    profile = parse(text, origin="p.toml", python="p", prefix="q")
    with pytest.raises(UsageError, match="log"):
        check(profile, duty())


def test_the_time_limit_ends_in_inconclusive(tmp_path):
    swap = swapper(fake_environment(tmp_path))
    profile = simulated_profile(tmp_path, "root-complex-2gpu")
    outcome = run(profile, duty(), swap, deadline=time.monotonic() + 1.5)
    assert outcome.verdict == "inconclusive" and not outcome.rejected
    assert "time ran out" in reasons(outcome)
    limited = simulated_profile(tmp_path, "never-ready", verify="max_time = 1")
    assert run(limited, duty(), swap).verdict == "inconclusive"


def test_an_error_of_the_swap_passes_through(tmp_path):
    def swap(arm: Arm) -> float:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(simulated_profile(tmp_path, "null"), duty(), swap)


def test_a_claim_of_the_file_lowers_the_worth_and_never_raises_it(tmp_path):
    profile = simulated_profile(tmp_path, "null")
    site = fake_environment(tmp_path)
    real = replace(profile, server=replace(profile.server, kind=EvidenceKind.REAL))
    assert run(real, duty(blocks=1), swapper(site)).kind is EvidenceKind.SIMULATED


# --- ^C ----------------------------------------------------------------------------------------


class Interrupting(Reporter):
    """Sends ^C to this process at the first repeat or, later, into the waiting."""

    def on_repeat(self, arm: Arm, workload: str, repeat: int, repeats: int,
                  metrics: Mapping[str, float]) -> None:  # fmt: skip
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)


def test_an_interrupt_stops_our_server_and_passes_through(tmp_path):
    profile = simulated_profile(tmp_path, "null")
    with pytest.raises(KeyboardInterrupt):
        run(profile, duty(), swapper(fake_environment(tmp_path)), Interrupting())
    assert not processes.answers("127.0.0.1", profile.server.port)


def interrupt_soon(profile: Profile, delay: float) -> threading.Thread:
    """^C a moment after the server answers."""

    def wait() -> None:
        while not processes.answers("127.0.0.1", profile.server.port):
            time.sleep(0.01)
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("delay", [0.0, 0.3, 0.6])
def test_an_interrupt_at_any_moment_leaves_no_process(tmp_path, delay):
    slow = "[workload.slow]\nconcurrency = 2\nprompts = 64\nrepeats = 50\n"
    profile = simulated_profile(tmp_path, "null", workloads=slow)
    thread = interrupt_soon(profile, delay)
    with pytest.raises(KeyboardInterrupt):
        run(profile, duty(), swapper(fake_environment(tmp_path)))
    thread.join()
    assert not processes.answers("127.0.0.1", profile.server.port)
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(tmp_path) not in listing.stdout


# --- an external server ------------------------------------------------------------------------

RESTART = r"""
import os, signal, subprocess, sys, time
from pathlib import Path
pidfile, log = map(Path, sys.argv[1:3])
if pidfile.exists():
    pid = int(pidfile.read_text())
    os.kill(pid, signal.SIGTERM)
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.02)
with log.open("ab") as stream:
    server = subprocess.Popen([sys.executable, "-m", "sm120patch.simhost", *sys.argv[3:]],
                              stdout=stream, stderr=stream, start_new_session=True)
pidfile.write_text(str(server.pid))
"""


def test_an_external_server_is_verified_through_its_restart_command(tmp_path):
    base = simulated_profile(tmp_path, "root-complex-2gpu")
    script, pidfile, log = (tmp_path / name for name in ("restart.py", "pid", "external.log"))
    script.write_text(RESTART)
    options = [word for word in base.server.command[3:] if word != FLAG]
    command = ["{tool_python}", str(script), str(pidfile), str(log), *options, "{set_args}"]
    server = replace(base.server, mode="external", command=tuple(command), log=str(log))
    profile = replace(base, server=server)
    try:
        outcome = run(profile, duty(), swapper(fake_environment(tmp_path)))
        assert outcome.verdict == "improved"
        assert processes.answers("127.0.0.1", profile.server.port)
        # Reapplied without a restart: the running server proves nothing.
        lazy = replace(profile, server=replace(server, command=("true", "{set_args}"),
                                               ready_timeout=0.5))  # fmt: skip
        with pytest.raises(HostError, match="not accepted as evidence"):
            run(lazy, replace(duty(), launch=Launch()), swapper(tmp_path / "elsewhere"))
    finally:
        os.kill(int(pidfile.read_text()), signal.SIGKILL)


def test_the_package_imports_no_http_client_by_itself():
    code = (
        "import sys, sm120patch.verify.runner, sm120patch.verify.template, sm120patch.simhost\n"
        "heavy = {'aiohttp', 'psutil', 'libcst', 'git', 'packaging'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
