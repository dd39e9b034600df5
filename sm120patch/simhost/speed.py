"""Virtual time: when every token of every request comes, from declared speed and seeded noise.

Pure. A repeat with C slots gives each request C * tokens / speed(C) seconds, so that the
whole server delivers the declared throughput; a request starts when a slot falls free. The
noise depends only on seed, arm, and the tag and number in the request's id, never on the
real clock: a loaded machine gives the same numbers as an idle one.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from sm120patch.simhost.scenarios import Scenario

_PREFILL = 0.08  # share of a request's time before its first token
_JITTER = 0.004  # largest deviation of one request; bounded, so that the slowest hides nothing


@dataclass(frozen=True)
class RequestId:
    """What the load generator says about a request in its id."""

    block: str
    repeat: str
    """Everything that names the repeat, block included."""
    index: int

    @classmethod
    def parse(cls, text: str) -> RequestId:
        """Read `<block>.<workload>-r<repeat>-i<index>`; anything else is a lone request."""
        if found := re.fullmatch(r"((?:([A-Za-z0-9]+)\.)?[\w.-]{1,80})-i(\d{1,6})", text):
            return cls(found[2] or "", found[1], int(found[3]))
        return cls("", text[:80], 0)


@dataclass(frozen=True)
class Timing:
    """Virtual start of a request and the time of each of its tokens, in seconds."""

    start: float
    stamps: tuple[float, ...]


@dataclass
class _Schedule:
    """Slots of one repeat: requests are taken up in order as slots fall free."""

    slots: list[float]
    spans: list[tuple[float, float]] = field(default_factory=list)


class SpeedModel:
    """Timing of requests for one server start. Remembers the schedules of recent repeats."""

    def __init__(
        self, scenario: Scenario, seed: int, *, engaged: bool, factor: float = 1.0
    ) -> None:
        self._scenario = scenario
        self._seed = seed
        self._arm = "patched" if engaged else "baseline"
        self._ratio = (scenario.ratio if engaged else 1.0) * factor
        self._schedules: dict[tuple[str, int, int], _Schedule] = {}

    def timing(self, rid: str, concurrency: int, tokens: int) -> Timing:
        """Start and token times of one request among `concurrency` at a time."""
        request = RequestId.parse(rid)
        schedule = self._schedule(request.repeat, concurrency, tokens)
        while len(schedule.spans) <= request.index:
            start = heapq.heappop(schedule.slots)
            end = start + self._duration(request, len(schedule.spans), concurrency, tokens)
            schedule.spans.append((start, end))
            heapq.heappush(schedule.slots, end)
        return _stamps(*schedule.spans[request.index], tokens)

    def throughput(self, concurrency: int) -> float:
        """Declared output tokens per second at a concurrency, noise left out."""
        return interpolate(self._scenario.points, concurrency) * self._ratio

    def _schedule(self, repeat: str, concurrency: int, tokens: int) -> _Schedule:
        key = (repeat, concurrency, tokens)
        if key not in self._schedules:
            while len(self._schedules) >= 64:
                del self._schedules[next(iter(self._schedules))]
            self._schedules[key] = _Schedule([0.0] * concurrency)
        return self._schedules[key]

    def _duration(self, request: RequestId, index: int, concurrency: int, tokens: int) -> float:
        noise = self._gauss(f"block/{request.block}") * self._scenario.block_noise
        noise += self._gauss(f"repeat/{request.repeat}") * self._scenario.repeat_noise
        speed = self.throughput(concurrency) * math.exp(noise)
        jitter = 1 + _JITTER * (2 * self._rng(f"{request.repeat}/{index}").random() - 1)
        return concurrency * tokens / speed * jitter

    def _gauss(self, name: str) -> float:
        # Cut at two deviations: a declared host has no freak runs.
        return max(-2.0, min(2.0, self._rng(name).gauss(0, 1)))

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self._seed}/{self._scenario.name}/{self._arm}/{name}")


def interpolate(points: Sequence[tuple[int, float]], concurrency: int) -> float:
    """Throughput between declared points, straight on log-log paper, flat outside."""
    if concurrency <= points[0][0]:
        return points[0][1]
    for (c0, t0), (c1, t1) in itertools.pairwise(points):
        if concurrency <= c1:
            share = math.log(concurrency / c0) / math.log(c1 / c0)
            return t0 * math.exp(share * math.log(t1 / t0))
    return points[-1][1]


def _stamps(start: float, end: float, tokens: int) -> Timing:
    first = start + (end - start) * _PREFILL
    step = (end - first) / max(tokens - 1, 1)
    stamps = tuple(round(first + step * number, 6) for number in range(tokens))
    return Timing(round(start, 6), stamps)
