"""Do not switch the fused all-reduce on by itself on SM12x (`server_args.py`, 0.5.7).

`is_blackwell_supported()` counts SM12x in, for which the FlashInfer of this release builds no
communication module. SGLang 0.5.8 asks for SM100 instead, as does this.
"""

from __future__ import annotations

from sm120patch.codemod import Branch, Codemod, Function, Site, accepts, lacks, replace

AUTO_ENABLE = Branch(
    within=Function("ServerArgs._handle_model_specific_adjustments"),
    sets="self.enable_flashinfer_allreduce_fusion = True",
    asks="is_sm90_supported()",
)
BLACKWELL, SM100 = "is_blackwell_supported()", "is_sm100_supported()"

CODEMOD = Codemod(
    sites=(Site(AUTO_ENABLE, replace(BLACKWELL, SM100)),),
    after=(
        accepts(AUTO_ENABLE, "is_sm90_supported()", SM100),
        lacks(AUTO_ENABLE, BLACKWELL),
    ),
)
