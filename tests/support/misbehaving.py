"""A real HTTP server with SGLang's endpoints that goes wrong in one way, in one arm.

Run as a program: `misbehaving.py PORT MODE ARM TOKENS_PER_SECOND [options]`. ARM is `baseline`,
`patched` or `both`; the arm is told by the option that only the patched one gets.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys

from aiohttp import web

from sm120patch.simhost.answers import tokens_for
from tests.support.simulated import FLAG

PORT, MODE, ARM, SPEED = int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
PATCHED = FLAG in sys.argv
WRONG = ARM in ("both", "patched" if PATCHED else "baseline")
requests = 0


def wrong(mode: str) -> bool:
    return WRONG and mode == MODE


async def health(_: web.Request) -> web.Response:
    return web.Response()


async def info(_: web.Request) -> web.Response:
    body = {"version": "0.5.9", "model_path": "m", "enable_flashinfer_allreduce_fusion": PATCHED}
    text = json.dumps(body)
    if wrong("nan-info"):
        text = text[:-1] + ', "power": NaN, "memory": Infinity}'
    return web.Response(text=text, content_type="application/json")


async def generate(request: web.Request) -> web.StreamResponse:
    global requests
    body = await request.json()
    measured = bool(re.fullmatch(r"b\d+\.\w+-r\d+-i\d+", body["rid"]))
    requests += measured
    if wrong("stalls") and request_id(body) in ("warmup-r0-i0", "w-r2-i0"):
        await asyncio.sleep(7)
    if measured and wrong("dies") and requests > 3:
        os._exit(139)
    if measured and wrong("errors") and requests % 3 == 0:
        return web.Response(status=500, text="CUDA error")
    if measured and wrong("all-fail"):
        return web.Response(status=503, text="queue is full")
    reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await reply.prepare(request)
    if measured and wrong("empty"):
        return reply
    sampling = body["sampling_params"]
    prompt = body.get("text", body.get("input_ids"))
    stop = not sampling["ignore_eos"]
    pieces = tokens_for(prompt, sampling["max_new_tokens"], stop=stop, garbage=False)
    for count in range(1, len(pieces) + 1):
        if measured and count > 2:
            if wrong("hangs"):
                await asyncio.sleep(3600)
            if wrong("cuts"):
                assert request.transport is not None
                request.transport.close()
                return reply
        await asyncio.sleep((20 if measured and wrong("crawls") else 1) / SPEED)
        tokens: object = float("nan") if measured and wrong("nan") else count
        event = {"text": "".join(pieces[:count]), "meta_info": {"completion_tokens": tokens}}
        await reply.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await reply.write(b"data: [DONE]\n\n")
    return reply


async def flush(_: web.Request) -> web.Response:
    return web.Response(text="flushed")


def request_id(body: dict[str, object]) -> str:
    """`b2.w-warmup-r0-i0` -> `warmup-r0-i0`, `b2.w-r2-i0` -> `w-r2-i0`."""
    return str(body["rid"]).split(".")[-1].replace("w-warmup", "warmup")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    if wrong("leaves-another"):  # which outlives this server and holds its port
        code = (
            "import socket, sys, time\n"
            "while True:\n"
            "    try:\n"
            f"        held = socket.create_server(('127.0.0.1', {PORT}))\n"
            "        break\n"
            "    except OSError:\n"
            "        time.sleep(0.01)\n"
            "time.sleep(600)\n"
        )
        other = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        say(f"another server is {other.pid}")
    app = web.Application(client_max_size=64 << 20)
    app.router.add_get("/health", health)
    app.router.add_get("/server_info", info)
    app.router.add_post("/flush_cache", flush)
    app.router.add_post("/generate", generate)
    if PATCHED:
        say("FlashInfer workspace initialized for rank 0, world_size 1")
    web.run_app(app, host="127.0.0.1", port=PORT, print=None, shutdown_timeout=0.1)


if __name__ == "__main__":
    main()
