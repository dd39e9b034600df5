"""Open SGLang's runtime gate of the fused all-reduce to SM120 (`add_norm.py`, 0.5.22 and 0.5.23).

The function got a new name here. The gate and the variable it tests belong together.
"""

from __future__ import annotations

from sm120patch.codemod import (
    Assignment,
    Codemod,
    Function,
    Site,
    accepts,
    add_sibling,
    assigns,
    imports,
    lacks,
    widen,
)

GATE = Function("flashinfer_ar_fusion_applies")
SM90_OR_SM100 = "_is_sm90_supported or _is_sm100_supported"
SM100_TO_SM120 = {"_is_sm100_supported": "_is_sm120_supported", "is_sm100": "is_sm120"}

CODEMOD = Codemod(
    sites=(
        Site(GATE, widen(SM90_OR_SM100, "_is_sm120_supported")),
        Site(Assignment("_is_sm100_supported"), add_sibling(SM100_TO_SM120)),
    ),
    after=(
        imports("sglang.srt.runtime_context", "get_platform"),
        assigns("_is_sm120_supported", "_is_cuda and get_platform().is_sm120"),
        accepts(GATE, "_is_sm90_supported", "_is_sm100_supported", "_is_sm120_supported"),
        lacks(GATE, SM90_OR_SM100),
    ),
)
