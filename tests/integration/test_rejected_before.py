"""A host's rejections are told before it measures the same again; simulated passes say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.serving import BAD, GOOD, QUICK, Host, assert_rejected


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def apply(host: Host, profile: Path, *words: str) -> object:
    return host.run("apply", "fusion", "--profile", profile, *words)


def test_the_same_content_with_the_same_profile_is_not_measured_twice_unasked(host: Host) -> None:
    profile = host.profile(BAD, verify=QUICK)
    assert_rejected(host, apply(host, profile), "regressed")
    events = len(host.events())
    again = apply(host, profile)
    assert (again.code, again.error["code"]) == (5, "rejected-before")
    said = again.error["message"]
    assert "fusion was rejected here on 20" in said and "exactly this content" in said
    assert "regressed (simulated): " in said and "%" in said, "with its reasons"
    assert "`sm120patch report fusion" in again.error["hint"] and "--yes" in again.error["hint"]
    assert "starting the server" not in again.err and len(host.events()) == events
    assert host.states()["fusion"] == "rejected"
    dry = apply(host, profile, "--dry-run")
    assert dry.code == 0 and "was rejected here" in dry.err
    assert dry.result["measures"] == "simulated"
    assert dry.result["doubt"] == {"code": "rejected-before", "message": said}


@pytest.mark.slow
def test_with_yes_it_is_measured_again(host: Host) -> None:
    profile = host.profile(BAD, verify=QUICK)
    for words in ((), ("--yes",)):
        assert_rejected(host, apply(host, profile, *words), "regressed")


@pytest.mark.slow
def test_another_profile_or_no_measurement_is_only_told(host: Host) -> None:
    assert apply(host, host.profile(BAD, verify=QUICK)).code == 8
    staged = apply(host, host.profile(BAD, verify=QUICK), "--no-verify")
    assert staged.code == 0 and "was rejected here" in staged.err
    assert host.run("revert", "--all").code == 0
    good = apply(host, host.profile(GOOD, verify=QUICK))
    assert "was rejected here with another profile" in good.err
    assert (good.code, good.result["outcome"]) == (0, "applied")
    assert host.run("revert", "--all").code == 0
    assert (
        "was rejected here" not in apply(host, host.profile(GOOD, verify=QUICK), "--dry-run").err
    ), "the pass since then is the last word"


def test_a_simulated_pass_asks_for_a_real_measurement_and_for_no_restart(host: Host) -> None:
    profile = host.profile(GOOD, verify=QUICK)
    done = host.text("apply", "fusion", "--profile", profile)
    assert done.code == 0 and "applied (simulated)" in done.out
    assert "restart your server" not in done.out
    assert "this evidence is simulated: it says nothing of your GPUs" in done.out
    (following,) = [line for line in done.out.splitlines() if line.startswith("next: ")]
    assert following.startswith("next: sm120patch verify fusion --env")
    assert "--profile PROFILE_OF_YOUR_SERVER" in following and str(profile) not in following
    assert "server is started with: --enable-flashinfer-allreduce-fusion\n" in done.out
