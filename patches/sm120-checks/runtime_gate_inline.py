"""Open SGLang's runtime gate of the fused all-reduce to SM120 (`communicator.py`, to 0.5.7).

From 0.5.2rc2 to 0.5.7 the gate stands in the middle of a method and asks for SM100 before SM90.
The condition, the variable it tests and the import belong together.
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
    either,
    imports,
    lacks,
    widen,
)

GATE = Function("CommunicateWithAllReduceAndLayerNormFn._gather_hidden_states_and_residual")
UTILS = FromImport("sglang.srt.utils", having="is_sm100_supported")
SM100_OR_SM90 = "_is_sm100_supported or _is_sm90_supported"
SM100_TO_SM120 = {
    "_is_sm100_supported": "_is_sm120_supported",
    "is_sm100_supported": "is_sm120_supported",
}

CODEMOD = Codemod(
    sites=(
        Site(GATE, widen(SM100_OR_SM90, "_is_sm120_supported")),
        Site(Assignment("_is_sm100_supported"), add_sibling(SM100_TO_SM120)),
        Site(UTILS, add_name("is_sm120_supported", after="is_sm100_supported")),
    ),
    after=(
        imports("sglang.srt.utils", "is_sm120_supported"),
        either(
            assigns("_is_sm120_supported", "is_cuda() and is_sm120_supported()"),
            assigns("_is_sm120_supported", "_is_cuda and is_sm120_supported()"),
        ),
        accepts(GATE, "_is_sm100_supported", "_is_sm90_supported", "_is_sm120_supported"),
        lacks(GATE, SM100_OR_SM90),
    ),
)
