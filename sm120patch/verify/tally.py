"""Tokens of a repeat as they come, and how much slower than the baseline that is so far. Pure.

A collapse shows in the first seconds: the patched server takes several times as long to produce
as many tokens as the baseline had at the same point of the same requests. A compile must not look
like one: the longest time without a token from any stream does not count at all, others only up to
`STALL`. What is left has to be slow steadily.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

STALL = 10.0
"""Seconds without any token that are a stall; a step of 512 streams at 236 tok/s takes 2.2 s."""
COLLAPSE = 3.0
"""Times slower than every baseline repeat so far. Equal starts differ by up to 1.9 times in the
worst recorded noise, see `effect.ROUGH`."""
LEAST_SECONDS = 5.0
"""Time that counts before anything is said."""
LEAST_SECONDS_COLD = 30.0
"""The same for the requests that warm the server up, which compile in many small pieces."""
LEAST_SHARE = 0.02
"""Share of the tokens of a repeat that must be there, unless a whole repeat's time is over: the
first ones say more about how prompts are scheduled than about speed."""
_SPACING = 0.05  # seconds between two marks: bounds the memory


@dataclass
class Tally:
    """Running count of the tokens of all streams of one repeat."""

    begin: float
    """Time of the first request, on the clock of `note`."""
    tokens: int = 0
    last: float = 0.0
    """Time of the last token; `begin` before the first."""
    stalled: float = 0.0
    """Seconds beyond `STALL` in which no stream had a token."""
    longest: float = 0.0
    """Longest time without a token from any stream."""
    times: list[float] = field(default_factory=list)
    """Seconds since `begin`, stalls left out, of the marks in `counts`."""
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last = self.last or self.begin

    def note(self, tokens: int, now: float) -> None:
        """Count `tokens` that arrived at `now`."""
        if tokens <= 0:
            return
        gap = now - self.last
        self.longest = max(self.longest, gap)
        self.stalled += max(0.0, gap - STALL)
        self.last = max(self.last, now)
        self.tokens += tokens
        moment = self.running(now)
        if self.times and moment - self.times[-1] < _SPACING:
            self.counts[-1] = self.tokens
        else:
            self.times.append(moment)
            self.counts.append(self.tokens)

    def running(self, now: float) -> float:
        """Seconds since the first request, stalls left out."""
        open_stall = max(0.0, now - self.last - STALL)
        return max(0.0, now - self.begin - self.stalled - open_stall)

    def steady(self, now: float) -> float:
        """The same without the longest silence, the one that is still open included."""
        return max(0.0, self.running(now) - min(max(self.longest, now - self.last), STALL))

    def reached(self, tokens: int) -> float | None:
        """Seconds after which that many tokens were there; None when they never were."""
        index = bisect.bisect_left(self.counts, tokens)
        return self.times[index] if index < len(self.times) else None


def slowdown(tally: Tally, now: float, baseline: Sequence[Tally]) -> float:
    """Least factor by which the repeat so far is slower than the baseline's; 0: cannot be told.

    Held against the time in which the baseline had one token more, by the slowest of its repeats.
    """
    times = [moment for other in baseline if (moment := other.reached(tally.tokens + 1))]
    return tally.steady(now) / max(times) if times and len(times) == len(baseline) else 0.0


def collapsed(tally: Tally, now: float, baseline: Sequence[Tally], *, cold: bool) -> float | None:
    """Slow-down of a repeat that need not be finished; None while it may still be noise.

    `cold` is for the warm-up. There tokens must have come in the last seconds as well: a server
    that compiles is slow without being steady.
    """
    if tally.steady(now) < (LEAST_SECONDS_COLD if cold else LEAST_SECONDS):
        return None
    if cold and (tally.tokens == 0 or now - tally.last > STALL / 2):
        return None
    whole = max((other.times[-1] for other in baseline if other.times), default=0.0)
    most = max((other.tokens for other in baseline), default=0)
    if tally.tokens < LEAST_SHARE * most and tally.steady(now) < whole:
        return None
    found = slowdown(tally, now, baseline)
    return found if found >= COLLAPSE else None
