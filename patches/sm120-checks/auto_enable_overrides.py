"""Switch the fused all-reduce on by itself on SM120 (`arg_groups/overrides.py`, 0.5.15 to 0.5.18).

Optional, and off unless asked for: the author of the upstream attempt withdrew it after it slowed
TP4 on PCIe-only hosts. The launch option does the same for one server. The condition is known by
the assignment it leads to; the same words elsewhere in the file guard something else.
"""

from __future__ import annotations

from sm120patch.codemod import Branch, Codemod, Function, Site, accepts, imports, lacks, widen

AUTO_ENABLE = Branch(
    within=Function("_flashinfer_allreduce_fusion_auto_enable"),
    sets='return {"flashinfer_allreduce_fusion_backend": "auto"}',
    asks="is_sm90_supported()",
)
SM90_OR_SM100 = "is_sm90_supported() or is_sm100_supported()"

CODEMOD = Codemod(
    sites=(Site(AUTO_ENABLE, widen(SM90_OR_SM100, "is_sm120_supported()")),),
    after=(
        imports("sglang.srt.utils.common", "is_sm120_supported"),
        accepts(AUTO_ENABLE, "is_sm90_supported()", "is_sm100_supported()", "is_sm120_supported()"),
        lacks(AUTO_ENABLE, SM90_OR_SM100),
    ),
)
