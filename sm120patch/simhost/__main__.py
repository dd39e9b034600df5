"""`python -m sm120patch.simhost`: start the simulated server of one scenario.

Reads the target environment, listens on a port, ends on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from sm120patch.simhost.app import Simulation, build, log
from sm120patch.simhost.gates import look
from sm120patch.simhost.scenarios import Behaviour, scenario, scenario_names

_OPTIONS = ("num_continuous_decode_steps", "moe_runner_backend")
"""Options without a patch, whose effect a scenario may declare."""


def main(argv: list[str] | None = None) -> int:
    """Run until told to stop; exit status 1 when the scenario says that the server crashes."""
    options, ignored = _parser().parse_known_args(argv)
    chosen = scenario(options.scenario)
    sight = look(options.prefix)
    backend = options.flashinfer_allreduce_fusion_backend
    simulation = Simulation(
        scenario=chosen,
        seed=options.seed,
        time_scale=options.time_scale or chosen.time_scale,
        sight=sight,
        flag=options.enable_flashinfer_allreduce_fusion or backend in ("auto", "trtllm"),
        backend=backend or "auto",
        model_path=options.model_path,
        tp_size=options.tp_size or chosen.gpus,
        version=sight.sglang or "unknown",
        declare_noise=not options.undeclared_noise,
        options={name: getattr(options, name) for name in _OPTIONS},
    )
    log(f"simulated host {chosen.name} ({chosen.source}); options not simulated: {ignored}")
    if (reason := _crash(simulation)) is not None:
        sys.stderr.write(f"Traceback (most recent call last):\nRuntimeError: {reason}\n")
        return 1
    asyncio.run(_serve(simulation, options.host, options.port))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sm120patch.simhost", allow_abbrev=False)
    parser.add_argument("--prefix", type=Path, required=True, help="environment to look into")
    parser.add_argument("--scenario", choices=scenario_names(), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time-scale", type=float, help="virtual seconds per real second")
    parser.add_argument("--undeclared-noise", action="store_true", help="as a real host: not told")
    parser.add_argument("--model-path", "--model", default="simulated/model")
    parser.add_argument("--tp-size", "--tp", "--tensor-parallel-size", type=int)
    parser.add_argument("--enable-flashinfer-allreduce-fusion", action="store_true")
    parser.add_argument("--flashinfer-allreduce-fusion-backend")
    parser.add_argument("--num-continuous-decode-steps", type=int, default=1)
    parser.add_argument("--moe-runner-backend", default="auto")
    return parser


def _crash(simulation: Simulation) -> str | None:
    behaviour = simulation.scenario.behaviour
    crashes = {
        Behaviour.CRASH_AT_START: True,
        Behaviour.CRASH_WHEN_PATCHED: simulation.engaged,
        Behaviour.CRASH_UNLESS_PATCHED: not simulation.engaged,
    }
    if simulation.factor == 0:
        return f"no kernel for {simulation.options['moe_runner_backend']} on this device"
    if crashes.get(behaviour):
        return "No supported CUDA architectures found for major versions [9, 10]."
    return None


async def _serve(simulation: Simulation, host: str, port: int) -> None:
    from aiohttp import web

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    runner = web.AppRunner(build(simulation), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    simulation.log_start()
    await web.TCPSite(runner, host, port, backlog=4096).start()
    try:
        await stopped.wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main())
