"""Let FlashInfer compile its TRT-LLM communication module for SM120 (0.2.9 to 0.2.12 and 0.3.0).

`gen_trtllm_comm_module` has no list of architectures here, but leaves everything except SM100 to
torch, which asks for plain `compute_120`. The module converts to FP4, which only `sm_120a` can, so
that the assembler ends the build ("cvt with .e2m1x2 not supported on .target sm_120"). With the
change SM120 gets flags of its own, as SM100 has; torch adds none where it sees some.
"""

from __future__ import annotations

from sm120patch.codemod import Codemod, Function, Site, has, insert_after, replace

MODULE = Function("gen_trtllm_comm_module")

HAS_SM100 = """
has_sm100 = any(
    "compute_100" in flag for flag in gencode_flags
) and version_at_least(torch.version.cuda, "12.8")
"""
HAS_SM120 = """has_sm120 = any(
    "compute_120" in flag for flag in gencode_flags
) and version_at_least(torch.version.cuda, "12.8")
sm120a_nvcc_flags = [
    "-gencode=arch=compute_120a,code=sm_120a",
    "-DFLASHINFER_ENABLE_FP8_E8M0",
    "-DFLASHINFER_ENABLE_FP4_E2M1",
]
"""
FLAGS = "sm100a_nvcc_flags if has_sm100 else []"
FLAGS_NOW = "sm100a_nvcc_flags if has_sm100 else sm120a_nvcc_flags if has_sm120 else []"

CODEMOD = Codemod(
    sites=(
        Site(MODULE, insert_after(HAS_SM100, HAS_SM120)),
        Site(MODULE, replace(FLAGS, FLAGS_NOW)),
    ),
    after=(
        has(MODULE, FLAGS_NOW),
        has(MODULE, '"-gencode=arch=compute_120a,code=sm_120a"'),
        has(MODULE, HAS_SM120.partition("\nsm120a")[0]),
    ),
)
