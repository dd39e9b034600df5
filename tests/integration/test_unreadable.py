"""A file that cannot be read makes the sets unknown that depend on it, and those only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.catalogue import A
from tests.support.command import Ran, run, run_after
from tests.support.place import Place, checked, refused

FAILING = """
import errno, os
_open = os.open
def failing(path, *words, **named):
    if str(path).endswith({name!r}):
        raise OSError(errno.{error}, os.strerror(errno.{error}), str(path))
    return _open(path, *words, **named)
os.open = failing
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def failing(place: Place, error: str, *words: str) -> Ran:
    """Run a command for which opening one file fails."""
    hook = FAILING.format(name=A.rpartition("/")[2], error=error)
    return checked(run_after(hook, *words, *place.options))


def states(ran: Ran) -> dict[str, str]:
    return {s["id"]: s["state"] for s in ran.result["sets"]}


@pytest.mark.parametrize(("error", "said"), [("EACCES", "Permission denied"), ("EIO", "Input/out")])
def test_only_the_sets_of_that_file_are_unknown_and_that_is_not_ok(
    place: Place, error: str, said: str
) -> None:
    ran = failing(place, error, "status")
    found = states(ran)
    assert ran.code == 1 and ran.json["ok"] is False
    assert (found["one"], found["bundle"], found["kernel"]) == ("unknown", "unknown", "absent")
    (one,) = [s for s in ran.result["sets"] if s["id"] == "one"]
    assert said in one["reason"] and A in one["reason"]


def test_a_patched_file_that_cannot_be_read_is_not_called_edited(place: Place) -> None:
    place.stage("bundle")
    ran = failing(place, "EIO", "status")
    assert ran.code == 1
    assert {states(ran)[n] for n in ("one", "bundle")} == {"unknown"}
    assert states(ran)["kernel"] == "staged"
    audit = failing(place, "EIO", "audit")
    kinds = {(f["kind"], f["path"]) for f in audit.result["findings"]}
    assert audit.code == 1 and {("unreadable", A), ("unknown", "one")} <= kinds
    assert "drifted" not in {kind for kind, _path in kinds}


def test_what_would_write_is_refused_with_the_reason(place: Place) -> None:
    refused(failing(place, "EACCES", "apply", "one", "--no-verify"), 10, "cannot read", A)
    place.assert_nothing_written()


def test_a_directory_in_place_of_a_file_is_named(place: Place) -> None:
    (place.site / A).unlink()
    (place.site / A).mkdir()
    ran = place.run("status")
    (one,) = [s for s in ran.result["sets"] if s["id"] == "one"]
    assert (ran.code, one["state"]) == (0, "edited") and "no regular file" in one["reason"]
    assert states(ran)["kernel"] == "absent"


def test_a_record_that_cannot_be_had_makes_its_package_unknown(place: Place) -> None:
    (record,) = place.site.glob("sglang-*.dist-info/RECORD")
    record.unlink()
    ran = place.run("status")
    found = {s["id"]: s for s in ran.result["sets"]}
    assert ran.code == 1 and found["one"]["state"] == "unknown"
    assert "holds no RECORD" in found["one"]["reason"] and found["kernel"]["state"] == "absent"


def test_a_record_that_cannot_be_read_makes_its_package_unknown(place: Place) -> None:
    hook = """
import pathlib
_open = pathlib.Path.open
def failing(self, *words, **named):
    if self.name == "RECORD" and "sglang" in str(self):
        raise PermissionError(13, "Permission denied")
    return _open(self, *words, **named)
pathlib.Path.open = failing
"""
    ran = checked(run_after(hook, "status", *place.options))
    assert ran.code == 1 and states(ran)["one"] == "unknown" and states(ran)["kernel"] == "absent"


def test_the_text_says_it_too(place: Place) -> None:
    (place.site / "sglang-1.0.dist-info" / "RECORD").unlink()
    done = run("status", *place.options[:-2])
    assert done.code == 1 and "nobody knows what upstream shipped" in done.out


@pytest.mark.parametrize("name", ["METADATA", "direct_url.json"])
def test_nobody_waits_for_metadata_that_is_no_file(place: Place, name: str) -> None:
    file = next(place.site.glob("sglang-*.dist-info")) / name
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    for command in (("status",), ("recover",), ("audit",)):
        assert place.run(*command).code in (0, 1, 10), command
