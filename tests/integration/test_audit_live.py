"""Audits of this host: what runs, what is cached, what variables name, and `--fix`."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sm120patch.audit.discovery import Limits, Search
from sm120patch.audit.mounts import Mount, mounts
from sm120patch.audit.tree import Tree
from tests.support import jit
from tests.support.audited import FILES, SED_A, publish, sh
from tests.support.catalogue import A_TEXT, A
from tests.support.command import run
from tests.support.environments import create_venv, install_fake, record_line
from tests.support.place import Place

LAUNCH = "import sys, time\nprint('up', flush=True)\ntime.sleep(120)\n"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@contextmanager
def server(place: Place, **variables: str) -> Iterator[int]:
    """A process that looks like an SGLang server of the environment."""
    package = {**FILES["sglang"], "sglang/launch_server.py": LAUNCH.encode()}
    if not (place.site / "sglang" / "launch_server.py").exists():
        install_fake(place.site, "sglang", "1.0", package)
    command = [place.prefix / "bin" / "python", "-m", "sglang.launch_server", "--port", "31999"]
    environ = {**os.environ, **variables}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def details(place: Place, kind: str) -> list[str]:
    return [f["detail"] for f in place.run("audit").result["findings"] if f["kind"] == kind]


def test_a_server_that_started_before_the_edit_is_stale(place: Place) -> None:
    with server(place) as pid:
        assert details(place, "stale-server") == []
        time.sleep(1.1)
        sh(f'sed -i "{SED_A}" {A}', place.site)
        (found,) = [f for f in place.run("audit").result["findings"] if f["kind"] == "stale-server"]
    assert str(pid) in found["path"] and f"before {A} changed" in found["detail"]
    assert details(place, "stale-server") == []


def test_a_server_that_started_before_our_change_is_stale_and_one_after_is_not(
    place: Place,
) -> None:
    with server(place):
        time.sleep(1.1)
        place.done("apply", "one", "--no-verify", "--allow-running")
        (detail,) = details(place, "stale-server")
        assert "before the last change of sm120patch" in detail
    time.sleep(1.1)
    with server(place):
        assert details(place, "stale-server") == []


def test_overlays_in_the_variables_of_a_server_are_named(place: Place, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    (overlay / "flashinfer").mkdir(parents=True)
    with server(place, PYTHONPATH=str(overlay), SGLANG_MOE_CONFIG_DIR="/cfg") as pid:
        found = details(place, "carrier")
    assert len(found) == 2 and all(f"pid {pid}" in detail for detail in found)
    assert any(str(overlay) in detail and "flashinfer" in detail for detail in found)


def test_overlays_in_our_own_variables_are_named(place: Place, tmp_path: Path) -> None:
    (tmp_path / "overlay" / "sglang").mkdir(parents=True)
    ran = run("audit", *place.options, LD_PRELOAD="", FLASHINFER_CUBIN_DIR="/cubins")
    assert [f["path"] for f in ran.result["findings"]] == ["FLASHINFER_CUBIN_DIR"]


def test_a_process_that_maps_a_library_that_is_gone_is_named(place: Place) -> None:
    library = place.site / "sglang" / "kernels.so"
    library.write_bytes(b"x" * 4096)
    hold = (
        "import mmap, sys, time; f = open(sys.argv[1], 'rb');"
        "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); print('up', flush=True);"
        "time.sleep(120)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", hold, library], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        assert details(place, "stale-server") == []
        library.unlink()
        (detail,) = details(place, "stale-server")
        assert str(library) in detail and "(deleted)" in detail
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# --- bytecode ----------------------------------------------------------------------------------


def compiled(place: Place, mode: py_compile.PycInvalidationMode | None = None) -> Path:
    return Path(str(py_compile.compile(str(place.site / A), doraise=True, invalidation_mode=mode)))


def other_content(place: Place) -> None:
    """Same size, and the old time put back: Python cannot see the difference."""
    path = place.site / A
    times = path.stat()
    path.write_text(A_TEXT.replace("line_3 = 3", "line_3 = 9"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_bytecode_that_would_run_in_place_of_the_source_is_found_and_deleted(place: Place) -> None:
    cached = compiled(place)
    assert place.findings() == set()
    other_content(place)
    assert place.findings() == {("foreign", A), ("stale-bytecode", str(cached))}
    ran = place.run("audit", "--fix", "--yes")
    assert [(f["kind"], f["done"]) for f in ran.result["fixes"]] == [("bytecode", True)]
    assert not cached.exists() and f"delete the stale bytecode {cached}" in ran.err
    assert {f["kind"] for f in ran.result["findings"]} == {"foreign"}


def test_bytecode_of_the_present_source_is_fine(place: Place) -> None:
    other_content(place)
    compiled(place)
    assert place.findings() == {("foreign", A)}


def test_unchecked_bytecode_of_another_content_is_found_under_a_pristine_source(
    place: Place,
) -> None:
    path = place.site / A
    path.write_text(A_TEXT.replace("line_3 = 3", "line_3 = 9"))
    cached = compiled(place, py_compile.PycInvalidationMode.UNCHECKED_HASH)
    path.write_text(A_TEXT)
    assert place.findings() == {("stale-bytecode", str(cached))}


# --- builds ------------------------------------------------------------------------------------


@pytest.fixture
def flashinfer(tmp_path: Path, isolated_home: Path) -> tuple[Path, Path]:
    """Site-packages with the small FlashInfer, and the workspace of its builds."""
    site = create_venv(tmp_path / "env")
    sources = {path: text.encode() for path, text in jit.SOURCES.items()}
    # Not 0.6.3 itself: what was published as that is known, and this is something else.
    install_fake(site, "flashinfer-python", "0.6.3+small", sources)
    jit.install_stub(site)
    workspace = isolated_home / ".cache" / "flashinfer"
    workspace.mkdir(parents=True)
    return site, workspace


def build_findings(site: Path) -> list[dict[str, str]]:
    ran = run("audit", "--env", site.parents[2], "--output", "json")
    return [f for f in ran.result["findings"] if f["kind"] == "stale-build"]


def test_a_build_from_before_an_edit_is_stale_until_it_is_built_again(
    flashinfer: tuple[Path, Path],
) -> None:
    site, workspace = flashinfer
    library, _ = jit.build(workspace, site, "trtllm_comm")
    jit.build(workspace, site, "page")
    assert build_findings(site) == []
    time.sleep(0.02)
    sh(f"sed -i 's/< 1200/< 9999/' {jit.ALLREDUCE}", site)
    (found,) = build_findings(site)
    assert found["path"] == str(library.parent) and jit.ALLREDUCE in found["detail"]
    jit.build(workspace, site, "trtllm_comm")
    assert build_findings(site) == []


def test_a_prebuilt_module_that_wins_over_an_edited_source_is_named(
    flashinfer: tuple[Path, Path],
) -> None:
    site, _ = flashinfer
    prebuilt = site / "flashinfer_jit_cache" / "jit_cache" / "trtllm_comm" / "trtllm_comm.so"
    prebuilt.parent.mkdir(parents=True)
    prebuilt.write_bytes(b"")
    assert build_findings(site) == []
    sh(f"sed -i 's/\\[9, 10\\]/[9, 10, 12]/' {jit.COMM}", site)
    (found,) = build_findings(site)
    assert str(prebuilt) in found["detail"] and "instead of" in found["detail"]


# --- fix ---------------------------------------------------------------------------------------


def test_fix_asks_before_it_does_anything(place: Place) -> None:
    cached = compiled(place)
    other_content(place)
    ran = place.run("audit", "--fix")
    assert cached.exists() and ran.result["fixes"] == []
    assert "to be put right" in ran.err and "--yes" in ran.err


def test_fix_takes_whole_sets_over_and_leaves_the_rest(place: Place, tmp_path: Path) -> None:
    for target, files in FILES.items():
        publish(tmp_path / "cache" / "sm120patch" / "wheels", target, "1.0", files)
    sh(f'sed -i "{SED_A}" {A} && echo extra > sglang/extra.py', place.site)
    place.seal()
    ran = run("audit", "--fix", "--yes", *place.options, XDG_CACHE_HOME=str(tmp_path / "cache"))
    (fix,) = ran.result["fixes"]
    assert (fix["kind"], fix["subject"], fix["done"]) == ("adopt", "one", True)
    assert place.changed() == set() and place.states()["one"] == "staged"
    assert {f["kind"] for f in ran.result["findings"]} == {"added", "unverified"}


def test_without_upstreams_bytes_nothing_is_taken_over(place: Place, tmp_path: Path) -> None:
    sh(f'sed -i "{SED_A}" {A}', place.site)
    ran = run("audit", "--fix", "--yes", *place.options, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert ran.code == 1 and ran.result["fixes"] == []
    assert "nothing that could be put right safely" in ran.err


# --- what was applied here ----------------------------------------------------------------------


def test_a_record_that_was_rewritten_over_our_patch_is_named(place: Place) -> None:
    place.stage("one")
    assert place.findings() == {("unverified", "one")}
    record = place.site / "sglang-1.0.dist-info" / "RECORD"
    lines = [line for line in record.read_text().splitlines(True) if not line.startswith(f"{A},")]
    record.write_text("".join(lines) + record_line(A, (place.site / A).read_bytes()))
    assert place.findings() == {("unverified", "one"), ("record", A)}
    record.unlink()
    assert ("record", A) not in place.findings(), "nothing says anything any more"


# --- the search --------------------------------------------------------------------------------


def test_a_search_that_ends_early_says_so_and_fails(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"d{number:02}").mkdir()
    create_venv(tmp_path / "zz" / "venv")
    tree = Tree.at(tmp_path)
    search = Search(tree, Limits(directories=10))
    assert list(search.places()) == [] and search.directories == 10
    (missed,) = search.unfinished
    assert "ended after 10 directories" in missed.reason
    deep = Search(tree, Limits(depth=1))
    assert list(deep.places()) == []
    assert [m.path for m in deep.unfinished] == ["/zz/venv"]


def test_network_mounts_are_skipped_by_name_unless_asked_for(tmp_path: Path) -> None:
    create_venv(tmp_path / "share" / "venv")
    (tmp_path / "proc" / "venv").mkdir(parents=True)
    there = {
        str(tmp_path / "share"): Mount(str(tmp_path / "share"), "nfs4", "server:/x"),
        str(tmp_path / "proc"): Mount(str(tmp_path / "proc"), "proc", "proc"),
    }
    (tmp_path / "link").symlink_to(tmp_path / "share" / "venv")
    (tmp_path / "inner").symlink_to("/share/venv")
    tree = Tree.at(tmp_path)
    search = Search(tree, Limits(), there)
    assert list(search.places()) == []
    assert [(s.path, "nfs4" in s.reason) for s in search.skipped] == [("/share", True)]
    asked = Search(tree, Limits(network=True), there)
    assert [p.prefix for p in asked.places()] == ["/share/venv"] and asked.skipped == []
    assert asked.links == {"/share/venv": ["/inner"]}, "asked for, the link is a name of it"


def test_mount_points_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text(
        "22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "30 22 0:30 / /mnt/my\\040share rw master:2 propagate_from:1 - nfs4 s:/a\\134b rw\n"
        "garbage\n\n"
    )
    found = mounts(file)
    assert found["/mnt/my share"] == Mount("/mnt/my share", "nfs4", "s:/a\\b")
    assert set(found) == {"/", "/mnt/my share"} and "/proc" in mounts()
    assert mounts(tmp_path / "none") == {}


def test_a_directory_that_cannot_be_read_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    real = Tree.open_directory

    def refuse(self: Tree, path: str) -> int:
        if path == "/closed":  # as root nothing is closed to us
            raise PermissionError(13, "Permission denied")
        return real(self, path)

    monkeypatch.setattr(Tree, "open_directory", refuse)
    search = Search(Tree.at(tmp_path))
    assert list(search.places()) == []
    assert [(m.path, m.reason) for m in search.unfinished] == [("/closed", "Permission denied")]


@pytest.mark.slow
def test_a_thousand_environments_need_no_more_memory_than_fifty(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        root = tmp_path / str(count)
        for number in range(count):
            prefix = root / "opt" / f"e{number:04}"
            site = prefix / "lib" / "python3.11" / "site-packages"
            install_fake(site, "sglang", "1.0", FILES["sglang"])
            (prefix / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
        measure = (
            "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True,"
            " stdout=subprocess.DEVNULL);"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        command = [sys.executable, "-m", "sm120patch", "audit", "--root", root]
        done = subprocess.run(
            [sys.executable, "-c", measure, *command], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    few, many = peak(50), peak(1000)
    assert many < few + 16 * 1024, f"{few} and {many} KiB"
