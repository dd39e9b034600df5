"""What the published and the patched files do on a made-up GPU: parts of them, really executed.

Nothing of the engine is used. What a release means by "Blackwell" is taken from that release's own
`utils/common.py`, executed over a stand-in for torch, so that a judge also tells where a window
begins and ends. Names that a patched file imports must exist there, or the judge fails.
"""

from __future__ import annotations
import __future__

import ast
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

Names = dict[str, Any]


@dataclass(frozen=True)
class Gpu:
    capability: tuple[int, int]
    shared_memory: int
    """Bytes that one block may have."""
    cuda: str = "13.0"


SM89 = Gpu((8, 9), 101376)
SM90 = Gpu((9, 0), 232448)
SM100 = Gpu((10, 0), 232448)
SM120 = Gpu((12, 0), 101376)
SM121 = Gpu((12, 1), 101376)
GPUS = (SM89, SM90, SM100, SM120, SM121)


def torch_on(gpu: Gpu) -> Any:
    properties = SimpleNamespace(shared_memory_per_block_optin=gpu.shared_memory)
    cuda = SimpleNamespace(
        is_available=lambda: True,
        current_device=lambda: 0,
        get_device_capability=lambda *_: gpu.capability,
        get_device_properties=lambda *_: properties,
    )
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda=gpu.cuda, hip=None))


@functools.lru_cache(maxsize=8)
def parsed(data: bytes) -> ast.Module:
    return ast.parse(data)


def execute(data: bytes, wanted: Callable[[ast.stmt], bool], names: Names) -> Names:
    """Execute some top-level statements of a file among `names`; annotations stay text."""
    part = ast.Module([s for s in parsed(data).body if wanted(s)], type_ignores=[])
    exec(compile(part, "part", "exec", __future__.annotations.compiler_flag, True), names)
    return names


def binds(*wanted: str) -> Callable[[ast.stmt], bool]:
    def check(statement: ast.stmt) -> bool:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        names = {t.id for t in targets if isinstance(t, ast.Name)}
        return bool({*names, getattr(statement, "name", None)}.intersection(wanted))

    return check


def only(tree: ast.AST, name: str) -> ast.FunctionDef:
    (found,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]
    return found


def value(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    return eval(compile(ast.Expression(expression), "part", "eval"), dict(names))


def module_imports(tree: ast.AST, source: str, offered: Names) -> Names:
    """What the `from SOURCE import ...` statements below `tree` bring in, of what is offered."""
    wanted = [
        alias.name
        for n in ast.walk(tree)
        if isinstance(n, ast.ImportFrom) and n.module == source
        for alias in n.names
    ]
    return {name: offered[name] for name in wanted if name in offered}


PREDICATES = (
    "_check_cuda_device_version", "is_blackwell", "is_blackwell_supported", "is_sm90_supported",
    "is_sm100_supported", "is_sm120_supported", "is_sm120", "is_sm121",
)  # fmt: skip


def predicates(common: bytes, gpu: Gpu) -> Names:
    """The questions about the GPU that a release knows, as its `utils/common.py` answers them."""
    names: Names = {
        "torch": torch_on(gpu),
        "lru_cache": functools.lru_cache,
        "functools": functools,
        "partial": functools.partial,
        "is_cuda": lambda: True,
        "is_cuda_alike": lambda: True,
        "is_hip": lambda: False,
        "is_musa": lambda: False,
        "is_npu": lambda: False,
        "get_device_sm": lambda: gpu.capability[0] * 10 + gpu.capability[1],
    }
    return execute(common, binds(*PREDICATES), names)


# --- b12x-fp4-gemm -------------------------------------------------------------------------------


def fp4_backends(data: bytes) -> type[Enum]:
    enum: type[Enum] = execute(data, binds("Fp4GemmRunnerBackend"), {"Enum": Enum})[
        "Fp4GemmRunnerBackend"
    ]
    return enum


def fp4_auto(data: bytes, gpu: Gpu) -> str:
    """The backend that `auto` resolves to."""
    kernel = SimpleNamespace(fp4_gemm_runner_backend="auto")
    names: Names = {
        "get_exec": lambda: SimpleNamespace(kernel=kernel),
        "get_platform": lambda: SimpleNamespace(is_sm100=gpu.capability[0] == 10),
        "is_cuda": lambda: True,
        "get_device_capability": lambda: gpu.capability,
        "Fp4GemmRunnerBackend": fp4_backends(data),
    }
    execute(data, binds("initialize_fp4_gemm_config"), names)["initialize_fp4_gemm_config"]()
    return str(names["FP4_GEMM_RUNNER_BACKEND"].value)


def fp4_choices(data: bytes) -> list[str]:
    bound = binds("FP4_GEMM_RUNNER_BACKEND_CHOICES")
    (found,) = [s for s in parsed(data).body if isinstance(s, ast.Assign) and bound(s)]
    choices: list[str] = ast.literal_eval(found.value)
    return choices


def fp4_tunes(data: bytes, backend: Enum) -> bool:
    """Whether the autotuner runs for the linear layers of an NVFP4 model with that backend."""
    (found,) = [
        n
        for n in ast.walk(only(parsed(data), "should_run_flashinfer_autotune"))
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "fp4_gemm_needs_autotune"
    ]
    names = {"model_uses_fp4": True, "get_fp4_gemm_runner_backend": lambda: backend}
    return bool(value(found.value, names))


# --- shared memory -------------------------------------------------------------------------------


def shared_bytes(config: Mapping[str, int], element: int) -> int:
    """What Triton keeps of both operands in shared memory: `num_stages - 1` copies of a tile."""
    rows = config["BLOCK_SIZE_M"] + config["BLOCK_SIZE_N"]
    return (config["num_stages"] - 1) * rows * config["BLOCK_SIZE_K"] * element


def inkling_tiles(data: bytes, common: bytes, gpu: Gpu) -> dict[int, int]:
    """Rows of a tile -> bytes of shared memory that its launch in bf16 takes."""
    tree = parsed(data)
    names: Names = {"torch": SimpleNamespace(float32="f32"), "a": SimpleNamespace(dtype="bf16")}
    names |= module_imports(tree, "sglang.srt.utils.common", predicates(common, gpu))
    execute(data, binds("SMALL_M_BLOCK_SIZE_M", "BLOCK_SIZE_M"), names)
    configs = [
        value(n.value, names)
        for n in ast.walk(only(tree, "grouped_gemm_triton"))
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Dict)
    ]
    return {config["BLOCK_SIZE_M"]: shared_bytes(config, 2) for config in configs}


def fp8_default(data: bytes, gpu: Gpu | None, tokens: int) -> dict[str, int]:
    """The configuration for FP8 with a scale per tensor, 128 experts; None is a HIP GPU."""
    quiet = SimpleNamespace(enable_deterministic_inference=False)
    names: Names = {
        "torch": torch_on(gpu or SM120),
        "functools": functools,
        "_is_hip": gpu is None,
        "get_global_server_args": lambda: quiet,
    }
    parts = (
        "get_default_config", "_has_low_shared_memory", "_use_low_smem_fp8_default",
        "_get_cuda_shared_memory_per_block_optin", "_LOW_SMEM_FP8_DEFAULT_CUTOFF_BYTES",
    )  # fmt: skip
    execute(data, binds(*parts), names)
    config: dict[str, int] = names["get_default_config"](
        tokens, 128, 704, 2816, 8, "fp8_w8a8", False, None
    )
    return config


# --- gates and flags -----------------------------------------------------------------------------


def gdn_admits(data: bytes, common: bytes, gpu: Gpu, backend: str) -> bool:
    """Whether a hybrid GDN model starts with that attention backend."""
    wrapper = only(parsed(data), "attn_backend_wrapper")
    names = module_imports(wrapper, "sglang.srt.utils", predicates(common, gpu))
    names["runner"] = SimpleNamespace(server_args=SimpleNamespace(attention_backend=backend))
    (gate,) = [
        n
        for n in ast.walk(wrapper)
        if isinstance(n, ast.If) and ast.unparse(n.test) == "is_blackwell()"
    ]
    (claim,) = [s for s in gate.body if isinstance(s, ast.Assert)]
    return not value(gate.test, names) or bool(value(claim.test, names))


def jit_target(data: bytes, gpu: Gpu, *, hip: bool = False) -> str:
    """The architecture that SGLang compiles its own kernels for."""
    names: Names = {
        "torch": torch_on(gpu),
        "dataclass": dataclass,
        "cache_once": lambda function: function,
        "is_hip_runtime": lambda: hip,
        "is_musa_runtime": lambda: False,
        "get_cuda_version": lambda: tuple(map(int, gpu.cuda.split("."))),
    }
    execute(data, binds("ArchInfo", "_init_jit_cuda_arch_once", "_cuda_arch_suffix"), names)
    names["_init_jit_cuda_arch_once"]()
    target: str = names["_CUDA_ARCH"].target_name
    return target


def scales_are_ue8m0(data: bytes, common: bytes, gpu: Gpu, *, deep_gemm: bool = True) -> bool:
    """`DEEPGEMM_SCALE_UE8M0`, by executing the whole of `configurer.py`."""
    known = predicates(common, gpu)
    switch = SimpleNamespace(get=lambda: deep_gemm)
    platform = SimpleNamespace(is_sm100=gpu.capability[0] == 10)
    kernels = dict.fromkeys(
        ("m_grouped_fp8_fp4_gemm_nt_contiguous", "fp8_einsum", "transform_sf_into_required_layout"),
        print,
    )
    stubs = {
        "sglang": {},
        "sglang.srt": {},
        "sglang.srt.environ": {"envs": SimpleNamespace(SGLANG_ENABLE_JIT_DEEPGEMM=switch)},
        "sglang.srt.utils": known,
        "sglang.srt.runtime_context": {"get_platform": lambda: platform},
        "deep_gemm": kernels,
    }
    modules = {}
    for name, content in stubs.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(content)
    names: Names = {"__name__": "configurer"}
    with mock.patch.dict(sys.modules, modules):
        execute(data, lambda _: True, names)
    return bool(names["DEEPGEMM_SCALE_UE8M0"])


class _Quiet(dict[str, Any]):
    """Names for a condition: a question that nobody asked about answers no."""

    def __missing__(self, name: str) -> Callable[..., bool]:
        return lambda *_, **__: False


def fuses_by_itself(data: bytes, common: bytes, gpu: Gpu, model: str) -> bool:
    """Whether the fused all-reduce is switched on for a model on one node, by its conditions."""
    method = only(parsed(data), _adjusting(data))
    arguments = SimpleNamespace(
        enable_flashinfer_allreduce_fusion=False,
        enable_dp_attention=False,
        nnodes=1,
        moe_a2a_backend="none",
    )
    known = predicates(common, gpu)
    names = _Quiet(module_imports(parsed(data), "sglang.srt.utils.common", known))
    names.update(self=arguments, model_arch=model, is_h20_device=False, hf_config=None)
    return any(
        all(
            bool(eval(compile(ast.Expression(t), "if", "eval"), {}, names)) is way
            for t, way in path
        )
        for path in _paths(method.body, "self.enable_flashinfer_allreduce_fusion = True")
    )


def _adjusting(data: bytes) -> str:
    name = "_handle_model_specific_adjustments"
    return name if name.encode() in data else "model_specific_adjustments"


def _paths(body: list[ast.stmt], statement: str) -> Iterator[list[tuple[ast.expr, bool]]]:
    """The conditions, and the answers they must have, that lead to each such statement."""
    for node in body:
        if isinstance(node, ast.If):
            for way, block in ((True, node.body), (False, node.orelse)):
                yield from ([(node.test, way), *rest] for rest in _paths(block, statement))
        elif ast.unparse(node) == statement:
            yield []


def in_family(data: bytes, gpu: Gpu) -> bool:
    """FlashInfer's `is_sm120f_supported`."""
    names: Names = {
        "torch": torch_on(gpu),
        "get_compute_capability": lambda device: gpu.capability,
        "version_at_least": lambda found, wanted: (
            tuple(map(int, found.split("."))) >= tuple(map(int, wanted.split(".")))
        ),
    }
    return bool(execute(data, binds("is_sm120f_supported"), names)["is_sm120f_supported"]("cuda"))
