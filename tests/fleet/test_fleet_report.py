"""From nodes to the report: the audit playbook writes facts, the inventory says who is one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.command import Ran, run
from tests.support.nodes import Fleet, Node, ansible
from tests.support.serving import COMMUNICATOR
from tests.support.simulated import free_port

pytestmark = pytest.mark.slow
AUDIT = "sm120patch.fleet.audit"


def verify(node: Node, scenario: str) -> None:
    node.serve(scenario)
    done = node.run("apply", "fusion", "--profile", str(node.profile))
    assert done.code == 0, done.err


def report(fleet: Fleet, *more: str) -> Ran:
    """The report as it is made beside the inventory."""
    inventory = str(fleet.root / "hosts.json")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return run("fleet-report", fleet.facts, "--expect", inventory, "--group", "sm120patch",
               "--output", "json", *more, PATH=path, ANSIBLE_HOME=str(fleet.root))  # fmt: skip


def test_a_fleet_is_gathered_reported_and_two_of_its_nodes_compared(tmp_path: Path) -> None:
    ansible()
    nodes = {name: Node.small(tmp_path, name) for name in ("n1", "n2", "n3", "n4", "n5")}
    verify(nodes["n1"], "root-complex-2gpu")
    verify(nodes["n2"], "root-complex-2gpu")
    verify(nodes["n3"], "null")
    assert nodes["n4"].run("apply", "fusion", "--no-verify").code == 0
    edited = next(nodes["n4"].prefix.glob(f"lib/*/site-packages/{COMMUNICATOR}"))
    edited.write_text(edited.read_text() + "# by hand\n")
    nodes["n5"].variables = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1",
                             "ansible_port": free_port()}  # fmt: skip
    fleet = Fleet(tmp_path, *nodes.values())
    fleet.play(AUDIT)
    found = report(fleet, "--html", str(tmp_path / "fleet.html"))
    assert found.code == 1
    rows = found.result["nodes"]
    assert [row["node"] for row in rows[:2]] == ["n4", "n5"], "outliers first"
    states = {
        row["node"]: next((s["label"] for s in row["sets"] if s["id"] == "runtime-gate"), None)
        for row in rows
    }
    assert states == {"n1": "applied (simulated)", "n2": "applied (simulated)",
                      "n3": "applied (simulated)", "n4": "drifted", "n5": None}  # fmt: skip
    assert found.result["counts"]["applied"] == {
        "fusion": 0, "jit-list": 0, "runtime-gate": 0,
    }  # fmt: skip
    kinds = [f["kind"] for f in found.result["findings"]]
    assert kinds[0] == "unequal" and "unknown" in kinds
    assert len({row["code"] for row in rows if row["node"] in ("n1", "n2", "n3")}) == 1
    assert "n4" in (tmp_path / "fleet.html").read_text()

    compared = report(fleet, "--compare", "n1", "n3")
    assert compared.code == 0 and compared.result["compare"]["slower"] == "n3"
    assert report(fleet, "--compare", "n1", "n2").result["compare"]["slower"] is None
    assert report(fleet, "--compare", "n1", "n5").code == 1
