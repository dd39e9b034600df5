"""FlashInfer alone: builds follow the content of a header, shown with kernels that run.

The header of the gated activations is patched so that the output doubles, which is exact in bf16.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import rehearsal
from host import Host, make_environment

SET = "rehearsal-doubled"
_PRODUCT = "      out_vec[i] = Activation(x_vec[i]) * y_vec[i];\n"
_DOUBLED = "      out_vec[i] = 2.0f * Activation(x_vec[i]) * y_vec[i];\n"
_RUN = """
import hashlib, json, sys, time
import torch
import flashinfer
from flashinfer.jit.activation import gen_act_and_mul_module
real = torch.cuda.is_available()
spec = gen_act_and_mul_module("silu")
folder = spec.jit_library_path.parent
before = {p.name: p.stat().st_mtime_ns for p in folder.glob("*.o")} if folder.exists() else {}
began = time.time()
spec.build(verbose=False)
seconds = time.time() - began
after = {p.name: p.stat().st_mtime_ns for p in folder.glob("*.o")}
compiled = sorted(n for n, t in after.items() if t >= began * 1e9 - 1e9)
answer = {"seconds": seconds, "compiled": compiled,
          "sha256": hashlib.sha256(spec.jit_library_path.read_bytes()).hexdigest(),
          "path": str(spec.jit_library_path), "ran": real}
if real:
    generator = torch.Generator("cuda").manual_seed(5)
    x = torch.randn(4096, 2 * 4096, generator=generator, device="cuda").to(torch.bfloat16)
    out = flashinfer.silu_and_mul(x)
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    times = []
    for _ in range(30):
        events[0].record(); flashinfer.silu_and_mul(x); events[1].record()
        torch.cuda.synchronize(); times.append(events[0].elapsed_time(events[1]))
    reference = torch.nn.functional.silu(x[:, :4096].double()) * x[:, 4096:].double()
    scale = float((out.double() * reference).sum() / (reference * reference).sum())
    error = float((out.double() / scale - reference).norm() / reference.norm())
    answer |= {"output": hashlib.sha256(out.cpu().view(torch.int16).numpy().tobytes()).hexdigest(),
               "scale": scale, "relative_error": error, "milliseconds": sorted(times),
               "device": torch.cuda.get_device_name()}
    torch.save(out.cpu(), sys.argv[1])
    if len(sys.argv) > 2:
        answer["exactly_twice"] = bool(torch.equal(out.cpu(), 2 * torch.load(sys.argv[2])))
        answer["equal"] = bool(torch.equal(out.cpu(), torch.load(sys.argv[2])))
print(json.dumps(answer))
"""


def prepare(host: Host) -> None:
    """An environment of its own, with a home of its own, and the set for it."""
    site = make_environment(host, "kernels")
    rehearsal.label(site)
    rehearsal.write_edit(
        host.catalogue("kernels"), "doubled", "Double the activations", site, rehearsal.ACTIVATION,
        lambda text: text.replace(_PRODUCT, _DOUBLED, 1),
        conditions=f"present = {{ {json.dumps(_DOUBLED.strip())} = 1 }}",
    )  # fmt: skip
    home(host).mkdir(exist_ok=True)


def home(host: Host) -> Path:
    """Its own JIT cache."""
    return host.run.root / "home-kernels"


def swap(host: Host, gpu: str) -> None:
    """Build, patch, build, revert, patch again: two builds, and no other compile."""
    _build(host, "kernel-1-published", gpu)
    _patch(host, "kernel-2-apply", "apply", SET, "--no-verify")
    _build(host, "kernel-2-patched", gpu, "kernel-1-published")
    _patch(host, "kernel-3-revert", "revert", "--all")
    _build(host, "kernel-3-reverted", gpu, "kernel-1-published")
    _patch(host, "kernel-4-apply", "apply", SET, "--no-verify")
    _build(host, "kernel-4-patched-again", gpu, "kernel-2-patched")
    _patch(host, "kernel-5-revert", "revert", "--all")
    host.patcher("kernel-5-audit", "kernels", "audit", limit=60, home=home(host))


def _patch(host: Host, step: str, *words: str) -> None:
    host.patcher(step, "kernels", *words, "--allow-running", limit=60, home=home(host))


def _build(host: Host, step: str, gpu: str, other: str = "") -> dict[str, Any]:
    saved = [str(host.run.root / f"{name}.pt") for name in (step, other) if name]
    variables = {**host.variables(gpu), "HOME": str(home(host))}
    done = host.run.command(step, [host.exe("kernels"), "-c", _RUN, *saved], 240, env=variables,
                            keep=False)  # fmt: skip
    try:
        found: dict[str, Any] = json.loads(done["output"].strip().splitlines()[-1])
    except (ValueError, IndexError):
        found = {"failed": done["errors"][-2500:]}
    host.run.note(step, rc=done["rc"], total_seconds=done["seconds"], **found)
    return found
