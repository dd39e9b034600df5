"""What files can be like, there and back: bytes, modes, owners, links, names, times."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.catalogue import A_TEXT, B_TEXT, A, B
from tests.support.command import run, run_after
from tests.support.environments import install_fake
from tests.support.place import Place, checked, refused

BASE = A_TEXT.encode()
LARGE = BASE + b"".join(b"# padding %07d %s\n" % (n, b"x" * 80) for n in range(210_000))
SHAPES = {
    "CRLF": BASE.replace(b"\n", b"\r\n"),
    "mixed line ends": BASE.replace(b"line_20 = 20\n", b"line_20 = 20\r\n"),
    "a byte order mark": b"\xef\xbb\xbf" + BASE,
    "no final newline": BASE.rstrip(b"\n"),
    "Latin-1 in a comment": BASE + b"# caf\xe9 \xff\n",
    "NUL bytes": BASE + b"# \0\0\n",
    "form feeds and lone CR": BASE + b"# \x0c a\rb\n",
    "20 MB": LARGE,
}


def with_content(place: Place, data: bytes) -> None:
    """Install SGLang with another content of the file, RECORD included."""
    files = {"sglang/__init__.py": b"", A: data, B: B_TEXT.encode()}
    install_fake(place.site, "sglang", "1.0", files)
    place.seal()


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_every_byte_that_is_not_patched_stays(place: Place, shape: str) -> None:
    data = SHAPES[shape]
    with_content(place, data)
    place.stage("one")
    patched = data.replace(b"line_3 = 3", b"line_3 = 'one'")
    assert (place.site / A).read_bytes() == patched and patched != data
    place.done("revert", "--all")
    assert place.facts() == place.before, "bytes, mode and time are upstream's again"


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o664, 0o444, 0o755, 0o4755])
def test_modes_are_kept_there_and_back(place: Place, mode: int) -> None:
    (place.site / A).chmod(mode)
    place.seal()
    place.stage("one")
    assert (place.site / A).stat().st_mode & 0o7777 == mode
    place.done("revert", "--all")
    assert place.facts() == place.before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_owners_are_kept_there_and_back(place: Place) -> None:
    os.chown(place.site / A, 1234, 4321)
    for command in (("apply", "one", "--no-verify"), ("revert", "--all")):
        place.done(*command)
        status = (place.site / A).stat()
        assert (status.st_uid, status.st_gid) == (1234, 4321)
    assert place.facts() == place.before


def test_a_link_that_is_shared_with_a_package_cache_keeps_its_bytes(place: Place) -> None:
    """uv and conda give one inode to every environment."""
    cached, other = place.root / "cache.py", place.root / "other-env.py"
    cached.hardlink_to(place.site / A)
    other.hardlink_to(place.site / A)
    place.stage("one")
    assert cached.read_bytes() == other.read_bytes() == BASE
    assert (place.site / A).stat().st_nlink == 1
    place.done("revert", "--all")
    assert cached.read_bytes() == BASE and place.facts() == place.before


FICLONE = 0x40049409


def test_a_reflinked_copy_keeps_its_bytes(place: Place) -> None:
    copy = place.root / "clone.py"
    with (place.site / A).open("rb") as source, copy.open("wb") as target:
        try:
            fcntl.ioctl(target.fileno(), FICLONE, source.fileno())
        except OSError:
            pytest.skip("this file system has no reflinks")
    place.stage("one")
    assert copy.read_bytes() == BASE


@pytest.mark.parametrize("name", ["with space", "mön-env-✓", "quote'\"$(x);&"])
def test_prefixes_may_have_any_name(tmp_path: Path, name: str) -> None:
    place = Place(tmp_path / name)
    place.stage("bundle")
    assert place.findings() != set()
    place.done("revert", "--all")
    assert place.facts() == place.before and place.litter() == []


def test_a_prefix_whose_name_is_no_text_is_one_like_any_other(tmp_path: Path) -> None:
    """Python makes no such environment, but one can be moved there."""
    (tmp_path / "made").mkdir()
    Place(tmp_path / "made")
    odd = tmp_path / os.fsdecode(b"odd-\xff\xfe")
    (tmp_path / "made").rename(odd)
    where = ["--env", odd / "env", "--catalogue", odd / "catalogue", "--output", "json"]
    site = next(odd.glob("env/lib/python*/site-packages"))
    for words in (("apply", "bundle", "--no-verify"), ("status",), ("history",)):
        assert checked(run(*words, *where)).code == 0, words
    assert (site / A).read_bytes() != A_TEXT.encode()
    for words in (("revert", "--all"), ("recover",)):
        assert checked(run(*words, *where)).code == 0, words
    assert (site / A).read_bytes() == A_TEXT.encode()


def test_names_that_differ_in_case_only_are_two_files(place: Place) -> None:
    upper = place.site / "sglang" / "A.py"
    upper.write_bytes(BASE)
    if (place.site / A).samefile(upper):
        pytest.skip("this file system takes them for one")
    place.stage("one")
    assert upper.read_bytes() == BASE and place.read(A) != A_TEXT


def test_names_of_the_greatest_length_can_be_staged(tmp_path: Path) -> None:
    from sm120patch import disk

    for name in ("x" * 255, "ö" * 127, "a.py"):
        for suffix in (disk.TEMP_SUFFIX, ".kept"):
            made = disk.temp_name(name, "20261129T184906-0560bc7f-a", suffix)
            (tmp_path / made).write_bytes(b"")
            (tmp_path / made).unlink()
            assert made.startswith(disk.TEMP_PREFIX)
    one, two = ("y" * 250 + end for end in ("1", "2"))
    assert disk.temp_name(one, "t") != disk.temp_name(two, "t")


@contextmanager
def flagged(path: Path) -> Iterator[None]:
    if shutil.which("chattr") is None:
        pytest.skip("no chattr here")
    if subprocess.run(["chattr", "+i", path], capture_output=True, check=False).returncode != 0:
        pytest.skip("files cannot be made immutable here")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", path], check=True)


@pytest.mark.parametrize("what", ["file", "directory"])
def test_immutable_files_are_named_before_any_write(place: Place, what: str) -> None:
    path = place.site / A if what == "file" else (place.site / A).parent
    with flagged(path):
        error = refused(place.run("apply", "bundle", "--no-verify"), 10, str(path))
    assert what == "directory" or "chattr -i" in error["hint"]
    place.assert_nothing_written()


def test_a_directory_that_only_takes_more_files_is_named_before_any_write(place: Place) -> None:
    directory = (place.site / A).parent
    if subprocess.run(["chattr", "+a", directory], check=False, capture_output=True).returncode:
        pytest.skip("no such flags here")
    try:
        refused(place.run("apply", "bundle", "--no-verify"), 10, str(directory), "chattr +a")
    finally:
        subprocess.run(["chattr", "-a", directory], check=True)
    place.assert_nothing_written()


def test_a_list_of_rights_that_a_directory_hands_down_does_not_get_to_the_file(
    place: Place,
) -> None:
    """`default:user:1234:rwx` would let somebody write into what they could only read."""
    everybody = 0xFFFFFFFF
    entries = [(1, 7, everybody), (2, 7, 1234), (4, 5, everybody), (16, 7, everybody)]
    entries.append((32, 5, everybody))
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    file = place.site / A
    try:
        os.setxattr(file.parent, "system.posix_acl_default", value)
    except OSError:
        pytest.skip("this file system has no such lists")
    file.chmod(0o664)
    place.stage("one")
    assert os.listxattr(file) == [] and file.stat().st_mode & 0o777 == 0o664
    place.done("revert", "--all")
    assert os.listxattr(file) == [] and file.stat().st_mode & 0o777 == 0o664


def test_a_umask_that_keeps_the_owner_out_makes_no_state_that_nobody_can_enter(
    place: Place,
) -> None:
    words = ("apply", "one", "--no-verify", *place.options)
    assert checked(run_after("import os; os.umask(0o777)", *words)).code == 0
    directories = [p for p in (place.state, *place.state.rglob("*")) if p.is_dir()]
    assert {d.stat().st_mode & 0o777 for d in directories} == {0o700}
    place.done("revert", "--all")
    assert place.facts() == place.before


# --- time --------------------------------------------------------------------------------------

BACK = """
import time
real = time.time_ns
time.time_ns = lambda: real() - 10 * 365 * 86400 * 10**9
time.time = lambda: time.time_ns() / 10**9
"""


def test_a_clock_that_goes_backwards_changes_nothing(place: Place) -> None:
    """Neither bytecode nor the order of events goes by the wall clock."""
    source = place.site / A
    place.stage("one")
    first = source.stat().st_mtime_ns
    words = ["apply", "two", "--no-verify", *place.options]
    assert checked(run_after(BACK, *words)).code == 0
    assert source.stat().st_mtime_ns // 10**9 > first // 10**9, "or old bytecode would be used"
    assert checked(run_after(BACK, "revert", "one", *place.options)).code == 0
    assert [e["kind"] for e in place.done("history")["events"]] == ["reverted", "staged", "staged"]
    place.done("revert", "--all")
    assert place.facts() == place.before
