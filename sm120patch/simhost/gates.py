"""Is the patched code in place? Looks at the target's files itself, by syntax tree.

Reads the target's site-packages only. Deliberately independent of catalogue, ledger and edit
engines, so that a mistake there cannot hide here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_COMMUNICATOR = "sglang/srt/layers/communicator.py"
_ADD_NORM = "sglang/srt/layers/layer_boundary/residual/add_norm.py"
_FUSION = "sglang/srt/layers/flashinfer_comm_fusion.py"
_JIT = "flashinfer/jit/comm.py"
_JIT_BEFORE_0_4 = "flashinfer/comm/trtllm_ar.py"
_FUSED = "flashinfer/data/include/flashinfer/comm/trtllm_allreduce_fusion.cuh"
_MNNVL = "flashinfer/comm/mnnvl.py"


@dataclass(frozen=True)
class Gate:
    """One condition that keeps SM120 out of the all-reduce fusion."""

    name: str
    open: bool
    reason: str


@dataclass(frozen=True)
class Sight:
    """What was found in the environment."""

    sglang: str | None
    flashinfer: str | None
    gates: tuple[Gate, ...]

    @property
    def patched(self) -> bool:
        """True when every gate that exists in these versions is open."""
        return bool(self.gates) and all(gate.open for gate in self.gates)

    @property
    def closed(self) -> list[str]:
        """Gates that keep the feature off, with the reason."""
        return [f"{gate.name}: {gate.reason}" for gate in self.gates if not gate.open]


def look(prefix: Path) -> Sight:
    """Look at the packages under an environment prefix."""
    sglang = _package(prefix, "sglang")
    flashinfer = _package(prefix, "flashinfer")
    gates = (
        _gate("runtime gate", sglang, _runtime_gate),
        _gate("workspace preflight", sglang, _preflight),
        _gate("backend resolver", sglang, _resolver),
        _gate("JIT architecture list", flashinfer, _arch_list),
        _gate("multicast requirement", flashinfer, lambda root: _multicast(root, sglang)),
    )
    return Sight(
        sglang=_version(sglang, "sglang"),
        flashinfer=_version(flashinfer, "flashinfer_python"),
        gates=tuple(gate for gate in gates if gate is not None),
    )


_Finding = tuple[bool, str] | None


def _gate(name: str, root: Path | None, test: Callable[[Path], _Finding]) -> Gate | None:
    if root is None:
        return Gate(name, False, "the package is not installed")
    try:
        finding = test(root)
    except (SyntaxError, ValueError, RecursionError) as error:
        return Gate(name, False, f"the file does not parse: {error}")
    return None if finding is None else Gate(name, *finding)


def _runtime_gate(root: Path) -> _Finding:
    path = next((root / p for p in (_COMMUNICATOR, _ADD_NORM) if (root / p).is_file()), None)
    if path is None:
        return False, "neither communicator.py nor add_norm.py is there"
    tree = _parse(path)
    names = (
        "apply_flashinfer_allreduce_fusion",
        "flashinfer_ar_fusion_applies",
        "_gather_hidden_states_and_residual",
    )
    function = next((f for name in names for f in _functions(tree, name)), None)
    if function is None:
        return False, "the gate's function is not there"
    used = [name for name in _names(function) if "sm120" in name]
    if not used:
        return False, "the condition does not name SM120"
    if used[0].startswith("is_"):
        return _imported(tree, used[0])
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and used[0] in
                {t.id for t in node.targets if isinstance(t, ast.Name)}]  # fmt: skip
    if not assigned:
        return False, f"{used[0]} is used but never assigned: a NameError at the first forward"
    helpers = [name for name in _names(assigned[-1].value) if "sm120" in name]
    if not helpers:
        return False, f"{used[0]} does not ask for SM120"
    return (True, "open") if "." in helpers[0] else _imported(tree, helpers[0])


def _preflight(root: Path) -> _Finding:
    path = root / _FUSION
    functions = _functions(_parse(path), "_flashinfer_trtllm_workspace_allocation_sizes")
    if not functions or "cuMulticastGetGranularity" not in ast.dump(functions[0]):
        return None
    if _asks(functions[0], "multicast"):
        return True, "open"
    return False, "the preflight demands multicast"


def _resolver(root: Path) -> _Finding:
    functions = _functions(_parse(root / _FUSION), "_resolve_backend")
    if not functions:
        return None
    first = next((node for node in functions[0].body if isinstance(node, ast.If)), None)
    if first is not None and any("sm120" in name for name in _names(first.test)):
        return True, "open"
    return False, "the resolver refuses SM120"


def _arch_list(root: Path) -> _Finding:
    trees = [_parse(root / path) for path in (_JIT, _JIT_BEFORE_0_4)]
    functions = [f for tree in trees for f in _functions(tree, "gen_trtllm_comm_module")]
    if not functions:
        return False, "gen_trtllm_comm_module is not there"
    for node in ast.walk(functions[0]):
        if isinstance(node, ast.keyword) and node.arg == "supported_major_versions":
            majors = {c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant)}
            if 12 in majors:
                return True, "open"
            return False, f"built for major versions {sorted(majors, key=str)} only"
    # Without a list (before 0.3.1) torch asks for plain sm_120, which lacks the FP4 conversions
    # that the module holds; in a few releases a mistyped CUDA version leaves those out.
    if "compute_120a" in ast.dump(functions[0]) or "CUDA_VERSION >= 120800" in _text(root / _FUSED):
        return True, "open"
    return False, "built for plain sm_120, which lacks its FP4 conversions"


def _multicast(root: Path, sglang: Path | None) -> _Finding:
    """Only where SGLang asks for the unified workspace and FlashInfer builds it on MNNVL."""
    unified = sglang is not None and "create_allreduce_fusion_workspace" in _text(sglang / _FUSION)
    if not unified or (root / "flashinfer/comm/torch_symmetric_memory.py").is_file():
        return None
    tree = _parse(root / _MNNVL)
    memory = next((node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
                   and node.name == "SymmDeviceMemory"), None)  # fmt: skip
    if memory is None:
        return None
    for name in ("__init__", "_get_allocation_prop"):
        for function in _functions(memory, name)[:1]:
            if "ulticast" in ast.dump(function) and not _asks(function, "enable_multicast"):
                return False, f"SymmDeviceMemory.{name} demands multicast"
    return True, "open"


# --- reading -----------------------------------------------------------------------------------


def _package(prefix: Path, name: str) -> Path | None:
    for pattern in ("lib*/python3*/site-packages", "lib*/python3*/dist-packages"):
        for site in sorted(prefix.glob(pattern)):
            if (site / name).is_dir():
                return site
    return None


def _version(site: Path | None, distribution: str) -> str | None:
    for info in sorted(site.glob(f"{distribution}-*.dist-info")) if site else ():
        if found := re.fullmatch(rf"{distribution}-(.+)\.dist-info", info.name):
            return found[1]
    return None


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""


def _parse(path: Path) -> ast.Module:
    return ast.parse(_text(path))


def _functions(tree: ast.AST, name: str) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]


def _names(tree: ast.AST) -> Iterator[str]:
    """Names and dotted attributes that the code mentions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield f".{node.attr}"


def _asks(function: ast.FunctionDef, word: str) -> bool:
    """True when some condition of the function mentions a name with `word` in it."""
    tests = [node.test for node in ast.walk(function) if isinstance(node, ast.If | ast.IfExp)]
    return any(word in name for test in tests for name in _names(test))


def _imported(tree: ast.Module, name: str) -> tuple[bool, str]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and name in {a.asname or a.name for a in node.names}:
            return True, "open"
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return True, "open"
    return False, f"{name} is used but not imported: a NameError at import"
