"""`bench`: options are tried on a server that restarts, and no result is lost or repeated."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Ran
from tests.support.pages import Page, check_harmless
from tests.support.serving import GOOD, QUICK, Host, apply

CUTLASS, TRITON = "--moe-runner-backend flashinfer_cutlass", "--moe-runner-backend triton"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def bench(host: Host, *texts: str, again: bool = False, **profile: Any) -> Ran:
    words = [word for text in texts for word in ("--try", text)]
    words += ["--again"] if again else []
    return host.run("bench", *words, "--profile", host.profile("tunable", **profile))


def verdicts(done: Ran) -> dict[str, str]:
    assert done.code == 0, done.err
    return {e["options"]["name"]: e["verdict"] for e in done.result["experiments"]}


def test_what_helps_and_what_does_not_are_both_kept(host: Host) -> None:
    assert verdicts(bench(host, CUTLASS, TRITON)) == {CUTLASS: "improved", TRITON: "regressed"}
    assert host.facts() == host.pristine and host.servers() == []
    assert set(host.states().values()) == {"absent"}

    shown = host.text("history", "--experiments").out.splitlines()
    assert [line.split("  ")[0] for line in shown] == ["2", "1"]
    assert TRITON in shown[0] and "regressed (simulated)" in shown[0] and "tiny: -" in shown[0]
    (first, second) = host.run("history", "--experiments").result["events"]
    assert first["kind"] == "experiment" and first["sets"] == [] == second["sets"]
    assert first["evidence"]["data"]["intervals"]["tiny"]["high"] < 1

    found = host.run("report", "2", "--html", "page.html")
    assert found.code == 0 and found.result["changed"] == []
    page = Page((host.root / "page.html").read_text())
    check_harmless(page)
    assert page.text.startswith(f"{TRITON}: regressed")
    assert "No file differs between the arms." in page.text and "variant" in page.text
    told = host.text("report").out
    assert "patched" not in told and ", variant " in told


def test_it_says_by_which_class_answers_are_judged(host: Host) -> None:
    done = host.run(
        "bench", "--try", TRITON, "--max-time", "1", "--profile", host.profile("tunable")
    )
    assert "up to rounding (class `tolerance`)" in done.err


def test_a_known_result_is_told_and_not_measured_again(host: Host) -> None:
    assert verdicts(bench(host, TRITON)) == {TRITON: "regressed"}
    (known,) = bench(host, "--moe-runner-backend   'triton'").result["experiments"]
    assert known["known"] is True and (known["verdict"], known["event"]) == ("regressed", 1)
    assert len(host.events()) == 1
    text = host.text("bench", "--try", TRITON, "--profile", host.profile("tunable"))
    assert "known since" in text.out and "starting the server" not in text.err

    (measured,) = bench(host, TRITON, again=True).result["experiments"]
    assert measured["known"] is False and measured["event"] == 2


@pytest.mark.slow
def test_another_server_or_another_content_is_another_question(host: Host) -> None:
    assert verdicts(bench(host, TRITON)) == {TRITON: "regressed"}
    slower = "\n[workload.other]\ninput_len = 8\noutput_len = 8\nprompts = 8\n"
    (other,) = bench(host, TRITON, workloads=slower).result["experiments"]
    assert other["known"] is False
    assert apply(host, GOOD).code == 0
    (patched,) = bench(host, TRITON).result["experiments"]
    assert patched["known"] is False
    assert set(host.states().values()) == {"applied", "absent"}, "an experiment changes no state"


@pytest.mark.parametrize(
    ("text", "verdict", "reason"),
    [
        ("--moe-runner-backend deep_gemm", "broken", "no kernel for deep_gemm"),
        ("--moe-runner-backend auto", "not-engaged", "says the same of itself"),
    ],
)
def test_options_that_end_the_server_or_change_nothing(
    host: Host, text: str, verdict: str, reason: str
) -> None:
    done = bench(host, text)
    assert verdicts(done) == {text: verdict}
    (entry,) = done.result["experiments"]
    assert reason in " ".join(entry["evidence"]["data"]["reasons"])
    assert host.servers() == []
    assert "\\x0a" not in host.text("history", "--experiments").out


def test_an_inconclusive_result_is_kept_and_asked_again(host: Host) -> None:
    words = ["bench", "--try", TRITON, "--max-time", "1", "--profile", host.profile("tunable")]
    for number in (1, 2):
        done = host.run(*words)
        assert verdicts(done) == {TRITON: "inconclusive"}
        assert done.result["experiments"][0]["event"] == number


def test_secrets_of_a_trial_are_not_kept(host: Host) -> None:
    text = "SOME_API_KEY=hunter2hunter2 --moe-runner-backend deep_gemm"
    done = bench(host, text)
    assert done.code == 0
    ledger = host.prefix / ".sm120patch" / "ledger.sqlite3"
    assert b"hunter2" not in ledger.read_bytes()
    assert b"hunter2" not in (ledger.parent / "lock").read_bytes()
    assert "hunter2" not in done.out + done.err
    assert bench(host, text).result["experiments"][0]["known"] is True


@pytest.mark.parametrize("texts", [(), ("steps 4",), ("'",), ("",)])
def test_what_cannot_be_tried_is_refused_before_a_server_starts(
    host: Host, texts: tuple[str, ...]
) -> None:
    done = bench(host, *texts)
    assert done.code == 2 and done.error["code"] == "usage"
    assert not (host.prefix / ".sm120patch").exists()


def test_without_a_profile_nothing_starts(host: Host) -> None:
    done = host.run("bench", "--try", TRITON)
    assert done.code == 2 and done.error["code"] == "no-profile"


def test_an_interrupt_stops_the_server_and_keeps_what_was_measured(host: Host) -> None:
    words = ["bench", "--try", "--moe-runner-backend deep_gemm", "--try", TRITON]
    running = host.start(*words, "--profile", host.profile("tunable"))
    try:
        running.wait_said("verdict: broken")
        running.wait_said(f"{TRITON}")
        running.wait_said("baseline: tiny 1/3")
        running.send(signal.SIGINT)
        done = running.finish()
    finally:
        running.kill()
    assert done.code == 130 and host.servers() == []
    assert [e["data"]["verdict"] for e in host.events()] == ["broken"]
    assert host.facts() == host.pristine


def test_nobody_changes_the_environment_meanwhile(host: Host) -> None:
    running = host.start("bench", "--try", TRITON, "--profile", host.profile("tunable"))
    try:
        running.wait_said("baseline: ready")
        other = host.run("apply", "fusion", "--no-verify", "--allow-running")
        assert other.code == 9, other.out
        running.send(signal.SIGINT)
        assert running.finish().code == 130
    except subprocess.TimeoutExpired:
        running.kill()
        raise
    assert host.facts() == host.pristine


def test_quick_runs_are_told_from_full_ones(host: Host) -> None:
    """The profile's `blocks` are part of the question that was asked."""
    assert verdicts(bench(host, TRITON, verify="blocks = 2")) == {TRITON: "regressed"}
    (other,) = bench(host, TRITON, verify=QUICK).result["experiments"]
    assert other["known"] is False
