"""Declared compile checks, nvcc's command line for PTX, and how counts are compared."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from sm120patch import catalogue, versions
from sm120patch.compiling.module import arch_list
from sm120patch.compiling.proof import Proof, compile_commands, without_patch
from sm120patch.compiling.ptx import count_lines, normalised, ptx_command
from sm120patch.compiling.running import worst
from sm120patch.errors import HostError
from sm120patch.model import PtxCount
from tests.support import jit
from tests.unit.test_manifest import GOOD, changed, faults, parse

CHECK = """
[[compile]]
target = "flashinfer-python"
versions = ">=0.6,<0.7"
module = "trtllm_comm"
generator = "flashinfer.jit.comm:gen_trtllm_comm_module"
[[compile.ptx]]
change = "header"
source = "trtllm_allreduce.cu"
arch = "120a"
text = "griddepcontrol.wait"
before = 0
after = 918
[[compile.ptx]]
change = "header"
source = "trtllm_allreduce.cu"
arch = "90a"
text = "griddepcontrol.wait"
before = 918
after = 918
same = true
"""
DECLARED = GOOD + CHECK


def test_a_compile_check_is_read() -> None:
    (check,) = parse(DECLARED).compile
    assert (check.module, check.generator) == (
        "trtllm_comm",
        "flashinfer.jit.comm:gen_trtllm_comm_module",
    )
    gated, hopper = check.ptx
    assert (gated.arch, gated.before, gated.after, gated.same) == ("120a", 0, 918, False)
    assert hopper.same
    assert parse(GOOD).compile == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('generator = "flashinfer.', 'generator = "os.', "does not match"),
        ('comm:gen_trtllm_comm_module"', 'comm"', "does not match"),
        ('module = "trtllm_comm"', 'module = "../x"', "does not match"),
        ('source = "trtllm_allreduce.cu"', 'source = "../a.cu"', "does not match"),
        ('arch = "120a"', 'arch = "sm_120a"', "does not match"),
        ("after = 918\n[[", "after = 0\n[[", "shows nothing"),
        ("after = 918\nsame", "after = 919\nsame", "cannot be the same"),
        ("before = 0", "before = -1", "is not in"),
        ('[[compile.ptx]]\nchange = "header"', '[[compile.ptx]]\nchange = "no"', "no change of"),
        ('target = "flashinfer-python"\nversions = ">=0.6,<0.7"\nmodule',
         'target = "sglang"\nversions = ">=0.6,<0.7"\nmodule', "is none of"),
        ("same = true", "same = true\nextra = 1", "unknown key"),
    ],
)  # fmt: skip
def test_a_wrong_compile_check_is_a_fault(old: str, new: str, message: str) -> None:
    assert any(message in fault for fault in faults(changed(old, new, text=DECLARED)))


def test_two_checks_of_one_module_and_version_contradict_each_other() -> None:
    assert any("overlaps" in fault for fault in faults(DECLARED + CHECK))
    assert len(parse(DECLARED + CHECK.replace("trtllm_comm", "other")).compile) == 2


def test_every_shipped_check_lies_in_a_window_of_its_change() -> None:
    found = 0
    for name in (known := catalogue.load()).ids:
        patch_set = known.get(name)
        for check in patch_set.compile:
            assert check.ptx, name
            for count in check.ptx:
                change = patch_set.change(count.change)
                assert change is not None
                windows = [versions.parse(v.versions) for v in change.variants]
                low = check.versions.removeprefix(">=").partition(",")[0]
                assert any(versions.installed(low) in window for window in windows), name
                found += 1
    assert found >= 2


COMMAND = (
    "/cuda/bin/nvcc --generate-dependencies-with-compile --dependency-output a.o.d -ccbin g++"
    " -isystem /s/flashinfer/data/include -I/s/flashinfer/data/csrc -O3 --threads=1"
    " -gencode=arch=compute_120a,code=sm_120a -gencode arch=compute_90a,code=sm_90a -lineinfo"
    " -c /s/flashinfer/data/csrc/a.cu -o a.o"
)


def test_the_command_for_ptx_keeps_what_shapes_the_code() -> None:
    found = ptx_command(shlex.split(COMMAND), "120a", "a.ptx", {})
    assert shlex.join(found) == (
        "/cuda/bin/nvcc -ccbin g++ -isystem /s/flashinfer/data/include -I/s/flashinfer/data/csrc"
        " -O3 /s/flashinfer/data/csrc/a.cu --ptx -arch=compute_120a -o a.ptx"
    )


def test_the_side_without_the_patch_is_read_from_another_tree() -> None:
    places = {
        "/s/flashinfer/data/include": "/tmp/x/include",
        "/s/flashinfer/data/csrc": "/tmp/x/csrc",
        "/s/flashinfer/data/csrc/a.cu": "/tmp/x/csrc/a.cu",
    }
    found = shlex.join(ptx_command(shlex.split(COMMAND), "90a", "a.ptx", places))
    assert "/s/flashinfer" not in found
    assert "-isystem /tmp/x/include -I/tmp/x/csrc" in found and "/tmp/x/csrc/a.cu" in found


def test_only_trees_with_a_patched_file_are_copied(tmp_path: Path) -> None:
    header = tmp_path / "root/flashinfer/data/include/f/a.cuh"
    header.parent.mkdir(parents=True)
    header.write_text("patched")
    (header.parent / "b.cuh").write_text("b")
    upstream = {"flashinfer/data/include/f/a.cuh": b"upstream", "flashinfer/jit/x.py": b""}
    places = without_patch(tmp_path / "root", upstream, tmp_path / "scratch")
    copy = Path(places[str(tmp_path / "root/flashinfer/data/include")])
    assert (copy / "f/a.cuh").read_text() == "upstream" and (copy / "f/b.cuh").read_text() == "b"
    assert header.read_text() == "patched"
    assert all("include" in place for place in places)
    assert without_patch(tmp_path / "root", {}, tmp_path / "scratch") == {}


def test_lines_are_counted_and_hashed_names_do_not_matter() -> None:
    one = b"griddepcontrol.wait;\nmov _INTERNAL_0123abcd_x;\n  griddepcontrol.wait;\n"
    assert count_lines(one, "griddepcontrol.wait") == 2
    assert count_lines(b"", "x") == 0
    assert normalised(one) == normalised(one.replace(b"0123abcd", b"89abcdef"))
    assert normalised(one) != normalised(one.replace(b"mov", b"add"))


@pytest.mark.parametrize(
    ("before", "after", "same", "holds"),
    [(0, 918, False, True), (0, 917, False, False), (1, 918, False, False)],
)
def test_a_count_must_be_exactly_what_was_measured(
    before: int, after: int, same: bool, holds: bool
) -> None:
    count = PtxCount("c", "a.cu", "120a", "wait", 0, 918, same=False)
    proof = Proof(count, before, after, same)
    assert proof.holds is holds
    assert ("expected 0 -> 918" in str(proof)) is not holds


def test_equal_counts_are_not_equal_code() -> None:
    count = PtxCount("c", "a.cu", "90a", "wait", 918, 918, same=True)
    assert not Proof(count, 918, 918, same=False).holds
    assert Proof(count, 918, 918, same=True).holds


def test_the_architecture_is_spelled_as_this_flashinfer_finds_it(tmp_path: Path) -> None:
    assert arch_list(tmp_path, "12.0") == "12.0a"
    (tmp_path / "flashinfer").mkdir()
    (tmp_path / "flashinfer" / "compilation_context.py").write_text("def _normalize_cuda_arch(")
    assert arch_list(tmp_path, "12.0") == "12.0"


def test_the_commands_of_a_build_file_are_read_by_ninja(tmp_path: Path) -> None:
    (tmp_path / "build.ninja").write_text(
        "rule cc\n command = nvcc -DX='a b' -c $in -o $out\nbuild a.o: cc /src/a.cu\n"
    )
    commands = compile_commands(tmp_path, jit.ninja())
    assert commands == {"a.cu": ["nvcc", "-DX=a b", "-c", "/src/a.cu", "-o", "a.o"]}
    (tmp_path / "build.ninja").write_text("nonsense\n")
    with pytest.raises(HostError, match="cannot read the commands"):
        compile_commands(tmp_path, jit.ninja())


def test_the_lines_that_tell_why_a_compile_failed_come_first() -> None:
    lines = ["[1/2] nvcc -DERROR=1 -o a.o", "a.cu(3): error: no", "1 error detected"]
    assert worst(lines) == "a.cu(3): error: no\n1 error detected"
    assert worst(["killed"]) == "killed"
