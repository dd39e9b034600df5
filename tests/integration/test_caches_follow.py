"""Builds follow whole commands: what ninja says after each, and what stands where."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from sm120patch import transaction
from sm120patch.caches import freshness, renewal
from sm120patch.caches.builds import UNOWNED
from sm120patch.catalogue import Places
from sm120patch.journal import Side
from sm120patch.operations.planning import plan_request
from sm120patch.operations.site import open_site
from sm120patch.operations.staging import settings_for
from sm120patch.planner import Request
from tests.support import jit
from tests.support.command import run_killed_at
from tests.support.jit import ALLREDUCE
from tests.support.jitplace import NEW, OLD, RUNNER, JitPlace

OBJECT, LIBRARY = "trtllm_allreduce.cuda.o", "trtllm_comm.so"


@pytest.fixture
def jitplace(tmp_path: Path) -> JitPlace:
    return JitPlace(tmp_path)


def shelf(place: JitPlace, key: str) -> Path:
    return place.workspace / ".sm120patch" / key / "0.6.3" / "120a" / "trtllm_comm"


def test_after_an_apply_ninja_makes_exactly_the_object_that_includes_the_header(
    jitplace: JitPlace,
) -> None:
    library, _ = jitplace.build()
    kept = library.with_name("trtllm_allreduce_fusion.cuda.o").stat().st_mtime_ns
    jitplace.apply("gates")
    assert jitplace.work() == [OBJECT, LIBRARY]
    library, worked = jitplace.build()
    assert worked and NEW in library.read_text() and OLD not in library.read_text()
    assert library.with_name("trtllm_allreduce_fusion.cuda.o").stat().st_mtime_ns == kept
    assert jitplace.work() == []


def test_after_a_revert_there_is_no_work_and_the_library_is_the_same_file(
    jitplace: JitPlace,
) -> None:
    library, _ = jitplace.build()
    before = library.read_bytes(), library.stat().st_ino, library.stat().st_mtime_ns
    jitplace.apply("gates")
    patched = jitplace.build()[0].read_bytes()
    jitplace.done("revert", "gates")
    assert jitplace.work() == []
    assert (library.read_bytes(), library.stat().st_ino, library.stat().st_mtime_ns) == before
    jitplace.apply("gates")
    assert jitplace.work() == []
    assert library.read_bytes() == patched


def test_a_patched_generator_leaves_the_module_absent(jitplace: JitPlace) -> None:
    library, _ = jitplace.build()
    upstream = library.read_bytes()
    jitplace.apply("list")
    assert jitplace.is_absent()
    jitplace.done("revert", "list")
    assert jitplace.work() == [] and library.read_bytes() == upstream


def test_a_cxx_object_that_ninja_would_not_renew_is_never_left(jitplace: JitPlace) -> None:
    """To g++ FlashInfer's headers are system headers: its dependency log does not name them."""
    jitplace.build("binding")
    jitplace.apply("gates")
    assert jitplace.is_absent("binding")
    library, _ = jitplace.build("binding")
    assert NEW in library.read_text()
    jitplace.done("revert", "gates")
    assert jitplace.work("binding") == [] and OLD in library.read_text()


def test_a_module_that_does_not_depend_on_the_change_is_not_touched(jitplace: JitPlace) -> None:
    library, _ = jitplace.build("page")
    before = library.parent.stat().st_ino, sorted(p.name for p in library.parent.iterdir())
    jitplace.apply("gates")
    after = library.parent.stat().st_ino, sorted(p.name for p in library.parent.iterdir())
    assert after == before


def test_a_build_that_was_never_finished_does_not_come_back(jitplace: JitPlace) -> None:
    jitplace.build()
    jitplace.apply("gates")
    jitplace.done("revert", "gates")  # the copy was not built: no server ran in between
    jitplace.apply("gates")
    assert jitplace.work() == [OBJECT, LIBRARY]
    library, _ = jitplace.build()
    assert NEW in library.read_text() and OLD not in library.read_text()


def test_a_package_that_came_back_with_older_times_leaves_no_stale_build(
    jitplace: JitPlace,
) -> None:
    """A fresh container image beside a cache on a volume: ninja would be content."""
    library, _ = jitplace.build()
    jitplace.apply("gates")
    page = jitplace.site / "flashinfer/data/include/flashinfer/page.cuh"
    then = page.stat().st_mtime - 7200
    page.write_text("// another page\n")
    os.utime(page, (then, then))
    jitplace.done("revert", "gates")
    assert jitplace.is_absent()
    assert "// page" in (shelf(jitplace, UNOWNED) / LIBRARY).read_text()
    library, _ = jitplace.build()
    assert "// another page" in library.read_text()


def test_a_source_that_is_newer_than_a_stored_build_leaves_the_module_absent(
    jitplace: JitPlace,
) -> None:
    jitplace.build()
    jitplace.apply("gates")
    source = jitplace.site / "flashinfer/data/csrc/trtllm_allreduce_fusion.cu"
    os.utime(source)
    jitplace.done("revert", "gates")
    assert jitplace.is_absent()
    assert (shelf(jitplace, UNOWNED) / LIBRARY).exists()


def test_without_a_ninja_to_ask_nothing_is_put_back(jitplace: JitPlace) -> None:
    jitplace.build()
    (jitplace.prefix / "bin" / "ninja").unlink()
    nowhere = {"PATH": str(jitplace.home)}
    jitplace.apply("gates", **nowhere)
    assert jitplace.is_absent()
    jitplace.done("revert", "gates", **nowhere)
    assert jitplace.is_absent()
    assert (shelf(jitplace, UNOWNED) / LIBRARY).exists(), "nothing is deleted"


def test_a_ninja_of_another_version_does_not_spoil_the_logs(jitplace: JitPlace) -> None:
    """Some remove a log of another version when they read it, even with -n."""
    library, _ = jitplace.build()
    logs = {name: library.with_name(name).read_bytes() for name in (".ninja_log", ".ninja_deps")}
    other = library.with_name(".ninja_log")
    other.write_bytes(logs[".ninja_log"].replace(b"# ninja log v", b"# ninja log v9"))
    names = sorted(path.name for path in library.parent.iterdir())
    found = freshness.work_to_do(library.parent, jit.ninja())
    assert found != (), "it does not know the log, so it would make everything anew"
    assert other.read_bytes().startswith(b"# ninja log v9")
    assert library.with_name(".ninja_deps").read_bytes() == logs[".ninja_deps"]
    assert sorted(path.name for path in library.parent.iterdir()) == names


def test_without_room_for_copies_of_the_logs_nothing_is_shown(
    jitplace: JitPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, _ = jitplace.build()
    monkeypatch.setattr(tempfile, "tempdir", str(jitplace.home / "gone"))
    assert freshness.work_to_do(library.parent, jit.ninja()) is None


@pytest.mark.parametrize(
    "text",
    ["", "garbage\n", "include /etc/passwd\n", "rule r\n command = touch made\nbuild a: r\n"],
)
def test_a_build_file_that_tells_nothing_is_never_up_to_date(tmp_path: Path, text: str) -> None:
    (tmp_path / "build.ninja").write_text(text)
    assert freshness.work_to_do(tmp_path, jit.ninja()) in (None, ()) or text == ""
    if text.startswith("rule"):
        assert freshness.work_to_do(tmp_path, jit.ninja()) is None
    assert not (tmp_path / "made").exists()
    (tmp_path / "build.ninja").unlink()
    assert freshness.work_to_do(tmp_path, jit.ninja()) is None
    assert freshness.work_to_do(tmp_path, str(tmp_path / "no-ninja")) is None


@pytest.mark.parametrize(
    ("age", "up_to_date"),
    [
        pytest.param(3600, True, id="an hour"),
        pytest.param(10**9, True, id="2001", marks=pytest.mark.slow),
        pytest.param(2, True, id="seconds", marks=pytest.mark.slow),
        pytest.param(0, True, id="now", marks=pytest.mark.slow),
        pytest.param(-3600, False, id="in the future", marks=pytest.mark.slow),
    ],
)
def test_whatever_the_age_of_a_header_the_library_is_of_what_the_header_says(
    jitplace: JitPlace, age: int, up_to_date: bool
) -> None:
    """ninja goes by times; here every order of header, build, patch and revert comes up."""
    header = jitplace.site / ALLREDUCE
    then = header.stat().st_ctime_ns // 10**9 - age
    os.utime(header, (then, then))
    jitplace.build()
    upstream = header.stat().st_mtime_ns
    for _ in range(2):
        jitplace.apply("gates")
        library, _ = jitplace.build()
        assert NEW in library.read_text() and OLD not in library.read_text()
        jitplace.done("revert", "gates")
        assert header.stat().st_mtime_ns == upstream
        if up_to_date:
            assert jitplace.work() == []
        library, _ = jitplace.build()
        assert OLD in library.read_text() and NEW not in library.read_text()


def test_a_module_whose_every_object_includes_the_header_is_not_copied(
    jitplace: JitPlace,
) -> None:
    page = "flashinfer/data/include/flashinfer/page.cuh"
    library, _ = jitplace.build("page")
    assert not renewal.saves_work(library.parent, [jitplace.site / page])
    assert renewal.renewed(library.parent, [jitplace.site / page]) is not None
    library, _ = jitplace.build()
    assert renewal.saves_work(library.parent, [jitplace.site / page])


def test_a_workspace_named_at_the_apply_is_remembered_at_the_revert(jitplace: JitPlace) -> None:
    elsewhere = jitplace.home / "volume"
    (elsewhere / ".cache").mkdir(parents=True)
    jitplace.workspace.rename(elsewhere / ".cache" / "flashinfer")
    jitplace.workspace = elsewhere / ".cache" / "flashinfer"
    library, _ = jitplace.build()
    inode = library.stat().st_ino
    jitplace.apply("gates", FLASHINFER_WORKSPACE_BASE=str(elsewhere))
    assert NEW in jitplace.build()[0].read_text()
    jitplace.done("revert", "gates")
    assert jitplace.work() == [] and library.stat().st_ino == inode


# --- SGLang's own kernels, measured tactics ------------------------------------------------------


def tvm_build(place: JitPlace, name: str, source: str) -> Path:
    """What tvm-ffi leaves: relative outputs, a lock inside."""
    directory = place.home / ".cache" / "tvm-ffi" / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "lock").touch()
    include = place.site / "flashinfer" / "data" / "include"
    (directory / "cuda_0.cu").write_text(source)
    (directory / "build.ninja").write_text(f"""ninja_required_version = 1.3
nvcc = {place.site / "stub.py"}
cuda_cflags = -isystem {include}
rule compile_cuda
  depfile = $out.d
  deps = gcc
  command = $nvcc --dependency-output $out.d $cuda_cflags -c $in -o $out
rule link
  command = $nvcc $in -shared -o $out
build cuda_0.o: compile_cuda {directory / "cuda_0.cu"}
build {name}.so: link cuda_0.o
default {name}.so
""")
    subprocess.run([jit.ninja(), "-C", directory], check=True, capture_output=True)
    return directory / f"{name}.so"


@pytest.mark.parametrize("suffix", ["_0123456789abcdef", "_0123__arch_12.0a__tvmffi_0.1.15.post2"])
def test_a_kernel_of_sglang_that_takes_the_header_is_put_away_and_comes_back(
    jitplace: JitPlace, suffix: str
) -> None:
    """From SGLang 0.5.14 to 0.5.17 a library that is there is loaded; its name hides the header."""
    name = f"sgl_kernel_jit_gemm_bf16{suffix}"
    library = tvm_build(jitplace, name, "#include <flashinfer/comm/trtllm_allreduce.cuh>\n")
    other = tvm_build(jitplace, f"sgl_kernel_jit_norm{suffix}", "// nothing of FlashInfer\n")
    upstream, inode = library.read_bytes(), library.stat().st_ino
    jitplace.apply("gates")
    assert not library.exists() and other.exists()
    touched = [t for t in jitplace.caches()["touched"] if t["kind"] == "sglang-jit"]
    assert [t["module"] for t in touched] == [name] and "changed file" in touched[0]["reason"]
    library = tvm_build(jitplace, name, "#include <flashinfer/comm/trtllm_allreduce.cuh>\n")
    assert NEW in library.read_text()
    jitplace.done("revert", "gates")
    assert (library.read_bytes(), library.stat().st_ino) == (upstream, inode)
    jitplace.apply("gates")
    assert NEW in library.read_text()


def test_a_tvm_ffi_cache_elsewhere_is_found_by_its_variable(jitplace: JitPlace) -> None:
    library = tvm_build(jitplace, "sgl_kernel_jit_a_1", f"#include <{ALLREDUCE[24:]}>\n")
    elsewhere = jitplace.home / "elsewhere"
    shutil.move(library.parents[1], elsewhere)
    jitplace.apply("gates", TVM_FFI_CACHE_DIR=str(elsewhere))
    assert not (elsewhere / "sgl_kernel_jit_a_1" / "sgl_kernel_jit_a_1.so").exists()


def test_tactics_measured_without_a_set_are_not_used_with_it(jitplace: JitPlace) -> None:
    cache = jitplace.home / ".cache" / "sglang" / "flashinfer" / "autotune"
    measured = cache / "0.6.3" / "sm120" / "0123456789abcdef" / "rank_tp0_pp0_dp0.json"
    other = cache / "0.6.4" / "sm120" / "f" / "rank_tp0_pp0_dp0.json"
    store = jitplace.workspace / "autotune" / "v2" / "0123" / "entries" / "4567.json"
    for path in (measured, other, store):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"tactic": 7}))
    jitplace.apply("gates")
    assert measured.exists() and store.exists(), "a header gate changes no tactic"
    jitplace.apply("tuned")
    assert not measured.exists() and not store.exists() and other.exists()
    item, _ = (t for t in jitplace.caches()["touched"] if t["kind"] == "autotune")
    assert item["files"] == [RUNNER] and item["then"] == "comes back"
    measured.parent.mkdir(parents=True)
    measured.write_text(json.dumps({"tactic": 9}))
    jitplace.done("revert", "tuned")
    assert json.loads(measured.read_text()) == {"tactic": 7} and store.exists()
    jitplace.apply("tuned")
    assert json.loads(measured.read_text()) == {"tactic": 9}


# --- killed, at once, without room ----------------------------------------------------------------


def steps_of(place: JitPlace, *arguments: str) -> list[str]:
    """Labels of the steps of a command; it is carried out."""
    ran = run_killed_at(0, *arguments, *place.options)
    assert ran.code == 0, ran.err
    return [line.partition(": ")[2] for line in ran.err.splitlines() if line.startswith("step ")]


def builds(place: JitPlace) -> list[str]:
    """Every library of the module, wherever it stands: which header it was compiled from."""
    found = place.workspace.rglob(LIBRARY)
    return sorted("new" if NEW in p.read_text() else "old" for p in found)


FAST = ("move", "seed", "journal at=b moving_to=None", "ledger commit")


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_killed_anywhere_no_build_is_lost_and_none_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: bool
) -> None:
    place = JitPlace(tmp_path)
    monkeypatch.setenv("HOME", str(place.home))
    place.build()
    apply = ("apply", "gates", "--no-verify", "--gpu", "12.0")
    labels = steps_of(place, *apply)
    assert set(FAST) <= set(labels)
    place.build()
    steps_of(place, "revert", "gates")
    assert place.work() == [] and builds(place) == ["new", "old"]
    for command, was in ((apply, OLD), (("revert", "gates"), NEW)):
        labels = steps_of(place, *command)  # to know them, and back again
        steps_of(place, *(("revert", "gates") if command == apply else apply))
        for number, label in enumerate(labels, 1):
            if not every and label not in FAST:
                continue
            ran = run_killed_at(number, *command, *place.options)
            assert ran.code == -9, (label, ran.err)
            place.run("recover")
            text = (place.site / ALLREDUCE).read_text()
            assert place.work() == [], (command, label)
            library, worked = place.build()
            assert not worked and (NEW in library.read_text()) == (NEW in text), (command, label)
            assert builds(place) == ["new", "old"], (command, label)
            if was not in text:  # it had been committed
                steps_of(place, *(("revert", "gates") if command == apply else apply))
        steps_of(place, *command)


def test_builds_that_a_measured_server_makes_first_come_back_at_every_swap(
    jitplace: JitPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a fresh host nothing is compiled when the transaction begins."""
    shutil.rmtree(jitplace.workspace)
    monkeypatch.setenv("HOME", str(jitplace.home))
    monkeypatch.setenv("PATH", os.defpath)  # the environment's own ninja is the only one
    site = open_site(str(jitplace.prefix), None, catalogue=Places(jitplace.catalogue))
    plan = plan_request(site, Request("apply", ("gates",)), "12.0")
    settings = settings_for(site, plan, "measure", restore="a", start="a", history=site.history())
    worked = []
    sides: tuple[Side, ...] = ("a", "b", "b", "a")
    with (
        site.state.lock("measure"),
        pytest.raises(ZeroDivisionError),
        transaction.begin(site.state, plan.files, settings) as tx,
    ):
        for side in sides:
            tx.swap(side)
            library, compiled = jitplace.build()
            worked.append(compiled)
            assert (NEW if side == "b" else OLD) in library.read_text()
        raise ZeroDivisionError  # as a rejection does, it brings upstream's content back
    assert worked == [True, True, False, False]
    assert jitplace.work() == []
