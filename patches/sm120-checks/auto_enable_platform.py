"""Switch the fused all-reduce on by itself on SM120 (`arg_groups/overrides.py`, from 0.5.19).

Optional, and off unless asked for: the author of the upstream attempt withdrew it after it slowed
TP4 on PCIe-only hosts. The launch option does the same for one server. `get_platform().is_sm100`
alone, which lets several nodes and MiMo models in, stays as it is.
"""

from __future__ import annotations

from sm120patch.codemod import Codemod, Function, Site, accepts, imports, lacks, widen

AUTO_ENABLE = Function("_flashinfer_allreduce_fusion_auto_enable")
SM90_OR_SM100 = "get_platform().is_sm90 or get_platform().is_sm100"
SM120 = "get_platform().is_sm120"

CODEMOD = Codemod(
    sites=(Site(AUTO_ENABLE, widen(SM90_OR_SM100, SM120)),),
    after=(
        imports("sglang.srt.runtime_context", "get_platform"),
        accepts(AUTO_ENABLE, "get_platform().is_sm90", "get_platform().is_sm100", SM120),
        lacks(AUTO_ENABLE, SM90_OR_SM100),
    ),
)
