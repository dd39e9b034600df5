"""Do not switch the fused all-reduce on for GPT-OSS on SM12x (0.5.4.post2 to 0.5.6.post2).

The branch around it is for all of Blackwell, and rightly so for what else it does. The same
assignment for DeepSeek stands in a branch of its own, which is for SM100.
"""

from __future__ import annotations

from sm120patch.codemod import Branch, Codemod, Function, Site, has, replace

DP = "not self.enable_dp_attention"
AUTO_ENABLE = Branch(
    within=Function("ServerArgs._handle_model_specific_adjustments"),
    sets='logger.info("Enable FlashInfer AllReduce Fusion on sm100 for GptOssForCausalLM")',
    asks=DP,
)

CODEMOD = Codemod(
    sites=(Site(AUTO_ENABLE, replace(DP, f"is_sm100_supported() and {DP}")),),
    after=(has(AUTO_ENABLE, "is_sm100_supported()"),),
)
