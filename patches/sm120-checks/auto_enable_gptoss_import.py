"""Switch the fused all-reduce on by itself for GPT-OSS on SM120 (`server_args.py`, to 0.5.3.post3).

Optional, and off unless asked for; the launch option does the same for one server. The condition is
known by the line it logs. From 0.5.3.post2 DeepSeek V3 has one of its own, which also chooses an
attention backend that SM120 does not have; it stays as it is.
"""

from __future__ import annotations

from sm120patch.codemod import (
    Branch,
    Class,
    Codemod,
    FromImport,
    Site,
    accepts,
    add_name,
    has,
    imports_beside,
    replace,
)

AUTO_ENABLE = Branch(
    within=Class("ServerArgs"),
    sets='logger.info("Enable FlashInfer AllReduce Fusion on sm100 for GptOssForCausalLM")',
    asks="is_sm100_supported()",
)
SM100 = "is_sm100_supported()"
SM100_OR_SM120 = f"{SM100} or is_sm120_supported()"
HELPERS = FromImport(None, having="is_sm100_supported")

CODEMOD = Codemod(
    sites=(
        Site(AUTO_ENABLE, replace(SM100, SM100_OR_SM120)),
        Site(HELPERS, add_name("is_sm120_supported", after="is_sm100_supported")),
    ),
    after=(
        imports_beside("is_sm120_supported", "is_sm100_supported"),
        accepts(AUTO_ENABLE, SM100, "is_sm120_supported()"),
        has(AUTO_ENABLE, SM100, 1),
        has(AUTO_ENABLE, "is_sm120_supported()", 1),
    ),
)
