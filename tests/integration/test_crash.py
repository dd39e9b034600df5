"""Killed at any step, the environment is old or new, and the next command knows which."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120patch.store import StateDirectory
from tests.support.command import run, run_killed_at
from tests.support.faults.world import APPLY, REVERT, World


def steps_of(world: World, command: tuple[str, ...]) -> int:
    done = run_killed_at(0, *command, *world.options)
    assert done.code == 0, done.err
    return sum(line.startswith("step ") for line in done.err.splitlines())


def states(world: World) -> dict[str, str]:
    done = run("status", "--env", world.prefix, "--catalogue", world.catalogue, "--output", "json")
    assert done.code == 0, done.out + done.err
    return {s["id"]: s["state"] for s in done.result["sets"]}


def check_every_step(world: World, command: tuple[str, ...], old: str, new: str) -> None:
    built = {"old": world.live()}
    total = steps_of(world, command)
    after = world.content()
    built["new"] = world.live()
    assert after != world.old and built["new"] != built["old"]
    outcomes = set()
    for step in range(1, total + 1):
        world.reset()
        killed = run_killed_at(step, *command, *world.options)
        assert killed.code == -9, f"step {step} was never reached: {killed.err}"
        recovered = run("recover", *world.options)
        assert recovered.code == 0, f"step {step}: {recovered.err}"
        content = world.content()
        side = "old" if content == world.old else "new" if content == after else "mixture"
        assert side != "mixture", f"step {step}: {killed.err.splitlines()[-1]}"
        outcomes.add(side)
        assert world.live() == built[side], f"step {step}: a build of the other content is live"
        state = states(world)
        assert {state["one"], state["kernel"]} == {old if side == "old" else new}, f"step {step}"
        assert world.litter() == [], f"step {step}"
        assert run(*command, *world.options).code == 0, f"step {step}: not repeatable"
        assert world.content() == after
    assert outcomes == {"old", "new"}, "both sides of the commit must have been hit"


@pytest.mark.slow
def test_apply_killed_at_every_step(tmp_path: Path) -> None:
    check_every_step(World(tmp_path), APPLY, "absent", "staged")


@pytest.mark.slow
def test_revert_killed_at_every_step(tmp_path: Path) -> None:
    check_every_step(World(tmp_path, APPLY), REVERT, "staged", "absent")


@pytest.mark.parametrize("label", ["replace sglang/a.py", "ledger commit"])
def test_apply_killed_before_and_after_the_point_of_no_return(tmp_path: Path, label: str) -> None:
    world = World(tmp_path)
    dry = run_killed_at(0, *APPLY, *world.options)
    labels = [x.split(": ", 1)[1] for x in dry.err.splitlines() if x.startswith("step ")]
    after = world.content()
    world.reset()
    assert run_killed_at(labels.index(label) + 1, *APPLY, *world.options).code == -9
    interrupted = run("status", "--env", world.prefix, "--catalogue", world.catalogue)
    assert interrupted.code == 7 and "recover" in interrupted.out
    refused = run(*APPLY, *world.options)
    assert (
        refused.code == 7 and f"hint: run `sm120patch recover --env {world.prefix}" in refused.err
    )
    assert run("recover", *world.options).code == 0
    assert world.content() == (after if label == "ledger commit" else world.old)
    assert world.litter() == []


def test_recovery_killed_in_turn_can_be_repeated(tmp_path: Path) -> None:
    world = World(tmp_path)
    total = steps_of(world, APPLY)
    world.reset()
    assert run_killed_at(total // 2, *APPLY, *world.options).code == -9
    options = world.options
    for step in (1, 2, 3, 4):
        assert run_killed_at(step, "recover", *options).code in (-9, 0)
    assert run("recover", *options).code == 0
    assert world.content() == world.old
    assert states(world)["one"] == "absent"


def test_recovery_never_overwrites_what_somebody_else_wrote(tmp_path: Path) -> None:
    world = World(tmp_path)
    labels = steps_of(world, APPLY)
    world.reset()
    assert run_killed_at(labels // 2, *APPLY, *world.options).code == -9
    site = next(world.prefix.glob("lib/*/site-packages"))
    edited = site / "sglang" / "a.py"
    edited.write_text("mine = True\n")
    options = world.options
    refused = run("recover", *options)
    assert refused.code == 7 and str(edited) in refused.err
    assert edited.read_text() == "mine = True\n"
    kept = run("recover", "--keep-foreign", *options)
    assert kept.code == 0 and "sglang/a.py" in kept.out
    assert edited.read_text() == "mine = True\n"
    found = run("audit", *options, "--output", "json")
    kinds = {f["kind"]: f["path"] for f in found.result["findings"]}
    assert kinds["foreign"] == "sglang/a.py"
    # Bytecode that Python would never compare belongs to whoever wrote the file: it is named.
    assert kinds.keys() <= {"foreign", "stale-bytecode"}


def test_what_an_open_change_has_written_is_ours_until_it_is_settled(tmp_path: Path) -> None:
    world = World(tmp_path)
    dry = run_killed_at(0, *APPLY, *world.options)
    labels = [x.split(": ", 1)[1] for x in dry.err.splitlines() if x.startswith("step ")]
    world.reset()
    assert run_killed_at(labels.index("ledger commit"), *APPLY, *world.options).code == -9
    assert world.content() != world.old and world.litter() != []
    options = [*world.options, "--output", "json"]
    audit = run("audit", *options).result
    assert {f["kind"] for f in audit["findings"]} == {"interrupted"}, audit["findings"]
    files = [f for e in audit["environments"] for p in e["packages"] for f in p["files"]]
    assert files and {f["state"] for f in files} == {"ours"}, files
    for words in (["plan", "two"], ["plan", "one", "--revert"], ["caches"], ["caches", "one"]):
        answer = run(*words, *options)
        assert answer.code == 7 and "interrupted" in answer.error["message"], answer.out
        assert "sm120patch recover" in answer.error["hint"]
    with StateDirectory.of(world.prefix).lock("apply one"):
        for words in (["plan", "one"], ["caches"]):
            answer = run(*words, *options)
            assert answer.code == 9 and "apply one" in answer.error["message"], answer.out


def test_a_foreign_edit_of_a_file_of_the_open_change_is_still_foreign(tmp_path: Path) -> None:
    world = World(tmp_path)
    steps = steps_of(world, APPLY)
    world.reset()
    assert run_killed_at(steps // 2, *APPLY, *world.options).code == -9
    site = next(world.prefix.glob("lib/*/site-packages"))
    (site / "sglang" / "a.py").write_text("mine = True\n")
    found = run("audit", *world.options, "--output", "json").result["findings"]
    assert ("foreign", "sglang/a.py") in {(f["kind"], f["path"]) for f in found}, found
