"""Runs FlashInfer's autotuner over MoE layers inside the target's interpreter.

Runs as `EXE -I -c <this text> JSON`, so it imports nothing of ours. It uses the GPU that torch
calls device 0, the one whose name FlashInfer looks for, and leaves nothing but its answer.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

BEGIN = "<<<sm120patch "
END = " sm120patch>>>"


def round_up(value: int, unit: int) -> int:
    """Next multiple of `unit`."""
    return (value + unit - 1) // unit * unit


def layer(torch: Any, shape: dict[str, int], tokens: int) -> dict[str, Any]:
    """Arguments of one call, with the layouts that SGLang passes for NVFP4 checkpoints.

    Keys hold the layout of the activations: BF16 as they are, and packed NVFP4 only where SGLang
    quantizes before it gathers them (`should_use_flashinfer_cutlass_moe_fp4_allgather`). Contents
    do not matter to which tactic is fastest; block scales are finite and positive.
    """
    experts, hidden = shape["experts"], shape["hidden"]
    inner, top_k = shape["intermediate"], shape["top_k"]
    parallel = {name: shape[name.partition("_")[0]] for name in ("tp_size", "ep_size")}
    cuda = {"device": "cuda:0"}

    def packed(rows: int, columns: int) -> Any:
        size = (experts, rows, columns // 2)
        return torch.randint(0, 256, size, dtype=torch.uint8, **cuda).view(torch.long)

    def scales(rows: int, columns: int) -> Any:
        size = (experts, round_up(rows, 128), round_up(columns // 16, 4))
        return torch.ones(size, **cuda).to(torch.float8_e4m3fn).view(torch.int32)

    one = torch.ones((), dtype=torch.float32, **cuda)
    each = torch.ones((experts,), dtype=torch.float32, **cuda)
    return {
        **activations(torch, shape, tokens),
        **parallel,
        "token_selected_experts": torch.rand((tokens, experts * shape["ep"]), **cuda)
        .topk(top_k, dim=1)
        .indices.to(torch.int),
        "token_final_scales": torch.full((tokens, top_k), 1.0 / top_k, **cuda),
        "fc1_expert_weights": packed(2 * inner, hidden),
        "fc2_expert_weights": packed(hidden, inner),
        "output_dtype": torch.bfloat16,
        "quant_scales": [one, scales(2 * inner, hidden), each, one, scales(hidden, inner), each],
    }


def activations(torch: Any, shape: dict[str, int], tokens: int) -> dict[str, Any]:
    """Hidden states of `tokens` tokens, and their scales if they are packed."""
    hidden, cuda = shape["hidden"], {"device": "cuda:0"}
    if not shape["packed"]:
        return {"input": torch.rand((tokens, hidden), **cuda).to(torch.bfloat16)}
    size = (round_up(tokens, 128), round_up(hidden // 16, 4))
    return {
        "input": torch.randint(0, 256, (tokens, hidden // 2), dtype=torch.uint8, **cuda),
        "input_sf": torch.ones(size, **cuda).to(torch.float8_e4m3fn).view(torch.uint8),
    }


def finalize() -> dict[str, bool]:
    """The option that names another list of tactics, as this SGLang passes it (0.5.18 and on)."""
    try:
        envs = importlib.import_module("sglang.srt.environ").envs
        return {"use_fused_finalize": bool(envs.SGLANG_FLASHINFER_MOE_FUSED_FINALIZE.get())}
    except (ImportError, AttributeError):
        return {}


def measured(tuner: Any) -> list[list[Any]]:
    """Every result of the autotuner, keyed as its loader of tuning files spells keys."""
    entries = []
    for key, (runner, tactic, *_) in tuner.profiling_cache.items():
        entries.append([str((key[0], key[1], key[3])), int(runner), int(tactic)])
    return entries


def tune(request: dict[str, Any], torch: Any) -> dict[str, Any]:
    """Measure every layer; the result is keyed as what reads it in this release spells keys."""
    autotuner: Any = importlib.import_module("flashinfer.autotuner")
    moe: Any = importlib.import_module("flashinfer.fused_moe")
    with tempfile.TemporaryDirectory() as scratch:
        cache = Path(scratch, "cache.json")
        options = {"cache": str(cache)} if request["json"] else {}
        for shape in request["shapes"]:
            with torch.inference_mode(), autotuner.autotune(True, **options):
                moe.cutlass_fused_moe(
                    **layer(torch, shape, request["max_tokens"]),
                    **finalize(),
                    tune_max_num_tokens=request["max_tokens"],
                )
            torch.cuda.synchronize()
        if request["json"]:
            return {"cache": json.loads(cache.read_text(encoding="utf-8"))}
    return {
        "nvfp4_cutlass_version": autotuner._nvfp4_cutlass_version,
        "entries": measured(autotuner.AutoTuner.get()),
    }


def main() -> None:
    """Tune every layer of argv[1] and write one JSON object."""
    answer = tuned(json.loads(sys.argv[1]), importlib.import_module("torch"))
    sys.stdout.write(BEGIN + json.dumps(answer) + END)


def tuned(request: dict[str, Any], torch: Any) -> dict[str, Any]:
    """Measure where the result can be used; else say why not, before anything is compiled."""
    if not torch.cuda.is_available():
        return {"error": "torch finds no CUDA device"}
    device = torch.cuda.get_device_name(0)
    major, minor = torch.cuda.get_device_capability(0)
    if major != 12:
        return {"other_gpu": f"{device} has compute capability {major}.{minor}"}
    found = tune(request, torch)
    return {
        "schema": 1,
        "flashinfer": importlib.import_module("flashinfer").__version__,
        "device": device,
        "capability": f"{major}.{minor}",
        "software": {"torch": str(torch.__version__), "cuda": str(torch.version.cuda)},
        "shapes": request["shapes"],
        "max_tokens": request["max_tokens"],
        **found,
    }


if __name__ == "__main__":
    main()
