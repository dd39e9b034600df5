"""Playbook `audit`: the facts of every node on the controller, of one that does not answer too."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.support.command import run
from tests.support.nodes import Fleet, Node
from tests.support.simulated import free_port

AUDIT = "sm120patch.fleet.audit"


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """A node, and one that nothing listens for."""
    away = Node.small(tmp_path, "away")
    away.variables = {
        "ansible_connection": "ssh",
        "ansible_host": "127.0.0.1",
        "ansible_port": free_port(),
    }
    return Fleet(tmp_path, Node.small(tmp_path, "here"), away)


def test_facts_are_written_for_nodes_that_answer_and_for_those_that_do_not(fleet: Fleet) -> None:
    here, _away = fleet.nodes
    here.variables = {"sm120patch_groups": ["glm"]}
    assert here.run("apply", "fusion", "--no-verify").code == 0
    here.before = here.snapshot()
    done = fleet.play(AUDIT)
    assert done.code == 2, done.out
    assert "away is unknown: " in done.out
    facts = fleet.written_facts()
    found = facts["here"]
    assert (found["schema"], found["kind"], found["node"]) == (1, "sm120patch-facts", "here")
    assert found["reachable"] is True and found["reason"] is None
    assert found["groups"] == ["glm"] and found["environment"] == str(here.prefix)
    assert set(found["commands"]) == {"status", "audit", "doctor", "history", "caches"}
    for command, envelope in found["commands"].items():
        assert envelope["command"] == command and envelope["schema"] == 1
    (staged,) = [s for s in found["commands"]["status"]["result"]["sets"] if s["id"] == "fusion"]
    assert staged["state"] == "staged"
    age = datetime.now(timezone.utc) - datetime.fromisoformat(found["collected_at"])
    assert timedelta(0) <= age < timedelta(minutes=10)
    lost = facts["away"]
    assert lost["reachable"] is False and lost["commands"] == {} and lost["environment"] is None
    assert "refused" in lost["reason"]
    assert done.count("changed") == {}
    assert here.snapshot() == here.before, "nothing is written on a node"


def test_a_node_that_does_not_answer_may_be_accepted(fleet: Fleet) -> None:
    done = fleet.play(AUDIT, "-e", "audit_insist=false")
    assert done.code == 0, done.out
    assert fleet.written_facts()["away"]["reachable"] is False


def test_what_a_node_says_cannot_write_to_the_terminal(fleet: Fleet) -> None:
    here, _away = fleet.nodes
    tool = fleet.root / "odd"
    tool.write_text("#!/bin/sh\nprintf '\\033]0;title\\007' >&2\nexit 1\n")
    tool.chmod(0o755)
    here.variables = {"sm120patch_executable": str(tool)}
    done = fleet.play(AUDIT, "--limit", "here")
    assert done.code == 2 and "?]0;title?" in done.out
    assert "\x1b]0" not in done.out and "\x07" not in done.out
    assert "?]0;title?" in fleet.written_facts()["here"]["reason"]


def test_the_report_of_the_fleet_reads_these_facts(fleet: Fleet) -> None:
    fleet.play(AUDIT)
    report = run("fleet-report", fleet.facts, "--output", "json")
    assert report.code == 1, report.out + report.err
    known = {node["node"]: node["known"] for node in report.result["nodes"]}
    assert known == {"here": True, "away": False}
    assert report.result["counts"]["unknown"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("fail_on", "code"), [([], 0), (["foreign"], 0), (["any"], 2)])
def test_findings_fail_a_node_where_that_is_asked_for(
    fleet: Fleet, fail_on: list[str], code: int
) -> None:
    here, _away = fleet.nodes
    assert here.run("apply", "fusion", "--no-verify").code == 0
    done = fleet.play(AUDIT, "--limit", "here", sm120patch_fail_on=fail_on)
    assert done.code == code, done.out
    assert ("here has findings: unverified" in done.out) == (code == 2)


def test_a_node_without_the_tool_is_unknown_and_says_why(fleet: Fleet) -> None:
    here, _away = fleet.nodes
    here.variables = {"sm120patch_executable": str(fleet.root / "nothing")}
    assert fleet.play(AUDIT, "--limit", "here").code == 2
    lost = fleet.written_facts()["here"]
    assert lost["reachable"] is False and "there is no executable" in lost["reason"]
