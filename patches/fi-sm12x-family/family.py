"""Count SM121 into the family that `compute_120f` is compiled for (`flashinfer/utils.py`).

FlashInfer 0.6.11 has the change. The function beside it, `is_sm121a_supported`, is about SM121
alone and stays.
"""

from __future__ import annotations

from sm120patch.codemod import Codemod, Function, Site, has, lacks, replace

FAMILY = Function("is_sm120f_supported")
CUDA = 'version_at_least(torch.version.cuda, "12.9")'

CODEMOD = Codemod(
    sites=(
        Site(FAMILY, replace(f"major == 12 and minor == 0 and {CUDA}", f"major == 12 and {CUDA}")),
        Site(FAMILY, replace("major, minor", "major, _")),
    ),
    after=(has(FAMILY, f"major == 12 and {CUDA}"), lacks(FAMILY, "minor == 0")),
)
