"""Issue of one GPU: the whole path on real packages, and sets that really take and save time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rehearsal
from fusion import LOADS as BOTH
from fusion import NULL, SEEN, WORKER, look, matching, read_logs, write_null
from host import Host, make_environment
from machine import serving

PLACE = (
    "        if self.is_dllm():\n"
    "            return self._forward_batch_generation_dllm(forward_batch)\n"
)
_SLEEP = '        forward_batch.batch_size > 4 and __import__("time").sleep({})  # {}\n'
PLANTED = _SLEEP.format("0.004", "planted")
AWAKE = _SLEEP.format("0.0005", "awake")
DROWSY = _SLEEP.format("0.03", "drowsy")
SAYS_SO = (
    '        if not getattr(self, "_rehearsal_said", False):\n'
    "            self._rehearsal_said = True\n"
    '            logger.info("REHEARSAL: forward pass with less sleep")\n'
)
LOADS = {
    "c64": {"input_len": 256, "output_len": 128, "concurrency": 64, "prompts": 128, "warmup": 64},
}
ANSWERS = (
    "allreduce-fusion", "allreduce-arch-gate", "sm120-checks", "cutlass-autotune",
    "fp8-moe-smem", "b12x-fp4-gemm", "fi-trtllm-moe-gates", "pcie-ipc-allreduce",
)  # fmt: skip


def planted(text: str) -> str:
    """Make every step of a batch sleep 4 ms."""
    if text.count(PLACE) != 1 or "\nlogger = " not in text:
        raise ValueError(f"{WORKER} is not what was expected")
    return text.replace(PLACE, PLANTED + PLACE)


def prepare(host: Host, parts: Sequence[str]) -> None:
    """The real environment, sleepy copies and one that is only relabelled, as `parts` need them."""
    if {"real", "tune"} & {*parts}:
        make_environment(host, "real")
    for name in ("awake", "drowsy"):
        if name not in parts:
            continue
        site = make_environment(host, name)
        rehearsal.label(site)
        rehearsal.plant(site, WORKER, planted)
        write_sets(host.catalogue(name), site)
    if "null-one" in parts:
        rehearsal.label(make_environment(host, "one"))
        write_null(host, "one")


def write_sets(root: Path, published: Path) -> None:
    """One set that takes most of the sleep away, one that adds as much again."""
    rehearsal.write_edit(
        root, "awake", "Sleep less", published, WORKER,
        lambda text: text.replace(PLANTED, AWAKE + SAYS_SO),
        conditions=f"absent = [{json.dumps(PLANTED.strip())}]", goal="speed",
        log="REHEARSAL: forward pass with less sleep",
    )  # fmt: skip
    rehearsal.write_edit(
        root, "drowsy", "Sleep more", published, WORKER,
        lambda text: text.replace(PLACE, PLACE + DROWSY),
        conditions=f"present = {{ {json.dumps(DROWSY.strip())} = 1 }}",
    )  # fmt: skip


def on_real_packages(host: Host) -> None:
    """What the tool says of real packages on this machine: nothing here is for Hopper."""
    host.patcher("real-doctor", "real", "doctor", limit=90)
    host.patcher("real-status", "real", "status", limit=60)
    for name in ANSWERS:
        host.patcher(f"real-plan-{name}", "real", "plan", name, limit=40)
    host.patcher("real-apply", "real", "apply", "allreduce-fusion", "--no-verify", limit=40)
    for name in ("rehearsal-allreduce-fusion", "rehearsal-awake"):
        host.patcher(f"real-{name}", "real", "apply", name, "--no-verify", limit=40,
                     also=("fusion", "awake"))  # fmt: skip
    host.patcher("real-audit", "real", "audit", limit=90)


def null(host: Host, limit: float, blocks: int, *, opening: bool) -> None:
    """A set that changes a comment, on one GPU; `opening` starts the baseline once more before."""
    profile = host.profile("null-one", "one", port=host.port(30030), tp=1, gpus="0",
                           workloads=BOTH, blocks=blocks, max_time=limit - 20,
                           null_run=opening)  # fmt: skip
    host.patcher("null-one", "one", "apply", NULL, "--profile", str(profile), limit=limit)
    read_logs(host, "null-one")
    look(host, "null-one", "one")
    host.patcher("null-one-report", "one", "report", limit=60)
    host.patcher("null-one-revert", "one", "revert", "--all", "--allow-running", limit=60)
    host.patcher("null-one-audit-reverted", "one", "audit", limit=60)


def tune(host: Host, limit: float) -> None:
    """FlashInfer's own autotuner: refused on a GPU that is not SM120, before anything compiles."""
    into = host.run.root / "tuned"
    host.patcher("tune", "real", "tune", "rehearsal-moe", "--moe",
                 "experts=16,hidden=2048,intermediate=512,top-k=4", "--into", str(into),
                 "--timeout", str(int(limit - 10)), limit=limit)  # fmt: skip


def verify(host: Host, name: str, gpu: str, port: int, limit: float, blocks: int = 2) -> None:
    """Measure a set that saves time, or one that takes it, with the native generator."""
    profile = host.profile(name, name, port=port, tp=1, gpus=gpu, workloads=LOADS, blocks=blocks,
                           max_time=limit - 20,
                           null_run=False)  # fmt: skip
    host.patcher(name, name, "apply", f"rehearsal-{name}", "--profile", str(profile),
                 "--allow-running", limit=limit)  # fmt: skip
    read_logs(host, name)
    look(host, name, name)
    host.patcher(f"{name}-report", name, "report", limit=60)
    host.patcher(f"{name}-revert", name, "revert", "--all", "--allow-running", limit=60)
    host.patcher(f"{name}-audit-reverted", name, "audit", limit=60)


def bench_serving(host: Host, gpu: str, port: int, limit: float) -> None:
    """Planted and awake once more, measured by SGLang's own client."""
    if host.dry:
        return
    for arm in ("planted", "awake"):
        if arm == "awake":
            host.patcher("bench-apply", "drowsy", "apply", "rehearsal-awake", "--no-verify",
                         "--allow-running", limit=60)  # fmt: skip
        argv = host.resolved(host.server(1), "drowsy", port)
        variables = host.variables(gpu)
        with serving(host.run, f"bench-{arm}", argv, port, limit / 2, env=variables) as found:
            for repeat in range(2) if found["ready"] else ():
                _client(host, f"bench-{arm}-{repeat}", port)
            host.run.note(f"bench-{arm}-log", lines=matching(found["log"], SEEN))
    host.patcher("bench-revert", "drowsy", "revert", "--all", "--allow-running", limit=60)


def _client(host: Host, step: str, port: int) -> None:
    lines = host.run.root / f"{step}.jsonl"
    load = LOADS["c64"]
    argv = [host.exe("drowsy"), "-m", "sglang.benchmark.serving", "--backend", "sglang", "--host",
            "127.0.0.1", "--port", str(port), "--model", str(host.model), "--dataset-name",
            "random-ids", "--random-input-len", str(load["input_len"]), "--random-output-len",
            str(load["output_len"]), "--random-range-ratio", "1.0", "--num-prompts", "256",
            "--max-concurrency", str(load["concurrency"]), "--warmup-requests", "64",
            "--flush-cache", "--seed", "1", "--disable-tqdm",
            "--output-file", str(lines)]  # fmt: skip
    done = host.run.command(step, argv, 120, env=host.variables(""), keep=False)
    found = figures(lines)
    host.run.note(step, rc=done["rc"], seconds=done["seconds"], figures=found,
                  errors="" if found else done["errors"][-2500:])  # fmt: skip


def figures(path: Path) -> dict[str, Any]:
    """What decides, out of the last line of a result file; empty without one."""
    try:
        found = json.loads(path.read_text().strip().splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return {}
    wanted = ("completed", "duration", "output_throughput", "total_throughput", "concurrency",
              "mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "median_tpot_ms",
              "p99_tpot_ms", "mean_itl_ms", "p99_itl_ms", "median_e2e_latency_ms",
              "total_output_tokens")  # fmt: skip
    return {name: found[name] for name in wanted if name in found}
