"""Let hybrid GDN models use FlashInfer attention on SM12x (0.5.4.post2 to 0.5.5.post1).

These releases assert that the backend is triton on all of Blackwell, SM12x included for the first
time, where SGLang chooses flashinfer by itself. The release before let it through there.
"""

from __future__ import annotations

from sm120patch.codemod import Codemod, Function, Site, accepts, add_name, has, replace

WRAPPER = Function("attn_backend_wrapper")
BACKEND = "runner.server_args.attention_backend"
TRITON = f'{BACKEND} == "triton"'
UTILS = "from sglang.srt.utils import is_blackwell, is_npu, is_sm120_supported"
FLASHINFER = f"""(
        is_sm120_supported()
        and {BACKEND} == "flashinfer"
    )"""
ONLY = (
    "triton backend is the only supported backend on Blackwell GPUs for hybrid GDN models,"
    " use --attention-backend triton to specify the backend."
)
ONLY_NOW = (
    "triton or, on SM12x, flashinfer backend are the only supported backends on Blackwell GPUs"
    " for hybrid GDN models, use --attention-backend to specify the backend."
)

CODEMOD = Codemod(
    sites=(
        Site(WRAPPER, replace(TRITON, f"({TRITON}\n    or {FLASHINFER})")),
        Site(WRAPPER, replace(f'"{ONLY}"', f'"{ONLY_NOW}"')),
        Site(WRAPPER, add_name("is_sm120_supported", after="is_npu")),
    ),
    after=(accepts(WRAPPER, TRITON, FLASHINFER), has(WRAPPER, UTILS)),
)
