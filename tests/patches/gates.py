"""An independent judge of the gates that keep SM120 off: plain `ast` and text over file contents.

It shares nothing with the code it judges. Python gates are judged by walking the gate with a fixed
answer to every question it asks ("is this SM120?" yes, "does the device do multicast?" no).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable

OPEN, CLOSED, ABSENT = "open", "closed", "absent"

COMMUNICATOR = "sglang/srt/layers/communicator.py"
COMM_FUSION = "sglang/srt/layers/flashinfer_comm_fusion.py"
JIT_COMM = "flashinfer/jit/comm.py"
MNNVL = "flashinfer/comm/mnnvl.py"
INCLUDE = "flashinfer/data/include/flashinfer/comm"


def judge(gate: str, data: bytes) -> str:
    """Say whether a gate is "open", "closed" or "absent" in the content of its file."""
    return GATES[gate][1](data)


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
    names = {n.id for n in ast.walk(condition) if isinstance(n, ast.Name)}
    return (
        truth(condition, {"sm120": True})
        and truth(condition, {"sm90": True})
        and truth(condition, {"sm100": True})
        and not truth(condition, {})
        and all(exists(name, tree) for name in names)
    )


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
    """SG.A1: the condition of `apply_flashinfer_allreduce_fusion`."""
    tree = ast.parse(data)
    gate = only(tree, "apply_flashinfer_allreduce_fusion")
    if gate is None or not (conditions := ors_about(gate, "sm90")):
        return ABSENT
    return OPEN if len(conditions) == 1 and lets_in(conditions[0], tree) else CLOSED


def auto_enable(data: bytes) -> str:
    """SG.A2: the `if` that leads to the fusion being switched on."""
    tree = ast.parse(data)
    switch = re.compile(
        r"enable_flashinfer_allreduce_fusion = True$"
        r"|flashinfer_allreduce_fusion_backend'?(:| =) 'auto'\}?$"
    )
    leading = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.If)
        and any(switch.search(ast.unparse(s)) for s in n.body)
        and "sm90" in ast.unparse(n.test)
    ]
    if not leading:
        return ABSENT
    conditions = [c for n in leading for c in ors_about(n.test, "sm90")]
    return OPEN if len(conditions) == 1 and lets_in(conditions[0], tree) else CLOSED


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
    """SG.H1: `is_sm120_supported` in `sglang/srt/utils/common.py`, exported by a star import."""
    tree = ast.parse(data)
    bound = {
        target: ast.unparse(s.value)
        for s in tree.body
        if isinstance(s, ast.Assign)
        for target in map(ast.unparse, s.targets)
    }
    exported = "is_sm120_supported" in bound.get("__all__", "is_sm120_supported")
    majors = re.search(r"majors=\[12\]", bound.get("is_sm120_supported", ""))
    return OPEN if exported and majors else CLOSED


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
    gate = lists.pop("gen_trtllm_comm_module", None)
    if gate is None:
        return ABSENT
    deliberate = [lists.get(n) for n in ("gen_mixed_comm_module", "gen_trtllm_mnnvl_comm_module")]
    untouched = all(v in (None, [[9, 10]]) for v in deliberate)
    return OPEN if untouched and gate == [[9, 10, 12]] else CLOSED


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


GATES: dict[str, tuple[str, Callable[[bytes], str]]] = {
    "SG.A1": (COMMUNICATOR, runtime_gate),
    "SG.A2": ("sglang/srt/server_args.py", auto_enable),
    "SG.A3": (COMM_FUSION, resolver),
    "SG.A4": (COMM_FUSION, preflight),
    "SG.H1": ("sglang/srt/utils/common.py", helper),
    "FI.A1": (f"{INCLUDE}/trtllm_allreduce.cuh", header_gates),
    "FI.A2": (JIT_COMM, jit_arch_list),
    "FI.A3": (f"{INCLUDE}/trtllm_allreduce_fusion.cuh", cluster_clamp),
    "FI.A4-M1": (MNNVL, multicast),
}
"""Gate -> its file and its judge. SG.A2 moved to `arg_groups/overrides.py` in 0.5.15."""
