"""Playbook `rollout`: canary first, drain, apply, verify, resume; all back when one fails."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.nodes import GAINS, REGRESSES, Fleet, kill_all
from tests.support.serving import wait_for

ROLLOUT = "sm120patch.fleet.rollout"


def assert_all_applied(fleet: Fleet) -> None:
    assert {node.name: node.state for node in fleet.nodes} == dict.fromkeys(
        (node.name for node in fleet.nodes), "applied"
    )


def test_check_and_diff_show_every_line_and_change_nothing(pair: Fleet) -> None:
    done = pair.play(ROLLOUT, "--check", "--diff", "-e", "sm120patch_serial=100%")
    assert done.code == 0, done.out
    assert done.out.count("+    return flags(supported_major_versions=[9, 10, 12])") == 2
    assert done.count("changed") == {"canary": 1, "other": 1}
    assert "canary: planned" in done.out
    for node in pair.nodes:
        node.assert_untouched()
        assert not node.home.exists()


def test_nodes_that_would_differ_are_refused_before_anything_is_written(pair: Fleet) -> None:
    done_by_hand = pair.nodes[1].run("apply", "other", "--no-verify")
    assert done_by_hand.code == 0
    pair.nodes[1].before = pair.nodes[1].snapshot()
    pair.variables["sm120patch_sets"] = ["fusion", "other"]
    pair.nodes[0].sets = pair.nodes[1].sets = ["fusion", "other"]
    pair.nodes[1].variables["sm120patch_sets"] = ["other"]
    done = pair.play(ROLLOUT)
    assert done.code == 2
    assert "would not all hold the same code, so nothing was written" in done.out
    assert "Drain" not in done.out and "Apply and verify" not in done.out
    assert "canary: failed (The nodes would not" in done.out
    assert "other: failed (The nodes would not" in done.out
    for node in pair.nodes:
        node.assert_untouched()


def test_check_mode_says_that_a_node_would_first_be_settled(pair: Fleet) -> None:
    canary, other = pair.nodes
    canary.kill_applies()
    wrapper = str(canary.variables.pop("sm120patch_executable"))
    where = ["--env", str(canary.prefix), "--catalogue", str(canary.catalogue)]
    subprocess.run([wrapper, "apply", "fusion", "--profile", canary.profile, *where], check=False)
    assert canary.state == "interrupted"
    held = canary.snapshot()
    done = pair.play(ROLLOUT, "--check")
    assert done.code == 0, done.out
    assert (
        "canary: planned (it would first be settled: " in done.out and "other: planned" in done.out
    )
    assert canary.snapshot() == held
    other.assert_untouched()


def test_what_was_rejected_here_is_refused_before_any_node_is_drained(pair: Fleet) -> None:
    canary, other = pair.nodes
    other.serve(REGRESSES)
    assert other.run("apply", "fusion", "--profile", str(other.profile)).code == 8
    other.before = other.snapshot()
    done = pair.play(ROLLOUT)
    assert done.code == 2, done.out
    assert "other: failed (" in done.out and "sm120patch_allow_known_harm" in done.out
    for node in pair.nodes:
        node.assert_untouched()
    assert canary.state == "absent"


def test_a_set_that_is_on_a_node_must_be_named(pair: Fleet) -> None:
    assert pair.nodes[1].run("apply", "other", "--no-verify").code == 0
    pair.nodes[1].before = pair.nodes[1].snapshot()
    done = pair.play(ROLLOUT)
    assert done.code == 2
    assert "other: failed (other has also other" in done.out
    assert "canary: skipped (other nodes ended badly: other)" in done.out
    for node in pair.nodes:
        node.assert_untouched()


def test_what_is_not_said_is_asked_for(pair: Fleet) -> None:
    for missing in ("sm120patch_sets", "sm120patch_environment"):
        for node in pair.nodes:
            node.left_out = {missing}
        done = pair.play(ROLLOUT)
        assert done.code == 2 and missing in done.out, done.out
        assert "Plan" not in done.out
    for node in pair.nodes:
        node.assert_untouched()


@pytest.mark.parametrize("value", ["true", "false"])
def test_variables_may_be_given_as_words_of_the_command_line(pair: Fleet, value: str) -> None:
    names = ["allow_known_harm", "allow_simulated", "roll_back", "busy_retries", "max_time"]
    values = dict.fromkeys(names, value) | {"busy_retries": "1", "max_time": "0"}
    words = [w for name in names for w in ("-e", f"sm120patch_{name}={values[name]}")]
    pair.variables["sm120patch_max_time"] = 60
    done = pair.play(ROLLOUT, "--check", *words)
    assert "boolean" not in done.out
    if value == "true":
        assert done.code == 0 and "canary: planned" in done.out, done.out
    else:  # The word is taken for what it says, and these profiles are simulated.
        assert done.code != 0 and "whose evidence does not count" in done.out, done.out


@pytest.mark.slow
def test_every_node_is_applied_and_a_second_run_reports_no_change(pair: Fleet) -> None:
    done = pair.play(ROLLOUT)
    assert done.code == 0, done.out
    assert_all_applied(pair)
    assert ", evidence of a simulated host)" in done.out
    assert [node.hooks for node in pair.nodes] == [["drain", "resume"]] * 2
    held = [node.snapshot() for node in pair.nodes]
    again = pair.play(ROLLOUT)
    assert again.code == 0, again.out
    assert again.count("changed") == {} and "canary: unchanged" in again.out
    assert [node.snapshot() for node in pair.nodes] == held
    assert [node.hooks for node in pair.nodes] == [["drain", "resume"]] * 2, "no hook ran again"


@pytest.mark.slow
def test_a_canary_that_regresses_stops_the_rollout(pair: Fleet) -> None:
    canary, other = pair.nodes
    canary.serve(REGRESSES)
    done = pair.play(ROLLOUT)
    assert done.code == 2, done.out
    assert "canary: rejected (fusion: regressed" in done.out
    assert "other: skipped (other nodes ended badly: canary)" in done.out
    canary.assert_as_before()
    assert canary.state == "rejected"
    assert canary.hooks == ["drain", "resume"], "the resume hook runs after a rejection as well"
    other.assert_untouched()


@pytest.mark.slow
def test_a_later_node_that_regresses_takes_the_canary_back(pair: Fleet) -> None:
    canary, other = pair.nodes
    other.serve(REGRESSES)
    done = pair.play(ROLLOUT)
    assert done.code == 2, done.out
    assert "canary: rolled-back (it had passed, but others did not: other)" in done.out
    for node in pair.nodes:
        node.assert_as_before()
    assert [node.state for node in pair.nodes] == ["absent", "rejected"]
    assert canary.hooks == ["drain", "resume"] * 2
    assert other.hooks == ["drain", "resume"]
    given = ("roll_back=false", "allow_simulated=true", "allow_known_harm=true")
    kept = pair.play(ROLLOUT, *(w for one in given for w in ("-e", f"sm120patch_{one}")))
    assert kept.code == 2 and "canary: applied" in kept.out, kept.out
    assert "other: rejected" in kept.out and "derived from value" not in kept.out
    assert [node.state for node in pair.nodes] == ["applied", "rejected"]


@pytest.mark.slow
def test_nodes_of_the_same_batch_are_put_back_as_well(pair: Fleet) -> None:
    canary, _other = pair.nodes
    canary.serve(REGRESSES)
    done = pair.play(ROLLOUT, sm120patch_serial="100%")
    assert done.code == 2, done.out
    assert "canary: rejected" in done.out and "other: rolled-back" in done.out
    for node in pair.nodes:
        node.assert_as_before()
    assert [node.hooks for node in pair.nodes] == [["drain", "resume"], ["drain", "resume"] * 2]


@pytest.mark.slow
def test_another_content_than_the_one_that_is_expected_is_refused(pair: Fleet) -> None:
    done = pair.play(ROLLOUT, sm120patch_expected_digest="0" * 64)
    assert done.code == 2 and "nothing was written" in done.out
    for node in pair.nodes:
        node.assert_untouched()


@pytest.mark.slow
def test_evidence_of_a_simulated_host_does_not_count(pair: Fleet) -> None:
    pair.variables["sm120patch_allow_simulated"] = False
    refused = pair.play(ROLLOUT)
    assert refused.code == 2, refused.out
    assert "measures a simulated server, whose evidence does not count" in refused.out
    assert "sm120patch_allow_simulated" in refused.out and "TASK [Drain" not in refused.out
    canary, other = pair.nodes
    canary.assert_untouched()
    claimed = canary.profile.read_text().replace('kind = "simulated"', 'kind = "real"')
    for node in pair.nodes:
        node.profile.write_text(claimed.replace(str(canary.port), str(node.port)))
    done = pair.play(ROLLOUT)
    assert done.code == 2, done.out
    assert "the node ended with applied (simulated)" in done.out
    canary.assert_as_before()
    assert canary.state == "absent" and canary.hooks == ["drain", "resume"]
    other.assert_untouched()
    canary.serve(GAINS)
    assert canary.run("apply", "fusion", "--profile", str(canary.profile)).code == 0
    again = pair.play(ROLLOUT, "--limit", "canary")
    assert again.code == 2, again.out
    assert "failed (it holds fusion with evidence of a simulated host only)" in again.out
    assert canary.state == "applied" and canary.hooks == ["drain", "resume"], "left as it was"


@pytest.mark.slow
def test_a_resume_hook_that_fails_stops_the_rollout_and_takes_the_sets_off(pair: Fleet) -> None:
    (pair.hooks / "resume.yml").write_text(
        "- name: Fail\n  ansible.builtin.fail:\n    msg: the server does not start\n"
    )
    done = pair.play(ROLLOUT)
    assert done.code == 2, done.out
    assert "canary: not-resumed (it was not given back: the server does not start" in done.out
    canary, other = pair.nodes
    canary.assert_as_before()
    assert canary.state == "absent" and (canary.home / "drained").exists()
    other.assert_untouched()


@pytest.mark.slow
def test_a_drain_hook_that_fails_leaves_the_node_as_it_was(pair: Fleet) -> None:
    (pair.hooks / "drain.yml").write_text(
        "- name: Fail\n  ansible.builtin.fail:\n    msg: the server does not stop\n"
    )
    done = pair.play(ROLLOUT)
    assert done.code == 2 and "canary: failed (the server does not stop)" in done.out
    canary, other = pair.nodes
    canary.assert_as_before()
    assert canary.hooks == ["resume"]
    other.assert_untouched()


@pytest.mark.slow
def test_killed_in_the_middle_the_next_run_settles_it_and_goes_on(pair: Fleet) -> None:
    canary, other = pair.nodes
    process = pair.start(ROLLOUT)
    try:
        wait_for(lambda: canary.journal.exists(), timeout=120)
    finally:
        kill_all(process)
        canary.kill_tools()
    assert canary.hooks == ["drain"] and (canary.home / "drained").exists()
    assert canary.state == "interrupted"
    other.assert_untouched()
    done = pair.play(ROLLOUT)
    assert done.code == 0, done.out
    assert_all_applied(pair)
    assert canary.hooks == ["drain", "drain", "resume"] and not (canary.home / "drained").exists()


@pytest.mark.slow
def test_a_server_that_no_hook_stops_is_named_and_nothing_is_patched(pair: Fleet) -> None:
    canary, other = pair.nodes
    pair.variables["sm120patch_hooks"] = []
    python = canary.prefix / "bin" / "python"
    words = [python, "-c", "import time; time.sleep(600)", "-m", "sglang.launch_server"]
    with subprocess.Popen(words) as server:
        try:
            done = pair.play(ROLLOUT)
        finally:
            server.kill()
    assert done.code == 2, done.out
    assert "canary: failed (running processes use this environment" in done.out
    assert f"pid {server.pid}: " in done.out and "hint: stop them" in done.out
    canary.assert_as_before()
    other.assert_untouched()


@pytest.mark.slow
def test_killed_after_the_verification_the_next_run_gives_the_node_back(pair: Fleet) -> None:
    (canary, other) = pair.nodes
    assert pair.play(ROLLOUT).code == 0
    (canary.home / "drained").write_text("drained\n")
    done = pair.play(ROLLOUT)
    assert done.code == 0, done.out
    assert canary.hooks == ["drain", "resume", "resume"]
    assert other.hooks == ["drain", "resume"]
    assert not (canary.home / "drained").exists()
