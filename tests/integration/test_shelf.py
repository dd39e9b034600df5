from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sm120patch.caches import flashinfer, shelf
from sm120patch.caches.builds import (
    MARKER,
    PRISTINE,
    SHELF,
    UNOWNED,
    Build,
    Entry,
    inspect,
    kept_mtimes,
    pending_moves,
)
from sm120patch.caches.flashinfer import ChangedFile
from sm120patch.errors import BusyError, HostError, UsageError
from tests.support import jit
from tests.support.jit import ALLREDUCE

PATCHED = "patched"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return jit.install_sources(tmp_path / "site-packages")


@pytest.fixture
def entry(tmp_path: Path, root: Path) -> Entry:
    """A module without any build."""
    workspace = tmp_path / "home" / ".cache" / "flashinfer"
    workspace.mkdir(parents=True)
    return Entry(workspace, "0.6.3", "120a", "trtllm_comm", root, (ALLREDUCE,), "test")


def fake_build(directory: Path, text: str) -> None:
    """Something that a compiler might have left, without a marker."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "module.so").write_text(text)


def content(directory: Path) -> str | None:
    try:
        return (directory / "module.so").read_text()
    except FileNotFoundError:
        return None


def everything(entry: Entry) -> dict[str, str]:
    """Every build in the workspace: place -> text."""
    found = entry.workspace.rglob("module.so")
    return {str(p.parent.relative_to(entry.workspace)): p.read_text() for p in found}


# --- with a real ninja --------------------------------------------------------------------------


def test_builds_follow_the_source_without_a_needless_compile(root: Path, entry: Entry) -> None:
    header = root / ALLREDUCE
    upstream, before = header.read_text(), header.stat().st_mtime_ns
    library, _ = jit.build(entry.workspace, root, "trtllm_comm")
    (found,) = flashinfer.affected(
        [entry.workspace], root, "0.6.3", [ChangedFile(ALLREDUCE)]
    ).entries

    shelf.park(found, PRISTINE)
    header.write_text("// patched\n")
    shelf.place(found, PATCHED)
    library, worked = jit.build(entry.workspace, root, "trtllm_comm")
    assert worked and "// patched" in library.read_text()

    shelf.park(found, PATCHED)
    header.write_text(upstream)
    os.utime(header, ns=(before, before))
    shelf.place(found, PRISTINE)
    library, worked = jit.build(entry.workspace, root, "trtllm_comm")
    assert not worked and "patched" not in library.read_text()

    times = kept_mtimes(found, PATCHED)
    shelf.park(found, PRISTINE)
    header.write_text("// patched\n")
    os.utime(header, ns=(times[ALLREDUCE], times[ALLREDUCE]))
    shelf.place(found, PATCHED)
    library, worked = jit.build(entry.workspace, root, "trtllm_comm")
    assert not worked and "// patched" in library.read_text()


def test_left_in_place_a_build_of_the_patched_header_would_survive_the_revert(
    root: Path, entry: Entry
) -> None:
    """The trap that the shelf exists for: ninja trusts the old time of a restored file."""
    header = root / ALLREDUCE
    upstream, before = header.read_text(), header.stat().st_mtime_ns
    header.write_text("// patched\n")
    jit.build(entry.workspace, root, "trtllm_comm")
    header.write_text(upstream)
    os.utime(header, ns=(before, before))
    library, worked = jit.build(entry.workspace, root, "trtllm_comm")
    assert not worked and "// patched" in library.read_text()


def test_a_build_put_away_is_still_found_by_the_scan(root: Path, entry: Entry) -> None:
    jit.build(entry.workspace, root, "trtllm_comm")
    shelf.swap(entry, PRISTINE, PATCHED)
    assert not (entry.live / "build.ninja").exists()
    found = flashinfer.affected([entry.workspace], root, "0.6.3", [ChangedFile(ALLREDUCE)])
    assert [e.module for e in found.entries] == ["trtllm_comm"]
    assert found.problems == ()


# --- swapping -----------------------------------------------------------------------------------


def test_there_and_back_gives_the_same_directories(entry: Entry) -> None:
    fake_build(entry.live, "upstream")
    inode = entry.live.stat().st_ino
    (move,) = shelf.swap(entry, PRISTINE, PATCHED)
    assert (move.source, move.destination) == (entry.live, entry.slot(PRISTINE))
    assert inspect(entry.live, entry) == Build(False, PATCHED)
    fake_build(entry.live, "ours")
    assert len(shelf.swap(entry, PATCHED, PRISTINE)) == 2
    assert content(entry.live) == "upstream" and entry.live.stat().st_ino == inode
    shelf.swap(entry, PRISTINE, PATCHED)
    assert content(entry.live) == "ours"
    assert content(entry.slot(PRISTINE)) == "upstream"


def test_swapping_twice_is_swapping_once(entry: Entry) -> None:
    fake_build(entry.live, "upstream")
    fake_build(entry.slot(PATCHED), "ours")
    mark(entry, entry.slot(PATCHED), PATCHED)
    shelf.swap(entry, PRISTINE, PATCHED)
    state = everything(entry)
    assert shelf.swap(entry, PRISTINE, PATCHED) == ()
    assert everything(entry) == state


def test_nothing_happens_when_the_content_does_not_change(entry: Entry) -> None:
    fake_build(entry.live, "upstream")
    assert shelf.swap(entry, PRISTINE, PRISTINE) == ()
    assert [path.name for path in entry.live.iterdir()] == ["module.so"]


def test_a_module_without_any_build_leaves_room_for_one(entry: Entry) -> None:
    assert shelf.swap(entry, PRISTINE, PATCHED) == ()
    assert inspect(entry.live, entry) == Build(False, PATCHED)
    assert everything(entry) == {}


def test_an_occupied_slot_is_kept_and_the_newcomer_numbered(entry: Entry) -> None:
    for text in ("first", "second", "third"):
        fake_build(entry.live, text)
        (entry.live / MARKER).unlink(missing_ok=True)
        shelf.park(entry, PRISTINE)
    slot = entry.slot(PRISTINE)
    assert content(slot) == "first"
    assert content(slot.with_name("trtllm_comm~1")) == "second"
    assert content(slot.with_name("trtllm_comm~2")) == "third"
    shelf.place(entry, PRISTINE)
    assert content(entry.live) == "first"


def test_what_is_built_while_files_change_is_never_put_back(entry: Entry) -> None:
    fake_build(entry.live, "upstream")
    shelf.park(entry, PRISTINE)
    assert inspect(entry.live, entry) == Build(False, UNOWNED)
    fake_build(entry.live, "mixture")
    shelf.place(entry, PATCHED)
    assert inspect(entry.live, entry) == Build(False, PATCHED)
    assert content(entry.slot(UNOWNED)) == "mixture"
    shelf.swap(entry, PATCHED, PRISTINE)
    assert content(entry.live) == "upstream"


def test_a_build_that_appears_unmarked_between_is_unowned_as_well(entry: Entry) -> None:
    shelf.park(entry, PRISTINE)
    shutil.rmtree(entry.live)
    fake_build(entry.live, "mixture")
    shelf.place(entry, PATCHED)
    assert content(entry.slot(UNOWNED)) == "mixture"


def test_a_marker_that_contradicts_the_content_is_believed_only_when_trusted(entry: Entry) -> None:
    shelf.swap(entry, PRISTINE, PATCHED)
    fake_build(entry.live, "ours")
    shelf.park(entry, PRISTINE, trusted={PATCHED})
    assert content(entry.slot(PATCHED)) == "ours"
    shelf.place(entry, PATCHED)
    shelf.park(entry, PRISTINE)
    assert content(entry.slot(UNOWNED)) == "ours"
    shelf.place(entry, PATCHED)
    assert inspect(entry.live, entry) == Build(False, PATCHED)


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("live", [None, "upstream"])
def test_the_announced_moves_are_the_moves_made(entry: Entry, live: str | None, ours: bool) -> None:
    if live:
        fake_build(entry.live, live)
    if ours:
        fake_build(entry.slot(PATCHED), "ours")
        mark(entry, entry.slot(PATCHED), PATCHED)
    announced = pending_moves(entry, PRISTINE, PATCHED)
    assert not (entry.cached_ops / "tmp").exists()
    assert shelf.swap(entry, PRISTINE, PATCHED) == announced
    assert len(announced) == ours + (live is not None)
    assert pending_moves(entry, PRISTINE, PATCHED) == () or not (live or ours)


# --- killed at every step -----------------------------------------------------------------------


_CHILD = """\
import os, signal, sys
from pathlib import Path
from sm120patch.caches import shelf
from sm120patch.caches.builds import Entry
workspace, root, action, key, last = sys.argv[1:]
count = 0
def step(label):
    global count
    if count == int(last):
        os.kill(os.getpid(), signal.SIGKILL)
    count += 1
entry = Entry(Path(workspace), "0.6.3", "120a", "trtllm_comm", Path(root), ("x",), "test")
getattr(shelf, action)(entry, *key.split(), step=step)
print(count)
"""


def run_child(entry: Entry, action: str, keys: str, last: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _CHILD, entry.workspace, entry.root, action, keys, str(last)]
    return subprocess.run(command, capture_output=True, text=True)


def every_kill(entry: Entry, prepare: Callable[[], None], action: str, keys: str) -> Iterator[int]:
    """Prepare afresh and kill the action before its step 0, 1, ..., until it ends by itself."""
    for number in range(20):
        shutil.rmtree(entry.workspace)
        entry.workspace.mkdir()
        prepare()
        done = run_child(entry, action, keys, number)
        if done.returncode == 0:
            assert number >= 2
            return
        assert done.returncode == -signal.SIGKILL, done.stderr
        yield number
    raise AssertionError("it never ends")


@pytest.mark.parametrize("live", [None, "upstream"])
@pytest.mark.parametrize("stored", [None, "ours"])
def test_a_killed_swap_is_finished_by_repeating_it(
    entry: Entry, live: str | None, stored: str | None
) -> None:
    def prepare() -> None:
        if live:
            fake_build(entry.live, live)
        if stored:
            fake_build(entry.slot(PATCHED), stored)
            mark(entry, entry.slot(PATCHED), PATCHED)

    steps = 0
    for _ in every_kill(entry, prepare, "swap", f"{PRISTINE} {PATCHED}"):
        steps += 1
        shelf.swap(entry, PRISTINE, PATCHED)
        assert content(entry.live) == stored
        assert inspect(entry.live, entry).owner == PATCHED
        assert content(entry.slot(PRISTINE)) == live
        assert sorted(everything(entry).values()) == sorted(filter(None, (live, stored)))
    assert steps >= 2


@pytest.mark.parametrize("action", ["park", "place"])
def test_a_killed_exchange_is_undone_by_parking_and_placing_again(
    entry: Entry, action: str
) -> None:
    """What a recovery does: the files hold side a again, whatever had been reached."""

    def prepare() -> None:
        fake_build(entry.live, "upstream")
        fake_build(entry.slot(PATCHED), "ours")
        mark(entry, entry.slot(PATCHED), PATCHED)
        if action == "place":
            shelf.park(entry, PRISTINE)

    key = PRISTINE if action == "park" else PATCHED
    for _ in every_kill(entry, prepare, action, key):
        shelf.park(entry, PRISTINE, trusted={PRISTINE, PATCHED})
        shelf.place(entry, PRISTINE)
        assert content(entry.live) == "upstream"
        assert content(entry.slot(PATCHED)) == "ours"
        assert len(everything(entry)) == 2


def test_a_server_that_builds_after_a_crash_never_pollutes_a_known_build(entry: Entry) -> None:
    def prepare() -> None:
        fake_build(entry.live, "upstream")

    for _ in every_kill(entry, prepare, "park", PRISTINE):
        fake_build(entry.live, "upstream")  # the files have not changed yet
        shelf.park(entry, PRISTINE, trusted={PRISTINE, PATCHED})
        shelf.place(entry, PATCHED)
        assert inspect(entry.live, entry) == Build(False, PATCHED)
        shelf.swap(entry, PATCHED, PRISTINE)
        assert content(entry.live) == "upstream"


@pytest.mark.parametrize("leftover", ["half marker", "empty live", "half marker only"])
def test_what_a_kill_between_the_steps_leaves_is_no_obstacle(entry: Entry, leftover: str) -> None:
    if leftover == "half marker":
        fake_build(entry.live, "upstream")
    entry.live.mkdir(parents=True, exist_ok=True)
    if leftover != "empty live":
        (entry.live / f"{MARKER}.new").write_text('{"key": "pat')
    shelf.park(entry, PRISTINE)
    shelf.place(entry, PATCHED)
    fake_build(entry.live, "ours")
    shelf.swap(entry, PATCHED, PRISTINE)
    expected = "upstream" if leftover == "half marker" else None
    assert content(entry.live) == expected
    assert content(entry.slot(PATCHED)) == "ours"


# --- locks, other file systems, owners, hostile content -----------------------------------------


def test_a_compile_under_way_is_not_disturbed(entry: Entry) -> None:
    fake_build(entry.live, "upstream")
    path = entry.cached_ops / "tmp" / "trtllm_comm.lock"
    path.parent.mkdir()
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="compiling trtllm_comm"):
            shelf.swap(entry, PRISTINE, PATCHED, timeout=0.2)
        assert everything(entry) == {"0.6.3/120a/cached_ops/trtllm_comm": "upstream"}
    assert len(shelf.swap(entry, PRISTINE, PATCHED)) == 1


def test_the_lock_is_held_while_directories_move(entry: Entry) -> None:
    fake_build(entry.live, "upstream")
    path = entry.cached_ops / "tmp" / "trtllm_comm.lock"
    seen = []

    def step(label: str) -> None:
        with path.open("r+") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen.append(label)

    shelf.swap(entry, PRISTINE, PATCHED, step=step)
    assert seen == ["mark", "move", "reserve", "reserve"]
    with path.open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.fixture
def no_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories of a lower image layer cannot be renamed on overlayfs."""
    rename = Path.rename

    def refusing(self: Path, target: Path) -> Path:
        if ".copy-" not in str(self):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refusing)


@pytest.mark.usefixtures("no_rename")
def test_where_rename_cannot_go_the_build_is_copied_with_its_times(
    entry: Entry, root: Path
) -> None:
    jit.build(entry.workspace, root, "trtllm_comm")
    shelf.swap(entry, PRISTINE, PATCHED)
    assert inspect(entry.live, entry) == Build(False, PATCHED)
    shelf.swap(entry, PATCHED, PRISTINE)
    assert not entry.slot(PRISTINE).exists()
    _, worked = jit.build(entry.workspace, root, "trtllm_comm")
    assert not worked
    assert not list(entry.workspace.rglob(".copy-*"))


@pytest.mark.usefixtures("no_rename")
def test_a_shelf_without_room_for_a_copy_is_told_as_that(
    entry: Entry, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, _ = jit.build(entry.workspace, root, "trtllm_comm")

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(HostError, match=r"cannot move .*: .*No space left on device") as caught:
        shelf.swap(entry, PRISTINE, PATCHED)
    assert "make room" in (caught.value.hint or "")
    assert library.exists() and not list(entry.workspace.rglob(".copy-*"))


@pytest.mark.usefixtures("no_rename")
@pytest.mark.parametrize("label", ["copy", "copied"])
def test_a_copy_broken_off_is_finished_by_repeating_it(entry: Entry, label: str) -> None:
    def stop(reached: str) -> None:
        if reached == label:
            raise KeyboardInterrupt

    fake_build(entry.live, "upstream")
    with pytest.raises(KeyboardInterrupt):
        shelf.swap(entry, PRISTINE, PATCHED, step=stop)
    shelf.swap(entry, PRISTINE, PATCHED)
    assert inspect(entry.live, entry) == Build(False, PATCHED)
    assert content(entry.slot(PRISTINE)) == "upstream"
    assert not list(entry.workspace.rglob(".copy-*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave files of another owner")
def test_root_leaves_nothing_that_the_owner_of_the_cache_could_not_use(entry: Entry) -> None:
    fake_build(entry.live, "upstream")
    for path in (entry.workspace, *entry.workspace.rglob("*")):
        os.chown(path, 1234, 1234)
    shelf.swap(entry, PRISTINE, PATCHED)
    assert {path.stat().st_uid for path in entry.workspace.rglob("*")} == {1234}


@pytest.mark.parametrize("key", ["../x", "", ".hidden", "a/b", "-rf", UNOWNED, "a\nb"])
def test_a_key_that_is_no_plain_name_is_refused(entry: Entry, key: str) -> None:
    with pytest.raises(UsageError):
        shelf.park(entry, key)
    with pytest.raises(UsageError):
        shelf.place(entry, key)


def mark(entry: Entry, directory: Path, key: object) -> None:
    (directory / MARKER).write_text(json.dumps({"key": key, "module": entry.module}))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"key": "../../x", "module": "trtllm_comm"}', '{"key": 7}', "[" * 70000,
     '{"key": "patched", "module": "other"}'],
)  # fmt: skip
def test_a_garbage_marker_counts_as_none(entry: Entry, text: str) -> None:
    fake_build(entry.live, "upstream")
    (entry.live / MARKER).write_text(text)
    fake_build(entry.slot(PATCHED), "not to be trusted")
    (entry.slot(PATCHED) / MARKER).write_text(text)
    shelf.swap(entry, PRISTINE, PATCHED)
    assert content(entry.slot(PRISTINE)) == "upstream"
    assert inspect(entry.live, entry) == Build(False, PATCHED)
    assert kept_mtimes(entry, PATCHED) == {}


def test_a_linked_marker_is_not_followed(entry: Entry, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text("keep")
    fake_build(entry.live, "upstream")
    (entry.live / MARKER).symlink_to(outside)
    (entry.live / f"{MARKER}.new").symlink_to(outside)
    shelf.swap(entry, PRISTINE, PATCHED)
    assert outside.read_text() == "keep"
    assert inspect(entry.slot(PRISTINE), entry) == Build(True, PRISTINE)


@pytest.mark.parametrize("place", ["live", "shelf", "lock"])
def test_links_that_lead_out_are_refused(entry: Entry, tmp_path: Path, place: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    fake_build(entry.live, "upstream")
    if place == "live":
        shutil.rmtree(entry.live)
        entry.live.symlink_to(outside)
    elif place == "shelf":
        (entry.workspace / SHELF).symlink_to(outside)
    else:
        (entry.cached_ops / "tmp").mkdir()
        (entry.cached_ops / "tmp" / "trtllm_comm.lock").symlink_to(outside / "file")
    with pytest.raises(HostError):
        shelf.swap(entry, PRISTINE, PATCHED)
    assert list(outside.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives anything away")
def test_what_a_link_leads_to_is_no_present(entry: Entry, tmp_path: Path) -> None:
    """The owner of the cache exchanges a directory that root has made for a link to root's own."""
    os.chown(entry.workspace, 65534, 65534)
    roots = tmp_path / "roots"
    roots.mkdir()
    link = entry.workspace / "made"
    link.symlink_to(roots)
    shelf._give_to_owner(entry, link)
    assert roots.stat().st_uid == 0 and link.lstat().st_uid == 65534


def test_a_file_in_place_of_a_build_is_a_host_error(entry: Entry) -> None:
    entry.cached_ops.mkdir(parents=True)
    entry.live.write_text("")
    with pytest.raises(HostError, match="cannot read"):
        shelf.swap(entry, PRISTINE, PATCHED)
