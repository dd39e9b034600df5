"""Let FlashInfer's autotuner run for the `b12x` FP4 GEMM (`runner/flashinfer_autotune.py`).

Its runner has tactics like those of the other two backends; without a tuning pass it runs the
first one that fits.
"""

from __future__ import annotations

from sm120patch.codemod import Codemod, Function, Site, accepts, lacks, widen

SHOULD_RUN = Function("should_run_flashinfer_autotune")
CUTLASS = "get_fp4_gemm_runner_backend().is_flashinfer_cutlass()"
CUTEDSL = "get_fp4_gemm_runner_backend().is_flashinfer_cutedsl()"
B12X = "get_fp4_gemm_runner_backend().is_flashinfer_b12x()"

CODEMOD = Codemod(
    sites=(Site(SHOULD_RUN, widen(f"{CUTLASS} or {CUTEDSL}", B12X)),),
    after=(
        accepts(SHOULD_RUN, CUTLASS, CUTEDSL, B12X),
        lacks(SHOULD_RUN, f"{CUTLASS} or {CUTEDSL}"),
    ),
)
