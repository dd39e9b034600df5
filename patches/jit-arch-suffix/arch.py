"""Compile SGLang's own JIT kernels for sm_12xa instead of plain sm_12x (`jit_kernel/utils.py`).

What is compiled at run time is for the GPU at hand, so nothing is lost by the target for exactly
this architecture, which alone has the FP4 and block-scaled instructions. SGLang 0.5.16 has it; it
takes "f" for 12.0 where the CUDA version allows. HIP counts its capabilities otherwise and stays.
"""

from __future__ import annotations

from sm120patch.codemod import Codemod, Function, Site, has, lacks, replace

INIT = Function("_init_jit_cuda_arch_once")
PLAIN = 'ArchInfo(major, minor, "")'
SUFFIXED = 'ArchInfo(major, minor, "a" if major == 12 and not is_hip_runtime() else "")'

CODEMOD = Codemod(
    sites=(Site(INIT, replace(PLAIN, SUFFIXED)),),
    after=(has(INIT, SUFFIXED), lacks(INIT, PLAIN)),
)
