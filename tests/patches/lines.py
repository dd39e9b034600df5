"""What each payload may do to the lines of its file, written down apart from the payloads."""

from __future__ import annotations

import difflib

RUNTIME_GATE_SM100 = "sm120-checks/runtime_gate_sm100.py"
RUNTIME_GATE_INLINE = "sm120-checks/runtime_gate_inline.py"
RUNTIME_GATE = "sm120-checks/runtime_gate.py"
RUNTIME_GATE_PLATFORM = "sm120-checks/runtime_gate_platform.py"
RUNTIME_GATE_RENAMED = "sm120-checks/runtime_gate_renamed.py"
CAPABILITY_HELPER = "sm120-checks/capability_helper.py"
PREFLIGHT = "sm120-checks/preflight.py"
RESOLVER = "sm120-checks/resolver.py"
RESOLVER_PLATFORM = "sm120-checks/resolver_platform.py"
AUTO_ENABLE_GPTOSS_IMPORT = "sm120-checks/auto_enable_gptoss_import.py"
AUTO_ENABLE_GPTOSS = "sm120-checks/auto_enable_gptoss.py"
AUTO_ENABLE = "sm120-checks/auto_enable.py"
AUTO_ENABLE_BACKEND = "sm120-checks/auto_enable_backend.py"
AUTO_ENABLE_OVERRIDES = "sm120-checks/auto_enable_overrides.py"
AUTO_ENABLE_PLATFORM = "sm120-checks/auto_enable_platform.py"
JIT_SM120A = "allreduce-arch-gate/jit_sm120a.py"
JIT_ARCH_LIST = "allreduce-arch-gate/jit_arch_list.py"
MULTICAST = "allreduce-arch-gate/multicast.py"
AUTOTUNE_LIST = "cutlass-autotune/autotune_list.py"
HEADER_GATES = "allreduce-arch-gate/header_gates.patch"

IMPORT = ["+    is_sm120_supported,"]
GPTOSS = [
    "-            if is_sm100_supported():",
    "+            if is_sm100_supported() or is_sm120_supported():",
]


def imported(statement: str) -> list[str]:
    """A one-line import of which only the end changes."""
    return [f"-{statement}", f"+{statement}, is_sm120_supported"]


def bound(question: str) -> list[str]:
    return [f"+_is_sm120_supported = {question}"]


def wider(indent: int, old: str, added: str, head: str = "", tail: str = "") -> list[str]:
    space = " " * indent
    return [f"-{space}{head}({old}){tail}", f"+{space}{head}({old} or {added}){tail}"]


SUPPORTED = ("_is_sm90_supported or _is_sm100_supported", "_is_sm120_supported")
ASKED = ("is_sm90_supported() or is_sm100_supported()", "is_sm120_supported()")
PLATFORM = ("get_platform().is_sm90 or get_platform().is_sm100", "get_platform().is_sm120")
MESSAGE = [
    '-            "FlashInfer allreduce fusion requires SM90 or SM10X NVIDIA GPUs."',
    '+            "FlashInfer allreduce fusion requires SM90, SM10X or SM12X NVIDIA GPUs."',
]
HELPER = [
    "+@lru_cache(maxsize=1)",
    "+def is_sm120_supported(device=None) -> bool:",
    "+    return (torch.cuda.get_device_capability(device)[0] == 12) and (",
    '+        torch.version.cuda >= "12.8"',
    "+    )",
    "+",
    "+",
]
ONLY_SM100 = [
    "-                _is_sm100_supported",
    "+                (_is_sm100_supported or _is_sm120_supported)",
]
NOTE = "# TODO: flashinfer_cutlass will cause some flashinfer compilation errors. To be fixed."
UNICAST = "# The TRTLLM workspace is unicast, multicast would only round it up further."
REVERSED = wider(16, "_is_sm100_supported or _is_sm90_supported", "_is_sm120_supported")
FLAGS = "        extra_cuda_cflags=sm100a_nvcc_flags if has_sm100 else"
FROM_LAYERS = "from sglang.srt.layers.utils import is_sm100_supported"
FROM_UTILS = "from sglang.srt.utils import is_cuda, is_flashinfer_available, is_sm100_supported"

LINES: dict[str, tuple[list[str], ...]] = {
    RUNTIME_GATE_SM100: tuple(
        [*imported(statement), *bound("is_cuda() and is_sm120_supported()"), *ONLY_SM100]
        for statement in (FROM_LAYERS, FROM_UTILS)
    ),
    RUNTIME_GATE_INLINE: tuple(
        [*IMPORT, *bound(f"{cuda} and is_sm120_supported()"), *REVERSED]
        for cuda in ("is_cuda()", "_is_cuda")
    ),
    RUNTIME_GATE: (
        [*IMPORT, *bound("_is_cuda and is_sm120_supported()"), *wider(8, *SUPPORTED)],
    ),
    RUNTIME_GATE_PLATFORM: (
        [*bound("_is_cuda and get_platform().is_sm120"), *wider(8, *SUPPORTED)],
    ),
    RUNTIME_GATE_RENAMED: (
        [*bound("_is_cuda and get_platform().is_sm120"), *wider(8, *SUPPORTED)],
    ),
    CAPABILITY_HELPER: (
        HELPER,
        [*HELPER, "+    if not is_cuda_alike():", "+        return False"],
    ),
    PREFLIGHT: (
        [
            "+    err, multicast_supported = cuda_driver.cuDeviceGetAttribute(",
            "+        cuda_driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,",
            "+        prop.location.id,",
            "+    )",
            "+    if err != cuda_driver.CUresult.CUDA_SUCCESS:",
            "+        raise RuntimeError(",
            '+            "cuDeviceGetAttribute failed for FlashInfer "',
            '+            f"workspace preflight: {err}"',
            "+        )",
            "+",
            "+        if not multicast_supported:",
            f"+            {UNICAST}",
            "+            allocation_sizes.append(allocation_size)",
            "+            continue",
            "+",
        ],
    ),
    RESOLVER: ([*IMPORT, *wider(4, *ASKED, "if not ", ":"), *MESSAGE],),
    RESOLVER_PLATFORM: ([*wider(4, *PLATFORM, "if not ", ":"), *MESSAGE],),
    AUTO_ENABLE_GPTOSS_IMPORT: (
        [*imported("from sglang.srt.layers.utils import is_sm90_supported, is_sm100_supported"),
         *GPTOSS],
        [*IMPORT, *GPTOSS],
    ),
    AUTO_ENABLE_GPTOSS: (GPTOSS,),
    AUTO_ENABLE: (wider(12, *ASKED, "and "),),
    AUTO_ENABLE_BACKEND: (wider(12, *ASKED, "and "),),
    AUTO_ENABLE_OVERRIDES: (wider(8, *ASKED, "and "),),
    AUTO_ENABLE_PLATFORM: (wider(8, *PLATFORM, "and "),),
    JIT_SM120A: (
        [
            "+    has_sm120 = any(",
            '+        "compute_120" in flag for flag in gencode_flags',
            '+    ) and version_at_least(torch.version.cuda, "12.8")',
            "+    sm120a_nvcc_flags = [",
            '+        "-gencode=arch=compute_120a,code=sm_120a",',
            '+        "-DFLASHINFER_ENABLE_FP8_E8M0",',
            '+        "-DFLASHINFER_ENABLE_FP4_E2M1",',
            "+    ]",
            f"-{FLAGS} [],",
            f"+{FLAGS} sm120a_nvcc_flags if has_sm120 else [],",
        ],
    ),
    JIT_ARCH_LIST: (
        [
            "-        supported_major_versions=[9, 10]",
            "+        supported_major_versions=[9, 10, 12]",
        ],
    ),
    MULTICAST: (
        [
            "+        self._enable_multicast = enable_multicast",
            "-        if multicast_supported == 0:",
            "+        if enable_multicast and multicast_supported == 0:",
            "+        if not self._enable_multicast:",
            "+            # No multicast object will be bound, so there is none to size for",
            "+            self._mc_granularity = alloc_granularity",
            "+            return allocation_prop, None",
            "+",
        ],
    ),
    AUTOTUNE_LIST: (
        [
            f"-            {NOTE}",
            '-            # "flashinfer_cutlass",',
            '+            "flashinfer_cutlass",',
        ],
    ),
    HEADER_GATES: (
        [
            "-#if (defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 900) && (__CUDA_ARCH__ < 1200))",
            "+#if (defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 900))",
        ]
        * 13,
    ),
}  # fmt: skip
"""Payload -> every line it takes away and adds, nothing else may differ; one list a shape."""


def line_edits(before: bytes, after: bytes) -> list[str]:
    """Lines taken away and added, with a check that all others are the same bytes in place."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    found: list[str] = []
    # `autojunk` would treat frequent lines as noise and report moves that never happened
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            assert old[a:b] == new[c:d]
            continue
        found += [f"-{line.decode().rstrip()}" for line in old[a:b]]
        found += [f"+{line.decode().rstrip()}" for line in new[c:d]]
    return found
