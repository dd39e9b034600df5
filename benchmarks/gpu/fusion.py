"""Issue of two GPUs: the fused all-reduce, gated off, lifted, verified, reverted, on Hopper.

Every part notes what it found; none of them decides whether the result is good.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rehearsal
from host import Host, make_environment
from machine import answers, environment, matching, serving

SET = "rehearsal-allreduce-fusion"
NULL = "rehearsal-null"
FLAG = ["--flashinfer-allreduce-fusion-backend", "trtllm"]
WORKER = "sglang/srt/managers/tp_worker.py"
SEEN = (
    "AllReduce Fusion", "falling back to standard", "requires SM", "preflight",
    "multimem all-gather", "Skipping allreduce", "No supported CUDA", "fusion disabled",
    "REHEARSAL", "Traceback", "Error:",
)  # fmt: skip
"""What the logs of servers are searched for."""
LOADS = {
    "single": {"input_len": 256, "output_len": 128, "concurrency": 1, "prompts": 10, "warmup": 1},
    "c64": {"input_len": 256, "output_len": 128, "concurrency": 64, "prompts": 256, "warmup": 64},
}
TINY = {"tiny": {"input_len": 64, "output_len": 16, "concurrency": 8, "prompts": 16, "warmup": 8}}
_COMMENT = "# Get forward batch from schedule batch"
_JIT = """
import json, sys, time, hashlib
began = time.time()
from flashinfer.jit.comm import gen_trtllm_comm_module
imported = time.time()
try:
    spec = gen_trtllm_comm_module()
except RuntimeError as error:
    print(json.dumps({"refused": str(error)})); sys.exit()
spec.build(verbose=False)
built = time.time()
folder = spec.jit_library_path.parent
compiled = sorted(p.name for p in folder.glob("*.o") if p.stat().st_mtime >= imported - 1)
digest = hashlib.sha256(spec.jit_library_path.read_bytes()).hexdigest()
module = spec.build_and_load()
print(json.dumps({"import_seconds": imported - began, "build_seconds": built - imported,
                  "compiled": compiled, "sha256": digest, "path": str(spec.jit_library_path),
                  "has": [n for n in ("trtllm_allreduce_fusion", "trtllm_custom_all_reduce")
                          if hasattr(module, n)]}))
"""


def prepare(host: Host) -> None:
    """The patched-to-be environment, its control, and the sets."""
    for name in ("fusion", "control"):
        rehearsal.gate(make_environment(host, name))
    rehearsal.write_catalogue(host.catalogue("fusion"))
    write_null(host, "fusion")


def write_null(host: Host, env: str) -> None:
    """The set that changes a comment, for one of the environments."""
    rehearsal.write_edit(
        host.catalogue(env), "null", "Change a comment", host.site(env), WORKER,
        lambda text: text.replace(_COMMENT, _COMMENT.replace("forward", "the forward"), 1),
        conditions=f"present = {{ {json.dumps(_COMMENT.replace('forward', 'the forward'))} = 1 }}",
    )  # fmt: skip


def stage(host: Host, step: str) -> Any:
    """Put the set on disk without a verification."""
    return host.patcher(step, "fusion", "apply", SET, "--no-verify", "--allow-running", limit=60)


def control_server(host: Host, port: int, limit: float) -> None:
    """As on SM120 today: the gated packages with the option do not even start."""
    if host.dry:
        return
    argv = host.resolved([*host.server(2, memory=0.2), *FLAG], "control", port)
    variables = host.variables("0,1")
    with serving(host.run, "control-with-option", argv, port, limit, env=variables) as found:
        lines = matching(found["log"], SEEN)
        host.run.note("control-with-option", ready=found["ready"], rc=found["rc"], lines=lines,
                      engaged=any("Fusion enabled" in line for line in lines))  # fmt: skip


def compile_ahead(host: Host, limit: float) -> None:
    """Have sm120patch compile the module as a server would, and prove the change from PTX.

    What does not compile is put back: then it is staged again, and the server compiles.
    """
    if host.dry:
        return
    profile = host.profile("compile", "fusion", port=host.port(30000), tp=2, gpus="0,1",
                           workloads=TINY, blocks=1, max_time=limit)  # fmt: skip
    done = host.patcher("module-compile", "fusion", "verify", SET, "--compile", "--profile",
                        str(profile), "--allow-running", limit=limit)  # fmt: skip
    if done["rc"] != 0:
        stage(host, "fusion-stage-again")
    build_module(host, "module-ready", 320)


def build_module(host: Host, step: str, limit: float) -> dict[str, Any]:
    """Build FlashInfer's module as a server would; what was compiled, and how long it took."""
    if host.dry:
        return {}
    done = host.run.command(step, [host.exe("fusion"), "-c", _JIT], limit,
                            env=host.variables("0"))  # fmt: skip
    try:
        found: dict[str, Any] = json.loads(done["output"].strip().splitlines()[-1])
    except (ValueError, IndexError):
        found = {"failed": done["errors"][-1500:]}
    host.run.note(f"{step}-result", **found)
    return found


def warm(host: Host, env: str, *, tp: int, gpus: str, port: int, limit: float) -> None:
    """Start a server once without measuring: Triton compiles its kernels, caches fill."""
    if host.dry:
        return
    argv = host.resolved(host.server(tp, memory=0.3), env, port)
    with serving(host.run, f"warm-{env}", argv, port, limit, env=host.variables(gpus)) as found:
        if found["ready"]:
            answered = [generate(port, 1, 256, 16), generate(port, 64, 256, 32)]
            if env == "fusion":
                held_gpus(host)
            host.run.note(f"warm-{env}", answered=answered, lines=matching(found["log"], SEEN))


def held_gpus(host: Host) -> None:
    """Beside a server that holds the GPUs: refused with its PID, nothing written."""
    host.patcher("held-gpus", "control", "apply", NULL, "--no-verify", limit=60, also=("fusion",))


def generate(port: int, requests: int, length: int, tokens: int) -> int:
    """Send requests of random tokens all at once; the number of those that were answered."""
    done = []

    def ask(number: int) -> None:
        ids = [(7 * number + 13 * k) % 8000 + 100 for k in range(length)]
        body = {"input_ids": ids, "sampling_params": {
            "temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(),
            {"Content-Type": "application/json"})  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=90) as reply:
                done.append(reply.status)
        except OSError:
            pass

    threads = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range(requests)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return done.count(200)


def verify(host: Host, limit: float, blocks: int) -> Any:
    """Measure the staged set against the environment without it."""
    profile = host.profile("fusion", "fusion", port=host.port(30000), tp=2, gpus="0,1",
                           workloads=LOADS, blocks=blocks, max_time=limit - 40)  # fmt: skip
    answer = host.patcher("fusion-verify", "fusion", "verify", SET, "--profile", str(profile),
                          limit=limit)  # fmt: skip
    read_logs(host, "fusion")
    return answer


def look(host: Host, stem: str, env: str) -> None:
    """What the tool says of an environment afterwards."""
    host.patcher(f"{stem}-status", env, "status", limit=40)
    host.patcher(f"{stem}-audit", env, "audit", limit=60)
    host.patcher(f"{stem}-history", env, "history", limit=40)


def read_logs(host: Host, profile: str) -> None:
    """What the servers of the last verification said about the feature, start by start."""
    began = (host.run.root / f"{profile}.toml").stat().st_mtime
    for log in sorted((host.run.root / "logs").glob(f"{profile}.*.log")):
        if log.stat().st_mtime < began:
            continue  # of an earlier run
        host.run.note(f"log {log.name}", lines=matching(log, SEEN))


def revert_and_return(host: Host) -> None:
    """Take all off; the control's bytes; no build; apply again: the build is back, uncompiled."""
    host.patcher("fusion-revert", "fusion", "revert", "--all", "--allow-running", limit=60)
    host.run.note("fusion-reverted", differs_from_control=differences(host))
    build_module(host, "module-after-revert", 90)
    stage(host, "fusion-again")
    build_module(host, "module-again", 120)
    host.patcher("fusion-revert-again", "fusion", "revert", "--all", "--allow-running", limit=60)
    host.run.note("fusion-reverted-again", differs_from_control=differences(host))
    host.patcher("fusion-audit-reverted", "fusion", "audit", limit=60)


def differences(host: Host) -> list[str]:
    """Files of both packages whose bytes are not those of the control."""
    found = []
    for package in ("sglang", "flashinfer"):
        mine, other = host.site("fusion") / package, host.site("control") / package
        for path in sorted(other.rglob("*")):
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            twin = mine / path.relative_to(other)
            if not twin.is_file():
                found.append(f"{package}/{path.relative_to(other)} is gone")
            elif not twin.samefile(path) and _digest(twin) != _digest(path):
                found.append(f"{package}/{path.relative_to(other)}")
    return found


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def trap(host: Host, limit: float) -> None:
    """The option on, cuda-tile missing: the server serves, the feature does not run."""
    tile = host.run.root / "rest" / "cuda" / "tile"
    away = tile.with_name("tile.away")
    profile = host.profile("trap", "fusion", port=host.port(30000), tp=2, gpus="0,1",
                           workloads=TINY, blocks=1, max_time=limit - 30,
                           null_run=False)  # fmt: skip
    host.patcher("trap-before", "fusion", "revert", "--all", "--allow-running", limit=60)
    tile.rename(away)
    try:
        host.patcher("trap", "fusion", "apply", SET, "--profile", str(profile), limit=limit)
    finally:
        away.rename(tile)
    read_logs(host, "trap")
    look(host, "trap", "fusion")


def killed(host: Host, limit: float) -> None:
    """Kill sm120patch without warning while its server runs: who ends the server, who recovers?"""
    host.patcher("killed-before", "fusion", "revert", "--all", "--allow-running", limit=60)
    port = host.port(30000)
    profile = host.profile("killed", "fusion", port=port, tp=2, gpus="0,1", workloads=TINY,
                           blocks=1, max_time=limit,
                           null_run=False)  # fmt: skip
    argv = [str(host.tool / "bin" / "sm120patch"), "apply", NULL, "--profile", str(profile),
            "--env", str(host.prefix("fusion")), "--extra-catalogue",
            str(host.catalogue("fusion")), *(["--gpu", "9.0"] if host.dry else [])]  # fmt: skip
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True,
                               env=environment({"HOME": str(host.home)}))  # fmt: skip
    served = _within(limit, lambda: answers(port) or process.poll() is not None)
    process.kill()
    process.wait()
    began = time.monotonic()
    gone = _within(60, lambda: not answers(port))
    host.run.note("killed", served=served, server_gone=gone,
                  seconds=round(time.monotonic() - began, 1))  # fmt: skip
    host.patcher("killed-status", "fusion", "status", limit=40)
    host.patcher("killed-recover", "fusion", "recover", limit=60)
    host.patcher("killed-audit", "fusion", "audit", limit=60)
    host.run.note("killed-recovered", differs_from_control=differences(host))


def _within(limit: float, true: Callable[[], bool]) -> bool:
    until = time.monotonic() + limit
    while time.monotonic() < until:
        if true():
            return True
        time.sleep(0.5)
    return False


def null(host: Host, limit: float, blocks: int) -> None:
    """A set that changes a comment, measured like the real one: the noise of this host."""
    host.patcher("null-before", "fusion", "revert", "--all", "--allow-running", limit=60)
    # Its pairs are a null run: what they tell of the noise is on record for the real set.
    profile = host.profile("null", "fusion", port=host.port(30000), tp=2, gpus="0,1",
                           workloads=LOADS, blocks=blocks, max_time=limit - 40,
                           null_run=False)  # fmt: skip
    host.patcher("null", "fusion", "apply", NULL, "--profile", str(profile), limit=limit)
    read_logs(host, "null")
    look(host, "null", "fusion")
    host.patcher("null-report", "fusion", "report", limit=60)
    host.patcher("null-revert", "fusion", "revert", "--all", "--allow-running", limit=60)
    host.run.note("null-reverted", differs_from_control=differences(host))
