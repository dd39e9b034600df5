"""The whole run of a lease with the simulated host in place of GPUs: nothing else is replaced."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.environments import install_wheel

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "gpu"
PAIR = {"sglang": "0.5.15.post1", "flashinfer-python": "0.6.12"}
PARTS = (
    "setup",
    "module",
    "real",
    "tune",
    "null",
    "fusion",
    "return",
    "trap",
    "null-one",
    "killed",
)


def machine_with_packages(root: Path) -> Path:
    """As it is after the pack was unpacked: packages to copy, and what they share."""
    for name, version in PAIR.items():
        install_wheel(root / "targets", name, version)
    (root / "rest" / "cuda" / "tile").mkdir(parents=True)
    return root


def scripts(name: str) -> ModuleType:
    """One of the scripts, under a name of its own: what a test puts in its place stays there."""
    path = SCRIPTS / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"gpu_{name}_of_a_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def go(*words: str | Path) -> str:
    command = [sys.executable, str(SCRIPTS / "go.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return done.stdout


def only(steps: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = [step for step in steps if step["step"] == name]
    return found


@pytest.mark.slow
@pytest.mark.network
def test_a_run_ends_by_itself_with_everything_on_record(tmp_path: Path) -> None:
    root = machine_with_packages(tmp_path / "machine")
    go("start", tmp_path, root, "--seconds", "560", "--blocks", "2", "--dry", "--tool", sys.prefix,
       "--python", sys.executable, "--parts", *PARTS)  # fmt: skip
    said = go("wait", root, tmp_path / "out", "--seconds", "560")
    assert said.strip().endswith("done")
    assert (tmp_path / "out" / "results.tar.xz").stat().st_size > 0
    run = json.loads((root / "results" / "run.json").read_text())
    steps = run["steps"]
    assert [step for step in steps if "failed" in step] == []
    assert run["dry"]

    # Real packages: nothing of ours is for this GPU, and no rehearsal gets in.
    assert {only(steps, f"real-plan-{n}")["rc"] for n in ("allreduce-fusion", "sm120-checks")} == {
        4
    }
    refused = only(steps, "real-rehearsal-allreduce-fusion")
    assert (refused["rc"], "made for a rehearsal" in refused["messages"][0]) == (4, True)
    assert only(steps, "real-audit")["findings"] == []

    # The null sets change a comment: measured like the real one, and off again.
    for name in ("null", "null-one"):
        assert only(steps, name)["verdict"] in ("improved", "no-regression", "inconclusive")
    assert only(steps, "null-reverted")["differs_from_control"] == []
    assert only(steps, "null-one-audit-reverted")["findings"] == []

    # The copies: staged, measured, engaged, and upstream's bytes again.
    assert only(steps, "fusion-stage")["outcome"] == "staged"
    assert only(steps, "fusion-verify")["verdict"] in ("improved", "no-regression")
    labels = only(steps, "fusion-status")["sets"]
    assert labels["rehearsal-allreduce-fusion"] == "applied (simulated)"
    engaged = [s for s in steps if s["step"].startswith("log fusion") and "patched" in s["step"]]
    assert engaged
    assert all("Fusion enabled" in " ".join(s["lines"]) for s in engaged)
    for name in ("fusion-reverted", "fusion-reverted-again", "killed-recovered"):
        assert only(steps, name)["differs_from_control"] == []

    # Killed beside its server: the server goes, recover settles.
    assert (only(steps, "killed")["served"], only(steps, "killed")["server_gone"]) == (True, True)
    assert only(steps, "killed-recover")["outcome"] == "undone"
    assert only(steps, "killed-audit")["findings"] == []


def test_what_needs_the_machine_for_itself_runs_in_the_order_in_which_it_is_named() -> None:
    schedule = scripts("schedule")
    ran: list[str] = []
    for name in ("fused", "null_on_one"):
        setattr(schedule, name, lambda *_, name=name: ran.append(name))
    schedule.fusion = SimpleNamespace(
        revert_and_return=lambda _host: ran.append("return"),
        null=lambda *_: ran.append("null"),
    )
    run = SimpleNamespace(left=1000.0)
    schedule.second(SimpleNamespace(run=run), ["null-one", "setup", "null", "fusion", "return"], 4)
    assert ran == ["null_on_one", "null", "fused", "return"]


@pytest.mark.parametrize(("seconds", "pairs"), [(0, 2), (700, 4), (560, 3), (9000, 4)])
def test_as_many_pairs_are_measured_as_the_time_allows(seconds: float, pairs: int) -> None:
    assert scripts("schedule").affordable(seconds, 84.0, 4) == pairs
