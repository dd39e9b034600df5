"""Fit Inkling's small grouped GEMM into SM12x's shared memory (`inkling_moe.py`, 0.5.16, 0.5.17).

Triton keeps `num_stages - 1` copies of the 16 x 128 and 128 x 128 tiles in shared memory: 110592
bytes in bf16 with 4 stages, 73728 with 3. A block on SM12x has 101376. The branch for large
batches has 3 stages as it is.
"""

from __future__ import annotations

from sm120patch.codemod import (
    Codemod,
    FromImport,
    Function,
    Site,
    has,
    imports,
    insert_after,
    set_item,
)

GEMM = Function("grouped_gemm_triton")
STAGES = "3 if is_sm120_supported() else 4"
HELION = "sglang.srt.layers.moe.moe_runner.triton_utils.helion_utils"
NAMES = "get_model_depths, helion_aot_autotune"

CODEMOD = Codemod(
    sites=(
        Site(GEMM, set_item('"num_stages"', "4", STAGES)),
        Site(
            FromImport(HELION, having="helion_aot_autotune"),
            insert_after(
                f"from {HELION} import {NAMES}",
                "from sglang.srt.utils.common import is_sm120_supported",
            ),
        ),
    ),
    after=(
        imports("sglang.srt.utils.common", "is_sm120_supported"),
        has(GEMM, STAGES),
    ),
)
