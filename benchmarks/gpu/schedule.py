"""The schedule of one lease: what runs beside what, and what is most wanted.

Runs in the environment of sm120patch; `go.py start` begins it. Ends by itself, whatever happens.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fusion
import kernels
import path as whole
from go import PARTS
from host import (
    Host,
    compile_shared,
    compile_torch,
    describe,
    describe_places,
    make_model,
    unpack,
)
from machine import Background, Run, Sampler, attempt, require_no_multicast

START_TWO, START_ONE = 62.0, 52.0
"""Seconds from one server start to the next, measuring included, with caches that are warm."""
FIRST_START = 100.0
"""Seconds that the first start takes longer: it compiles."""


def carry_out(run: Run, pack: Path, python: str, parts: list[str], blocks: int) -> None:
    """All parts in their order; a failed one is noted and the rest goes on."""
    if (run.root / "done").exists():
        (run.root / "done").unlink()
    files = Background(run, "unpack", lambda: unpack(run, pack))
    guard = None if run.dry else require_no_multicast(run, python)  # raises: then nothing is run
    files.join(run.left)
    host = describe_places(run, python, len(guard["devices"]) if guard else 2)
    sampler = None if run.dry else Sampler(run.results / "gpu.csv")
    try:
        describe(host, guard)
        first(host, parts, blocks)
        second(host, parts, blocks)
    finally:
        if sampler is not None:
            sampler.stop()
        run.note("end", left=round(run.left, 1))
        (run.root / "done").touch()


def first(host: Host, parts: list[str], blocks: int) -> None:
    """Builds and first starts side by side; meanwhile what one GPU can measure for itself."""
    run = host.run
    model = Background(run, "model", lambda: make_model(host))
    Background(run, "compile-machine", lambda: compile_torch(host))
    attempt(run, "compile", lambda: compile_shared(host))
    if "setup" in parts:
        attempt(run, "prepare-fusion", lambda: fusion.prepare(host))
    if {"module", "build"} & {*parts}:
        attempt(run, "stage", lambda: fusion.stage(host, "fusion-stage"))
    beside: list[Background] = []

    two = "1" in host.gpus
    other = "1" if two else "0"

    def start(name: str, action: Callable[[], object]) -> None:
        if name in parts and two:
            beside.append(Background(run, name, action))
        elif name in parts:
            attempt(run, name, action)  # one GPU: one after the other

    start("module", lambda: fusion.compile_ahead(host, 480))
    start("build", lambda: fusion.build_module(host, "module-built", 400))
    if "setup" in parts:
        attempt(run, "prepare-path", lambda: whole.prepare(host, parts))
    if "kernels" in parts:
        attempt(run, "prepare-kernels", lambda: kernels.prepare(host))
    model.join(min(160, run.left))
    start("kernels", lambda: kernels.swap(host, other))
    start("control", lambda: fusion.control_server(host, 31001, 200))
    start("real", lambda: whole.on_real_packages(host))
    start("tune", lambda: whole.tune(host, 90))
    start("warm-one", lambda: fusion.warm(
        host, "one", tp=1, gpus=other, port=31003, limit=260))  # fmt: skip
    # First starts compile for longer than anything else here uses the GPUs.
    start("awake", lambda: awake(host, parts, blocks))
    start("drowsy", lambda: drowsy(host, parts, other))
    if "warm" in parts:
        attempt(run, "warm", lambda: fusion.warm(
            host, "fusion", tp=2, gpus="0,1", port=31002, limit=260))  # fmt: skip
    for one in beside:
        one.join(min(600, run.left))


def awake(host: Host, parts: list[str], blocks: int) -> None:
    """A set that saves time; alone on the machine with as many starts as there is time for."""
    if "1" in host.gpus:
        return whole.verify(host, "awake", "0", 30010, 480)
    limit = host.run.left - (360 if "drowsy" in parts else 60)
    most = affordable(limit - FIRST_START, START_ONE, blocks)
    return whole.verify(host, "awake", "0", 30010, limit, most)


def drowsy(host: Host, parts: list[str], gpu: str) -> None:
    """A set that costs time, then SGLang's own client."""
    whole.verify(host, "drowsy", gpu, 30020, 330)
    if "bench" in parts:
        attempt(host.run, "bench", lambda: whole.bench_serving(host, gpu, 30020, 360))


def second(host: Host, parts: list[str], blocks: int) -> None:
    """What needs the machine for itself, in the order in which it is named."""
    run = host.run
    later: dict[str, Callable[[], object]] = {
        "fusion": lambda: fused(host, parts, blocks),
        "return": lambda: fusion.revert_and_return(host),
        "trap": lambda: fusion.trap(host, min(260, run.left - 30)),
        "null": lambda: fusion.null(host, min(480, run.left - 180), 2),
        "null-one": lambda: null_on_one(host),
        "killed": lambda: fusion.killed(host, min(100, run.left - 60)),
    }
    for name in [name for name in parts if name in later]:
        attempt(run, name, later[name])


def fused(host: Host, parts: list[str], blocks: int) -> None:
    """Verify the fused all-reduce, with as many starts as leave time for what comes after it."""
    if "null" in parts[: parts.index("fusion")]:
        fusion.stage(host, "fusion-stage-after-null")
    reserve = 45 + (4 * START_ONE + 30 if "null-one" in parts else 0)
    most = affordable(host.run.left - reserve, START_TWO, blocks)
    fusion.verify(host, min(most * 2 * START_TWO + 120, host.run.left - 60), most)
    fusion.look(host, "fusion", "fusion")
    host.patcher("fusion-report", "fusion", "report", limit=60)


def null_on_one(host: Host) -> None:
    """The null set on one GPU, in the time that is left."""
    left = host.run.left - 25
    # Two pairs are the least that a set asks for; a start more tells more of the noise.
    whole.null(host, left, affordable(left, START_ONE, 3), opening=left > 5 * START_ONE)


def affordable(seconds: float, start: float, most: int) -> int:
    """Pairs of server starts for which the time is there, two at the least."""
    return max(2, min(most, int(seconds // (2 * start))))


def main() -> int:
    """Run the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--margin", type=float)
    parser.add_argument("--longer", type=float, default=1.0)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    os.umask(0o022)
    run = Run(options.root, options.seconds, options.dry, options.margin, options.longer)
    try:
        carry_out(run, options.pack, options.python, options.parts, options.blocks)
    finally:
        (options.root / "done").touch()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
