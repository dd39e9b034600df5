"""Whole commands on disks that cannot be written, fill up, or change while we look."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sm120patch.store import StateDirectory
from tests.support.catalogue import A_TEXT, KERNEL, KERNEL_TEXT, A
from tests.support.command import Ran, run_after
from tests.support.disks import quietly, read_only
from tests.support.place import (
    Place,
    checked,
    refused,
    slow,
)

# --- disks -------------------------------------------------------------------------------------


def test_a_read_only_environment_can_be_looked_at_and_is_not_half_patched(place: Place) -> None:
    with read_only(place.prefix):
        refused(place.run("apply", "bundle", "--no-verify"), 10, "written")
        assert place.states()["bundle"] == "absent"
        assert place.done("plan", "bundle")["files"]
        assert place.findings() == set()
        assert place.done("recover")["outcome"] == "nothing"
    place.assert_nothing_written()


def test_one_read_only_package_refuses_the_whole_set_before_any_write(place: Place) -> None:
    with read_only(place.site / "flashinfer"):
        refused(place.run("apply", "bundle", "--no-verify"), 10, "flashinfer", "written")
        assert place.read(A) == A_TEXT
    assert place.facts() == place.before and place.litter() == []
    place.stage("bundle")
    after = place.facts()
    with read_only(place.site / "sglang"):
        refused(place.run("revert", "--all"), 10, "sglang", "written")
    assert place.facts() == after and place.litter() == []
    assert place.states()["bundle"] == "staged"


def test_a_patched_environment_on_a_read_only_disk_tells_its_state(place: Place) -> None:
    place.stage("bundle")
    after = place.facts()
    with read_only(place.prefix):
        assert place.states()["bundle"] == "staged"
        assert {kind for kind, _ in place.findings()} == {"unverified"}
        assert len(place.done("history")["events"]) == 1
        refused(place.run("revert", "--all"), 10, "written")
    assert place.facts() == after


LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))"


@pytest.mark.parametrize("limit", [slow(0), slow(300), 700, slow(5000), 20000])
def test_files_that_cannot_grow_lose_nothing(place: Place, limit: int) -> None:
    ran = checked(run_after(LIMIT.format(limit), "apply", "bundle", "--no-verify", *place.options))
    assert ran.code in (6, 10), ran.out
    assert ran.error["hint"]
    assert place.changed() == set() and place.litter() == []
    assert {place.states()[name] for name in ("one", "kernel", "bundle")} == {"absent"}
    place.stage("bundle")
    after = place.facts()
    ran = checked(run_after(LIMIT.format(limit), "revert", "--all", *place.options))
    assert ran.code in (6, 10), ran.out
    assert place.facts() == after and place.litter() == []
    assert place.states()["bundle"] == "staged"
    place.done("revert", "--all")


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[None]:
    directory.mkdir()
    if os.geteuid() != 0 or not quietly(
        "mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory
    ):
        pytest.skip("a file system of its own cannot be mounted here")
    try:
        yield
    finally:
        assert quietly("umount", directory)


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m"):
        place = Place(tmp_path / "disk")
        for command in (("apply", "bundle", "--no-verify"), ("revert", "--all")):
            before = place.facts()
            for pages in (0, 2):
                filler = fill(tmp_path / "disk", pages)
                ran = place.run(*command)
                filler.unlink()
                assert ran.code in (6, 10), ran.out
                assert place.facts() == before and place.litter() == []
            assert place.run(*command).code == 0
        assert place.changed() == set()


@pytest.mark.slow
@pytest.mark.parametrize("command", [("apply", "bundle", "--no-verify"), ("revert", "--all")])
def test_a_disk_that_fills_up_at_any_point_loses_nothing(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    with small_disk(tmp_path / "disk", "4m"):
        place = Place(tmp_path / "disk")
        if command[0] == "revert":
            place.stage("bundle")
        old, state, codes = place.facts(), place.states()["bundle"], []
        for pages in range(60):
            filler = fill(tmp_path / "disk", pages)
            ran = place.run(*command)
            filler.unlink()
            codes.append(ran.code)
            if ran.code == 0:
                break
            assert ran.code in (6, 7, 10), ran.out
            if ran.code == 7:  # not even the way back had room
                assert place.run("status").code == 7
                assert place.done("recover")["outcome"] == "undone"
            assert place.facts() == old and place.litter() == []
            assert place.states()["bundle"] == state
        assert codes[-1] == 0 and len(codes) > 5, "every stage was met, and then there was room"


def fill(disk: Path, pages: int) -> Path:
    """Leave that many pages free."""
    filler = disk / "filler"
    room = os.statvfs(disk)
    with filler.open("wb") as stream:
        stream.write(b"\0" * (room.f_bavail - pages) * room.f_frsize)
    return filler


# --- changed while we look ---------------------------------------------------------------------


def meddle(place: Place, moment: str, path: str = A) -> Ran:
    """Apply `bundle` while something else writes to a file: after planning, or at a checkpoint."""
    target = str(place.site / path)
    statements = f"""
import pathlib
from sm120patch import transaction
from sm120patch.operations import planning

def write():
    pathlib.Path({target!r}).write_text("mine = True\\n")

def at(label):
    if label == {moment!r}:
        write()

def plan(*arguments, **keywords):
    result = planned(*arguments, **keywords)
    write()
    return result

if {moment!r} == "planned":
    planned, planning.plan_request = planning.plan_request, plan
transaction.on_checkpoint = at
"""
    return checked(run_after(statements, "apply", "bundle", "--no-verify", *place.options))


def test_a_file_changed_between_plan_and_apply_is_refused(place: Place) -> None:
    refused(meddle(place, "planned"), 5, A, "stale")
    assert place.read(A) == "mine = True\n" and place.read(KERNEL) == KERNEL_TEXT
    assert place.litter() == []
    assert place.states()["bundle"] != "staged"


def test_a_file_changed_after_the_journal_was_opened_is_refused(place: Place) -> None:
    refused(meddle(place, "journal opened"), 5, A)
    assert place.read(A) == "mine = True\n" and place.read(KERNEL) == KERNEL_TEXT
    assert place.litter() == []


def test_a_file_changed_while_new_content_is_staged_is_not_overwritten(place: Place) -> None:
    ran = meddle(place, f"stage {A}")
    assert place.read(A) == "mine = True\n", ran.out
    assert ran.code in (5, 7)
    if ran.code == 7:
        assert place.run("recover", "--keep-foreign").code == 0
    assert place.read(A) == "mine = True\n" and place.read(KERNEL) == KERNEL_TEXT
    assert place.litter() == []


def test_a_second_process_waits_its_turn(place: Place) -> None:
    place.stage("one")
    with StateDirectory.of(place.prefix).lock("a test"):
        for command in (
            ("apply", "two", "--no-verify"),
            ("apply", "kernel", "--no-verify"),
            ("revert", "--all"),
        ):
            refused(place.run(*command), 9, f"pid {os.getpid()}", "a test")
        assert place.changed() == {A}
        assert place.states()["one"] == "staged", "looking needs no lock"
        place.findings()
    place.stage("two")
