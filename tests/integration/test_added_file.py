"""A set may add a file: it is there or it is not, and never anything in between."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from sm120patch import transaction
from sm120patch.errors import RolledBackError
from sm120patch.model import ABSENT, sha256_hex
from sm120patch.plan import FileStep
from sm120patch.store import StateDirectory
from tests.support.catalogue import A_TEXT, A, install, write_catalogue, write_environment
from tests.support.command import run, run_after, run_killed_at
from tests.support.environments import (
    commit_all,
    create_venv,
    install_editable,
    tree_digest,
)
from tests.support.manifests import head

ADDED = "sglang/tuned.py"
CONTENT = b"best_configs = {'k': (0, 5)}\n"


def write_set(catalogue: Path, content: bytes = CONTENT, path: str = ADDED) -> None:
    payload = catalogue / "patches" / "data" / f"tuned{Path(path).suffix}"
    payload.parent.mkdir(parents=True, exist_ok=True)
    payload.write_bytes(content)
    (catalogue / "manifests" / "data.toml").write_text(f"""{head("data")}[relations]
depends = ["one"]
[[change]]
id = "tuned"
target = "sglang"
summary = "Add it"
description = "For tests."
[[change.variant]]
versions = ">=1.0,<3.0"
kind = "file"
path = "{path}"
payload = "data/{payload.name}"
sha256 = "{sha256_hex(content)}"
""")


class World:
    def __init__(self, root: Path, *before: tuple[str, ...]) -> None:
        self.prefix, self.catalogue = root / "env", write_catalogue(root / "catalogue")
        self.site = write_environment(self.prefix)
        write_set(self.catalogue)
        for command in before:
            self.ok(*command)
        self.kept = root / "kept"
        shutil.copytree(self.prefix, self.kept, symlinks=True)

    @property
    def options(self) -> list[str]:
        return ["--env", str(self.prefix), "--catalogue", str(self.catalogue), "--allow-running"]

    @property
    def added(self) -> Path:
        return self.site / ADDED

    def ok(self, *command: str) -> None:
        done = run(*command, *self.options)
        assert done.code == 0, done.out + done.err

    def state(self, name: str = "data") -> str:
        done = run("status", *self.options[:-1], "--output", "json")
        return next(s["state"] for s in done.result["sets"] if s["id"] == name)

    def reset(self) -> None:
        shutil.rmtree(self.prefix)
        shutil.copytree(self.kept, self.prefix, symlinks=True)


APPLY = ("apply", "data", "--no-verify")
REVERT = ("revert", "data")


def test_it_is_planned_added_audited_and_removed(tmp_path: Path) -> None:
    world = World(tmp_path)
    pristine = tree_digest(world.site)
    assert world.state() == "absent"
    plan = run("plan", "data", *world.options[:-1])
    assert f"add        {ADDED}" in plan.out and "+best_configs" in plan.out
    world.ok(*APPLY)
    assert world.added.read_bytes() == CONTENT
    assert stat.S_IMODE(world.added.stat().st_mode) == 0o644
    assert world.state() == "staged"
    findings = run("audit", *world.options[:-1], "--output", "json").result["findings"]
    assert {f["kind"] for f in findings} == {"unverified"}
    assert "nothing to do" in run(*APPLY, *world.options).out
    world.ok(*REVERT)
    assert tree_digest(world.site) == pristine and world.state() == "absent"


@pytest.mark.parametrize(("command", "old", "new"), [(APPLY, "absent", "staged"),
                                                     (REVERT, "staged", "absent")])  # fmt: skip
@pytest.mark.slow
def test_killed_at_every_step_it_is_there_or_not(
    tmp_path: Path, command: tuple[str, ...], old: str, new: str
) -> None:
    world = World(tmp_path, *([APPLY] if command is REVERT else []))
    before = tree_digest(world.site)
    done = run_killed_at(0, *command, *world.options)
    assert done.code == 0, done.err
    after = tree_digest(world.site)
    assert (ADDED in after) is (command is APPLY) and (A in after)
    total = sum(line.startswith("step ") for line in done.err.splitlines())
    word = "replace" if command is APPLY else "remove"
    assert f": {word} {ADDED}" in done.err
    seen = set()
    for step in range(1, total + 1):
        world.reset()
        assert run_killed_at(step, *command, *world.options).code == -9
        assert run("recover", *world.options[:-1]).code == 0, step
        content = tree_digest(world.site)
        assert content in (before, after), f"step {step}: a mixture"
        assert world.state() == (old if content == before else new), step
        assert not list(world.prefix.rglob(".sm120patch-*")), step
        seen.add(content == before)
        world.ok(*command)
        assert tree_digest(world.site) == after
    assert seen == {True, False}


@pytest.mark.parametrize("label", [f"replace {ADDED}", "ledger commit"])
def test_killed_around_the_point_of_no_return(tmp_path: Path, label: str) -> None:
    world = World(tmp_path)
    dry = run_killed_at(0, *APPLY, *world.options)
    labels = [x.split(": ", 1)[1] for x in dry.err.splitlines() if x.startswith("step ")]
    world.reset()
    assert run_killed_at(labels.index(label) + 1, *APPLY, *world.options).code == -9
    assert world.added.exists()
    assert run("recover", *world.options[:-1]).code == 0
    assert world.added.exists() is (label == "ledger commit")


def test_a_removal_killed_in_the_middle_is_undone(tmp_path: Path) -> None:
    world = World(tmp_path, APPLY)
    dry = run_killed_at(0, *REVERT, *world.options)
    labels = [x.split(": ", 1)[1] for x in dry.err.splitlines() if x.startswith("step ")]
    world.reset()
    step = labels.index(f"remove {ADDED}") + 1
    assert run_killed_at(step, *REVERT, *world.options).code == -9
    assert not world.added.exists()
    assert run("recover", *world.options[:-1]).code == 0
    assert world.added.read_bytes() == CONTENT and world.state() == "staged"


@pytest.mark.parametrize("kind", ["other", "same", "link", "directory"])
def test_a_file_that_somebody_else_put_there_is_never_overwritten(
    tmp_path: Path, kind: str
) -> None:
    world = World(tmp_path)
    if kind == "link":
        world.added.symlink_to(tmp_path / "nowhere")
    elif kind == "directory":
        world.added.mkdir()
    else:
        world.added.write_bytes(CONTENT if kind == "same" else b"mine = 1\n")
    found = world.added.lstat()
    done = run(*APPLY, *world.options)
    assert done.code == 5 and ADDED in done.err, done.err
    now = world.added.lstat()
    assert (now.st_ino, now.st_mtime_ns) == (found.st_ino, found.st_mtime_ns)
    assert (world.site / A).read_text() == A_TEXT


def test_a_file_that_appears_at_the_last_moment_is_not_overwritten(tmp_path: Path) -> None:
    world = World(tmp_path)
    late = f"""
import pathlib
from sm120patch import disk
appear = disk.appear
def late(source, name):
    pathlib.Path({str(world.added)!r}).write_text("mine = 1\\n")
    return appear(source, name)
disk.appear = late
"""
    done = run_after(late, *APPLY, *world.options)
    assert done.code in (5, 7) and ADDED in done.err, done.err
    assert world.added.read_text() == "mine = 1\n"
    if done.code == 7:
        assert run("recover", "--keep-foreign", *world.options[:-1]).code == 0
    assert world.added.read_text() == "mine = 1\n"
    assert (world.site / A).read_text() == A_TEXT
    assert list(world.prefix.rglob(".sm120patch-*")) == []


def test_a_file_that_upstream_ships_cannot_be_added(tmp_path: Path) -> None:
    world = World(tmp_path)
    write_set(world.catalogue, b"x = 1\n", "sglang/b.py")
    assert run(*APPLY, *world.options).code == 5
    (world.site / "sglang" / "b.py").unlink()
    assert run(*APPLY, *world.options).code == 5
    assert not (world.site / "sglang" / "b.py").exists()


def test_a_directory_that_is_not_there_is_no_place_to_add_to(tmp_path: Path) -> None:
    world = World(tmp_path)
    write_set(world.catalogue, b"{}", "sglang/none/tuned.json")
    done = run(*APPLY, *world.options)
    assert done.code == 5 and not (world.site / "sglang" / "none").exists()


def test_an_edited_or_removed_addition_is_noticed_and_not_lost(tmp_path: Path) -> None:
    world = World(tmp_path, APPLY)
    world.added.write_bytes(b"mine = 1\n")
    assert world.state() == "drifted"
    assert run(*REVERT, *world.options).code == 5
    assert world.added.read_bytes() == b"mine = 1\n"
    world.added.unlink()
    assert world.state() == "drifted"  # what it depends on is still there
    world.ok(*APPLY)
    assert world.added.read_bytes() == CONTENT
    world.added.unlink()
    world.ok(*REVERT)
    assert not world.added.exists() and world.state() == "absent"


def test_it_is_removed_without_its_catalogue(tmp_path: Path) -> None:
    world = World(tmp_path, APPLY)
    (world.catalogue / "manifests" / "data.toml").unlink()
    world.ok("revert", "--all")
    assert not world.added.exists() and (world.site / A).read_text() == A_TEXT


def test_an_upgrade_leaves_it_behind_and_it_can_still_be_taken_off(tmp_path: Path) -> None:
    world = World(tmp_path, APPLY)
    for info in world.site.glob("*.dist-info"):
        shutil.rmtree(info)
    install(world.site, "2.0")
    assert world.state() == "lost" and world.added.exists()
    world.ok("revert", "--all")
    assert not world.added.exists()


def test_only_data_can_be_added(tmp_path: Path) -> None:
    world = World(tmp_path)
    write_set(world.catalogue, b"//\n", "sglang/kernel.cuh")
    done = run("list", "--catalogue", world.catalogue)
    assert done.code == 3 and "cannot be added" in done.err
    write_set(world.catalogue, b"x = = 1\n")
    done = run("lint", "data", "--catalogue", world.catalogue)
    assert done.code == 3 and "cannot be read as .py" in done.out


@pytest.mark.parametrize("label", [f"remove {ADDED}", f"replace {A}", "purge bytecode"])
def test_a_removal_that_fails_is_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    state, root = StateDirectory.of(tmp_path), tmp_path / "site"
    state.ensure()
    (root / "sglang").mkdir(parents=True)
    (root / ADDED).write_bytes(CONTENT)
    (root / A).write_bytes(b"new = 1\n")
    there, gone = sha256_hex(CONTENT), ABSENT
    new, old = b"new = 1\n", b"old = 1\n"
    steps = (
        FileStep("sglang", ADDED, str(root), "1.0", there, gone, gone, 0o644, 0, CONTENT, b"", b""),
        FileStep("sglang", A, str(root), "1.0", sha256_hex(new), sha256_hex(old), sha256_hex(old),
                 0o644, 0, new, old, old),
    )  # fmt: skip
    failed = []

    def fail(now: str) -> None:
        if now == label and not failed:
            failed.append(now)
            raise OSError(5, "the disk failed")

    monkeypatch.setattr(transaction, "on_checkpoint", fail)
    settings = transaction.Settings("test", ("data",), "digest", "python", "a", "a")
    with pytest.raises(RolledBackError), transaction.begin(state, steps, settings) as tx:
        tx.swap("b")
    assert failed and (root / ADDED).read_bytes() == CONTENT and (root / A).read_bytes() == new
    assert not list(root.rglob(".sm120patch-*")) and not state.journal.exists()


def test_in_an_editable_checkout_git_says_what_upstream_shipped(tmp_path: Path) -> None:
    prefix, source = tmp_path / "env", tmp_path / "src"
    site = create_venv(prefix)
    for path, text in ((A, A_TEXT), ("sglang/b.py", ""), ("sglang/__init__.py", "")):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
    commit_all(source)
    install_editable(site, "sglang", "1.0", source)
    catalogue = write_catalogue(tmp_path / "catalogue")
    write_set(catalogue)
    here = ("--env", prefix, "--catalogue", catalogue)
    assert run(*APPLY, *here, "--allow-running").code == 0
    assert (source / ADDED).read_bytes() == CONTENT
    findings = run("audit", *here, "--output", "json").result["findings"]
    assert {f["kind"] for f in findings} == {"unverified"}
    assert run("revert", "--all", *here, "--allow-running").code == 0
    assert not (source / ADDED).exists() and (source / A).read_text() == A_TEXT
