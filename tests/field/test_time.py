"""Cases 29 to 39: kills, second processes, stacked sets, and packages that change underneath."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sm120patch.store import StateDirectory
from tests.support import catalogue as small
from tests.support.catalogue import A_TEXT, KERNEL, KERNEL_TEXT, A, B
from tests.support.command import run, run_killed_at
from tests.support.environments import install_fake
from tests.support.field import LINES, Field
from tests.support.place import (
    A_WITH_ONE,
    KERNEL_OPEN,
    Place,
    refused,
    reinstall,
    slow,
    uninstall,
)

STACKED = A_WITH_ONE.replace("line_30 = 30\n", "line_30 = 'two'\n")


@pytest.mark.parametrize("label", ["replace sglang/a.py", slow("replace flashinfer")])
def test_case_29_killed_between_two_files(label: str, place: Place) -> None:
    words = ("apply", "bundle", "--no-verify", "--allow-running", *place.options)
    dry = run_killed_at(0, *words)
    labels = [x.split(": ", 1)[1] for x in dry.err.splitlines() if x.startswith("step ")]
    place.done("revert", "--all")
    step = next(n for n, text in enumerate(labels, 1) if text.startswith(label))
    assert run_killed_at(step, *words).code == -9
    status = place.run("status")
    assert status.code == 7 and status.result["interrupted"]
    assert place.done("recover")["outcome"] != "nothing"
    assert (place.read(A), place.read(KERNEL)) in (
        (A_TEXT, KERNEL_TEXT), (A_WITH_ONE, KERNEL_OPEN),
    )  # fmt: skip
    assert place.litter() == []


def test_case_30_two_processes_at_once(place: Place) -> None:
    place.stage("two")
    before = place.facts()
    state = StateDirectory.of(place.prefix)
    with state.lock("apply one"):
        for command in (("apply", "one", "--no-verify"), ("revert", "two")):
            refused(place.run(*command), 9, "apply one")
        assert "apply one" in place.done("status")["under_way"], "looking is not refused"
    assert place.facts() == before
    place.stage("one")


def test_case_32_two_sets_touch_one_region(place: Place) -> None:
    refused(place.run("apply", "one", "clash", "--no-verify"), 5, "clash")
    place.assert_nothing_written()
    place.stage("one")
    before = place.facts()
    refused(place.run("apply", "clash", "--no-verify"), 5, "clash")
    assert place.facts() == before


def test_case_33_the_older_of_two_stacked_sets_is_taken_off(place: Place) -> None:
    place.stage("one")
    place.stage("two")
    assert place.read(A) == STACKED
    place.done("revert", "one")
    assert place.read(A) == A_TEXT.replace("line_30 = 30\n", "line_30 = 'two'\n")
    assert place.states()["two"] == "staged" and place.states()["one"] == "absent"
    place.done("revert", "two")
    assert place.facts() == place.before


def test_case_34_a_foreign_edit_after_the_apply(place: Place) -> None:
    place.stage("one")
    mine = A_WITH_ONE + "by_hand = 1\n"
    place.write(A, mine)
    assert place.states()["one"] == "drifted"
    assert ("drifted", A) in place.findings()
    refused(place.run("revert", "one"), 5, A)
    assert place.read(A) == mine, "nobody's edit is thrown away"


@pytest.mark.parametrize("version", ["1.0", slow("1.5"), "2.0"])
def test_case_35_pip_installs_over_a_patch(version: str, place: Place) -> None:
    place.stage("one")
    reinstall(place, version)
    assert place.states()["one"] == "lost"
    assert "lost" in {kind for kind, _path in place.findings()}
    done = place.done("apply", "one", "--no-verify")
    assert [s["state"] for s in done["sets"]] == ["upstream" if version == "2.0" else "staged"]
    assert place.read(A) == (A_TEXT if version == "2.0" else A_WITH_ONE)
    assert place.states()["one"] == ("upstream" if version == "2.0" else "staged")


def test_case_37_an_added_file_survives_the_uninstallation(field: Field) -> None:
    added = "sglang/configs/tuned.py"
    field.file_set("data", added, b"best = 1\n")
    shipped = {"sglang/__init__.py": b"", A: LINES.encode(), "sglang/configs/__init__.py": b""}
    field.ship(shipped)
    field.stage("data")
    info = next(field.site.glob("sglang-*.dist-info"))
    listed = [line.partition(",")[0] for line in (info / "RECORD").read_text().splitlines()]
    assert added not in listed, "RECORD is never rewritten, so pip does not know the file"
    for path in listed:
        (field.site / path).unlink()
    assert (field.site / added).exists()
    assert field.states()["data"] == "lost"
    assert "lost" in {kind for kind, _path in field.findings()}
    install_fake(field.site, "sglang", "1.0", shipped)
    assert field.states()["data"] == "staged", "the new installation found it there"
    field.done("revert", "data")
    assert not (field.site / added).exists(), "the ledger knows whose it is"
    assert field.findings() == set()


def test_case_38_a_record_mismatch_that_is_not_ours(place: Place) -> None:
    place.write(B, "value = 'somebody else'\n")
    place.seal()
    assert ("foreign", B) in place.findings()
    place.stage("one")
    assert place.changed() == {A}
    assert ("foreign", B) in place.findings(), "not taken over by the next apply"
    place.done("revert", "one")
    assert place.facts() == place.before
    refused(place.run("apply", "one", "--with", "extra", "--no-verify"), 5, B)


def test_case_39_the_container_comes_back_without_its_ledger(place: Place) -> None:
    place.stage("bundle")
    shutil.rmtree(place.prefix)
    small.write_environment(place.prefix)
    assert place.states()["bundle"] == "absent", "the ledger went with the files"
    assert place.findings() == set()
    place.stage("bundle")


def test_case_39_the_container_comes_back_beside_its_old_ledger(place: Place) -> None:
    place.stage("bundle")
    kept = shutil.move(place.state, place.root / "volume")
    shutil.rmtree(place.prefix)
    small.write_environment(place.prefix)
    shutil.move(kept, place.state)
    assert place.states()["bundle"] == "lost", "the ledger says more than the disk holds"
    assert {kind for kind, _path in place.findings()} >= {"lost"}
    place.stage("bundle")
    assert place.read(A) == A_WITH_ONE


def test_case_39_the_image_runs_on_another_host(place: Place, tmp_path: Path) -> None:
    place.stage("one")
    image = tmp_path / "image"
    shutil.copytree(place.prefix, image / "opt/env", symlinks=True)
    done = run("audit", "--root", image, "--env", "/opt/env", *place.options[2:])
    (found,) = done.result["environments"]
    (entry,) = [s for s in found["sets"] if s["id"] == "one"]
    assert entry["counts"] is False and done.code == 1


def test_case_37_a_file_that_nobody_added_is_left_alone(place: Place) -> None:
    place.stage("one")
    place.write("sglang/mine.py", "mine = 1\n")
    uninstall(place, "flashinfer_python")
    assert ("added", "sglang/mine.py") in place.findings()
    place.done("revert", "--all")
    assert place.read("sglang/mine.py") == "mine = 1\n"
