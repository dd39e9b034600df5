"""Let hybrid GDN models use FlashInfer attention on SM12x (`attention_registry.py`).

The assertion is about Blackwell as a whole, names trtllm_mha, which does not exist on SM12x, and
rules out flashinfer, which SGLang chooses there by itself: such a model does not start. Upstream
lets flashinfer in from 0.5.10rc0, on SM12x to this day. SM10x stays as it is.
"""

from __future__ import annotations

from sm120patch.codemod import (
    Codemod,
    Function,
    Site,
    accepts,
    add_name,
    has,
    lacks,
    replace,
    widen,
)

WRAPPER = Function("attn_backend_wrapper")
BACKEND = "runner.server_args.attention_backend"
TRITON, TRTLLM = f'{BACKEND} == "triton"', f'{BACKEND} == "trtllm_mha"'
UTILS = "from sglang.srt.utils import is_blackwell, is_npu, is_sm120_supported"
FLASHINFER = f"""(
        is_sm120_supported()
        and {BACKEND} == "flashinfer"
    )"""
USE = "use --attention-backend triton or --attention-backend trtllm_mha to specify the backend."
ONLY = (
    "triton or trtllm_mha backend are the only supported backends on Blackwell GPUs"
    " for hybrid GDN models, "
)
ONLY_NOW = (
    "triton, trtllm_mha or, on SM12x, flashinfer backend are the only supported backends on"
    " Blackwell GPUs for hybrid GDN models, use --attention-backend to specify the backend."
)

CODEMOD = Codemod(
    sites=(
        Site(WRAPPER, widen(f"{TRITON} or {TRTLLM}", FLASHINFER)),
        Site(WRAPPER, replace(f'"{ONLY}{USE}"', f'"{ONLY_NOW}"')),
        Site(WRAPPER, add_name("is_sm120_supported", after="is_npu")),
    ),
    after=(
        accepts(WRAPPER, TRITON, TRTLLM, FLASHINFER),
        lacks(WRAPPER, f"{TRITON} or {TRTLLM}"),
        has(WRAPPER, UTILS),
    ),
)
