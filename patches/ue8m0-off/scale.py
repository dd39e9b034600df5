"""Do not take checkpoint scales for UE8M0 on SM12x (`deep_gemm_wrapper/configurer.py`).

The flag follows `DEEPGEMM_BLACKWELL`, which counts SM12x in from 0.5.4.post2 on. DeepGEMM has no
kernels for SM12x in these releases, so the scale format that only its SM100 kernels want does harm
and no good there. SM10x stays as it is.
"""

from __future__ import annotations

from sm120patch.codemod import (
    Assignment,
    Codemod,
    FromImport,
    Site,
    add_name,
    assigns,
    either,
    imports,
    replace,
)

UE8M0 = Assignment("DEEPGEMM_SCALE_UE8M0")
UTILS = FromImport("sglang.srt.utils", having="get_device_sm")
OFF = "DEEPGEMM_BLACKWELL and not is_sm120_supported()"
UPSTREAM = tuple(
    assigns("DEEPGEMM_BLACKWELL", f"ENABLE_JIT_DEEPGEMM and {sm100}")
    for sm100 in ("is_sm100_supported()", "get_platform().is_sm100")
)

CODEMOD = Codemod(
    sites=(
        Site(UE8M0, replace("DEEPGEMM_BLACKWELL", OFF)),
        Site(UTILS, add_name("is_sm120_supported", after="get_device_sm")),
    ),
    after=(
        either(imports("sglang.srt.utils", "is_sm120_supported"), *UPSTREAM),
        either(assigns("DEEPGEMM_SCALE_UE8M0", OFF), *UPSTREAM),
        either(
            assigns("DEEPGEMM_SCALE_UE8M0", OFF),
            assigns("DEEPGEMM_SCALE_UE8M0", "DEEPGEMM_BLACKWELL"),
        ),
    ),
)
