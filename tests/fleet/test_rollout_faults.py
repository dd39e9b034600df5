"""Playbook `rollout` where commands of a node are killed or give no answer."""

from __future__ import annotations

import pytest

from tests.support.nodes import TOOL, Fleet

ROLLOUT = "sm120patch.fleet.rollout"


@pytest.mark.slow
def test_after_an_apply_that_was_killed_the_node_is_settled_put_back_and_resumed(
    pair: Fleet,
) -> None:
    canary, other = pair.nodes
    canary.kill_applies()
    done = pair.play(ROLLOUT)
    assert done.code == 2, done.out
    assert "canary: failed (sm120patch apply gave no answer" in done.out
    canary.assert_as_before()
    assert canary.state == "absent" and canary.hooks == ["drain", "resume"]
    assert not (canary.home / "drained").exists()
    other.assert_untouched()


@pytest.mark.slow
@pytest.mark.parametrize("fails", [("recover",), ("recover", "status"), ("revert",)])
def test_a_node_that_cannot_be_settled_is_left_drained_and_names_the_command(
    pair: Fleet, fails: tuple[str, ...]
) -> None:
    canary, other = pair.nodes
    canary.kill_applies(*fails)
    done = pair.play(ROLLOUT)
    assert done.code == 2, done.out
    assert "canary: not-put-back (sm120patch apply gave no answer" in done.out
    assert "so it is left drained. Run `" in done.out
    assert f"recover --env {canary.prefix} --catalogue {canary.catalogue}` there" in done.out
    assert canary.hooks == ["drain"] and (canary.home / "drained").exists()
    other.assert_untouched()
    canary.variables["sm120patch_executable"] = str(TOOL)
    again = pair.play(ROLLOUT)
    assert again.code == 0, again.out
    assert canary.state == "applied" and canary.hooks[-1] == "resume"
