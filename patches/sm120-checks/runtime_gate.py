"""Open SGLang's runtime gate of the fused all-reduce to SM120 (`layers/communicator.py`).

The gate, the variable it tests and the import of the helper belong together: the condition alone
is a NameError at the first forward pass. Other uses of `_is_sm100_supported` in the file concern
SM100 features and stay.
"""

from __future__ import annotations

from sm120patch.codemod import (
    Assignment,
    Codemod,
    FromImport,
    Function,
    Site,
    accepts,
    add_name,
    add_sibling,
    assigns,
    imports,
    lacks,
    widen,
)

GATE = Function("apply_flashinfer_allreduce_fusion")
UTILS = FromImport("sglang.srt.utils", having="is_sm100_supported")
SM90_OR_SM100 = "_is_sm90_supported or _is_sm100_supported"
SM100_TO_SM120 = {
    "_is_sm100_supported": "_is_sm120_supported",
    "is_sm100_supported": "is_sm120_supported",
}

CODEMOD = Codemod(
    sites=(
        Site(GATE, widen(SM90_OR_SM100, "_is_sm120_supported")),
        Site(Assignment("_is_sm100_supported"), add_sibling(SM100_TO_SM120)),
        Site(UTILS, add_name("is_sm120_supported", after="is_sm100_supported")),
    ),
    after=(
        imports("sglang.srt.utils", "is_sm120_supported"),
        assigns("_is_sm120_supported", "_is_cuda and is_sm120_supported()"),
        accepts(GATE, "_is_sm90_supported", "_is_sm100_supported", "_is_sm120_supported"),
        lacks(GATE, SM90_OR_SM100),
    ),
)
