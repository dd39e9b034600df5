"""The mirror image of SM120's gates on real packages, and the sets that lift it, without a GPU.

What is judged are functions of the packages, executed with the GPU's answers in place of a GPU.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.command import Ran, run
from tests.support.environments import real_environment, tree_digest

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "gpu"
SET = "rehearsal-allreduce-fusion"
HOPPER = {"sm90": True, "sm100": False, "sm120": False}
BLACKWELL_BOARD = {"sm90": False, "sm100": False, "sm120": True}


@pytest.fixture(scope="module")
def rehearsal() -> Iterator[ModuleType]:
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield importlib.import_module("rehearsal")
    finally:
        sys.path.remove(str(SCRIPTS))


class Copy:
    """A gated copy of the real packages in an environment of its own, with its sets."""

    def __init__(self, root: Path, rehearsal: ModuleType) -> None:
        self.root = root
        self.prefix = root / "env"
        pair = rehearsal.RELEASES
        self.site = real_environment(self.prefix, pair["sglang"], pair["flashinfer-python"])
        self.published = {name: (self.site / name).read_text() for name in rehearsal.GATES}
        rehearsal.write_catalogue(root / "catalogue")

    def run(self, *words: str) -> Ran:
        return run(*words, "--env", str(self.prefix), "--extra-catalogue",
                   str(self.root / "catalogue"), "--output", "json", cwd=self.root)  # fmt: skip

    def text(self, path: str) -> str:
        return (self.site / path).read_text()

    def digests(self) -> dict[str, str]:
        names = ("sglang", "flashinfer")
        return {f"{n}/{p}": d for n in names for p, d in tree_digest(self.site / n).items()}


# --- functions of the packages, with the answers of a GPU --------------------------------------


def function(text: str, name: str) -> ast.FunctionDef:
    found = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    (node,) = [n for n in found if n.name == name]
    return node


def answers(gpu: dict[str, bool]) -> dict[str, Any]:
    called = {
        f"is_{name}_supported": (lambda answer=answer: answer) for name, answer in gpu.items()
    }
    return called | {f"_is_{name}_supported": answer for name, answer in gpu.items()}


def made(text: str, name: str, **known: Any) -> Callable[..., Any]:
    node = function(text, name)
    node.decorator_list = []
    node.returns = None
    for argument in node.args.args:
        argument.annotation = None
    space: dict[str, Any] = dict(known)
    exec(compile(ast.Module([node], []), name, "exec"), space)
    made_function: Callable[..., Any] = space[name]
    return made_function


def runtime_gate(text: str, gpu: dict[str, bool]) -> bool:
    arguments = SimpleNamespace(flashinfer_allreduce_fusion_backend="trtllm")
    gate = made(
        text, "apply_flashinfer_allreduce_fusion", **answers(gpu),
        _is_flashinfer_available=True, FUSE_ALLREDUCE_MAX_BATCH_SIZE=2048,
        is_dp_attention_enabled=lambda: False, get_global_server_args=lambda: arguments,
        is_flashinfer_allreduce_unavailable=lambda: False,
    )  # fmt: skip
    return bool(gate(8))


def resolver(text: str, gpu: dict[str, bool], backend: str = "auto") -> str | None:
    resolve = made(text, "_resolve_backend", **answers(gpu), _mnnvl_supported=lambda _many: False)
    try:
        return str(resolve(backend))
    except ValueError:
        return None


def auto_enabled(text: str, gpu: dict[str, bool]) -> bool:
    view = SimpleNamespace(
        get_model_config=lambda: SimpleNamespace(hf_config=SimpleNamespace(architectures=["X"])),
        flashinfer_allreduce_fusion_backend=None, tp_size=2, enable_dp_attention=False, nnodes=1,
        moe_a2a_backend="none",
    )  # fmt: skip
    enable = made(
        text, "_flashinfer_allreduce_fusion_auto_enable", **answers(gpu),
        _FLASHINFER_ALLREDUCE_FUSION_ARCHS={"X"}, logger=SimpleNamespace(info=lambda _text: None),
        Any=object,
    )  # fmt: skip
    return bool(enable(view))


def supported_majors(text: str) -> list[int]:
    node = function(text, "gen_trtllm_comm_module")
    (found,) = [k.value for k in ast.walk(node) if isinstance(k, ast.keyword)
                and k.arg == "supported_major_versions"]  # fmt: skip
    listed: list[int] = ast.literal_eval(found)
    return listed


class Driver:
    """As much of the CUDA driver's bindings as the preflight of the workspace asks."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_NOT_SUPPORTED=801)
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED=1)
    CUmulticastGranularity_flags = SimpleNamespace(CU_MULTICAST_GRANULARITY_RECOMMENDED=1)
    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED=132)
    CUmulticastObjectProp = SimpleNamespace

    def cuMemGetAllocationGranularity(self, *_a: Any) -> tuple[int, int]:  # noqa: N802 - its name there
        return 0, 1 << 21

    def cuMulticastGetGranularity(self, *_a: Any) -> tuple[int, int]:  # noqa: N802 - its name there
        return 0, 1 << 21

    def cuMulticastCreate(self, *_a: Any) -> tuple[int, int]:  # noqa: N802 - its name there
        raise AssertionError("a multicast object was asked for")

    def cuDeviceGetAttribute(self, *_a: Any) -> tuple[int, int]:  # noqa: N802 - its name there
        return 0, 1


def bindings(common: str) -> Any:
    """What `get_cuda_driver_bindings` of the copy hands out, around the driver above."""
    tree = ast.parse(common)
    (node,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name[0] == "_"
               and "Multicast" in n.name]  # fmt: skip
    space: dict[str, Any] = {}
    exec(compile(ast.Module([node], []), "driver", "exec"), space)
    return space[node.name](Driver())


def preflight(text: str, driver: Any) -> bool:
    """Tell whether sizes are found: without them every rank votes for leaving the fusion out."""
    sizes = made(text, "_flashinfer_trtllm_workspace_allocation_sizes",
                 ceil_align=lambda size, unit: -(-size // unit) * unit,
                 torch=SimpleNamespace(dtype=object, float32=object()), list=list)  # fmt: skip
    place = SimpleNamespace(requestedHandleTypes=1, location=SimpleNamespace(id=0))
    try:
        return len(sizes(driver, place, 2, 2048, 2048, None)) == 3
    except RuntimeError:
        return False


# --- the tests ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, rehearsal: ModuleType) -> Copy:
    return Copy(tmp_path_factory.mktemp("copy"), rehearsal)


@pytest.mark.slow
@pytest.mark.network
def test_hopper_meets_the_gates_of_sm120_and_the_sets_lift_them(
    copy: Copy, rehearsal: ModuleType
) -> None:
    # Released packages refuse the rehearsal, whatever the GPU is said to be.
    refused = copy.run("apply", SET, "--gpu", "9.0", "--no-verify")
    assert (refused.code, refused.json["errors"][0]["code"]) == (4, "not-applicable")
    assert "made for a rehearsal" in refused.json["errors"][0]["message"]

    rehearsal.gate(copy.site)
    gated = copy.digests()
    assert copy.run("audit").result["findings"] == []
    for path, text in copy.published.items():
        assert_mirror(rehearsal, path, text, copy.text(path))

    staged = copy.run("apply", SET, "--gpu", "9.0", "--no-verify", "--allow-running")
    assert staged.code == 0, staged.out
    assert_lifted(rehearsal, copy)

    reverted = copy.run("revert", "--all", "--allow-running")
    assert reverted.code == 0, reverted.out
    assert copy.digests() == gated


def assert_mirror(rehearsal: ModuleType, path: str, published: str, copy: str) -> None:
    """What SM120 gets from the published file, SM90 gets from the copy, and the reverse."""
    judges: dict[str, Callable[[str, dict[str, bool]], object]] = {
        rehearsal.COMMUNICATOR: runtime_gate,
        rehearsal.FUSION: resolver,
        rehearsal.OVERRIDES: auto_enabled,
    }
    if path in judges:
        judge = judges[path]
        assert judge(published, HOPPER)
        assert not judge(copy, HOPPER)
        assert judge(copy, BLACKWELL_BOARD) == judge(published, HOPPER)
        assert not judge(published, BLACKWELL_BOARD)
    elif path == rehearsal.JIT:
        assert (supported_majors(published), supported_majors(copy)) == ([9, 10], [12, 10])
    elif path == rehearsal.COMMON:
        assert bindings(copy).cuMulticastGetGranularity(None, 1)[0] == 801
        assert bindings(copy).cuMulticastCreate(None) == (801, None)
    else:
        assert copy.count("(__CUDA_ARCH__ < 900)") == 13
        assert copy.replace("(__CUDA_ARCH__ < 900)", "(__CUDA_ARCH__ < 1200)") == published


def assert_lifted(rehearsal: ModuleType, copy: Copy) -> None:
    assert runtime_gate(copy.text(rehearsal.COMMUNICATOR), HOPPER)
    fusion = copy.text(rehearsal.FUSION)
    assert resolver(fusion, HOPPER) == resolver(fusion, HOPPER, "trtllm") == "trtllm"
    assert resolver(fusion, HOPPER, "mnnvl") is None
    driver = bindings(copy.text(rehearsal.COMMON))
    assert preflight(fusion, driver)
    assert not preflight(copy.published[rehearsal.FUSION], driver)
    assert preflight(copy.published[rehearsal.FUSION], Driver())
    assert supported_majors(copy.text(rehearsal.JIT)) == [12, 10, 9]
    assert "(__CUDA_ARCH__ < 900)" not in copy.text(rehearsal.HEADER)
    # Nothing switches it on by itself: that change is optional, and upstream withdrew it.
    assert not auto_enabled(copy.text(rehearsal.OVERRIDES), HOPPER)


def test_the_mirror_exchanges_two_architectures_and_nothing_else(rehearsal: ModuleType) -> None:
    text = "from sm120patch import x\n_is_sm90_supported or _is_sm100_supported or is_sm120_ok"
    seen = rehearsal.mirrored(text)
    assert (
        seen == "from sm120patch import x\n_is_sm120_supported or _is_sm100_supported or is_sm90_ok"
    )
    assert rehearsal.mirrored(seen) == text
    assert (
        rehearsal.mirrored_lists("[9, 10] 12 129 sm_90a 0.9.12") == "[12, 10] 9 129 sm_90a 0.9.12"
    )


def test_the_mirrored_sets_are_the_shipped_ones(tmp_path: Path, rehearsal: ModuleType) -> None:
    from sm120patch import catalogue

    names = rehearsal.write_catalogue(tmp_path)
    shipped = catalogue.load()
    known = catalogue.load(catalogue.Places(None, (tmp_path,)))
    for name in names:
        mine, real = known.get(name), shipped.get(name.removeprefix(rehearsal.PREFIX))
        assert mine.rehearsal
        assert mine.compute_capability == ("9.0",)
        assert mine.verification == real.verification
        assert mine.title.startswith("REHEARSAL")
        wanted = {c.id for c in real.changes if not c.optional}
        assert {c.id for c in mine.changes} <= wanted
    (check,) = known.get("rehearsal-allreduce-arch-gate").compile
    (proof,) = check.ptx
    assert (proof.arch, proof.before, proof.after, proof.same) == ("90a", 0, 918, False)
    launch = known.get(SET).launch
    assert [o.args for o in launch] == [("--flashinfer-allreduce-fusion-backend", "trtllm")]
    assert "backend=trtllm" in (known.get(SET).engagement[0].log or "")


def test_a_copy_keeps_what_it_shares(tmp_path: Path, rehearsal: ModuleType) -> None:
    shared = tmp_path / "shared.py"
    shared.write_text("gate = 1\n")
    mine = tmp_path / "mine.py"
    mine.hardlink_to(shared)
    rehearsal._rewrite(mine, lambda text: text.replace("1", "2"))
    assert (shared.read_text(), mine.read_text()) == ("gate = 1\n", "gate = 2\n")
    with pytest.raises(ValueError, match="would not change"):
        rehearsal._rewrite(mine, lambda text: text)


def test_the_scripts_say_how_they_are_used() -> None:
    for name, words in (("go.py", ["start", "--help"]), ("rehearsal.py", [])):
        done = subprocess.run(
            [sys.executable, str(SCRIPTS / name), *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "usage" in done.stdout.lower() or "python rehearsal.py" in done.stderr
