"""HTTP face of the simulated server: the part of SGLang's API that a verification uses.

Serves HTTP and logs to stdout in SGLang's words; reads nothing but what it is given.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sm120patch.simhost.answers import babble, logprobs_for, tokens_for
from sm120patch.simhost.gates import Sight
from sm120patch.simhost.scenarios import Behaviour, Scenario
from sm120patch.simhost.speed import SpeedModel

if TYPE_CHECKING:
    from aiohttp import web

CONCURRENCY_HEADER = "X-Sm120patch-Concurrency"
_EVENT_TOKENS = 16  # tokens an event after the first: fewer, larger events keep the machine cool
Prompt = str | list[object]
_FAR = 4096  # words of a prompt from which on `garbage-far-back` spoils the answer
_DEATH = 20  # measured requests after which `dies-under-load` ends the process


@dataclass
class Simulation:
    """One running simulated server."""

    scenario: Scenario
    seed: int
    time_scale: float
    sight: Sight
    flag: bool
    """The fusion option was on the command line."""
    backend: str | None
    model_path: str
    tp_size: int
    version: str
    declare_noise: bool = True
    options: Mapping[str, object] = field(default_factory=dict)
    """Further options of SGLang, as `/server_info` names them."""
    started: float = field(default_factory=time.time)
    measured: int = 0

    def __post_init__(self) -> None:
        self.speed = SpeedModel(
            self.scenario, self.seed, engaged=self.engaged, factor=self.factor or 1.0
        )

    @property
    def factor(self) -> float:
        """Declared effect of the launch options; 0 when the server does not start with them."""
        given = (f"{name}={value}" for name, value in self.options.items())
        return math.prod(self.scenario.options.get(text, 1.0) for text in given)

    @property
    def engaged(self) -> bool:
        """True when the patched code runs: patch in place, option given, feature not refused."""
        ignored = self.scenario.behaviour is Behaviour.FLAG_IGNORED
        return self.sight.patched and self.flag and not ignored

    def say(self, prompt: Prompt, limit: int, *, stop: bool) -> list[str]:
        """Pieces of text, one per token, right or as the scenario spoils them."""
        behaviour = self.scenario.behaviour if self.engaged else Behaviour.NORMAL
        far = behaviour is Behaviour.GARBAGE_FAR_BACK and _words(prompt) > _FAR
        if behaviour is Behaviour.BABBLE:
            return babble(prompt, limit)
        garbage = far or behaviour is Behaviour.GARBAGE
        pieces = tokens_for(prompt, limit, stop=stop, garbage=garbage)
        if behaviour is Behaviour.SILENT:
            return [""] * len(pieces)
        cut = behaviour is Behaviour.CUT_SHORT and stop
        return pieces[: max(1, len(pieces) // 4)] if cut else pieces

    @property
    def shift(self) -> float:
        """What is added to every log-probability."""
        return -0.5 if self.engaged and self.scenario.behaviour is Behaviour.SHIFTED else 0.0

    def info(self) -> dict[str, object]:
        """Body of `/server_info`: SGLang's fields, then those of the simulation."""
        scenario = self.scenario
        return {
            "model_path": self.model_path,
            "served_model_name": self.model_path,
            "tp_size": self.tp_size,
            "enable_flashinfer_allreduce_fusion": self.flag,
            "flashinfer_allreduce_fusion_backend": self.backend if self.flag else None,
            "max_total_num_tokens": 1_048_576,
            **self.options,
            "random_seed": self.seed,
            "internal_states": [{"avg_spec_accept_length": None}],
            "version": self.version,
            "simulated": True,
            "scenario": scenario.name,
            "scenario_source": scenario.source,
            "seed": self.seed,
            "time_scale": self.time_scale,
            "clock": "virtual",
            "pid": os.getpid(),
            "started_at": self.started,
            "patched": self.sight.patched,
            "gates_closed": self.sight.closed,
            "topology": scenario.topology,
            "virtualized": scenario.virtualized,
            **self._declared_noise(),
            "gpus": [
                {
                    "name": scenario.gpu_name,
                    "compute_capability": scenario.compute_capability,
                    "power_watts": scenario.power[self.engaged],
                }
                for _ in range(scenario.gpus)
            ],
        }

    def _declared_noise(self) -> dict[str, float]:
        if not self.declare_noise:
            return {}
        return {
            "noise_start": self.scenario.block_noise,
            "noise_repeat": self.scenario.repeat_noise,
        }

    def log_start(self) -> None:
        """Say what SGLang would say about the fusion."""
        for reason in self.sight.closed:
            log(f"simulated host: gate closed: {reason}")
        if self.engaged:
            for rank in range(self.tp_size):
                log(self._engaged_line(rank), rank)
        elif self.flag:
            log(
                "flashinfer.comm allreduce_fusion API is not available "
                f"({'; '.join(self.sight.closed) or 'refused by this host'}), "
                "falling back to standard implementation"
            )
        log("The server is fired up and ready to roll!")

    def _engaged_line(self, rank: int) -> str:
        """The line of the installed release: sglang/srt/layers/flashinfer_comm_fusion.py."""
        release = [int(part) for part in self.version.split(".")[:3] if part.isdigit()]
        if release >= [0, 5, 14]:
            return (
                "FlashInfer AllReduce Fusion enabled and workspace initialized: backend=trtllm, "
                f"rank={rank}, world_size={self.tp_size}, max_token_num=2048, hidden_dim=6144"
            )
        line = f"FlashInfer workspace initialized for rank {rank}, world_size {self.tp_size}"
        return line + (", backend trtllm" if release >= [0, 5, 10] else "")


def log(text: str, rank: int = 0) -> None:
    """One line on stdout in SGLang's format."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    sys.stdout.write(f"[{stamp} TP{rank}] {text}\n")
    sys.stdout.flush()


def build(simulation: Simulation) -> web.Application:
    """Application with all routes."""
    from aiohttp import web

    async def health(_: web.Request) -> web.StreamResponse:
        never = simulation.scenario.behaviour is Behaviour.NEVER_READY
        return web.Response(status=503 if never else 200)

    async def info(_: web.Request) -> web.StreamResponse:
        return web.json_response(simulation.info())

    async def models(_: web.Request) -> web.StreamResponse:
        entry = {"id": simulation.model_path, "object": "model", "owned_by": "sglang"}
        return web.json_response({"object": "list", "data": [entry]})

    async def flush(_: web.Request) -> web.StreamResponse:
        return web.Response(text="Cache flushed.\n")

    app = web.Application(client_max_size=64 << 20)
    app.router.add_get("/health", health)
    app.router.add_get("/server_info", info)
    app.router.add_get("/get_server_info", info)
    app.router.add_get("/v1/models", models)
    app.router.add_route("*", "/flush_cache", flush)
    app.router.add_post("/generate", _handler(simulation, _GENERATE))
    app.router.add_post("/v1/completions", _handler(simulation, _COMPLETIONS))
    return app


@dataclass(frozen=True)
class _Job:
    """One request, understood."""

    pieces: list[str]
    prompt_tokens: int
    start: float
    stamps: tuple[float, ...]
    rid: str
    stream: bool
    logprobs: list[list[object]] | None = None
    """Of every piece, where they were asked for."""


@dataclass(frozen=True)
class _Dialect:
    """How one endpoint asks and answers."""

    read: Callable[[Mapping[str, object]], tuple[Prompt, int, bool]]
    """Body -> prompt, most tokens, ignore the end of text."""
    event: Callable[[_Job, int, int], dict[str, object]]
    """Job, tokens before, tokens now -> one event."""


def _handler(
    simulation: Simulation, dialect: _Dialect
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    from aiohttp import web

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            job = _understand(simulation, dialect, request, await request.json())
        except (ValueError, TypeError, AttributeError) as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        _count(simulation, job)
        if not job.stream:
            await asyncio.sleep((job.stamps[-1] - job.start) / simulation.time_scale)
            return web.json_response(dialect.event(job, 0, len(job.pieces)))
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        async for event in _events(simulation, dialect, job):
            await reply.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await reply.write(b"data: [DONE]\n\n")
        return reply

    return handle


async def _events(
    simulation: Simulation, dialect: _Dialect, job: _Job
) -> AsyncIterator[dict[str, object]]:
    before, now = 0, job.start
    while before < len(job.pieces):
        after = min(before + (_EVENT_TOKENS if before else 1), len(job.pieces))
        await asyncio.sleep((job.stamps[after - 1] - now) / simulation.time_scale)
        yield dialect.event(job, before, after)
        before, now = after, job.stamps[after - 1]


def _understand(
    simulation: Simulation, dialect: _Dialect, request: web.Request, body: Mapping[str, object]
) -> _Job:
    prompt, limit, ignore_eos = dialect.read(body)
    if not 1 <= limit <= 65536:
        raise ValueError(f"between 1 and 65536 tokens, not {limit}")
    pieces = simulation.say(prompt, limit, stop=not ignore_eos)
    concurrency = int(request.headers.get(CONCURRENCY_HEADER, "1"))
    rid = str(body.get("rid") or request.headers.get("X-Request-Id") or "unnamed")
    timing = simulation.speed.timing(rid, max(1, min(concurrency, 8192)), len(pieces))
    asked = bool(body.get("return_logprob") or body.get("logprobs"))
    logprobs = logprobs_for(pieces, simulation.shift) if asked else None
    stream = bool(body.get("stream"))
    return _Job(pieces, _words(prompt), timing.start, timing.stamps, rid, stream, logprobs)


def _words(prompt: Prompt) -> int:
    """Length of a prompt: words stand for tokens here."""
    return len(prompt.split() if isinstance(prompt, str) else prompt)


def _count(simulation: Simulation, job: _Job) -> None:
    dying = simulation.scenario.behaviour is Behaviour.DIES_UNDER_LOAD and simulation.engaged
    simulation.measured += "-r" in job.rid and "warmup" not in job.rid
    if dying and simulation.measured > _DEATH:
        log("CUDA error: an illegal memory access was encountered")
        os._exit(139)


def _read_generate(body: Mapping[str, object]) -> tuple[Prompt, int, bool]:
    sampling = body.get("sampling_params") or {}
    prompt = body["text"] if "text" in body else body.get("input_ids")
    if not isinstance(prompt, str | list) or not isinstance(sampling, dict):
        raise ValueError("text or input_ids, and sampling_params, are needed")
    limit = int(sampling.get("max_new_tokens", 128))
    return prompt, limit, bool(sampling.get("ignore_eos"))


def _generate_event(job: _Job, before: int, after: int) -> dict[str, object]:
    done = after == len(job.pieces)
    meta: dict[str, object] = {
        "id": job.rid,
        "finish_reason": {"type": "length", "length": after} if done else None,
        "prompt_tokens": job.prompt_tokens,
        "completion_tokens": after,
        "virtual_time": _virtual(job, before, after),
    }
    if job.logprobs is not None:
        meta["output_token_logprobs"] = job.logprobs[:after]
    return {"text": "".join(job.pieces[:after]), "meta_info": meta}


def _read_completions(body: Mapping[str, object]) -> tuple[Prompt, int, bool]:
    prompt = body.get("prompt")
    if not isinstance(prompt, str | list):
        raise ValueError("prompt is needed")
    return prompt, int(str(body.get("max_tokens", 16))), bool(body.get("ignore_eos"))


def _completions_event(job: _Job, before: int, after: int) -> dict[str, object]:
    done = after == len(job.pieces)
    choice = {
        "index": 0,
        "text": "".join(job.pieces[before:after]),
        "finish_reason": "length" if done else None,
    }
    if job.logprobs is not None:
        choice["logprobs"] = {
            "tokens": job.pieces[before:after],
            "token_logprobs": [pair[0] for pair in job.logprobs[before:after]],
        }
    usage = {"prompt_tokens": job.prompt_tokens, "completion_tokens": after,
             "total_tokens": job.prompt_tokens + after}  # fmt: skip
    return {
        "id": job.rid,
        "object": "text_completion",
        "choices": [choice],
        "usage": usage if done else None,
        "meta_info": {"virtual_time": _virtual(job, before, after)},
    }


def _virtual(job: _Job, before: int, after: int) -> dict[str, object]:
    return {"start": job.start if not before else None, "stamps": list(job.stamps[before:after])}


_GENERATE = _Dialect(_read_generate, _generate_event)
_COMPLETIONS = _Dialect(_read_completions, _completions_event)
