"""An independent judge of the gates that keep SM120 off: plain `ast` and text over file contents.

It shares nothing with the code it judges. Python gates are judged by walking the gate with a fixed
answer to every question it asks ("is this SM120?" yes, "does the device do multicast?" no).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest.mock import MagicMock

OPEN, CLOSED, ABSENT = "open", "closed", "absent"

Read = Callable[[str], "bytes | None"]
"""Path in the installed tree -> content, None when the release lacks the file."""

COMMUNICATOR = "sglang/srt/layers/communicator.py"
ADD_NORM = "sglang/srt/layers/layer_boundary/residual/add_norm.py"
SERVER_ARGS = "sglang/srt/server_args.py"
OVERRIDES = "sglang/srt/arg_groups/overrides.py"
MODEL_RUNNER = "sglang/srt/model_executor/model_runner.py"
HELPERS = ("sglang/srt/utils/common.py", "sglang/srt/utils.py", "sglang/srt/layers/utils.py")
COMM_FUSION = "sglang/srt/layers/flashinfer_comm_fusion.py"
JIT_COMM = "flashinfer/jit/comm.py"
TRTLLM_AR = "flashinfer/comm/trtllm_ar.py"
MNNVL = "flashinfer/comm/mnnvl.py"
INCLUDE = "flashinfer/data/include/flashinfer/comm"


def judge(gate: str, data: bytes) -> str:
    """Say whether a gate is "open", "closed" or "absent" in the content of its file."""
    return GATES[gate][1](data)


def find(gate: str, read: Read) -> tuple[str, str] | None:
    """Say where the gate stands in a release and what it is; None when it has none."""
    for path in GATES[gate][0]:
        if (data := read(path)) is not None and (found := judge(gate, data)) != ABSENT:
            return path, found
    return None


# --- expressions under an assumption -------------------------------------------------------------

Answers = dict[str, bool]
"""Word -> what a question that mentions it answers; questions that mention none answer no."""


def truth(test: ast.expr, answers: Answers) -> bool:
    if isinstance(test, ast.BoolOp):
        combine = all if isinstance(test.op, ast.And) else any
        return combine(truth(v, answers) for v in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return not truth(test.operand, answers)
    if isinstance(test, ast.Compare) and ast.unparse(test.comparators[0]) in ("0", "False"):
        asked = truth(test.left, answers)
        return asked if isinstance(test.ops[0], ast.NotEq) else not asked
    text = ast.unparse(test).lower()
    return any(answer for word, answer in answers.items() if word in text)


def reached(block: Iterable[ast.stmt], word: str, answers: Answers) -> bool:
    """True when control comes to a simple statement that mentions `word`."""
    for statement in block:
        if isinstance(statement, ast.If):
            taken = statement.body if truth(statement.test, answers) else statement.orelse
            if word in ast.unparse(statement.test) or reached(taken, word, answers):
                return True
            if taken and isinstance(taken[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
                return False
        elif isinstance(statement, ast.For | ast.While | ast.With | ast.Try):
            if reached(statement.body, word, answers):
                return True
        elif word in ast.unparse(statement):
            return True
    return False


def ors_about(node: ast.AST, word: str) -> list[ast.BoolOp]:
    found = [n for n in ast.walk(node) if isinstance(n, ast.BoolOp) and isinstance(n.op, ast.Or)]
    return [n for n in found if word in ast.unparse(n) and "sm100" in ast.unparse(n)]


def lets_in(condition: ast.BoolOp, tree: ast.Module) -> bool:
    """SM120 passes, an unknown GPU does not, and every name of the condition exists."""
    asked = [sm for sm in ("sm90", "sm100") if sm in ast.unparse(condition)]
    return (
        truth(condition, {"sm120": True})
        and all(truth(condition, {sm: True}) for sm in asked)
        and not truth(condition, {})
        and named(condition, tree)
    )


def named(condition: ast.expr, tree: ast.Module) -> bool:
    """Every name of the condition exists, and asks what it says it asks."""
    names = {n.id for n in ast.walk(condition) if isinstance(n, ast.Name)}
    return all(exists(name, tree) and says_true(name, tree) for name in names)


def says_true(name: str, tree: ast.Module) -> bool:
    """A variable called after an architecture is bound to a question for that one."""
    sm = re.search(r"sm\d+", name)
    values = [
        ast.unparse(s.value)
        for s in tree.body
        if isinstance(s, ast.Assign) and name in map(ast.unparse, s.targets)
    ]
    return sm is None or all(set(re.findall(r"sm\d+", v)) == {sm[0]} for v in values)


def exists(name: str, tree: ast.Module) -> bool:
    """Imported, defined, or assigned at module level from names that exist."""
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            if any((a.asname or a.name) == name for a in statement.names):
                return True
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
            if statement.name == name:
                return True
        elif isinstance(statement, ast.Assign) and name in map(ast.unparse, statement.targets):
            used = [n for n in ast.walk(statement.value) if isinstance(n, ast.Name)]
            return all(exists(n.id, tree) for n in used if n.id != name)
    return False


def functions(tree: ast.AST, name: str) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]


def only(tree: ast.AST, name: str) -> ast.FunctionDef | None:
    found = functions(tree, name)
    assert len(found) <= 1, f"{name} is defined {len(found)} times"
    return found[0] if found else None


# --- SGLang --------------------------------------------------------------------------------------


def runtime_gate(data: bytes) -> str:
    """SG.A1: the condition under which a batch goes to the fused kernels."""
    tree = ast.parse(data)
    conditions = [c for c in gate_conditions(tree) if "_sm" in ast.unparse(c)]
    if not conditions:
        return ABSENT
    if len(conditions) != 1 or not isinstance(conditions[0], ast.BoolOp):
        return CLOSED
    asks = [o for o in conditions[0].values if "_sm" in ast.unparse(o)]
    if len(asks) != 1 or not isinstance(asks[0], ast.BoolOp):
        return CLOSED
    return OPEN if lets_in(asks[0], tree) else CLOSED


def gate_conditions(tree: ast.Module) -> Iterator[ast.expr]:
    """What a function of its own returns (from 0.5.8), or the `if` before the fused norm."""
    for name in ("apply_flashinfer_allreduce_fusion", "flashinfer_ar_fusion_applies"):
        if gate := only(tree, name):
            returns = [n for n in ast.walk(gate) if isinstance(n, ast.Return)]
            yield from (r.value for r in returns if r.value is not None)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and any(
            "layernorm.forward_with_allreduce_fusion(" in ast.unparse(s) for s in node.body
        ):
            yield node.test


def asks_before_fusing_the_mlp(data: bytes) -> str | None:
    """SG.A1b: what is asked about the architecture; None when nothing is fused there."""
    function = only(ast.parse(data), "should_fuse_mlp_allreduce_with_next_layer")
    if function is None:
        return None
    text = ast.unparse(function)
    assert not ARCHITECTURE.search(text)
    return "the runtime gate" if "apply_flashinfer_allreduce_fusion(" in text else "nothing"


def auto_enable(data: bytes) -> str:
    """SG.A2: the conditions on the way to the fusion being switched on.

    Where there are several, it is that which asks for SM90 too, else that for GPT-OSS.
    """
    tree = ast.parse(data)
    ways = [way for function in named_functions(tree) for way in switches(function.body, ())]
    for word in ("sm90", "GptOss"):
        if chosen := [way for way in ways if any(word in ast.unparse(t) for t in way)]:
            opened = all(
                possible(way, "sm120") and possible(way, "sm100") and not possible(way, "sm80")
                for way in chosen
            )
            return OPEN if opened and all(asked_right(w, tree) for w in chosen) else CLOSED
    return ABSENT


SWITCH = re.compile(
    r"enable_flashinfer_allreduce_fusion = True$"
    r"|flashinfer_allreduce_fusion_backend'?(:| =) ('auto'|backend)\}?$"
)
ARCHITECTURE = re.compile(r"sm\d+|blackwell")


def named_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name != "_handle_deprecated_args":
            yield node


def switches(block: Iterable[ast.stmt], way: tuple[ast.expr, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the conditions on the way to each switch below `block`."""
    for statement in block:
        if isinstance(statement, ast.If):
            yield from switches(statement.body, (*way, statement.test))
            yield from switches(statement.orelse, way)
        elif SWITCH.search(ast.unparse(statement)):
            yield way


def possible(way: Iterable[ast.expr], sm: str) -> bool:
    """No condition on the way says no to a GPU of that architecture."""
    return all(answer(test, sm) is not False for test in way)


def answer(test: ast.expr, sm: str) -> bool | None:
    """Three-valued: what is not about an architecture may be either."""
    if isinstance(test, ast.BoolOp):
        answers = [answer(v, sm) for v in test.values]
        decisive = isinstance(test.op, ast.Or)
        if decisive in answers:
            return decisive
        return None if None in answers else not decisive
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = answer(test.operand, sm)
        return None if inner is None else not inner
    asked = ARCHITECTURE.findall(ast.unparse(test).lower())
    if not asked or isinstance(test, ast.Compare):
        return None
    return sm in asked or ("blackwell" in asked and sm in ("sm100", "sm120"))


def asked_right(way: Iterable[ast.expr], tree: ast.Module) -> bool:
    parts = [n for test in way for n in ast.walk(test) if isinstance(n, ast.Call)]
    return all(named(n.func, tree) for n in parts if ARCHITECTURE.search(ast.unparse(n.func)))


def resolver(data: bytes) -> str:
    """SG.A3: the first refusal of `_resolve_backend`."""
    tree = ast.parse(data)
    resolve = only(tree, "_resolve_backend")
    if resolve is None:
        return ABSENT
    conditions = [c for c in ors_about(resolve, "sm90") if "backend" not in ast.unparse(c)]
    passes = not reached(resolve.body, "requires SM90", {"sm120": True})
    guarded = reached(resolve.body, "requires SM90", {})
    only_trtllm = not reached(resolve.body, "'mnnvl'", {"sm120": True, "backend == 'auto'": True})
    opened = len(conditions) == 1 and lets_in(conditions[0], tree)
    return OPEN if opened and passes and guarded and only_trtllm else CLOSED


def preflight(data: bytes) -> str:
    """SG.A4: the multicast granularity in the sizes of the preflight."""
    sizes = only(ast.parse(data), "_flashinfer_trtllm_workspace_allocation_sizes")
    if sizes is None:
        return ABSENT
    query, result = "cuMulticastGetGranularity(", "allocation_sizes.append("
    without = {"multicast": False}
    if reached(sizes.body, query, without) or not reached(sizes.body, result, without):
        return CLOSED
    asks = "CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED" in ast.unparse(sizes)
    still_rounds = reached(sizes.body, query, {"multicast": True})
    return OPEN if (asks and still_rounds) or query not in ast.unparse(sizes) else CLOSED


def helper(data: bytes) -> str:
    """SG.H1: `is_sm120_supported`, from 0.5.3rc2 in a module that is imported with a star."""
    tree = ast.parse(data)
    if only(tree, "is_sm100_supported") is None and b"is_sm100_supported = " not in data:
        return ABSENT
    if function := only(tree, "is_sm120_supported"):
        result, text = function.body[-1], ast.unparse(function)
        asks = "return torch.cuda.get_device_capability(device)[0] == 12 and "
        only_12 = re.findall(r"== (\d+)", text) == ["12"]
        return OPEN if ast.unparse(result).startswith(asks) and only_12 else CLOSED
    bound = {
        target: ast.unparse(s.value)
        for s in tree.body
        if isinstance(s, ast.Assign)
        for target in map(ast.unparse, s.targets)
    }
    exported = "is_sm120_supported" in bound.get("__all__", "is_sm120_supported")
    majors = re.search(r"majors=\[12\]", bound.get("is_sm120_supported", ""))
    return OPEN if exported and majors else CLOSED


def autotune_list(data: bytes) -> str:
    """SG.B1: the MoE backends that are tuned before the CUDA graphs are captured."""
    tree = ast.parse(data)
    names = ("_should_run_flashinfer_autotune", "should_run_flashinfer_autotune")
    found = [f for name in names for f in functions(tree, name)]
    lists = [
        ast.literal_eval(node.comparators[0])
        for function in found
        for node in ast.walk(function)
        if isinstance(node, ast.Compare)
        and isinstance(node.comparators[0], ast.List)
        and "flashinfer_mxfp4" in ast.unparse(node)
    ]
    if not lists:
        return ABSENT
    return OPEN if len(lists) == 1 and "flashinfer_cutlass" in lists[0] else CLOSED


# --- FlashInfer ----------------------------------------------------------------------------------


def header_gates(data: bytes) -> str:
    """FI.A1: `__CUDA_ARCH__ < 1200` in the legacy kernels."""
    text = data.decode()
    if not re.search(r"__CUDA_ARCH__ >= 900", text):
        return ABSENT
    return CLOSED if re.search(r"__CUDA_ARCH__\s*<\s*12\d\d", text) else OPEN


def jit_arch_list(data: bytes) -> str:
    """FI.A2: the architectures of `gen_trtllm_comm_module`, and of no other module."""
    tree = ast.parse(data)
    lists = {
        function.name: [ast.literal_eval(k.value) for k in keywords]
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        and (
            keywords := [
                k
                for n in ast.walk(function)
                if isinstance(n, ast.Call)
                for k in n.keywords
                if k.arg == "supported_major_versions"
            ]
        )
    }
    if not functions(tree, "gen_trtllm_comm_module"):
        return ABSENT
    gate = lists.pop("gen_trtllm_comm_module", None)
    if gate is None:
        return OPEN if flags_by_torch(tree) else CLOSED
    deliberate = [lists.get(n) for n in ("gen_mixed_comm_module", "gen_trtllm_mnnvl_comm_module")]
    untouched = all(v in (None, [[9, 10]]) for v in deliberate)
    return OPEN if untouched and gate == [[9, 10, 12]] else CLOSED


def flags_by_torch(tree: ast.Module) -> bool:
    """Without a list (0.2.9 to 0.3.0): SM120 gets `sm_120a`, SM100 and SM90 what they had."""
    sm100a = ["-gencode=arch=compute_100a,code=sm_100a", "-DFLASHINFER_ENABLE_FP4_E2M1"]

    def asked(arch: str) -> list[str]:
        spec = MagicMock()
        namespace = {
            "JitSpec": object,
            "_get_cuda_arch_flags": lambda: [f"-gencode=arch=compute_{arch},code=sm_{arch}"],
            "version_at_least": lambda version, least: True,
            "sm100a_nvcc_flags": sm100a,
            "gen_jit_spec": spec,
            "torch": MagicMock(),
            "jit_env": MagicMock(),
        }
        function = ast.Module(list(functions(tree, "gen_trtllm_comm_module")), [])
        exec(compile(function, "gen_trtllm_comm_module", "exec", dont_inherit=True), namespace)
        eval("gen_trtllm_comm_module()", namespace)
        (call,) = spec.call_args_list
        return list(call.kwargs["extra_cuda_cflags"])

    sm120a = "-gencode=arch=compute_120a,code=sm_120a"
    return (
        all(sum("arch" in flag for flag in asked(a)) == 1 for a in ("120", "120a"))
        and all(sm120a in asked(a) for a in ("120", "120a"))
        and "-DFLASHINFER_ENABLE_FP4_E2M1" in asked("120")
        and asked("100") == sm100a
        and asked("90") == asked("121") == []
    )


def without_fp4(header: bytes) -> bool:
    """FI.A2-J3b: a CUDA version that does not exist leaves out all that needs `sm_120a`."""
    start = header.find(b"#if CUDA_VERSION >= 120800\n")
    conversion = header.find(b"cvt.rn.satfinite.e2m1x2")
    return 0 <= start < conversion and b"CUDA_VERSION >= 12080\n" not in header


def cluster_clamp(data: bytes) -> str:
    """FI.A3: the cluster size of the fused kernel's launcher."""
    text = data.decode()
    start = text.find("allreduce_fusion_kernel_launcher(")
    if start < 0:
        return ABSENT
    launcher = text[start:]
    if re.search(r"SM >= 90\)\s*\{?\s*cluster_size = 8;", launcher):
        return CLOSED
    asks = re.search(r"GetMaxClusterSize\(|cudaOccupancyMaxPotentialClusterSize\(", text)
    return OPEN if asks and "max_cluster_size" in launcher else CLOSED


def multicast(data: bytes) -> str:
    """FI.A4-M1: `SymmDeviceMemory(enable_multicast=False)` on a device without multicast."""
    tree = ast.parse(data)
    found = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "SymmDeviceMemory"]
    if not found:
        return ABSENT
    init, sizes = only(found[0], "__init__"), only(found[0], "_get_allocation_prop")
    if init is None or sizes is None:
        return ABSENT
    raised, query = "does not support multicasting", "cuMulticastGetGranularity("
    off = {"enable_multicast": False, "multicast_supported": False}
    on = {"enable_multicast": True, "multicast_supported": False}
    attribute = "self._enable_multicast" not in ast.unparse(found[0]) or reached(
        init.body, "self._enable_multicast = enable_multicast", off
    )
    works = (
        not reached(init.body, raised, off)
        and not reached(sizes.body, query, off)
        and reached(sizes.body, "self.allocation_size =", off)
        and reached(sizes.body, "self._mc_granularity =", off)
        and attribute
    )
    as_before = reached(init.body, raised, on) and reached(sizes.body, query, on)
    return OPEN if works and as_before else CLOSED


GATES: dict[str, tuple[tuple[str, ...], Callable[[bytes], str]]] = {
    "SG.A1": ((ADD_NORM, COMMUNICATOR), runtime_gate),
    "SG.A2": ((OVERRIDES, SERVER_ARGS), auto_enable),
    "SG.A3": ((COMM_FUSION,), resolver),
    "SG.A4": ((COMM_FUSION,), preflight),
    "SG.B1": (
        (
            "sglang/srt/model_executor/runner/flashinfer_autotune.py",
            "sglang/srt/model_executor/runner/base_runner.py",
            MODEL_RUNNER,
        ),
        autotune_list,
    ),
    "SG.H1": (HELPERS, helper),
    "FI.A1": ((f"{INCLUDE}/trtllm_allreduce.cuh",), header_gates),
    "FI.A2": ((JIT_COMM, TRTLLM_AR), jit_arch_list),
    "FI.A3": ((f"{INCLUDE}/trtllm_allreduce_fusion.cuh",), cluster_clamp),
    "FI.A4-M1": ((MNNVL,), multicast),
}
"""Gate -> the files it may stand in, newest place first, and its judge."""


# --- what a module logs --------------------------------------------------------------------------


def messages(data: bytes, **values: str) -> dict[str, list[str]]:
    """Level -> texts that the module passes to its logger, with stand-ins in the placeholders."""
    said: dict[str, list[str]] = {"info": [], "warning": []}
    for node in ast.walk(ast.parse(data)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger."):
            level = ast.unparse(node.func).removeprefix("logger.")
            if node.args:
                said.setdefault(level, []).append(text_of(node.args[0], values))
    return said


def text_of(node: ast.expr, values: dict[str, str]) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part, values) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        name = ast.unparse(node.value).removeprefix("self.")
        return values.get(name, "x")
    return str(node.value) if isinstance(node, ast.Constant) else "x"
