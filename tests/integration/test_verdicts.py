"""`apply` and `verify` as commands: every verdict, and what counts afterwards."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
from pathlib import Path

import pytest

from tests.support.command import run
from tests.support.serving import (
    BAD,
    FUSION,
    GOOD,
    OTHER,
    QUICK,
    Host,
    apply,
    assert_applied,
    assert_no_baseline,
    assert_nothing_written,
    assert_rejected,
    assert_untouched,
    stage,
)
from tests.support.simulated import FLAG

# --- verdicts ----------------------------------------------------------------------------------


def test_improved_is_applied_and_nowhere_counted_as_real(host: Host) -> None:
    done = apply(host, GOOD, verify="")
    assert_applied(host, done, "improved")
    assert done.result["launch"]["args"] == [FLAG]
    commands = done.result["verification"]["commands"]
    assert FLAG in commands["patched"] and FLAG not in commands["baseline"]
    first = done.err.index("starting the server")
    for arm in ("baseline", "patched"):
        assert done.err.index(commands[arm]) < first, "both are printed before anything starts"
    audit = host.run("audit")
    found = {(f["kind"], f["path"]) for f in audit.result["findings"]}
    assert audit.code == 1 and found == {("unverified", name) for name in FUSION}


@pytest.mark.slow
def test_a_profile_cannot_raise_the_worth_of_a_simulated_host(host: Host) -> None:
    assert_applied(host, apply(host, GOOD, kind="real"), "improved")


def test_no_effect_is_no_regression_and_applied(host: Host) -> None:
    assert_applied(host, apply(host, "null", verify=""), "no-regression")


@pytest.mark.slow
def test_no_effect_does_not_pass_when_speed_is_demanded(host: Host) -> None:
    done = apply(host, "null", "--goal", "speed", verify="")
    assert done.code == 8 and done.result["outcome"] == "staged"
    assert "no improvement" in " ".join(done.result["verification"]["reasons"])


def test_regressed_is_put_back_and_remembered(host: Host) -> None:
    assert_rejected(host, apply(host, BAD, verify=""), "regressed")


def test_what_was_measured_of_a_rejected_set_can_be_read_afterwards(host: Host) -> None:
    done = apply(host, BAD)
    assert done.code == 8
    ratio = done.result["verification"]["intervals"]["tiny"]["ratio"]
    shown = json.dumps(host.events()) + json.dumps(host.entry("fusion"))
    assert json.dumps(ratio) in shown, "the evidence is kept, but no command shows it"


@pytest.mark.slow
def test_a_rejection_outlives_an_interrupted_second_try(host: Host) -> None:
    assert apply(host, BAD).code == 8
    again = ("apply", "fusion", "--yes", "--profile", host.profile(BAD, verify=QUICK))
    running = host.start(*again)
    running.wait_said("baseline: ready")
    running.send(signal.SIGINT)
    assert running.finish().code == 130
    assert host.states()["fusion"] == "rejected"


def test_a_collapse_ends_early(host: Host) -> None:
    done = apply(host, "vm-8gpu-no-p2p", verify="")
    assert_rejected(host, done, "regressed")
    assert done.result["verification"]["blocks_run"] == ["baseline", "patched"]


@pytest.mark.parametrize(
    ("scenario", "verdict", "reason"),
    [
        ("garbage", "broken", "the baseline answers right"),
        ("garbage-far-back", "broken", "long-recall: the baseline answers right"),
        ("shifted", "broken", "log-probabilities of equal tokens differ by 0.500"),
        pytest.param("babble", "broken", "the patched server answers '", marks=pytest.mark.slow),
        pytest.param("silent", "broken", "gives empty text", marks=pytest.mark.slow),
        pytest.param("cut-short", "broken", "the baseline answers right", marks=pytest.mark.slow),
        ("crash-when-patched", "broken", "No supported CUDA architectures"),
        pytest.param(
            "dies-under-load", "broken", "died while serving tiny", marks=pytest.mark.slow
        ),
        ("flag-ignored", "not-engaged", "falling back"),
    ],
)
def test_broken_or_not_engaged_is_put_back(
    host: Host, scenario: str, verdict: str, reason: str
) -> None:
    done = apply(host, scenario)
    assert_rejected(host, done, verdict)
    assert reason in " ".join(done.result["verification"]["reasons"])


def test_inconclusive_stays_staged_and_says_what_would_decide_it(host: Host) -> None:
    done = apply(host, "noisy", verify="")
    assert done.code == 8 and done.json["ok"] is False, done.err
    assert done.result["outcome"] == "staged"
    assert done.result["verification"]["verdict"] == "inconclusive"
    assert "server starts an arm" in done.result["verification"]["advice"]
    assert "server starts an arm" in done.err, "people are told as well"
    assert host.patched() == FUSION
    assert {s["state"] for s in done.result["sets"]} == {"staged"}
    assert host.events()[0]["kind"] == "staged"
    status = host.text("status")
    assert status.code == 0 and "applied" not in status.out.replace("count as applied", "")
    for name in FUSION:
        (line,) = [x for x in status.out.splitlines() if x.split()[0] == name]
        assert "staged" in line and "not verified" in line


@pytest.mark.slow
def test_inconclusive_tells_people_that_nothing_is_verified(host: Host) -> None:
    done = host.text("apply", "fusion", "--profile", host.profile("noisy"))
    assert done.code == 8
    assert "NOT verified" in done.out and "server starts an arm" in done.out
    assert f"server is started with: {FLAG}" in done.out


# --- real evidence -----------------------------------------------------------------------------


UNLABELLED = """
import sys
from sm120patch.simhost import __main__, app

simulated = app.Simulation.info

def info(self):
    return {k: v for k, v in simulated(self).items() if k not in ("simulated", "clock")}

app.Simulation.info = info
sys.exit(__main__.main(sys.argv[1:]))
"""
"""A server that does not say that it is simulated: what it shows is taken for real."""


def unlabelled(host: Host) -> Path:
    (host.root / "server.py").write_text(UNLABELLED)
    options = host.server_command(GOOD, "--time-scale", "16")[3:]
    command = ["{tool_python}", str(host.root / "server.py"), *options]
    return host.profile(GOOD, command=command, kind="real", verify="margin = 0.5\nblocks = 1")


def test_a_real_pass_counts_when_the_gpu_is_known(host: Host) -> None:
    done = host.run("apply", "fusion", "--gpu", "12.0", "--profile", unlabelled(host))
    assert done.code == 0, done.err
    for entry in done.result["sets"]:
        assert (entry["state"], entry["label"], entry["counts"]) == ("applied", "applied", True)
    assert host.run("audit").code == 0, "our own files are no findings"


def test_a_real_pass_on_an_unknown_gpu_stays_staged(host: Host) -> None:
    done = host.run("apply", "fusion", "--profile", unlabelled(host))
    assert done.code == 8 and done.result["outcome"] == "staged", done.err
    assert done.result["plan"]["applicability"] == "unconfirmed"
    assert done.result["verification"]["passed"] is True
    assert host.states()["fusion"] == "staged"
    assert host.run("audit").code == 1


# --- no verdict --------------------------------------------------------------------------------


def test_a_baseline_that_does_not_run_changes_nothing(host: Host) -> None:
    done = apply(host, "crash-at-start")
    assert_no_baseline(host, done)
    assert "No supported CUDA architectures" in done.error["message"], "the end of its log"


def test_a_crash_fix_is_not_rejected_for_what_the_baseline_fails_of_too(host: Host) -> None:
    for manifest in (host.catalogue / "manifests").glob("*.toml"):
        text = manifest.read_text().replace('goal = "no-regression"', 'goal = "crash-fix"')
        manifest.write_text(text)
    done = apply(host, "crash-at-start")
    assert_no_baseline(host, done)
    assert "the baseline fails in the same way" in done.error["message"]
    assert host.entry("fusion")["reason"] == "", "nothing is remembered against it"


def test_a_server_that_is_never_ready_ends_the_run(host: Host) -> None:
    done = apply(host, "never-ready", server="ready_timeout = 1")
    assert_no_baseline(host, done)
    assert "not ready after 1 s" in done.error["message"]


def test_a_command_that_does_not_exist_ends_the_run(host: Host) -> None:
    done = apply(host, GOOD, command=["/nonexistent/sglang", "{set_args}"])
    assert_no_baseline(host, done)
    assert "/nonexistent/sglang" in done.error["message"]


def test_a_server_that_answers_garbage_ends_the_run(host: Host) -> None:
    (host.root / "served").mkdir()
    command = ["{tool_python}", "-m", "http.server", "{port}", "--bind", "127.0.0.1",
               "--directory", str(host.root / "served")]  # fmt: skip
    done = apply(host, GOOD, command=command, server='ready = "/"')
    assert_no_baseline(host, done)
    assert "neither SGLang nor" in done.error["message"]


@pytest.mark.slow
def test_a_patched_server_that_is_never_ready_is_broken(host: Host) -> None:
    (host.root / "server.py").write_text(
        "import runpy, sys, time\n"
        f"if {FLAG!r} in sys.argv: time.sleep(600)\n"
        "runpy.run_module('sm120patch.simhost', run_name='__main__')\n"
    )
    command = ["{tool_python}", str(host.root / "server.py"), *host.server_command(GOOD)[3:]]
    done = apply(host, GOOD, command=command, server="ready_timeout = 6")
    assert_rejected(host, done, "broken")


def test_a_port_that_another_process_holds_is_left_to_it(host: Host) -> None:
    with socket.create_server(("127.0.0.1", host.port)):
        done = apply(host, GOOD)
    assert done.code == 9, done.out + done.err
    assert done.error["code"] == "port-taken"
    assert done.error["details"]["pids"] == [os.getpid()]
    assert str(os.getpid()) in done.error["message"]
    assert_untouched(host)


# --- staged, applied, stacked ------------------------------------------------------------------


def test_no_verify_only_stages_and_says_so(host: Host) -> None:
    done = host.text("apply", "fusion", "--no-verify")
    assert done.code == 0
    assert "NOT verified: this does not count as applied" in done.out
    (following,) = [line for line in done.out.splitlines() if line.startswith("next: ")]
    assert following.startswith("next: sm120patch verify fusion --env ")
    copied = run(*shlex.split(following)[2:], cwd=host.root)
    assert copied.code == 2 and "there is no profile" in copied.err, "it found the set"
    assert host.states()["fusion"] == "staged"
    assert host.run("audit").code == 1


def test_no_verify_of_a_content_with_evidence_does_not_call_it_unverified(host: Host) -> None:
    assert_applied(host, apply(host, GOOD), "improved")
    assert host.run("revert", "--all").code == 0
    done = host.text("apply", "fusion", "--no-verify")
    assert done.code == 0 and "applied (simulated)" in done.out
    assert "NOT verified" not in done.out and "next:" not in done.out
    assert "there is evidence for exactly this content" in done.out


@pytest.mark.parametrize("command", ["verify", pytest.param("apply", marks=pytest.mark.slow)])
def test_a_staged_set_is_verified_and_becomes_applied(host: Host, command: str) -> None:
    stage(host, "fusion")
    before = host.facts()
    done = host.run(command, "fusion", "--profile", host.profile(GOOD, verify=QUICK))
    assert_applied(host, done, "improved", "verified")
    assert host.facts() == before
    assert host.events()[0]["kind"] == "verified"


def test_a_staged_set_that_fails_is_taken_off(host: Host) -> None:
    stage(host, "fusion")
    done = host.run("verify", "fusion", "--profile", host.profile(BAD, verify=QUICK))
    assert_rejected(host, done, "regressed")


def test_an_applied_set_is_not_measured_again(host: Host) -> None:
    profile = host.profile(GOOD, verify=QUICK)
    assert host.run("apply", "fusion", "--profile", profile).code == 0
    before, events = host.facts(), host.events()
    with socket.create_server(("127.0.0.1", host.port)):  # no server could start
        done = host.run("apply", "fusion", "--profile", profile)
    assert done.code == 0 and done.result["outcome"] == "nothing", done.err
    assert "starting the server" not in done.err
    assert host.facts() == before and host.events() == events


@pytest.mark.slow
def test_of_two_stacked_sets_the_newer_loses_its_evidence_with_the_older(host: Host) -> None:
    profile = host.profile(GOOD)
    assert host.run("apply", "fusion", "--profile", profile).code == 0
    assert host.run("apply", "other", "--profile", profile).code == 0
    assert set(host.states().values()) == {"applied"}
    assert host.run("revert", "fusion").code == 0
    assert host.patched() == {"other"}
    entry = host.entry("other")
    assert (entry["state"], entry["evidence"]) == ("staged", None), "measured on other content"
    assert host.run("verify", "other", "--profile", profile).code == 0
    assert host.states()["other"] == "applied"


@pytest.mark.slow
def test_of_two_stacked_sets_the_older_keeps_its_own_evidence(host: Host) -> None:
    profile = host.profile(GOOD)
    assert host.run("apply", "fusion", "--profile", profile).code == 0
    assert host.run("apply", "other", "--profile", profile).code == 0
    assert host.run("revert", "other").code == 0
    assert host.content(OTHER) == host.pristine[OTHER][0].decode()
    assert host.states() == {**dict.fromkeys(FUSION, "applied"), "other": "absent"}


@pytest.mark.slow
def test_a_rejected_set_leaves_the_sets_below_it_applied(host: Host) -> None:
    assert host.run("apply", "other", "--profile", host.profile(GOOD)).code == 0
    before = host.facts()
    done = apply(host, BAD)
    assert done.code == 8 and host.facts() == before
    assert host.states() == {**dict.fromkeys(FUSION, "rejected"), "other": "applied"}


# --- refused before any write ------------------------------------------------------------------


def test_without_a_profile_nothing_is_written(host: Host) -> None:
    done = host.run("apply", "fusion")
    assert done.code == 2 and done.error["code"] == "no-profile"
    assert "sm120patch init" in done.error["hint"] and "--no-verify" in done.error["hint"]
    assert_nothing_written(host)


def test_a_staged_set_is_not_verified_without_a_profile(host: Host) -> None:
    stage(host, "fusion")
    before = host.facts()
    for command in ("apply", "verify"):
        done = host.run(command, "fusion")
        assert done.code == 2 and done.error["code"] == "no-profile"
    assert host.facts() == before and host.states()["fusion"] == "staged"


def test_the_profile_of_the_working_directory_is_found(host: Host) -> None:
    host.profile("crash-when-patched", verify=QUICK, name="sm120patch.toml")
    assert_rejected(host, host.run("apply", "fusion"), "broken")


def test_a_broken_profile_is_refused_with_every_fault(host: Host) -> None:
    profile = host.profile(GOOD, server="ready_timeout = -1\ncolour = 'red'", verify="blocks = 0")
    done = host.run("apply", "fusion", "--profile", profile)
    assert done.code == 2 and len(done.error["details"]["faults"]) == 3, done.out
    assert_nothing_written(host)


def test_a_profile_that_does_not_exist_is_refused(host: Host) -> None:
    done = host.run("apply", "fusion", "--profile", host.root / "missing.toml")
    assert done.code == 2 and "missing.toml" in done.error["message"]
    assert_nothing_written(host)


def test_an_external_server_that_cannot_pass_the_options_on_is_refused(host: Host) -> None:
    lines = f'mode = "external"\nlog = "{host.root}/theirs.log"'
    profile = host.profile(GOOD, command=["/bin/true"], server=lines)
    done = host.run("apply", "fusion", "--profile", profile)
    assert done.code == 2 and "{set_args}" in done.error["message"]
    assert_nothing_written(host)


def test_a_dry_run_shows_everything_and_writes_nothing(host: Host) -> None:
    done = host.run("apply", "fusion", "--profile", host.profile(GOOD), "--dry-run")
    assert done.code == 0
    assert {f["path"] for f in done.result["files"]} == {"sglang/srt/layers/communicator.py",
                                                         "flashinfer/jit/comm.py"}  # fmt: skip
    assert all(f["diff"].startswith("--- ") for f in done.result["files"])
    assert FLAG in done.result["commands"]["patched"]
    assert FLAG not in done.result["commands"]["baseline"]
    assert_nothing_written(host)
    planned = host.run("plan", "fusion", "--gpu", "12.0")
    assert planned.result["digest"] == done.result["digest"]
    assert_nothing_written(host)


def test_only_the_expected_plan_is_carried_out(host: Host) -> None:
    digest = host.run("plan", "fusion", "--gpu", "12.0").result["digest"]
    for wrong in ("0" * 64, digest[:12], "nonsense"):
        refused = host.run(
            "apply", "fusion", "--no-verify", "--gpu", "12.0", "--expect", wrong
        )  # fmt: skip
        assert refused.code == 5 and refused.error["code"] == "stale-plan"
        assert refused.error["details"]["found"] == digest
        assert_nothing_written(host)
    done = host.run("apply", "fusion", "--no-verify", "--gpu", "12.0", "--expect", digest)
    assert done.code == 0 and done.result["plan"]["digest"] == digest


def test_verify_of_what_is_not_on_disk_is_refused(host: Host) -> None:
    done = host.run("verify", "fusion", "--profile", host.profile(GOOD))
    assert done.code == 2 and "sm120patch apply fusion" in done.error["hint"]
    assert_nothing_written(host)
