"""Let SGLang resolve a fusion backend on SM120 (`layers/flashinfer_comm_fusion.py`).

From 0.5.14 `_resolve_backend` raises a ValueError on anything but SM90 and SM10X, and nobody
catches it at start. Once it is let through, `auto` falls to "trtllm" on a single node, as on SM90;
"mnnvl" and several nodes stay refused.
"""

from __future__ import annotations

from sm120patch.codemod import (
    Codemod,
    FromImport,
    Function,
    Site,
    accepts,
    add_name,
    imports,
    lacks,
    replace,
    widen,
)

RESOLVER = Function("_resolve_backend")
UTILS = FromImport("sglang.srt.utils", having="is_sm100_supported")
SM90_OR_SM100 = "is_sm90_supported() or is_sm100_supported()"
NEEDS = '"FlashInfer allreduce fusion requires SM90 or SM10X NVIDIA GPUs."'
NEEDS_NOW = '"FlashInfer allreduce fusion requires SM90, SM10X or SM12X NVIDIA GPUs."'

CODEMOD = Codemod(
    sites=(
        Site(RESOLVER, widen(SM90_OR_SM100, "is_sm120_supported()")),
        Site(RESOLVER, replace(NEEDS, NEEDS_NOW)),
        Site(UTILS, add_name("is_sm120_supported", after="is_sm100_supported")),
    ),
    after=(
        imports("sglang.srt.utils", "is_sm120_supported"),
        accepts(RESOLVER, "is_sm90_supported()", "is_sm100_supported()", "is_sm120_supported()"),
        lacks(RESOLVER, SM90_OR_SM100),
    ),
)
