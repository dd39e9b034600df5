"""Define `is_sm120_supported` beside `is_sm100_supported`, as SGLang does from 0.5.4.

Up to 0.5.3.post3 there is no helper that knows compute capability 12. The new one is that for
SM100 with another number: same device, same demand on CUDA.
"""

from __future__ import annotations

from sm120patch.codemod import Codemod, Function, Site, add_sibling, has

SM100 = Function("is_sm100_supported")
SM120 = Function("is_sm120_supported")

CODEMOD = Codemod(
    sites=(Site(SM100, add_sibling({"is_sm100_supported": "is_sm120_supported", "10": "12"})),),
    after=(
        has(SM100, "torch.cuda.get_device_capability(device)[0] == 10"),
        has(SM120, "torch.cuda.get_device_capability(device)[0] == 12"),
        has(SM120, 'torch.version.cuda >= "12.8"'),
    ),
)
