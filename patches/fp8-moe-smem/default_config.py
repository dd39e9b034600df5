"""Give FP8 fused-MoE a default for 99 KB of shared memory (`fused_moe_triton_config.py`).

For more tokens than experts the default tile is 128 x 256 x 128 with 4 stages: 147456 bytes where
a block on SM12x has 101376. There the tile that SGLang 0.5.14 falls back to is taken: 64 x 128 x
256 with 2 stages, 49152 bytes. The default for fewer tokens needs 73728 bytes and stays; 0.5.14
changed that one as well. On GPUs with 128 KB and more, and on HIP, nothing changes.
"""

from __future__ import annotations

from sm120patch.codemod import Assignment, Codemod, Function, Site, has, insert_after

DEFAULT = Function("get_default_config")
LOW_SMEM = Function("_has_low_shared_memory")
LIMIT = 'getattr(properties, "shared_memory_per_block_optin", None)'
HELPER = f'''

@functools.lru_cache(maxsize=None)
def _has_low_shared_memory() -> bool:
    """Whether a block has too little shared memory for the FP8 defaults (99 KB on SM12x)."""
    if _is_hip or not torch.cuda.is_available():
        return False
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    limit = {LIMIT}
    return limit is not None and limit < 128 * 1024
'''
LARGE = """
config = {
    "BLOCK_SIZE_M": 128,
    "BLOCK_SIZE_N": 256,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 32,
    "num_warps": 8,
    "num_stages": 2 if _is_hip else 4,
}
""".strip()
SMALL = """
config = {
    "BLOCK_SIZE_M": 64,
    "BLOCK_SIZE_N": 128,
    "BLOCK_SIZE_K": 256,
    "GROUP_SIZE_M": 64,
    "num_warps": 4,
    "num_stages": 2,
}
""".strip()
FALLBACK = "if _has_low_shared_memory():\n    " + SMALL.replace("\n", "\n    ")

CODEMOD = Codemod(
    sites=(
        Site(Assignment("_is_hip"), insert_after("_is_hip = is_hip()", HELPER)),
        Site(DEFAULT, insert_after(LARGE, FALLBACK)),
    ),
    after=(
        has(LOW_SMEM, LIMIT),
        has(DEFAULT, FALLBACK),
        has(DEFAULT, SMALL),  # 0.5.14 has it elsewhere already
    ),
)
