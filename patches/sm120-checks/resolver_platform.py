"""Let SGLang resolve a fusion backend on SM120 (`layers/flashinfer_comm_fusion.py`, from 0.5.19).

`_resolve_backend` raises a ValueError on anything but SM90 and SM10X, and nobody catches it at
start. Once it is let through, `auto` falls to "trtllm" on a single node, as on SM90; "mnnvl",
"cutedsl" (from 0.5.21) and several nodes stay refused.
"""

from __future__ import annotations

from sm120patch.codemod import Codemod, Function, Site, accepts, imports, lacks, replace, widen

RESOLVER = Function("_resolve_backend")
SM90_OR_SM100 = "get_platform().is_sm90 or get_platform().is_sm100"
SM120 = "get_platform().is_sm120"
NEEDS = '"FlashInfer allreduce fusion requires SM90 or SM10X NVIDIA GPUs."'
NEEDS_NOW = '"FlashInfer allreduce fusion requires SM90, SM10X or SM12X NVIDIA GPUs."'

CODEMOD = Codemod(
    sites=(
        Site(RESOLVER, widen(SM90_OR_SM100, SM120)),
        Site(RESOLVER, replace(NEEDS, NEEDS_NOW)),
    ),
    after=(
        imports("sglang.srt.runtime_context", "get_platform"),
        accepts(RESOLVER, "get_platform().is_sm90", "get_platform().is_sm100", SM120),
        lacks(RESOLVER, SM90_OR_SM100),
    ),
)
