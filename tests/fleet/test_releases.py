"""A fleet of published releases: six environments of four pairs of SGLang and FlashInfer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import run
from tests.support.nodes import GAINS, REGRESSES, Fleet, Node
from tests.support.wheels import PAIRS

pytestmark = [pytest.mark.slow, pytest.mark.network]

ROLLOUT, AUDIT = "sm120patch.fleet.rollout", "sm120patch.fleet.audit"
NODES = {"gpu1": "0.5.9", "gpu2": "0.5.9", "gpu3": "0.5.9",
         "gpu4": "0.5.8", "gpu5": "0.5.10.post1", "gpu6": "0.5.12.post1"}  # fmt: skip
LIKE_THE_FIRST = ("--limit", "gpu1,gpu2,gpu3")
EACH = """\
- name: Patch each node for itself
  hosts: sm120patch
  gather_facts: false
  tasks:
    - name: Patch
      sm120patch.fleet.patch_set:
        executable: "{{ sm120patch_executable }}"
        environment: "{{ sm120patch_environment }}"
        sets: "{{ sm120patch_sets }}"
        profile: "{{ sm120patch_profile }}"
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(
        tmp_path,
        *(Node.real(tmp_path, name, sglang, PAIRS[sglang]) for name, sglang in NODES.items()),
    )


def test_check_and_diff_on_every_release_change_nothing(fleet: Fleet) -> None:
    playbook = fleet.root / "each.yml"
    playbook.write_text(EACH)
    done = fleet.play(str(playbook), "--check", "--diff")
    assert done.code == 0, done.out
    assert done.count("changed") == dict.fromkeys(NODES, 1)
    assert done.out.count("+++ b/sglang/srt/layers/communicator.py") == len(NODES)
    for node in fleet.nodes:
        node.assert_untouched()


def test_different_releases_are_refused_and_equal_ones_go_canary_first(fleet: Fleet) -> None:
    canary, others = fleet.nodes[0], fleet.nodes[1:]

    refused = fleet.play(ROLLOUT)
    assert refused.code == 2, refused.out
    assert "would not all hold the same code, so nothing was written" in refused.out
    for name, release in NODES.items():
        assert f"{name}: " in refused.out and f"sglang {release}" in refused.out
    for node in fleet.nodes:
        node.assert_untouched()

    canary.serve(REGRESSES)
    rejected = fleet.play(ROLLOUT, *LIKE_THE_FIRST)
    assert rejected.code == 2, rejected.out
    assert "gpu1: rejected (allreduce-fusion: regressed" in rejected.out
    canary.assert_as_before()
    assert canary.hooks == ["drain", "resume"] and canary.state == "rejected"
    for node in others:
        node.assert_untouched()

    canary.serve(GAINS)
    facts = {"sm120patch_facts_dir": str(fleet.facts)}
    applied = fleet.play(ROLLOUT, *LIKE_THE_FIRST, **facts)
    assert applied.code == 0, applied.out
    assert {node.state for node in fleet.nodes[:3]} == {"applied"}
    assert canary.hooks == ["drain", "resume"] * 2
    contents = [node.run("status").result["content"] for node in fleet.nodes]
    assert len(set(contents[:3])) == 1 and len(set(contents)) == 4
    for node in fleet.nodes[3:]:
        node.assert_untouched()

    again = fleet.play(ROLLOUT, *LIKE_THE_FIRST)
    assert again.code == 0 and again.count("changed") == {}, again.out

    assert fleet.play(AUDIT).code == 0
    report = run("fleet-report", fleet.facts, "--output", "json")
    held = {
        node["node"]: next(s["state"] for s in node["sets"] if s["id"] == "allreduce-fusion")
        for node in report.result["nodes"]
    }
    assert held == {name: "applied" if release == "0.5.9" else "absent"
                    for name, release in NODES.items()}  # fmt: skip
