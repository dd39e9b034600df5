"""Cases 40 to 47: compiled forms of code that is no longer, or not yet, what is on disk."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.support import jit
from tests.support.catalogue import A
from tests.support.field import LINES, Field
from tests.support.jit import ALLREDUCE
from tests.support.jitplace import NEW, OLD, JitPlace
from tests.support.place import refused


def test_case_40_bytecode_of_the_same_size_and_second(field: Field) -> None:
    field.diff_set("edit", LINES, LINES.replace("line_20 = 20", "line_20 = 99"), present="= 99")
    field.ship({A: LINES.encode()})

    def value() -> str:
        words = [field.prefix / "bin/python3", "-c", "from sglang.a import line_20 as x; print(x)"]
        environ = {"PATH": os.environ["PATH"]}  # whoever forbids bytecode has none to be stale
        return subprocess.check_output(words, text=True, env=environ).strip()

    now = int((field.site / A).stat().st_mtime) + 2  # what an installer in the same second leaves
    os.utime(field.site / A, (now, now))
    assert value() == "20" and list((field.site / "sglang/__pycache__").glob("a.*.pyc"))
    field.stage("edit")
    assert (field.site / A).stat().st_size == len(LINES), "the size says nothing"
    assert value() == "99"
    field.done("revert", "edit")
    assert (field.site / A).stat().st_mtime == now and value() == "20"


def test_case_42_a_build_after_the_apply_holds_the_patch(jitplace: JitPlace) -> None:
    jitplace.build()
    jitplace.apply("gates")
    library, worked = jitplace.build()
    assert worked and NEW in library.read_text() and OLD not in library.read_text()


def test_case_43_the_old_time_of_a_reverted_header_keeps_no_patched_build(
    jitplace: JitPlace,
) -> None:
    header = jitplace.site / ALLREDUCE
    before = header.stat().st_mtime_ns
    library, _worked = jitplace.build()
    upstream = library.read_bytes()
    jitplace.apply("gates")
    jitplace.build()
    jitplace.done("revert", "gates")
    assert header.stat().st_mtime_ns == before, "ninja alone would see nothing to do"
    library, worked = jitplace.build()
    assert library.read_bytes() == upstream and not worked, "and it came back without a compile"


def test_case_44_a_prebuilt_module_would_win(jitplace: JitPlace) -> None:
    prebuilt = jitplace.site / "flashinfer_jit_cache/jit_cache/trtllm_comm/trtllm_comm.so"
    prebuilt.parent.mkdir(parents=True)
    prebuilt.write_bytes(b"prebuilt")
    ran = jitplace.run("apply", "gates", "--no-verify", "--gpu", "12.0")
    error = refused(ran, 5, str(prebuilt))
    assert error["code"] == "no-effect"
    assert not (jitplace.prefix / ".sm120patch").exists()
    assert OLD in (jitplace.site / ALLREDUCE).read_text()


def test_case_45_the_modules_of_sglang_follow_and_other_caches_are_left_alone(
    jitplace: JitPlace,
) -> None:
    triton = jitplace.home / ".triton/cache/KEY/kernel.cubin"
    inductor = jitplace.home / ".cache/sglang/torch_compile_cache/HASH/code.py"
    tactics = jitplace.home / ".cache/sglang/flashinfer/autotune/0.6.3/sm120/rank_0.json"
    for path in (triton, inductor, tactics):
        path.parent.mkdir(parents=True)
        path.write_text("kept")
    before = {p: p.stat().st_ino for p in (triton, inductor)}
    jitplace.apply("gates")
    assert tactics.exists(), "this change has nothing to do with tactics"
    jitplace.apply("tuned")
    assert not tactics.exists(), "measured without the patch"
    assert {p: p.stat().st_ino for p in (triton, inductor)} == before, "they hash their sources"
    jitplace.done("revert", "tuned")
    assert tactics.read_text() == "kept"


def test_case_46_a_workspace_that_was_moved_is_found(tmp_path: Path, jitplace: JitPlace) -> None:
    moved = tmp_path / "volume"
    workspace = moved / ".cache" / "flashinfer"
    workspace.parent.mkdir(parents=True)
    jit.build(jitplace.workspace, jitplace.site, "trtllm_comm")
    shutil.move(jitplace.workspace, workspace)
    place = {"FLASHINFER_WORKSPACE_BASE": str(moved)}
    jitplace.apply("gates", **place)
    library, _worked = jit.build(workspace, jitplace.site, "trtllm_comm")
    assert NEW in library.read_text() and OLD not in library.read_text()
    jitplace.done("revert", "gates", **place)
    library, _worked = jit.build(workspace, jitplace.site, "trtllm_comm")
    assert OLD in library.read_text() and NEW not in library.read_text()


HOLD = """
import mmap, sys
with open(sys.argv[1], "rb") as stream:
    held = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
print("up", flush=True)
sys.stdin.read()
"""


def test_case_47_a_live_server_holds_the_build(jitplace: JitPlace) -> None:
    library, _worked = jitplace.build()
    words = [jitplace.prefix / "bin/python3", "-c", HOLD, library]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stdout.readline()
        ran = jitplace.run("apply", "gates", "--no-verify", "--gpu", "12.0")
        refused(ran, 9, f"pid {server.pid}")
        assert OLD in (jitplace.site / ALLREDUCE).read_text()
        jitplace.apply("gates", "--allow-running")
        assert server.poll() is None, "it is not ours to stop"
        shown = [line for line in str(jitplace.run("caches").out).splitlines() if "pid" in line]
        assert any(str(server.pid) in line for line in shown), "it needs a restart"
        server.communicate(b"")
