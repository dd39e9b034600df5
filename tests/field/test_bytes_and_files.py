"""Cases 18 to 28: bytes, modes, links, copies, and disks that cannot be written."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.support import catalogue as small
from tests.support.catalogue import A_TEXT, A
from tests.support.disks import read_only
from tests.support.field import EDITED, LINES, Field
from tests.support.place import A_WITH_ONE, Checkout, Place, refused

MIXED = "".join(
    line.replace("\n", "\r\n") if number % 3 == 0 else line
    for number, line in enumerate(LINES.splitlines(keepends=True))
)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(LINES.replace("\n", "\r\n"), id="crlf"),
        pytest.param(MIXED, id="mixed"),
        pytest.param(LINES.removesuffix("\n"), id="no-last-newline"),
        pytest.param("\ufeff" + LINES, id="byte-order-mark"),
    ],
)
def test_case_18_line_ends_and_a_missing_last_newline_survive(source: str, field: Field) -> None:
    field.diff_set("edit")
    field.ship({A: source.encode()})
    field.stage("edit")
    after = (field.site / A).read_bytes().decode()
    assert after == source.replace("line_20 = 20", "line_20 = 'patched'"), "one line, no other byte"
    field.done("revert", "edit")
    assert field.facts() == field.before


def test_case_18_a_diff_without_its_last_newline_is_read(field: Field) -> None:
    field.diff_set("whole")
    diff = (field.catalogue / "patches/whole/whole.patch").read_bytes()
    field.diff_set("cut", diff=diff.removesuffix(b"\n"))
    field.ship({A: LINES.encode()})
    field.stage("cut")
    assert field.read(A) == EDITED


def test_case_21_hard_links_keep_their_bytes_and_symbolic_links_are_refused(
    field: Field, tmp_path: Path
) -> None:
    field.diff_set("edit")
    field.ship({A: LINES.encode()})
    cache = tmp_path / "installer-cache.py"
    os.link(field.site / A, cache)
    field.stage("edit")
    assert cache.read_text() == LINES, "what uv and conda share is not written through"
    field.done("revert", "edit")
    (field.site / A).unlink()
    (field.site / A).symlink_to(cache)
    refused(field.run("apply", "edit", "--no-verify"), 5, "symlink")
    assert cache.read_text() == LINES and (field.site / A).is_symlink()


def test_case_21_a_linked_directory_is_not_followed(field: Field, tmp_path: Path) -> None:
    field.diff_set("edit", path="sglang/srt/x.py")
    field.ship({"sglang/srt/x.py": LINES.encode()})
    shutil.move(field.site / "sglang/srt", tmp_path / "shared")
    (field.site / "sglang/srt").symlink_to(tmp_path / "shared")
    refused(field.run("apply", "edit", "--no-verify"), 5, "sglang/srt/x.py")
    assert (tmp_path / "shared/x.py").read_text() == LINES


def test_case_23_an_editable_checkout_is_what_is_patched(checkout: Checkout) -> None:
    checkout.stage("one")
    assert checkout.a.read_text() == A_WITH_ONE
    assert checkout.git_status().split() == ["M", f"python/{A}"]
    checkout.done("revert", "one")
    assert checkout.git_status() == ""


def test_case_24_of_two_copies_the_imported_one_is_patched(place: Place) -> None:
    shadow = place.root / "shadow"
    small.install(shadow)
    (place.site / "first.pth").write_text(f"import sys; sys.path.insert(0, {str(shadow)!r})\n")
    place.seal()
    place.stage("one")
    assert (shadow / A).read_text() == A_WITH_ONE and place.read(A) == A_TEXT
    found = place.findings()
    assert ("copies", str(place.site / "sglang")) in found
    assert ("carrier", str(place.site / "first.pth")) in found, "code that decides what is imported"
    assert "lost" not in {kind for kind, _path in found}


def test_case_24_the_copy_that_is_not_imported_is_a_finding(place: Place) -> None:
    beside = place.root / "beside"
    small.install(beside)
    (place.site / "second.pth").write_text(f"{beside}\n")
    place.seal()
    place.stage("one")
    assert place.read(A) == A_WITH_ONE and (beside / A).read_text() == A_TEXT
    found = {path for kind, path in place.findings() if kind == "copies"}
    assert str(beside / "sglang") in found


def test_case_27_a_read_only_file_system_is_named_and_left_alone(place: Place) -> None:
    with read_only(place.prefix):
        refused(place.run("apply", "bundle", "--no-verify"), 10, "written")
        assert place.states()["bundle"] == "absent"
    place.assert_nothing_written()


def test_case_28_mode_and_owner_are_kept(place: Place) -> None:
    file = place.site / A
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 1234, 4321)
    place.seal()
    before = file.stat()
    place.stage("one")
    after = file.stat()
    assert stat.S_IMODE(after.st_mode) == 0o640 and after.st_ino != before.st_ino
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    place.done("revert", "one")
    assert place.facts() == place.before
    assert (file.stat().st_uid, file.stat().st_gid) == (before.st_uid, before.st_gid)
