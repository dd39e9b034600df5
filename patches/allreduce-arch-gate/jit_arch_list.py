"""Let FlashInfer compile its TRT-LLM communication module for SM120 (`flashinfer/jit/comm.py`).

`gen_trtllm_comm_module` names the architectures it may be built for; without 12 among them every
start ends in "No supported CUDA architectures found for major versions [9, 10]". The same list in
`gen_mixed_comm_module` and `gen_trtllm_mnnvl_comm_module` is meant as it stands and stays.
FlashInfer 0.6.17 has the change.
"""

from __future__ import annotations

from sm120patch.codemod import Codemod, Function, Site, append, lists

MODULE = Function("gen_trtllm_comm_module")

CODEMOD = Codemod(
    sites=(Site(MODULE, append("supported_major_versions", "[9, 10]", 12)),),
    after=(lists(MODULE, "supported_major_versions", 12),),
)
