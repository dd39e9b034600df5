"""A record as `tune` keeps it. Its numbers are made up for the tests: no GPU measured them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DEVICE = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
SHAPE = {"experts": 128, "hidden": 2048, "intermediate": 768, "top_k": 8}


def key(gemm: int, tokens: int) -> str:
    profile = ((tokens, 1024), (128, 1536, 128), (0,), (128, 2048, 48), (0,))
    return str((f"trtllm::fused_moe::gemm{gemm}", "MoERunner", profile))


RECORD: dict[str, Any] = {
    "schema": 1,
    "flashinfer": "0.6.3",
    "nvfp4_cutlass_version": "0.1",
    "device": DEVICE,
    "capability": "12.0",
    "shapes": [SHAPE],
    "max_tokens": 8192,
    "software": {"torch": "2.9.1", "cuda": "13.0"},
    "entries": [[key(gemm, 1 << n), 0, gemm + n] for gemm in (1, 2) for n in range(14)],
}


def write_record(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps({**RECORD, **changes}))
    return path
