"""A record as `tune` keeps it. Its numbers are made up for the tests: no GPU measured them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DEVICE = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
SHAPE = {"experts": 128, "hidden": 2048, "intermediate": 768, "top_k": 8}


def key(gemm: int, tokens: int) -> str:
    profile = ((tokens, 2048), (128, 1536, 128), (0,), (128, 2048, 48), (0,))
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

METADATA = {
    "flashinfer_version": "0.6.12",
    "cuda_version": "13.0",
    "cublas_version": "13.1.0.3",
    "cudnn_version": "91300",
    "cudnn_frontend_version": "1.28.0",
    "gpu": DEVICE,
}


def cache(flashinfer: str, tokens: int = 14) -> dict[str, Any]:
    """Entries as `save_configs` of the release writes them; keys hold more in later ones."""
    number = tuple(int(part) for part in flashinfer.split(".")[:3] if part.isdigit())
    extras = "" if number < (0, 6, 13) else ", ()"
    if number >= (0, 6, 18):
        extras = (
            ", (torch.bfloat16, torch.int64, torch.bfloat16, 8, 1, 1, 1, False, False, False,"
            " False, False, False, True, 3, False, False)"
        )
    policy = [["cold_l2", False]] if number >= (0, 7, 0) else []
    entries = {
        key(gemm, 1 << n)[:-1] + extras + ")": [
            "MoERunner",
            gemm + n,
            *([policy] if policy else []),
        ]
        for gemm in (1, 2)
        for n in range(tokens)
    }
    return {"_metadata": {**METADATA, "flashinfer_version": flashinfer}, **entries}


def json_record(flashinfer: str = "0.6.12", **changes: Any) -> dict[str, Any]:
    """A record of a release that keeps a JSON cache."""
    kept = {k: v for k, v in RECORD.items() if k not in ("entries", "nvfp4_cutlass_version")}
    return {**kept, "flashinfer": flashinfer, "cache": cache(flashinfer), **changes}


def write_record(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps({**RECORD, **changes}))
    return path
