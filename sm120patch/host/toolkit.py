"""FlashInfer's own rules for the CUDA toolkit and the architectures it compiles for. Pure.

Read from `jit/cpp_ext.py` and `compilation_context.py` of FlashInfer 0.5.3 to 0.7.2; `tests` hold
the rules against these files of the published packages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_HOME = "/usr/local/cuda"


@dataclass(frozen=True)
class Toolkit:
    """Where FlashInfer looks for CUDA, and by which of its rules; an empty path is none."""

    path: str
    rule: str


def cuda_home(home: str, path: str, nvcc: str | None, default_exists: bool) -> Toolkit:
    """CUDA_HOME, else CUDA_PATH, else two levels above the `nvcc` of PATH, else the default.

    `home` and `path` are the variables, empty when unset; `nvcc` is what PATH comes to, unresolved:
    a link or wrapper in /usr/local/bin makes it /usr/local.
    """
    for name, value in (("CUDA_HOME", home), ("CUDA_PATH", path)):
        if value:
            return Toolkit(value, name)
    if nvcc is not None:
        return Toolkit(nvcc.rpartition("/")[0].rpartition("/")[0] or "/", f"`which nvcc` is {nvcc}")
    if default_exists:
        return Toolkit(DEFAULT_HOME, "the default")
    return Toolkit("", f"neither CUDA_HOME nor nvcc nor {DEFAULT_HOME}")


def nvcc_of(home: str) -> str:
    """The compiler that FlashInfer asks for its version, whatever FLASHINFER_NVCC says."""
    return f"{home.rstrip('/')}/bin/nvcc"


def release(text: str) -> str | None:
    """CUDA release in the output of `nvcc --version`."""
    found = re.search(r"release (\d+\.\d+),", text)
    return found[1] if found else None


@dataclass(frozen=True)
class ArchRules:
    """How an installed FlashInfer names SM12x, read off its source."""

    minimum_120: tuple[int, int]
    """Oldest CUDA that builds for compute capability 12.0."""
    minimum_121: tuple[int, int] = (12, 9)
    normalises: bool = False
    """`12.0` in FLASHINFER_CUDA_ARCH_LIST gets the suffix that SM12x needs."""


def arch_rules(source: str) -> ArchRules:
    """Rules by the text of `flashinfer/compilation_context.py`.

    Up to 0.6.7 the list is taken as it is, and nvcc itself knows sm_120a from 12.8, sm_121a from
    12.9 on. From 0.6.8 on it is normalised, and 12.9 is demanded; from 0.7 on 12.8 is enough again.
    """
    normalises = "_normalize_cuda_arch" in source
    demands = normalises and '"12.8"' not in source
    return ArchRules((12, 9) if demands else (12, 8), normalises=normalises)


def version_pair(text: str) -> tuple[int, int]:
    """`12.8` as numbers; what is no version sorts below all."""
    found = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def arch_list_faults(text: str, capabilities: tuple[str, ...], rules: ArchRules) -> list[str]:
    """Say what is wrong with a FLASHINFER_CUDA_ARCH_LIST for the GPUs of a host."""
    entries = text.split(" ")
    broken = [entry for entry in entries if not re.fullmatch(r"\d+\.\d+[a-z]?", entry)]
    if broken:
        return [f"{broken[0]!r} is no architecture: FlashInfer ends at import"]
    found = []
    for capability in capabilities:
        same = [e for e in entries if e.rstrip("abcdefghijklmnopqrstuvwxyz") == capability]
        if not same:
            found.append(f"{capability} is not in it: nothing is built for these GPUs")
        elif capability.startswith("12.") and capability in same and not rules.normalises:
            found.append(
                f"this FlashInfer takes {capability} as it is, without the instructions of"
                f" {capability}a: the FP4 kernels do not build"
            )
    return found
