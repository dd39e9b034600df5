"""Fit Inkling's small grouped GEMM into SM120's shared memory (`inkling_moe.py`, from 0.5.18).

From 0.5.18 upstream takes 3 stages on SM121 alone, though SM120 has the same 101376 bytes a block
and 4 stages want 110592 (sglang#37803).
"""

from __future__ import annotations

from sm120patch.codemod import (
    Codemod,
    FromImport,
    Function,
    Site,
    add_name,
    has,
    imports,
    replace,
)

GEMM = Function("grouped_gemm_triton")
SM12X = "is_sm120_supported() or is_sm121()"

CODEMOD = Codemod(
    sites=(
        Site(GEMM, replace("is_sm121()", SM12X)),
        Site(
            FromImport("sglang.srt.utils.common", having="is_sm121"),
            add_name("is_sm120_supported", after="is_sm121"),
        ),
    ),
    after=(
        imports("sglang.srt.utils.common", "is_sm120_supported"),
        has(GEMM, f"3 if {SM12X} else 4"),
    ),
)
