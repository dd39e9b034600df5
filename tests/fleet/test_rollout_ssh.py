"""Playbook `rollout` over SSH: three nodes, one of which stops answering."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nodes import GAINS, Fleet, Node, kill_all
from tests.support.serving import wait_for
from tests.support.sshd import Sshd

ROLLOUT = "sm120patch.fleet.rollout"


class Reached(Fleet):
    """Nodes that are reached through an SSH server each."""

    def __init__(self, root: Path, *names: str) -> None:
        super().__init__(root, *(Node.small(root, name) for name in names))
        self.servers = {n.name: Sshd(n.root / "sshd", n.root / "home") for n in self.nodes}
        for node in self.nodes:
            (node.root / "home").mkdir()
            node.variables = self.servers[node.name].variables


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Reached]:
    made = Reached(tmp_path, "only")
    yield made
    made.servers["only"].stop()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Reached]:
    made = Reached(tmp_path, "first", "second", "third")
    yield made
    for server in made.servers.values():
        server.stop()


def test_a_node_that_does_not_answer_lets_nothing_begin(fleet: Reached) -> None:
    fleet.servers["third"].stop()
    done = fleet.play(ROLLOUT, sm120patch_facts_dir=str(fleet.facts))
    assert done.code == 2 and "third: unreachable (it does not answer: " in done.out, done.out
    assert "first: skipped (other nodes ended badly: third)" in done.out
    assert "second: skipped" in done.out
    facts = fleet.written_facts()
    assert {name: f["reachable"] for name, f in facts.items()} == {
        "first": True, "second": True, "third": False,
    }  # fmt: skip
    assert "Drain" not in done.out and "Apply and verify" not in done.out
    for node in fleet.nodes:
        node.assert_untouched()


@pytest.mark.slow
def test_three_nodes_are_applied_and_a_second_run_reports_no_change(fleet: Reached) -> None:
    done = fleet.play(ROLLOUT, sm120patch_facts_dir=str(fleet.facts))
    assert done.code == 0, done.out
    assert {node.state for node in fleet.nodes} == {"applied"}
    assert [node.hooks for node in fleet.nodes] == [["drain", "resume"]] * 3
    facts = fleet.written_facts()
    contents = {f["commands"]["status"]["result"]["content"] for f in facts.values()}
    assert len(facts) == 3 and len(contents) == 1, "the same code on every node"
    again = fleet.play(ROLLOUT)
    assert again.code == 0 and again.count("changed") == {}, again.out


@pytest.mark.slow
def test_a_node_that_stops_in_the_middle_stops_the_rollout_and_is_settled_later(
    fleet: Reached,
) -> None:
    first, second, third = fleet.nodes
    process = fleet.start(ROLLOUT, "-e", f"sm120patch_facts_dir={fleet.facts}")
    wait_for(lambda: second.journal.exists() or process.poll() is not None, timeout=240)
    fleet.servers["second"].stop()
    process.wait(300)
    out = (fleet.root / "started.log").read_text()
    assert process.returncode == 2, out
    assert "second: unreachable (the node stopped answering while it was being patched" in out
    assert "third: skipped (other nodes ended badly: second)" in out
    assert "first: rolled-back (it had passed, but others did not: second)" in out
    first.assert_as_before()
    assert first.state == "absent" and first.hooks == ["drain", "resume"] * 2
    third.assert_untouched()
    assert second.hooks == ["drain"], "a node that nobody knows is not given back"
    facts = fleet.written_facts()
    assert {name: f["reachable"] for name, f in facts.items()} == {
        "first": True, "second": False, "third": True,
    }  # fmt: skip

    fleet.servers["second"].start()
    assert second.state == "interrupted"
    done = fleet.play(ROLLOUT)
    assert done.code == 0, done.out
    assert {node.state for node in fleet.nodes} == {"applied"}
    assert second.hooks == ["drain", "drain", "resume"]
    assert third.hooks == ["drain", "resume"]


@pytest.mark.slow
def test_what_goes_on_when_the_playbook_is_killed_is_waited_for(single: Reached) -> None:
    (node,) = single.nodes
    node.serve(GAINS, late=25)
    process = single.start(ROLLOUT)
    wait_for(lambda: node.journal.exists() or process.poll() is not None, timeout=240)
    kill_all(process)
    assert node.run("status").result["under_way"], "the tool on the node has not noticed"
    done = single.play(ROLLOUT)
    assert done.code == 0, done.out
    assert "FAILED - RETRYING: [only]: Ask what is on the node, once nobody works on it" in done.out
    assert "only: unchanged" in done.out
    assert node.state == "applied" and node.hooks == ["drain", "resume"]
