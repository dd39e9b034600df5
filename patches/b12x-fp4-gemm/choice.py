"""Let `--fp4-gemm-backend` take `flashinfer_b12x`.

The list stands in `server_args.py` up to 0.5.19 and in `arg_groups/choices.py` from 0.5.20.
"""

from __future__ import annotations

from sm120patch.codemod import Assignment, Codemod, Site, add_item, has

CHOICES = Assignment("FP4_GEMM_RUNNER_BACKEND_CHOICES")

CODEMOD = Codemod(
    sites=(Site(CHOICES, add_item('"flashinfer_b12x"', after='"auto"')),),
    after=(has(CHOICES, '"flashinfer_b12x"'),),
)
