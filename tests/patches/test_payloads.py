"""Every codemod payload on the published files of every release it is for, judged from outside."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from sm120patch import codemod
from sm120patch.model import Changed, Refused, Unchanged
from tests.patches import gates
from tests.patches.lines import (
    AUTO_ENABLE,
    AUTO_ENABLE_BACKEND,
    AUTO_ENABLE_GPTOSS,
    AUTO_ENABLE_GPTOSS_IMPORT,
    AUTO_ENABLE_OVERRIDES,
    AUTO_ENABLE_PLATFORM,
    AUTOTUNE_LIST,
    CAPABILITY_HELPER,
    JIT_ARCH_LIST,
    JIT_SM120A,
    LINES,
    MULTICAST,
    PREFLIGHT,
    RESOLVER,
    RESOLVER_PLATFORM,
    RUNTIME_GATE,
    RUNTIME_GATE_INLINE,
    RUNTIME_GATE_PLATFORM,
    RUNTIME_GATE_RENAMED,
    RUNTIME_GATE_SM100,
    line_edits,
)
from tests.support.wheels import shipped

pytestmark = pytest.mark.network

PATCHES = Path(__file__).parents[2] / "patches"

SGLANG = (
    "0.5.8", "0.5.8.post1", "0.5.9", "0.5.10rc0", "0.5.10", "0.5.10.post1", "0.5.11", "0.5.12",
    "0.5.12.post1", "0.5.13", "0.5.13.post1", "0.5.14", "0.5.18",
)  # fmt: skip
FLASHINFER = (
    "0.6.1", "0.6.3", "0.6.6", "0.6.7.post2", "0.6.7.post3", "0.6.8.post1", "0.6.11.post1",
    "0.6.12", "0.6.17",
)  # fmt: skip
OLD, MIDDLE, NEW = gates.HELPERS[::-1]

TABLE = (
    (RUNTIME_GATE_SM100, "SG.A1", gates.COMMUNICATOR, ("0.5.0rc0", "0.5.1.post3"), 2),
    (RUNTIME_GATE_INLINE, "SG.A1", gates.COMMUNICATOR, ("0.5.2rc2", "0.5.7"), 2),
    (RUNTIME_GATE, "SG.A1", gates.COMMUNICATOR, ("0.5.12.post1", "0.5.18", *SGLANG[:8]), 2),
    (RUNTIME_GATE_PLATFORM, "SG.A1", gates.COMMUNICATOR, ("0.5.20", "0.5.19"), 0),
    (RUNTIME_GATE_PLATFORM, "SG.A1", gates.ADD_NORM, ("0.5.21",), 1),
    (RUNTIME_GATE_RENAMED, "SG.A1", gates.ADD_NORM, ("0.5.23", "0.5.22"), 1),
    (CAPABILITY_HELPER, "SG.H1", OLD, ("0.5.0rc0", "0.5.1.post2"), 1),
    (CAPABILITY_HELPER, "SG.H1", MIDDLE, ("0.5.1.post3", "0.5.3rc0"), 1),
    (CAPABILITY_HELPER, "SG.H1", NEW, ("0.5.3", "0.5.3rc2", "0.5.3.post3"), 1),
    (PREFLIGHT, "SG.A4", gates.COMM_FUSION, ("0.5.11", "0.5.18", "0.5.23", *SGLANG[7:12]), 2),
    (RESOLVER, "SG.A3", gates.COMM_FUSION, SGLANG[11:], 2),
    (RESOLVER_PLATFORM, "SG.A3", gates.COMM_FUSION, ("0.5.23", "0.5.19", "0.5.21"), 1),
    (AUTO_ENABLE_GPTOSS_IMPORT, "SG.A2", gates.SERVER_ARGS, ("0.5.1.post3", "0.5.0rc2"), 1),
    (AUTO_ENABLE_GPTOSS, "SG.A2", gates.SERVER_ARGS, ("0.5.4.post1", "0.5.4"), 1),
    (AUTO_ENABLE, "SG.A2", gates.SERVER_ARGS, ("0.5.12.post1", *SGLANG[:8], *SGLANG[9:11]), 1),
    (AUTO_ENABLE_BACKEND, "SG.A2", gates.SERVER_ARGS, ("0.5.14",), 0),
    (AUTO_ENABLE_OVERRIDES, "SG.A2", gates.OVERRIDES, ("0.5.18",), 1),
    (AUTO_ENABLE_PLATFORM, "SG.A2", gates.OVERRIDES, ("0.5.23", "0.5.19", "0.5.21"), 1),
    (JIT_SM120A, "FI.A2", gates.TRTLLM_AR, ("0.2.10", "0.3.0", "0.2.9", "0.2.12"), 2),
    (JIT_ARCH_LIST, "FI.A2", gates.TRTLLM_AR, ("0.4.0rc3", "0.3.1", "0.3.1.post1"), 1),
    (JIT_ARCH_LIST, "FI.A2", gates.JIT_COMM, ("0.6.3", "0.6.12", "0.4.0", "0.4.1", "0.6.6"), 2),
    (AUTOTUNE_LIST, "SG.B1", gates.MODEL_RUNNER, ("0.5.7", "0.5.12.post1"), 1),
    (MULTICAST, "FI.A4-M1", gates.MNNVL, ("0.6.7.post3", "0.6.8.post1", *FLASHINFER[:4]), 2),
)
"""Payload, gate, file, releases it is for, and how many of those are in the fast run."""
PLACE = {payload: (gate, path, versions[0]) for payload, gate, path, versions, _ in TABLE[::-1]}
"""Payload -> gate, file and one release of it."""


def run(payload: str, data: bytes) -> Changed | Unchanged | Refused:
    return codemod.run((PATCHES / payload).read_bytes(), payload, data)


def patched(payload: str, data: bytes) -> bytes:
    result = run(payload, data)
    assert isinstance(result, Changed), result
    return result.data


def cases() -> Iterator[Any]:
    for payload, gate, path, versions, fast in TABLE:
        for number, version in enumerate(versions):
            marks = () if number < fast else pytest.mark.slow
            name = f"{Path(payload).stem}-{version}"
            yield pytest.param(payload, gate, path, version, id=name, marks=marks)


@pytest.mark.parametrize(("payload", "gate", "path", "version"), list(cases()))
def test_payload_opens_its_gate_and_changes_nothing_else(
    payload: str, gate: str, path: str, version: str
) -> None:
    before = shipped(path, version)
    assert gates.GATES[gate][1](before) == gates.CLOSED
    after = patched(payload, before)
    assert gates.GATES[gate][1](after) == gates.OPEN
    compile(after, path, "exec", dont_inherit=True)
    edits = line_edits(before, after)
    assert sorted(edits) in [sorted(lines) for lines in LINES[payload]]
    assert len(after.splitlines()) - len(before.splitlines()) == sum(
        1 if edit[0] == "+" else -1 for edit in edits
    )
    assert isinstance(run(payload, after), Unchanged)
    assert codemod.satisfied((PATCHES / payload).read_bytes(), payload, after)
    assert not codemod.satisfied((PATCHES / payload).read_bytes(), payload, before)


@pytest.mark.parametrize(
    ("payload", "path", "version", "reason"),
    [
        (PREFLIGHT, gates.COMM_FUSION, "0.5.9", "function _flashinfer_trtllm_workspace"),
        (RESOLVER, gates.COMM_FUSION, "0.5.12.post1", "function _resolve_backend: found 0"),
        # the condition stands in both files, guarding something else
        (AUTO_ENABLE, gates.SERVER_ARGS, "0.5.18", "found 0, expected 1"),
        (AUTO_ENABLE_BACKEND, gates.SERVER_ARGS, "0.5.18", "found 0, expected 1"),
        (RUNTIME_GATE, gates.COMM_FUSION, "0.5.14", "function apply_flashinfer_allreduce_fusion"),
        (MULTICAST, gates.JIT_COMM, "0.6.3", "SymmDeviceMemory.__init__: found 0"),
    ],
)
def test_a_release_without_the_gate_is_refused(
    payload: str, path: str, version: str, reason: str
) -> None:
    result = run(payload, shipped(path, version))
    assert isinstance(result, Refused)
    assert reason in result.reason


@pytest.mark.parametrize(
    ("payload", "path"), [(JIT_ARCH_LIST, gates.JIT_COMM), (MULTICAST, gates.MNNVL)]
)
def test_what_upstream_lifted_is_left_alone(payload: str, path: str) -> None:
    data = shipped(path, "0.6.17")
    assert isinstance(run(payload, data), Unchanged)


@pytest.mark.parametrize("version", ["0.5.4", "0.5.7", *SGLANG])
def test_helper_exists_where_the_payloads_import_it_from(version: str) -> None:
    # SG.H1: the payloads import `is_sm120_supported` but never define it
    assert gates.judge("SG.H1", shipped("sglang/srt/utils/common.py", version)) == gates.OPEN
    package = shipped("sglang/srt/utils/__init__.py", version)
    assert b"from sglang.srt.utils.common import *" in package


def test_the_helper_is_exported_where_the_patch_puts_it() -> None:
    # up to 0.5.3rc0 the gates import it from its own module
    package = shipped("sglang/srt/utils/__init__.py", "0.5.3")
    assert b"from .common import *" in package
    assert b"__all__" not in shipped(NEW, "0.5.3")
    for version, path, module in (
        ("0.5.0rc0", OLD, "layers.utils"),
        ("0.5.1.post3", MIDDLE, "utils"),
    ):
        assert b"def is_sm100_supported(" in shipped(path, version)
        gate = ast.parse(shipped(gates.COMMUNICATOR, version))
        imports = [n for n in gate.body if isinstance(n, ast.ImportFrom)]
        (found,) = [n for n in imports if "is_sm100_supported" in [a.name for a in n.names]]
        assert found.module == f"sglang.srt.{module}"


def numbers(data: bytes, capability: tuple[int, int], cuda: str) -> list[bool]:
    """Ask every helper of the module about one device."""
    torch = SimpleNamespace(
        cuda=SimpleNamespace(get_device_capability=lambda device=None: capability),
        version=SimpleNamespace(cuda=cuda),
    )
    answers = []
    for name in ("is_sm90_supported", "is_sm100_supported", "is_sm120_supported"):
        helper = extract(data, name, {"torch": torch, "lru_cache": lru_cache, **ON_CUDA})
        answers.append(helper())
    return answers


ON_CUDA = {"is_cuda_alike": lambda: True}


@pytest.mark.parametrize(("path", "version"), [(OLD, "0.5.0rc0"), (NEW, "0.5.3")])
def test_the_helper_says_yes_on_sm120_alone(path: str, version: str) -> None:
    after = patched(CAPABILITY_HELPER, shipped(path, version))
    assert numbers(after, (12, 0), "12.9") == [False, False, True]
    assert numbers(after, (12, 0), "12.6") == [False, False, False]
    assert numbers(after, (10, 0), "12.9") == [False, True, False]
    assert numbers(after, (9, 0), "12.9") == [True, False, False]


@pytest.mark.parametrize("payload", [RUNTIME_GATE, PREFLIGHT, MULTICAST, AUTOTUNE_LIST])
def test_windows_line_ends_survive_on_real_files(payload: str) -> None:
    gate, path, version = PLACE[payload]
    before = shipped(path, version)
    crlf = b"\xef\xbb\xbf" + before.replace(b"\n", b"\r\n")
    assert patched(payload, crlf) == b"\xef\xbb\xbf" + patched(payload, before).replace(
        b"\n", b"\r\n"
    )
    assert gates.judge(gate, patched(payload, crlf)) == gates.OPEN


# --- the judge can say no -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        RUNTIME_GATE, RUNTIME_GATE_SM100, RUNTIME_GATE_INLINE, RUNTIME_GATE_RENAMED, RESOLVER,
        RESOLVER_PLATFORM, CAPABILITY_HELPER, PREFLIGHT, MULTICAST, JIT_ARCH_LIST, JIT_SM120A,
        AUTO_ENABLE_GPTOSS_IMPORT,
    ],
)  # fmt: skip
def test_a_half_patched_file_is_not_open_and_not_finished_by_us(payload: str) -> None:
    gate, path, version = PLACE[payload]
    before = shipped(path, version)
    whole = patched(payload, before)
    for half in halves(payload, whole):
        assert gates.judge(gate, half) == gates.CLOSED
        assert isinstance(run(payload, half), Refused)


def halves(payload: str, whole: bytes) -> list[bytes]:
    """The same file with one part of the change undone or done wrong."""
    undo = {
        RUNTIME_GATE: [
            (b"    is_sm120_supported,\n", b""),
            (b"_is_sm120_supported = _is_cuda and is_sm120_supported()\n", b""),
            (b" or _is_sm120_supported)", b")"),
            (b" or _is_sm120_supported)", b" or True)"),
        ],
        RUNTIME_GATE_SM100: [
            (b"import is_sm100_supported, is_sm120_supported", b"import is_sm100_supported"),
            (b"_is_sm120_supported = is_cuda() and is_sm120_supported()\n", b""),
            (b"is_cuda() and is_sm120_supported()", b"is_cuda() and is_sm100_supported()"),
            (b"(_is_sm100_supported or _is_sm120_supported)", b"_is_sm120_supported"),
            (b"(_is_sm100_supported or _is_sm120_supported)", b"_is_sm100_supported"),
        ],
        RUNTIME_GATE_INLINE: [
            (b"    is_sm120_supported,\n", b""),
            (b"_is_sm120_supported = is_cuda() and is_sm120_supported()\n", b""),
            (b" or _is_sm120_supported)", b")"),
        ],
        RUNTIME_GATE_RENAMED: [
            (b"_is_sm120_supported = _is_cuda and get_platform().is_sm120\n", b""),
            (b"get_platform().is_sm120\n", b"get_platform().is_sm100\n"),
            (b" or _is_sm120_supported)", b")"),
        ],
        RESOLVER_PLATFORM: [(b" or get_platform().is_sm120)", b" or True)")],
        CAPABILITY_HELPER: [(b"[0] == 12", b"[0] == 11"), (b"[0] == 12", b"[0] >= 12")],
        JIT_SM120A: [
            (b"arch=compute_120a,code=sm_120a", b"arch=compute_120,code=sm_120"),
            (b'"compute_120" in', b'"compute_12" in'),
            (b" sm120a_nvcc_flags if has_sm120 else []", b" []"),
        ],
        AUTO_ENABLE_GPTOSS_IMPORT: [
            (b"    is_sm120_supported,\n", b""),
            (b"if is_sm100_supported() or is_sm120_supported():", b"if is_sm120_supported():"),
        ],
        RESOLVER: [
            (b"    is_sm120_supported,\n", b""),
            (b" or is_sm120_supported())", b")"),
            (b" or is_sm120_supported())", b" or True)"),
        ],
        PREFLIGHT: [
            (b"            continue\n", b""),
            (b"            allocation_sizes.append(allocation_size)\n", b""),
            (b"if not multicast_supported", b"if multicast_supported"),
        ],
        MULTICAST: [
            (b"        self._enable_multicast = enable_multicast\n", b""),
            (b"            self._mc_granularity = alloc_granularity\n", b""),
            (b"if enable_multicast and multicast", b"if multicast"),
            (b"            return allocation_prop, None\n", b""),
        ],
        JIT_ARCH_LIST: [(b"[9, 10, 12]", b"[9, 10, 13]")],
    }[payload]
    results = [whole.replace(old, new, 1) for old, new in undo]
    assert all(half != whole for half in results)
    return results


def test_the_judge_knows_a_gate_that_is_wide_open_from_one_open_to_sm120() -> None:
    data = shipped(gates.COMMUNICATOR, "0.5.12.post1")
    wide = data.replace(b"(_is_sm90_supported or _is_sm100_supported)", b"True")
    assert gates.judge("SG.A1", wide) == gates.ABSENT


def test_the_judge_sees_an_arch_list_lifted_for_the_wrong_module() -> None:
    data = shipped(gates.JIT_COMM, "0.6.12")
    everywhere = data.replace(b"[9, 10]", b"[9, 10, 12]")
    assert gates.judge("FI.A2", everywhere) == gates.CLOSED


# --- what the patched code does -------------------------------------------------------------------


def extract(data: bytes, name: str, namespace: dict[str, Any]) -> Any:
    """Execute one top-level definition of a file with stand-ins for everything around it."""
    tree = ast.parse(data)
    tree.body = [s for s in tree.body if getattr(s, "name", None) == name]
    exec(compile(tree, name, "exec", dont_inherit=True), namespace)
    return namespace[name]


def ceil_align(size: int, step: int) -> int:
    return -(-size // step) * step


def driver(*, multicast: bool, attribute_error: str = "OK", granularity_error: str = "") -> Any:
    granted = "OK" if multicast else "NOT_SUPPORTED"
    fake = MagicMock()
    fake.CUresult.CUDA_SUCCESS = "OK"
    fake.cuDeviceGetAttribute.return_value = (attribute_error, int(multicast))
    fake.cuMemGetAllocationGranularity.return_value = ("OK", 2 << 20)
    fake.cuMulticastGetGranularity.return_value = (granularity_error or granted, 512 << 20)
    return fake


def sizes(data: bytes, fake: Any) -> list[int]:
    torch = SimpleNamespace(dtype=object, float32="float32", bfloat16="bfloat16")
    name = "_flashinfer_trtllm_workspace_allocation_sizes"
    function = extract(data, name, {"torch": torch, "ceil_align": ceil_align})
    result = function(fake, MagicMock(), 4, 2048, 7168, torch.bfloat16)
    assert isinstance(result, list)
    return result


def test_preflight_sizes_are_as_before_with_multicast_and_known_without() -> None:
    before = shipped(gates.COMM_FUSION, "0.5.12.post1")
    after = patched(PREFLIGHT, before)
    assert sizes(after, driver(multicast=True)) == sizes(before, driver(multicast=True))
    with pytest.raises(RuntimeError, match="cuMulticastGetGranularity failed"):
        sizes(before, driver(multicast=False))
    aligned = sizes(after, driver(multicast=False))
    assert len(aligned) == 3
    assert all(size % (2 << 20) == 0 and size < 512 << 20 for size in aligned)


def test_preflight_still_refuses_other_driver_errors() -> None:
    after = patched(PREFLIGHT, shipped(gates.COMM_FUSION, "0.5.12.post1"))
    with pytest.raises(RuntimeError, match="cuMulticastGetGranularity failed"):
        sizes(after, driver(multicast=True, granularity_error="DENIED"))
    with pytest.raises(RuntimeError, match="cuDeviceGetAttribute failed"):
        sizes(after, driver(multicast=False, attribute_error="DENIED"))


def resolve(data: bytes, supported: str, backend: str, nodes: int = 1) -> str:
    namespace: dict[str, Any] = {
        f"is_{sm}_supported": lambda sm=sm: sm == supported for sm in ("sm90", "sm100", "sm120")
    }
    extract(data, "_mnnvl_supported", namespace)
    try:
        return str(extract(data, "_resolve_backend", namespace)(backend, nodes > 1))
    except ValueError as error:
        return f"ValueError: {error}"


@pytest.mark.parametrize("version", ["0.5.14", "0.5.18"])
def test_resolver_lets_sm120_use_trtllm_on_one_node_only(version: str) -> None:
    before = shipped(gates.COMM_FUSION, version)
    after = patched(RESOLVER, before)
    for sm in ("sm90", "sm100"):
        for backend in ("auto", "trtllm", "mnnvl"):
            for nodes in (1, 2):
                assert resolve(after, sm, backend, nodes) == resolve(before, sm, backend, nodes)
    assert resolve(before, "sm120", "auto").startswith("ValueError: ")
    assert resolve(after, "sm120", "auto") == resolve(after, "sm120", "trtllm") == "trtllm"
    assert resolve(after, "sm120", "mnnvl").startswith("ValueError: ")
    assert resolve(after, "sm120", "auto", nodes=2).startswith("ValueError: ")
    assert resolve(after, "sm89", "auto").endswith("requires SM90, SM10X or SM12X NVIDIA GPUs.")


@pytest.fixture
def cuda_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the modules that `SymmDeviceMemory.__init__` imports."""
    for name in ("flashinfer", "flashinfer.utils", "cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["flashinfer.utils"].has_cuda_cudart = lambda: False
    runtime = MagicMock()
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
    sys.modules["cuda.bindings"].runtime = runtime


def allocate(data: bytes, *, multicast: bool, enable: bool) -> tuple[Any, Any]:
    """Create a `SymmDeviceMemory` on a fake driver; return it and the driver."""
    driver = MagicMock()
    driver.cuDeviceGetAttribute.return_value = int(multicast)
    driver.cuMemGetAllocationGranularity.return_value = 2 << 20
    driver.cuMulticastGetGranularity.return_value = 512 << 20
    driver.cuMemAddressReserve.return_value = 1 << 40
    driver.cuCtxGetDevice.return_value = 0
    if not multicast:
        driver.cuMulticastGetGranularity.side_effect = RuntimeError("not supported")
    exchanger = MagicMock()
    exchanger.allgather.return_value = ["a", "b"]
    namespace: dict[str, Any] = {
        "cuda": driver,
        "sys": sys,
        "logger": MagicMock(),
        "logging": MagicMock(),
        "checkCudaErrors": lambda result: result,
        "round_up": ceil_align,
        "is_mnnvl_fabric_supported": lambda device: False,
        "PosixFDHandleExchanger": lambda *args: exchanger,
        "alloc_and_copy_to_cuda": lambda pointers: 1,
        "SIGNAL_PAD_SIZE": 2048,
    }
    exec("from typing import *", namespace)
    for name in ("MPIBackend", "CommBackend", "HandleExchanger", "FabricHandleExchanger", "torch"):
        namespace[name] = MagicMock()
    memory = extract(data, "SymmDeviceMemory", namespace)(
        8 << 20, 2, 0, 0, MagicMock(), enable_multicast=enable, allocate_signal_pads=False
    )
    return memory, driver


@pytest.mark.usefixtures("cuda_modules")
@pytest.mark.parametrize("version", ["0.6.7.post3", "0.6.8.post1"])
def test_symmetric_memory_needs_multicast_only_where_it_is_used(version: str) -> None:
    before = shipped(gates.MNNVL, version)
    after = patched(MULTICAST, before)
    for data, enable in ((before, False), (before, True), (after, True)):
        with pytest.raises(RuntimeError, match="does not support multicasting"):
            allocate(data, multicast=False, enable=enable)
    memory, driver = allocate(after, multicast=False, enable=False)
    assert memory.allocation_size == 10 << 20
    assert memory.uc_ptrs == [1 << 40, (1 << 40) + memory.allocation_size]
    driver.cuMemAddressReserve.assert_called_once_with(20 << 20, 2 << 20, 0, 0)
    driver.cuMulticastCreate.assert_not_called()


@pytest.mark.usefixtures("cuda_modules")
def test_symmetric_memory_with_multicast_makes_the_same_driver_calls_as_before() -> None:
    before = shipped(gates.MNNVL, "0.6.8.post1")
    calls = [
        [name for name, _, _ in allocate(data, multicast=True, enable=True)[1].mock_calls]
        for data in (before, patched(MULTICAST, before))
    ]
    assert calls[0] == calls[1]
    assert "cuMulticastBindMem" in calls[0]


@pytest.mark.parametrize("version", FLASHINFER[:6])
def test_sglangs_workspace_asks_for_no_multicast(version: str) -> None:
    # the reason why FI.A4-M1 is enough: the caller on SGLang's path says so itself
    tree = ast.parse(shipped("flashinfer/comm/trtllm_ar.py", version))
    (create,) = gates.functions(tree, "trtllm_create_ipc_workspace_for_all_reduce_fusion")
    calls = [n for n in ast.walk(create) if isinstance(n, ast.Call)]
    (memory,) = [n for n in calls if ast.unparse(n.func) == "SymmDeviceMemory"]
    assert {k.arg: ast.unparse(k.value) for k in memory.keywords}["enable_multicast"] == "False"


@pytest.mark.parametrize("version", ["0.5.8", "0.5.12.post1", "0.5.18"])
def test_other_uses_of_the_sm100_variable_stay(version: str) -> None:
    before = shipped(gates.COMMUNICATOR, version)
    after = patched(RUNTIME_GATE, before)

    def uses(data: bytes) -> list[bytes]:
        lines = [line for line in data.splitlines() if b"_is_sm100_supported" in line]
        return [line.replace(b" or _is_sm120_supported", b"") for line in lines]

    assert uses(after) == uses(before)
