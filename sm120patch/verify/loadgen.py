"""Native load generator: `/generate` of SGLang and OpenAI-compatible `/v1/completions`.

Talks HTTP to the server under test and touches nothing else. No reply, however broken, raises
out of here: it becomes a failed sample.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sm120patch.redaction import redact_output
from sm120patch.verify.events import MAX_LINE, BadReply, Stream
from sm120patch.verify.metrics import Sample, calculate
from sm120patch.verify.profile import Workload
from sm120patch.verify.tally import Tally

if TYPE_CHECKING:
    import aiohttp

CONCURRENCY_HEADER = "X-Sm120patch-Concurrency"
"""Tells a simulated server how many slots share its speed; real servers ignore it."""

_TOKEN_IDS = range(1000, 8000)  # inside every vocabulary seen, the 8192 of test models included
_WORDS = ("river", "stone", "copper", "window", "garden", "signal", "winter", "paper", "engine",
          "bridge", "silver", "market", "valley", "candle", "mirror", "thunder")  # fmt: skip
_LATE = "stopped: the time is up"
_MAX_BYTES = 256 << 20  # per reply
_FLUSH_PATIENCE = 10.0
_WATCH = 1.0  # seconds between two looks at the server

Watch = Callable[[], object]
"""Called about once a second while replies are open; what it raises ends the run."""
Pulse = Callable[[Tally, float], bool]
"""The same with the tokens so far and the time; True breaks the repeat off."""


@dataclass(frozen=True)
class Target:
    """Where and how requests are sent."""

    base_url: str
    endpoint: str = "generate"
    model: str | None = None
    api_key: str | None = None
    virtual: bool = False
    """Take times from the server's virtual stamps instead of the wall clock."""
    request_timeout: float = 1800.0
    logprobs: bool = True
    """Log-probabilities may be asked for."""


@dataclass(frozen=True)
class Request:
    """One prompt; `rid` names it to the server, unique while the server lives."""

    prompt: Sequence[int] | str
    output_len: int
    rid: str
    ignore_eos: bool = True
    keep_text: bool = False
    logprobs: bool = False
    """Ask for the log-probability of every generated token."""


@dataclass(frozen=True)
class Repeat:
    """Samples of one pass over a workload, and its duration in seconds."""

    samples: tuple[Sample, ...]
    duration: float
    metrics: Mapping[str, float]
    cut: bool = False
    """True when the deadline came before the last reply."""
    tally: Tally = field(default_factory=lambda: Tally(0.0))
    """Tokens as they came, on the wall clock."""
    stopped: bool = False
    """True when `pulse` broke it off."""

    @property
    def told(self) -> bool:
        """True when single requests are known: another client gives its figures only."""
        return bool(self.samples)

    @property
    def failures(self) -> list[str]:
        """Distinct error texts, most frequent first."""
        errors = [sample.error for sample in self.samples if not sample.ok]
        return sorted(set(errors), key=errors.count, reverse=True)


def measure(
    target: Target,
    workload: Workload,
    *,
    seed: int,
    tag: str,
    repeat: int,
    prompts: int | None = None,
    deadline: float | None = None,
    watch: Watch | None = None,
    pulse: Pulse | None = None,
) -> Repeat:
    """Flush the server's prefix cache and run one repeat of a workload.

    The prompts depend on seed, workload and repeat only: both arms get the same. `deadline`
    is a time of `time.monotonic`; requests still open then are failed samples. `watch` sees
    to a server that keeps connections open and will never answer; `pulse` may break it off.
    """
    count = workload.prompts if prompts is None else prompts
    requests = _requests(target, workload, seed, tag, repeat, count)
    passing = _Pass(target, workload.concurrency, deadline, watch, pulse)
    samples, duration = asyncio.run(passing.run(requests, flush=True))
    metrics = calculate(samples, duration, workload.input_len)
    return Repeat(samples, duration, metrics, passing.cut, passing.tally, passing.stopped)


def ask(
    target: Target,
    requests: Sequence[Request],
    *,
    concurrency: int = 1,
    deadline: float | None = None,
    watch: Watch | None = None,
) -> tuple[Sample, ...]:
    """Send single requests (correctness probes); one sample each, in order."""
    passing = _Pass(target, concurrency, deadline, watch, None)
    samples, _ = asyncio.run(passing.run(iter(requests), flush=False))
    unsent = Sample(ok=False, error=_LATE)
    return samples + (unsent,) * (len(requests) - len(samples))


def _requests(
    target: Target, workload: Workload, seed: int, tag: str, repeat: int, count: int
) -> Iterator[Request]:
    for index in range(count):
        rng = random.Random(f"{seed}/{workload.name}/{repeat}/{index}")
        prompt: Sequence[int] | str = rng.choices(_TOKEN_IDS, k=workload.input_len)
        if target.endpoint == "openai":
            # A word is at least one token, so the prompt is at least as long as declared.
            prompt = " ".join(rng.choices(_WORDS, k=workload.input_len))
        yield Request(prompt, workload.output_len, f"{tag}-r{repeat}-i{index}")


@dataclass
class _Pass:
    """Requests on their way through a limited number of workers."""

    target: Target
    concurrency: int
    deadline: float | None
    watch: Watch | None
    pulse: Pulse | None
    cut: bool = False
    stopped: bool = False
    tally: Tally = field(default_factory=lambda: Tally(0.0))

    async def run(
        self, requests: Iterator[Request], *, flush: bool
    ) -> tuple[tuple[Sample, ...], float]:
        results: dict[int, Sample] = {}
        numbered = enumerate(requests)
        async with _session(self.target, self.concurrency) as session:
            if flush:
                await _flush(session, self.target)

            async def worker() -> None:
                for index, request in numbered:
                    results[index] = Sample(ok=False, error=_LATE)
                    results[index] = await _send(session, self.target, request, self.tally)

            begin = time.perf_counter()
            self.tally = Tally(begin)
            workers = [asyncio.ensure_future(worker()) for _ in range(self.concurrency)]
            try:
                await self._await_all(workers)
            finally:
                for task in workers:
                    task.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
            duration = time.perf_counter() - begin
        samples = tuple(results[index] for index in sorted(results))
        return samples, _virtual_duration(samples) if self.target.virtual else duration

    async def _await_all(self, workers: Sequence[asyncio.Future[None]]) -> None:
        """Wait until all are done, the deadline comes, or the pulse has seen enough."""
        while True:
            late = self.deadline is not None and time.monotonic() >= self.deadline
            left = math.inf if self.deadline is None else max(0.0, self.deadline - time.monotonic())
            _, pending = await asyncio.wait(workers, timeout=min(left, _WATCH))
            if not pending or late:
                self.cut = bool(pending)
                return
            if self.watch is not None:
                self.watch()
            if self.pulse is not None and self.pulse(self.tally, time.perf_counter()):
                self.cut = self.stopped = True
                return


def _virtual_duration(samples: Sequence[Sample]) -> float:
    good = [sample for sample in samples if sample.ok]
    if not good:
        return 0.0
    return max(s.start + s.latency for s in good) - min(s.start for s in good)


def _session(target: Target, concurrency: int) -> aiohttp.ClientSession:
    import aiohttp

    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    return aiohttp.ClientSession(
        # A reused connection may be closed by the server at the very moment of reuse.
        connector=aiohttp.TCPConnector(limit=concurrency, force_close=True),
        timeout=aiohttp.ClientTimeout(total=target.request_timeout, sock_connect=30),
        headers={CONCURRENCY_HEADER: str(concurrency), **headers},
        auto_decompress=False,
        read_bufsize=MAX_LINE,
    )


async def _flush(session: aiohttp.ClientSession, target: Target) -> None:
    """Empty the prefix cache; a server that does not know the request is left alone.

    SGLang refuses with 400 while a request is open, and its last step may still be under way
    when the reply to the last request has ended: ask again.
    """
    import aiohttp

    patience = time.monotonic() + _FLUSH_PATIENCE
    try:
        while time.monotonic() < patience:
            async with session.post(
                f"{target.base_url}/flush_cache", timeout=aiohttp.ClientTimeout(total=30)
            ) as reply:
                await reply.content.read(1024)
            if reply.status != 400:
                return
            await asyncio.sleep(0.1)
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError):
        pass  # a dead server shows in the samples


async def _send(
    session: aiohttp.ClientSession, target: Target, request: Request, tally: Tally
) -> Sample:
    """One request; every failure is a value."""
    stream = Stream(
        cumulative=target.endpoint != "openai",
        wanted=request.output_len,
        complete=request.ignore_eos,
        virtual=target.virtual,
    )
    url, body = _body(target, request)
    stream.start = sent = time.perf_counter()
    try:
        async with session.post(url, json=body, headers={"X-Request-Id": request.rid}) as reply:
            if reply.status != 200:
                detail = (await reply.content.read(300)).decode("utf-8", "replace")
                detail = redact_output(detail, os.environ)
                raise BadReply(f"HTTP {reply.status}: {detail}")
            async for payload in _payloads(reply.content):
                before, now = stream.tokens, time.perf_counter()
                stream.feed(payload, now)
                tally.note(stream.tokens - before, now)
        stream.close()
    except BadReply as error:
        return Sample(ok=False, error=str(error)[:300], start=sent)
    except Exception as error:  # a hostile peer may provoke anything inside the client library
        return Sample(ok=False, error=f"{type(error).__name__}: {error}"[:300], start=sent)
    return _sample(stream, request)


def _sample(stream: Stream, request: Request) -> Sample:
    assert stream.first is not None  # close() checked it
    return Sample(
        ok=True,
        start=stream.start,
        ttft=stream.first - stream.start,
        latency=stream.last - stream.start,
        itls=tuple(stream.itls),
        output_tokens=stream.tokens,
        text=stream.text if request.keep_text else "",
        verify_steps=stream.verify_steps,
        chosen=stream.chosen,
        prompt_tokens=stream.prompt_tokens,
    )


def _body(target: Target, request: Request) -> tuple[str, dict[str, object]]:
    if target.endpoint == "openai":
        body: dict[str, object] = {
            "model": target.model or "default",
            "prompt": request.prompt,
            "max_tokens": request.output_len,
            "temperature": 0.0,
            "ignore_eos": request.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"logprobs": 1} if request.logprobs else {}),
        }
        return f"{target.base_url}/v1/completions", body
    name = "text" if isinstance(request.prompt, str) else "input_ids"
    sampling = {
        "temperature": 0.0,
        "max_new_tokens": request.output_len,
        "ignore_eos": request.ignore_eos,
    }
    body = {name: request.prompt, "sampling_params": sampling, "stream": True, "rid": request.rid}
    if request.logprobs:
        body["return_logprob"] = True
    return f"{target.base_url}/generate", body


async def _payloads(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Data of the SSE events; lines and replies are bounded."""
    rest = b""
    total = 0
    async for chunk in content.iter_any():
        total += len(chunk)
        if total > _MAX_BYTES:
            raise BadReply("the reply does not end")
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > MAX_LINE:
            raise BadReply("a line of more than 1 MiB")
        for line in lines:
            if payload := _payload(line):
                yield payload
    if payload := _payload(rest):
        yield payload


def _payload(line: bytes) -> bytes:
    """Data of one line; empty for blank lines, comments and other SSE fields."""
    line = line.strip()
    if line.startswith((b":", b"event:", b"id:", b"retry:")):
        return b""
    return line.removeprefix(b"data:").strip()
