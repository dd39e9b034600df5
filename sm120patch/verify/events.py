"""Reading of one streamed reply: SSE events in, token counts and times out. Pure.

Everything here treats the reply as hostile: an event that is not what the protocol promises
raises `BadReply`, which the caller turns into a failed sample.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sm120patch.verify.metrics import Token

MAX_LINE = 1 << 20
MAX_TEXT = 1 << 20
_MAX_LOGPROB = 1e9


class BadReply(Exception):  # noqa: N818 - a reply, not a program error
    """The reply breaks the protocol; the message says how, in a few words."""


@dataclass(frozen=True)
class Event:
    """What one SSE event says."""

    tokens: int | None
    """Completion tokens so far, where the event says so."""
    text: str
    """Text so far (`/generate`) or new text (OpenAI)."""
    stamps: tuple[float, ...]
    """Virtual times of the new tokens (simulated server only)."""
    start: float | None
    """Virtual time at which the request was taken up (simulated server only)."""
    verify_steps: int = 0
    """`spec_verify_ct`: steps so far, with speculative decoding only."""
    chosen: tuple[Token, ...] = ()
    """Chosen tokens with their log-probabilities, where they were asked for and are given."""
    prompt_tokens: int | None = None
    finish: str | None = None
    """Why the answer ends here (`stop`, `length`, ...); None while it goes on."""


@dataclass
class Stream:
    """Accumulates the events of one request into the numbers of a sample."""

    cumulative: bool
    """True for `/generate`, whose events repeat the text and the token count so far."""
    wanted: int
    """Output tokens asked for: more than that is a lie and would be unbounded memory."""
    complete: bool = True
    """True when fewer tokens than `wanted` are a failure (end of text is ignored)."""
    virtual: bool = False
    start: float = 0.0
    """Wall clock when sending; replaced by the server's virtual start."""
    tokens: int = 0
    verify_steps: int = 0
    chosen: tuple[Token, ...] = ()
    prompt_tokens: int | None = None
    finish: str | None = None
    text: str = ""
    first: float | None = None
    last: float = 0.0
    """Time of the last event."""
    itls: list[float] = field(default_factory=list)
    _mark: float = 0.0  # time of the last event that brought tokens
    _reported: int | None = None

    def feed(self, payload: bytes, now: float) -> None:
        """Take in the data of one event that arrived at `now`."""
        if not self.virtual:
            self.last = now
        if payload == b"[DONE]":
            self.finish = self.finish or "done"
            return
        event = read_event(payload, virtual=self.virtual)
        self._take_text(event.text)
        if len(self.text) > MAX_TEXT:
            raise BadReply("more than 1 MiB of text")
        if event.tokens is not None:
            self._report(event.tokens)
        self.verify_steps = max(self.verify_steps, event.verify_steps)
        self._take_facts(event)
        if self.virtual:
            self._take_stamps(event)
        else:
            self._take_wall(event, now)
        if self.tokens > self.wanted:
            raise BadReply(f"more than the {self.wanted} tokens that were asked for")

    def close(self) -> None:
        """Check the whole reply and settle the token count."""
        if self._reported is not None:
            self.tokens = self._reported
        elif self.cumulative:
            raise BadReply("no meta_info.completion_tokens")
        if self.tokens <= 0 or self.first is None:
            raise BadReply("no tokens came back")
        if self.finish is None and not self.complete:
            raise BadReply(f"the stream ended in the middle of the answer ({self.tokens} tokens)")
        if self.cumulative and self.complete and self.tokens < self.wanted:
            raise BadReply(f"{self.tokens} of {self.wanted} tokens came back")

    def _take_text(self, text: str) -> None:
        # SGLang sends the text so far, or with --stream-output only what is new.
        whole = self.cumulative and text.startswith(self.text)
        self.text = text if whole else self.text + text

    def _take_facts(self, event: Event) -> None:
        # SGLang repeats what was chosen so far, or with --incremental-streaming-output only adds.
        whole = event.chosen[: len(self.chosen)] == self.chosen and self.cumulative
        self.chosen = (event.chosen if whole else self.chosen + event.chosen)[: self.wanted]
        self.prompt_tokens = event.prompt_tokens or self.prompt_tokens
        self.finish = event.finish or self.finish

    def _report(self, tokens: int) -> None:
        if tokens > self.wanted:
            raise BadReply(f"{tokens} tokens came back, {self.wanted} were asked for")
        if tokens < (self._reported or 0):
            raise BadReply("the token count went down")
        self._reported = tokens

    def _take_wall(self, event: Event, now: float) -> None:
        # bench_serving counts an OpenAI chunk as one token: only the last one carries usage.
        counted = (self._reported or 0) - self.tokens if self.cumulative else int(bool(event.text))
        if counted <= 0:
            return
        if self.first is None:
            self.first = now
        else:
            self.itls.extend([(now - self._mark) / counted] * counted)
        self.tokens += counted
        self._mark = now

    def _take_stamps(self, event: Event) -> None:
        if event.start is not None:
            self.start = self.last = event.start
        for stamp in event.stamps:
            if stamp < self.last:
                raise BadReply("virtual stamps go backwards")
            if self.first is None:
                self.first = stamp
            else:
                self.itls.append(stamp - self.last)
            self.last = stamp
        self.tokens += len(event.stamps)
        if self.cumulative and self.tokens != self._reported:
            raise BadReply(f"{self.tokens} virtual stamps for {self._reported} tokens")


def read_event(payload: bytes, *, virtual: bool) -> Event:
    """Parse one event of `/generate` or of `/v1/completions`."""
    try:
        data = json.loads(payload)
    except (ValueError, RecursionError):
        raise BadReply(f"not JSON: {payload[:80]!r}") from None
    if not isinstance(data, dict):
        raise BadReply(f"not a JSON object: {payload[:80]!r}")
    if error := data.get("error"):
        raise BadReply(f"the server reports {str(error)[:200]}")
    meta = data.get("meta_info")
    meta = meta if isinstance(meta, dict) else {}
    stamps, start = _virtual(meta.get("virtual_time")) if virtual else ((), None)
    if "choices" in data:
        return _completion(data, stamps, start)
    text = data.get("text")
    steps = meta.get("spec_verify_ct")
    return Event(
        _count(meta.get("completion_tokens")),
        text if isinstance(text, str) else "",
        stamps,
        start,
        steps if type(steps) is int and 0 < steps < 1 << 31 else 0,
        _chosen(meta.get("output_token_logprobs")),
        _count(meta.get("prompt_tokens")),
        _finish(meta.get("finish_reason")),
    )


def _completion(data: dict[str, object], stamps: tuple[float, ...], start: float | None) -> Event:
    choices, usage = data["choices"], data.get("usage")
    if not isinstance(choices, list):
        raise BadReply("choices is not a list")
    usage = usage if isinstance(usage, dict) else {}
    # There is no choice in the last event of stream_options.include_usage.
    first = choices[0] if choices and isinstance(choices[0], dict) else {}
    text, given = first.get("text"), first.get("logprobs")
    given = given if isinstance(given, dict) else {}
    tokens, logprobs = given.get("tokens"), given.get("token_logprobs")
    pairs: list[object] = []
    if isinstance(tokens, list) and isinstance(logprobs, list) and len(tokens) == len(logprobs):
        pairs = [[logprob, token] for token, logprob in zip(tokens, logprobs, strict=True)]
    return Event(
        _count(usage.get("completion_tokens")),
        text if isinstance(text, str) else "",
        stamps,
        start,
        0,
        _chosen(pairs),
        _count(usage.get("prompt_tokens")),
        _finish(first.get("finish_reason")),
    )


def _chosen(pairs: object) -> tuple[Token, ...]:
    """Tokens with their log-probabilities; none at all when one of them is no such pair."""
    found: list[Token] = []
    for pair in pairs if isinstance(pairs, list) else ():
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) < 2:
            return ()
        logprob, key = pair[0], pair[1]
        if isinstance(logprob, bool) or not isinstance(logprob, int | float):
            return ()
        # Compared before anything is made of it: an integer may be too long for a float.
        if logprob != logprob or logprob > _MAX_LOGPROB or type(key) not in (int, str):
            return ()
        found.append(Token(key, float(max(logprob, -_MAX_LOGPROB))))
    return tuple(found)


def _finish(reason: object) -> str | None:
    """Why an answer ended; an answer that the server gave up is none."""
    kind = reason.get("type") if isinstance(reason, dict) else reason
    if kind in ("abort", "error"):
        said = reason.get("message") if isinstance(reason, dict) else None
        raise BadReply(f"the server gave up: {str(said or kind)[:200]}")
    return kind if isinstance(kind, str) and kind else None


def _count(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise BadReply(f"completion_tokens is {str(value)[:40]}")


def _virtual(value: object) -> tuple[tuple[float, ...], float | None]:
    if value is None:
        return (), None
    stamps = value.get("stamps") if isinstance(value, dict) else None
    start = value.get("start") if isinstance(value, dict) else None
    if not isinstance(stamps, list) or len(stamps) > 1 << 20:
        raise BadReply("virtual_time without stamps")
    numbers = tuple(_moment(stamp) for stamp in stamps)
    return numbers, None if start is None else _moment(start)


def _moment(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value) if abs(value) < 1e12 else math.inf
        if math.isfinite(number) and number >= 0:
            return number
    raise BadReply(f"virtual stamp is {str(value)[:40]}")
