"""Whole commands on requests, environments and files that are not as they should be.

Each time: the right exit code, what was found and what to do next, and not a byte lost.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sm120patch.model import sha256_hex
from tests.support import catalogue as small
from tests.support.catalogue import A_TEXT, KERNEL, KERNEL_TEXT, A, B
from tests.support.command import run, run_after
from tests.support.environments import create_venv, install_fake
from tests.support.place import (
    A_WITH_ONE,
    Place,
    checked,
    refused,
)

# --- what was asked for ------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("plan", "bundel"), ("apply", "bundel", "--no-verify")])
def test_an_unknown_set_is_refused_with_a_guess(place: Place, command: tuple[str, ...]) -> None:
    refused(place.run(*command), 2, "bundel", "bundle")
    place.assert_nothing_written()


@pytest.mark.parametrize(
    "command",
    [
        ("apply", "one", "--no-verify", "--with", "nothing"),
        ("apply", "one", "--no-verify", "--with", "two/far"),
        ("apply", "one", "--no-verify", "--gpu", "banana"),
        ("revert",),
        ("revert", "--all", "one"),
        ("revert", "nothing"),
        ("verify", "one", "--profile", "nothing.toml"),
        ("history", "nothing"),
        ("apply", "one", "--no-verify", "--python", "python3"),
    ],
)
def test_a_request_that_makes_no_sense_is_a_usage_error(
    place: Place, command: tuple[str, ...]
) -> None:
    refused(place.run(*command), 2)
    place.assert_nothing_written()


@pytest.mark.parametrize(
    "words",
    [
        ("apply", "one", "--max-time", "nan"),
        ("apply", "one", "--no-verify", "--compile-timeout", "inf"),
        ("fleet-report", ".", "--max-age", "nan"),
    ],
)
def test_what_is_no_number_bounds_nothing_and_is_refused(words: tuple[str, ...]) -> None:
    refused(checked(run(*words, "--output", "json")), 2, "is no finite number")


def test_a_system_that_is_out_of_something_is_no_bug(place: Place) -> None:
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6))"
    ran = checked(run_after(few, "status", *place.options))
    assert refused(ran, 10, "Too many open files")["code"] == "system"


def test_a_command_line_that_cannot_be_parsed_has_an_envelope_as_well(place: Place) -> None:
    ran = place.run("apply", "--no-such-option")
    assert ran.code == 2 and ran.error["code"] == "usage"


def test_a_version_without_variant_is_not_applicable(tmp_path: Path) -> None:
    place = Place(tmp_path, "3.0")
    error = refused(place.run("apply", "bundle", "--no-verify"), 4, "one/first", "kernel/gate")
    assert len(error["details"]["reasons"]) == 2, "every reason, not the first"
    assert "3.0" in error["message"]
    place.assert_nothing_written()
    assert set(place.states().values()) == {"not-applicable"}


def test_a_version_that_has_it_all_is_upstream_and_fine(tmp_path: Path) -> None:
    place = Place(tmp_path, "2.0")
    result = place.done("apply", "bundle", "--no-verify")
    assert result["outcome"] == "nothing"
    assert {s["state"] for s in result["sets"]} == {"upstream"}
    place.assert_nothing_written()


def test_the_wrong_gpu_is_not_applicable(place: Place) -> None:
    refused(place.run("apply", "one", "--no-verify", "--gpu", "9.0"), 4, "12.0", "9.0")
    place.assert_nothing_written()
    status = place.done("status", "--gpu", "9.0")
    assert {s["state"] for s in status["sets"]} == {"not-applicable"}


def test_sets_that_want_the_same_line_are_refused_together(place: Place) -> None:
    refused(place.run("apply", "one", "clash", "--no-verify"), 5, A)
    place.assert_nothing_written()
    place.stage("one")
    after = place.facts()
    said = "one/first: changes the same lines as clash: they cannot be on disk together"
    refused(place.run("apply", "clash", "--no-verify"), 5, A, said, "sm120patch revert SET")
    assert place.facts() == after
    assert place.states()["one"] == "staged"


def test_a_needed_set_is_not_taken_off_alone(place: Place) -> None:
    place.stage("bundle")
    after = place.facts()
    refused(place.run("revert", "one"), 5, "needed by bundle", "--cascade")
    assert place.facts() == after
    assert place.done("revert", "one", "--cascade")["outcome"] == "reverted"
    assert place.changed() == set()


# --- which environment -------------------------------------------------------------------------


def test_without_an_environment_the_question_is_clear(place: Place) -> None:
    ran = checked(
        run("status", "--catalogue", place.catalogue, "--output", "json", CONDA_PREFIX="")
    )
    error = refused(ran, 2, "--env", "VIRTUAL_ENV")
    assert error["code"] == "no-environment"


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_the_active_environment_is_taken(place: Place, variable: str) -> None:
    variables = {"CONDA_PREFIX": "", variable: str(place.prefix)}
    ran = checked(run("status", "--catalogue", place.catalogue, "--output", "json", **variables))
    assert ran.code == 0 and ran.result["prefix"] == str(place.prefix)


@pytest.mark.parametrize(
    "options",
    [
        ("--env", "{root}/nothing"),
        ("--env", "{root}/file"),
        ("--env", "{root}"),
        ("--python", "{root}/nothing"),
        ("--python", "no-such-python-anywhere"),
        ("--python", "{root}/file"),
        ("--python", "/bin/true"),
    ],
)
def test_an_environment_that_is_none_is_a_host_error(
    tmp_path: Path, options: tuple[str, str]
) -> None:
    (tmp_path / "file").write_text("not an environment\n")
    words = [word.format(root=tmp_path) for word in options]
    for command in (("status",), ("apply", "allreduce-fusion", "--no-verify")):
        error = refused(checked(run(*command, *words, "--output", "json")), 10)
        assert words[1] in error["message"]


def test_an_environment_without_the_packages_is_not_applicable(tmp_path: Path) -> None:
    create_venv(tmp_path / "env")
    options = ("--env", tmp_path / "env", "--output", "json")
    status = checked(run("status", *options))
    assert status.code == 0 and set(status.result["missing"]) == {"sglang", "flashinfer-python"}
    refused(checked(run("apply", "allreduce-fusion", "--no-verify", *options)), 4, "sglang")
    assert not (tmp_path / "env" / ".sm120patch").exists()


def test_an_environment_reached_through_a_link_is_the_same(place: Place) -> None:
    link = place.root / "link"
    link.symlink_to(place.prefix)
    place.stage("one")
    by_link = ("--env", str(link), "--catalogue", str(place.catalogue), "--output", "json")
    status = checked(run("status", *by_link))
    assert {s["id"]: s["state"] for s in status.result["sets"]}["one"] == "staged"
    assert checked(run("revert", "--all", *by_link)).code == 0
    assert place.changed() == set()


# --- files that are not as upstream shipped them -----------------------------------------------


def test_a_foreign_edit_is_named_by_hash_and_left_alone(place: Place) -> None:
    place.write(A, "mine = True\n")
    place.seal()
    error = refused(place.run("apply", "one", "--no-verify"), 5, A, "foreign edit", "diff")
    digest = error["message"].split("sha256 ")[1][:12]
    assert sha256_hex(b"mine = True\n").startswith(digest)
    place.assert_nothing_written()
    assert ("foreign", A) in place.findings()
    assert place.states()["one"] == "edited"


def test_every_foreign_edit_is_listed_and_no_file_is_touched(place: Place) -> None:
    place.write(A, "mine = True\n")
    place.write(KERNEL, "// mine\n")
    place.seal()
    error = refused(place.run("apply", "bundle", "--no-verify"), 5, A, KERNEL)
    assert len(error["details"]["reasons"]) == 2
    place.assert_nothing_written()


def test_one_refused_file_keeps_the_others_as_they_are(place: Place) -> None:
    place.write(KERNEL, "// mine\n")
    place.seal()
    refused(place.run("apply", "bundle", "--no-verify"), 5, KERNEL)
    place.assert_nothing_written()


def test_a_foreign_edit_elsewhere_in_the_package_is_no_obstacle(place: Place) -> None:
    place.write(B, "value = 'mine'\n")
    place.stage("one")
    assert place.changed() == {A, B}
    assert ("foreign", B) in place.findings()
    place.done("revert", "--all")
    assert place.read(B) == "value = 'mine'\n" and place.read(A) == A_TEXT


def test_an_edit_of_our_file_afterwards_is_drift_and_never_overwritten(place: Place) -> None:
    place.stage("bundle")
    place.write(A, A_WITH_ONE + "mine = True\n")
    place.seal()
    assert place.states()["one"] == "drifted"
    assert ("drifted", A) in place.findings()
    for command in (
        ("revert", "--all"),
        ("revert", "one", "--cascade"),
        ("apply", "one", "--no-verify"),
        ("apply", "two", "--no-verify"),
    ):
        refused(place.run(*command), 5, A, "foreign edit")
        assert place.facts() == place.before
    place.write(A, A_WITH_ONE)
    place.done("revert", "--all")
    assert (place.read(A), place.read(KERNEL)) == (A_TEXT, KERNEL_TEXT)


@pytest.mark.parametrize("what", ["symlink", "directory", "fifo", "nothing"])
def test_a_path_that_is_no_regular_file_is_refused(place: Place, what: str) -> None:
    path = place.site / A
    elsewhere = place.root / "elsewhere.py"
    path.rename(elsewhere)
    if what == "symlink":
        path.symlink_to(elsewhere)
    elif what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    place.seal()
    refused(place.run("apply", "one", "--no-verify"), 5, A)
    assert place.facts() == place.before and elsewhere.read_text() == A_TEXT
    assert not place.state.exists()
    assert place.states()["one"] == "edited"


def test_a_symlinked_package_directory_is_refused(place: Place) -> None:
    elsewhere = place.root / "shared" / "sglang"
    elsewhere.parent.mkdir()
    shutil.move(place.site / "sglang", elsewhere)
    (place.site / "sglang").symlink_to(elsewhere)
    place.seal()
    refused(place.run("apply", "one", "--no-verify"), 5, "symlink")
    place.assert_nothing_written()
    assert (elsewhere / "a.py").read_text() == A_TEXT


def test_a_hard_link_elsewhere_keeps_upstreams_bytes(place: Place) -> None:
    other = place.root / "cache-of-uv.py"
    os.link(place.site / A, other)
    inode = other.stat().st_ino
    place.stage("one")
    assert place.read(A) == A_WITH_ONE and other.read_text() == A_TEXT
    assert other.stat().st_ino == inode != (place.site / A).stat().st_ino
    assert (place.site / A).stat().st_nlink == 1
    place.done("revert", "--all")
    assert place.read(A) == other.read_text() == A_TEXT


CRLF = A_TEXT.replace("\n", "\r\n")
MIXED = "".join(
    line + ("\r\n" if number % 2 else "\n") for number, line in enumerate(A_TEXT.splitlines())
)


@pytest.mark.parametrize(
    "upstream",
    [
        pytest.param(CRLF, id="crlf"),
        pytest.param(MIXED, id="mixed"),
        pytest.param(A_TEXT[:-1], id="no-last-newline"),
        pytest.param("\ufeff" + CRLF, id="byte-order-mark"),
        pytest.param(A_TEXT + "# caf\udce9\n", id="not-utf-8"),
    ],
)
def test_line_ends_and_odd_bytes_survive(place: Place, upstream: str) -> None:
    data = upstream.encode("utf-8", "surrogateescape")
    files = {"sglang/__init__.py": b"", A: data, B: small.B_TEXT.encode()}
    install_fake(place.site, "sglang", "1.0", files)
    place.seal()
    place.stage("one")
    assert (place.site / A).read_bytes() == data.replace(b"line_3 = 3", b"line_3 = 'one'")
    place.done("revert", "--all")
    assert (place.site / A).read_bytes() == data


def test_mode_owner_and_time_come_back(place: Place) -> None:
    path = place.site / A
    path.chmod(0o750)
    if os.geteuid() == 0:
        os.chown(path, 12345, 54321)
    os.utime(path, ns=(10**18, 10**18 + 123_456_789))
    old = path.stat()
    place.stage("one")
    new = path.stat()
    assert (new.st_mode, new.st_uid, new.st_gid) == (old.st_mode, old.st_uid, old.st_gid)
    assert new.st_mtime_ns > old.st_mtime_ns
    place.done("revert", "--all")
    back = path.stat()
    kept = ("st_mode", "st_uid", "st_gid", "st_mtime_ns", "st_size")
    assert [getattr(back, name) for name in kept] == [getattr(old, name) for name in kept]


@pytest.mark.parametrize("fault", ["gone", "line missing", "garbage", "wrong digest", "escaping"])
def test_a_record_that_cannot_be_trusted_is_no_licence(place: Place, fault: str) -> None:
    (record,) = place.site.glob("sglang-*.dist-info/RECORD")
    lines = record.read_text().splitlines(keepends=True)
    if fault == "gone":
        record.unlink()
    elif fault == "line missing":
        record.write_text("".join(line for line in lines if not line.startswith(A)))
    elif fault == "garbage":
        record.write_bytes(bytes(range(256)) * 20)
    elif fault == "wrong digest":
        wrong = next(line for line in lines if line.startswith(B)).split(",", 1)[1]
        record.write_text("".join(f"{A},{wrong}" if x.startswith(A) else x for x in lines))
    else:
        record.write_text("".join([*lines, "/etc/passwd,,\n", "a/../../x,sha256=AAAA,1\n"]))
    place.seal()
    ran = place.run("apply", "one", "--no-verify")
    if fault == "escaping":
        assert ran.code == 0 and place.changed() == {A}, "the other lines still hold"
    else:
        refused(ran, 5, A)
        place.assert_nothing_written()
    assert place.run("audit").code == 1
