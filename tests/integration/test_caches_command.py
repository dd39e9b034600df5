"""`caches`: what it names, what it deletes when asked, and caches on difficult disks."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sm120patch.caches import stock
from sm120patch.caches.builds import COPY, Entry, Kind
from sm120patch.caches.stock import Stored, expendable
from sm120patch.store import StateDirectory
from tests.support.command import Ran, run
from tests.support.jit import ALLREDUCE
from tests.support.jitplace import NEW, OLD, JitPlace, mounted, unmount
from tests.support.place import checked, refused


@pytest.fixture
def jitplace(tmp_path: Path) -> JitPlace:
    return JitPlace(tmp_path)


def test_it_names_what_a_set_would_touch_and_why(jitplace: JitPlace) -> None:
    jitplace.build()
    jitplace.build("page")
    before = sorted(jitplace.workspace.rglob("*"))
    found = jitplace.caches("gates")
    assert found["change"] == "apply gates"
    (item,) = found["touched"]
    assert (item["module"], item["live"], item["then"]) == (
        "trtllm_comm",
        "upstream",
        "is built again",
    )
    assert "dependency log" in item["reason"] and item["files"] == [ALLREDUCE]
    assert item["moves"][0][0] == str(jitplace.live())
    assert sorted(jitplace.workspace.rglob("*")) == before, "looking touches nothing"
    assert not (jitplace.prefix / ".sm120patch").exists()


def test_a_dry_run_tells_it_too(jitplace: JitPlace) -> None:
    jitplace.build()
    words = ("apply", "gates", "--no-verify", "--gpu", "12.0", "--dry-run")
    (item,) = jitplace.done(*words)["caches"]
    assert (item["module"], item["then"]) == ("trtllm_comm", "is built again")
    options = [word for word in jitplace.options if word not in ("--output", "json")]
    told = run(*words, *options, HOME=str(jitplace.home)).out
    assert "compiled modules that depend on these files" in told
    assert jitplace.work() == [] and not (jitplace.prefix / ".sm120patch").exists()


def test_it_names_what_a_revert_would_bring_back(jitplace: JitPlace) -> None:
    assert jitplace.caches()["change"] == ""
    jitplace.build()
    jitplace.apply("gates")
    jitplace.build()
    found = jitplace.caches()
    (item,) = found["touched"]
    assert found["change"] == "revert gates"
    assert (item["live"], item["then"]) == ("patched", "comes back")
    (stored,) = found["stored"]
    assert stored["needed"] and stored["can_come_back"] and stored["key"] == "pristine"
    assert stored["bytes"] >= 4096


def test_the_home_of_another_user_is_looked_at_when_named(
    jitplace: JitPlace, tmp_path: Path
) -> None:
    jitplace.build()
    stranger = {"HOME": str(tmp_path / "elsewhere")}
    ran = run("caches", "gates", *jitplace.options, **stranger)
    assert ran.result["touched"] == [] and ran.result["places"] == []
    ran = run("caches", "gates", "--home", jitplace.home, *jitplace.options, **stranger)
    assert [t["module"] for t in ran.result["touched"]] == ["trtllm_comm"]


def test_people_are_told_the_same(jitplace: JitPlace) -> None:
    jitplace.build()
    jitplace.apply("gates")
    options = [word for word in jitplace.options if word not in ("--output", "json")]
    ran = run("caches", *options, HOME=str(jitplace.home))
    assert ran.code == 0 and "`revert gates` would touch" in ran.out
    assert "comes back" in ran.out and "put away" in ran.out


def test_a_prebuilt_module_over_patched_sources_is_told(jitplace: JitPlace) -> None:
    jitplace.apply("gates")
    assert jitplace.caches()["traps"] == []
    library = jitplace.site / "flashinfer/data/aot/trtllm_comm/trtllm_comm.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    (trap,) = jitplace.caches()["traps"]
    assert str(library) in trap


# --- a server that runs ---------------------------------------------------------------------------


def test_a_build_from_a_copy_of_the_cache_is_not_called_that_of_the_patch(
    tmp_path: Path, jitplace: JitPlace
) -> None:
    library, _worked = jitplace.build()
    copy = shutil.copytree(library.parent, tmp_path / "backup")
    jitplace.apply("gates")
    (module,) = jitplace.done("caches")["touched"]
    assert module["live"] == "patched", "begun as a copy, with our mark"
    shutil.rmtree(library.parent)
    shutil.copytree(copy, library.parent)
    (module,) = jitplace.done("caches")["touched"]
    assert module["live"] == "unowned"
    stale = [f for f in jitplace.run("audit").result["findings"] if f["kind"] == "stale-build"]
    assert [f["path"] for f in stale] == [str(library.parent)] and ALLREDUCE in stale[0]["detail"]
    library, worked = jitplace.build()
    assert worked and NEW in library.read_text()
    (module,) = jitplace.done("caches")["touched"]
    assert module["live"] == "patched"
    found = {f["kind"] for f in jitplace.run("audit").result["findings"]}
    assert "stale-build" not in found


_SERVER = """\
import mmap, sys, time
with open(sys.argv[1], "rb") as file:
    held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("ready", flush=True)
time.sleep(300)
"""


@pytest.fixture
def server(jitplace: JitPlace) -> Iterator[subprocess.Popen[str]]:
    library, _ = jitplace.build()
    command = [sys.executable, "-c", _SERVER, str(library)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_server_that_still_maps_the_old_build_is_named_with_its_pid(
    jitplace: JitPlace, server: subprocess.Popen[str]
) -> None:
    (user,) = jitplace.caches()["processes"]
    assert (user["pid"], user["restart_needed"]) == (server.pid, False)
    gates = ("apply", "gates", "--no-verify", "--gpu", "12.0")
    error = refused(jitplace.run(*gates), 9, f"pid {server.pid}")
    assert "maps JIT build" in error["message"]
    ran = jitplace.run(*gates, "--allow-running")
    assert ran.code == 0 and f"pid {server.pid}" in ran.err and "until it is restarted" in ran.err
    (user,) = jitplace.caches()["processes"]
    assert (user["pid"], user["restart_needed"]) == (server.pid, True)
    assert "/.sm120patch/pristine/" in user["library"]
    options = [word for word in jitplace.options if word not in ("--output", "json")]
    told = run("caches", *options, HOME=str(jitplace.home)).out
    assert f"pid {server.pid}" in told and "RESTART NEEDED" in told


# --- pruning --------------------------------------------------------------------------------------


def prune(place: JitPlace, *arguments: str) -> dict[str, Any]:
    result: dict[str, Any] = place.caches("--prune", *arguments)["pruning"]
    return result


def stored_paths(place: JitPlace) -> list[str]:
    return [item["path"] for item in place.caches()["stored"]]


def test_nothing_is_deleted_without_consent(jitplace: JitPlace) -> None:
    jitplace.build()
    jitplace.apply("gates")
    before = sorted(jitplace.workspace.rglob("*"))
    result = prune(jitplace, "--max-size", "0")
    assert len(result["chosen"]) == 1 and result["removed"] == []
    assert sorted(jitplace.workspace.rglob("*")) == before
    refused(jitplace.run("caches", "--yes"), 2, "--prune")
    refused(jitplace.run("caches", "--prune", "--max-size", "lots"), 2, "no size")
    assert sorted(jitplace.workspace.rglob("*")) == before


def test_with_consent_the_shelf_is_bounded_and_the_live_build_stays(jitplace: JitPlace) -> None:
    library, _ = jitplace.build()
    jitplace.apply("gates")
    jitplace.build()
    assert prune(jitplace, "--yes") == {"chosen": [], "removed": [], "bytes": 0, "failed": []}
    result = prune(jitplace, "--max-size", "0", "--yes")
    assert result["removed"] == result["chosen"] and result["bytes"] > 0
    assert stored_paths(jitplace) == [] and jitplace.work() == []
    assert list((jitplace.workspace / ".sm120patch").iterdir()) == []
    jitplace.done("revert", "gates")
    assert jitplace.is_absent(), "without the build of upstream it has to be compiled"
    library, _ = jitplace.build()
    assert OLD in library.read_text()


def test_what_can_never_come_back_goes_whatever_the_bound(jitplace: JitPlace) -> None:
    jitplace.build()
    jitplace.apply("gates")
    slot = Path(stored_paths(jitplace)[0])
    for leftover in (
        slot.parent / f"{COPY}abc" / "trtllm_comm",
        slot.parent / "trtllm_comm~1",
        jitplace.workspace / ".sm120patch" / "trash-12" / "trtllm_comm",
        jitplace.workspace / ".sm120patch" / "unowned" / "0.6.3" / "120a" / "trtllm_comm",
        jitplace.live().parent / f"{COPY}def" / "trtllm_comm",
    ):
        leftover.mkdir(parents=True)
        (leftover / "trtllm_comm.so").write_text("x")
    result = prune(jitplace, "--yes")
    assert len(result["removed"]) == 5 and str(slot) not in result["removed"]
    assert stored_paths(jitplace) == [str(slot)]


def test_a_module_that_is_being_compiled_is_left(jitplace: JitPlace) -> None:
    jitplace.build()
    jitplace.apply("gates")
    with (jitplace.live().parent / "tmp" / "trtllm_comm.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ran = jitplace.run("caches", "--prune", "--max-size", "0", "--yes")
    assert ran.code == 10 and "compiling" in ran.result["pruning"]["failed"][0]
    assert len(stored_paths(jitplace)) == 1


def test_while_a_change_is_interrupted_nothing_is_pruned(jitplace: JitPlace) -> None:
    jitplace.build()
    jitplace.apply("gates")
    journal = jitplace.prefix / ".sm120patch" / "journal.json"
    journal.write_text("{}")
    refused(jitplace.run("caches", "--prune", "--max-size", "0", "--yes"), 7, "journal")
    journal.unlink()
    assert len(stored_paths(jitplace)) == 1


def test_while_another_command_is_at_work_nothing_is_pruned(jitplace: JitPlace) -> None:
    jitplace.build()
    jitplace.apply("gates")
    with StateDirectory.of(jitplace.prefix).lock("verify gates"):
        ran = jitplace.run("caches", "--prune", "--max-size", "0", "--yes")
        refused(ran, 9, "verify gates")
    assert len(stored_paths(jitplace)) == 1


def test_a_link_on_a_shelf_is_neither_measured_nor_followed(jitplace: JitPlace) -> None:
    outside = jitplace.home / "precious"
    (outside / "0.6.3" / "120a" / "trtllm_comm").mkdir(parents=True)
    (jitplace.workspace / ".sm120patch").mkdir()
    (jitplace.workspace / ".sm120patch" / "key").symlink_to(outside)
    assert prune(jitplace, "--max-size", "0", "--yes")["removed"] == []
    assert (outside / "0.6.3" / "120a" / "trtllm_comm").is_dir()


def item(name: str, size: int, put_away: float, back: bool = True) -> Stored:
    entry = Entry(Path("/w"), "1", "120a", name, Path("/r"), (), "")
    return Stored(entry, "key", Path("/w") / name, size, put_away, back)


def test_the_oldest_goes_first_and_what_is_needed_last() -> None:
    old, new, needed = item("old", 10, 1.0), item("new", 10, 2.0), item("needed", 10, 0.0)
    dead = item("dead", 10, 9.0, back=False)
    every, keep = [new, needed, dead, old], {needed.path}

    def names(bound: int) -> list[str]:
        return [chosen.entry.module for chosen in expendable(every, keep, bound)]

    assert names(30) == ["dead"]
    assert names(29) == ["dead", "old"]
    assert names(10) == ["dead", "old", "new"]
    assert names(0) == ["dead", "old", "new", "needed"]


def test_what_somebody_else_removed_meanwhile_is_no_error(tmp_path: Path) -> None:
    entry = Entry(tmp_path, "1", "120a", "m", tmp_path, (), "", kind=Kind.FLASHINFER)
    (tmp_path / ".sm120patch").mkdir()
    stock.remove(Stored(entry, "key", entry.slot("key"), 0, 0.0, True))


# --- difficult disks ------------------------------------------------------------------------------


@pytest.fixture
def on_tmpfs(tmp_path: Path) -> Iterator[JitPlace]:
    """The home on a small file system of its own, as a cache volume is."""
    home = tmp_path / "volume"
    if not mounted(home, "2m"):
        pytest.skip("needs the right to mount")
    yield JitPlace(tmp_path, home)
    unmount(home)


def test_a_cache_on_another_file_system_is_swapped_by_rename(on_tmpfs: JitPlace) -> None:
    library, _ = on_tmpfs.build()
    inode = library.stat().st_ino
    assert library.stat().st_dev != on_tmpfs.prefix.stat().st_dev
    on_tmpfs.apply("gates")
    assert NEW in on_tmpfs.build()[0].read_text()
    on_tmpfs.done("revert", "gates")
    assert on_tmpfs.work() == [] and library.stat().st_ino == inode


def test_a_cache_without_room_for_a_copy_is_compiled_as_a_whole(on_tmpfs: JitPlace) -> None:
    library, _ = on_tmpfs.build()
    (library.parent / "big.o").write_bytes(b"x" * (1 << 20))
    on_tmpfs.apply("gates")
    assert on_tmpfs.is_absent(), "a copy does not fit"
    assert not list(on_tmpfs.workspace.rglob(f"{COPY}*"))
    assert NEW in on_tmpfs.build()[0].read_text()
    on_tmpfs.done("revert", "gates")
    assert on_tmpfs.work() == [] and (library.parent / "big.o").stat().st_size == 1 << 20


def fill(home: Path) -> None:
    filler = (home / "filler").open("wb", buffering=0)
    with filler, pytest.raises(OSError) as full:
        while True:
            filler.write(b"x" * 4096)
    assert full.value.errno == errno.ENOSPC


def test_a_full_cache_volume_refuses_the_change_and_loses_nothing(on_tmpfs: JitPlace) -> None:
    library, _ = on_tmpfs.build()
    before = library.read_bytes()
    fill(on_tmpfs.home)
    ran = on_tmpfs.run("apply", "gates", "--no-verify", "--gpu", "12.0")
    assert ran.code in (6, 10), ran.out
    assert OLD in (on_tmpfs.site / ALLREDUCE).read_text()
    (on_tmpfs.home / "filler").unlink()
    assert on_tmpfs.run("recover").code == 0
    assert on_tmpfs.work() == [] and library.read_bytes() == before
    on_tmpfs.apply("gates")
    assert NEW in on_tmpfs.build()[0].read_text()


def test_a_read_only_cache_refuses_the_change_before_a_file_is_written(
    on_tmpfs: JitPlace,
) -> None:
    library, _ = on_tmpfs.build()
    remount = ["mount", "-o", "remount,ro", str(on_tmpfs.home)]
    subprocess.run(remount, check=True)
    ran = on_tmpfs.run("apply", "gates", "--no-verify", "--gpu", "12.0")
    subprocess.run([*remount[:2], "remount,rw", remount[3]], check=True)
    refused(ran, 10, "Read-only file system")
    assert OLD in (on_tmpfs.site / ALLREDUCE).read_text()
    assert on_tmpfs.run("recover").result["outcome"] == "nothing"
    assert on_tmpfs.work() == [] and OLD in library.read_text()


def test_a_cache_that_may_not_be_written_by_us_is_refused_too(jitplace: JitPlace) -> None:
    jitplace.build()
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    workspace, root = str(jitplace.workspace), str(jitplace.site)
    code = f"""
import errno, fcntl, json, os, shutil, tempfile
from pathlib import Path
from sm120patch.caches import shelf
from sm120patch.caches.builds import Entry
from sm120patch.errors import HostError
os.setgid(65534), os.setuid(65534)
entry = Entry(Path({workspace!r}), "0.6.3", "120a", "trtllm_comm", Path({root!r}), (), "")
try:
    shelf.park(entry, "pristine")
except HostError as error:
    print(error.message, "|", error.hint)
"""
    for path in (jitplace.home, *jitplace.home.parents[:3]):
        path.chmod(path.stat().st_mode | 0o755)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Permission denied" in done.stdout and "owner of the cache" in done.stdout, done.stderr
    assert jitplace.work() == []


# --- two at once ----------------------------------------------------------------------------------


def test_two_environments_that_share_a_cache_lose_no_build(tmp_path: Path) -> None:
    """Same version, one HOME: both put the same module away; the lock of the module orders them."""
    first = JitPlace(tmp_path / "first", tmp_path / "home")
    first.build()
    second = JitPlace(tmp_path / "second", tmp_path / "home")
    answers: list[Ran] = []

    def work(place: JitPlace) -> None:
        for command in (("apply", "gates", "--no-verify", "--gpu", "12.0"), ("revert", "gates")):
            answers.append(place.run(*command))

    threads = [threading.Thread(target=work, args=(place,)) for place in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [ran.code for ran in answers] == [0, 0, 0, 0], [ran.out for ran in answers]
    libraries = [p for p in first.workspace.rglob("trtllm_comm.so") if OLD in p.read_text()]
    assert libraries, "the build of upstream is somewhere"
    for place in (first, second):
        library, _ = place.build()
        assert OLD in library.read_text()


def test_two_commands_on_one_environment_exclude_each_other(jitplace: JitPlace) -> None:
    jitplace.build()
    answers: list[Ran] = []

    def work() -> None:
        gates = ("apply", "gates", "--no-verify", "--gpu", "12.0")
        answers.append(checked(run(*gates, *jitplace.options, HOME=str(jitplace.home))))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 in {ran.code for ran in answers} <= {0, 5, 9}
    assert NEW in jitplace.build()[0].read_text()
    jitplace.done("revert", "gates")
    assert jitplace.work() == []
