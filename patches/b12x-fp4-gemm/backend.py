"""Give FlashInfer's `b12x` FP4 GEMM a name in SGLang (`quantization/fp4_utils.py`).

`get_flashinfer_backend` cuts the prefix `flashinfer_` off, so the new member reaches `mm_fp4` as
"b12x" without another edit. What `auto` resolves to stays as it is. Idea of sglang#38170, which
upstream has not taken.
"""

from __future__ import annotations

from sm120patch.codemod import Class, Codemod, Function, Site, has, insert_after

BACKENDS = Class("Fp4GemmRunnerBackend")
IS_AUTO = """
def is_auto(self) -> bool:
    return self == Fp4GemmRunnerBackend.AUTO
""".strip()
IS_B12X = """
def is_flashinfer_b12x(self) -> bool:
    return self == Fp4GemmRunnerBackend.FLASHINFER_B12X
"""
MEMBER = 'FLASHINFER_B12X = "flashinfer_b12x"'

CODEMOD = Codemod(
    sites=(
        Site(BACKENDS, insert_after('AUTO = "auto"', MEMBER)),
        Site(BACKENDS, insert_after(IS_AUTO, IS_B12X)),
    ),
    after=(
        has(BACKENDS, MEMBER),
        has(
            Function("Fp4GemmRunnerBackend.is_flashinfer_b12x"),
            "self == Fp4GemmRunnerBackend.FLASHINFER_B12X",
        ),
        has(
            Function("Fp4GemmRunnerBackend.get_flashinfer_backend"),
            'self.value.removeprefix("flashinfer_")',
        ),
    ),
)
