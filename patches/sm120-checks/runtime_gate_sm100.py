"""Open SGLang's runtime gate of the fused all-reduce to SM120 (`communicator.py`, to 0.5.2rc1).

The gate knows SM100 alone here and stands in the middle of a method. The condition, the variable
it tests and the import belong together. The helper is imported from where that for SM100 is; the
change `capability-helper` puts it there.
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
    has,
    imports_beside,
    widen,
)

GATE = Function("CommunicateWithAllReduceAndLayerNormFn._gather_hidden_states_and_residual")
HELPERS = FromImport(None, having="is_sm100_supported")
SM100_TO_SM120 = {
    "_is_sm100_supported": "_is_sm120_supported",
    "is_sm100_supported": "is_sm120_supported",
}

CODEMOD = Codemod(
    sites=(
        Site(GATE, widen("_is_sm100_supported", "_is_sm120_supported")),
        Site(Assignment("_is_sm100_supported"), add_sibling(SM100_TO_SM120)),
        Site(HELPERS, add_name("is_sm120_supported", after="is_sm100_supported")),
    ),
    after=(
        imports_beside("is_sm120_supported", "is_sm100_supported"),
        assigns("_is_sm120_supported", "is_cuda() and is_sm120_supported()"),
        accepts(GATE, "_is_sm100_supported", "_is_sm120_supported"),
        has(GATE, "_is_sm100_supported", 1),
        has(GATE, "_is_sm120_supported", 1),
    ),
)
