"""What is kept of the single requests of a repeat: enough for every figure, bounded in size. Pure.

The evidence lives in the ledger and in `--output json`, so a repeat keeps at most `MOST` of its
requests, evenly spread over it, and a course of `WINDOWS` steps of the token rate of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sm120patch.verify.metrics import Sample

MOST = 64
WINDOWS = 48
_DIGITS = 5  # significant


def kept(samples: Sequence[Sample]) -> dict[str, object]:
    """JSON-ready columns, one entry a request, of the requests that were answered.

    `start_s` counts from the first request of the repeat; `of` is the number of requests that
    were answered, of which the columns may hold fewer.
    """
    good = [sample for sample in samples if sample.ok]
    chosen = [good[round(index)] for index in _spread(len(good))]
    begin = min((sample.start for sample in good), default=0.0)
    return {
        "of": len(good),
        "failed": len(samples) - len(good),
        "start_s": [_short(s.start - begin) for s in chosen],
        "ttft_ms": [_short(1000 * s.ttft) for s in chosen],
        "tpot_ms": [_short(1000 * tpot_of(s)) for s in chosen],
        "latency_ms": [_short(1000 * s.latency) for s in chosen],
        "output_tokens": [s.output_tokens for s in chosen],
        "course": course(good, begin),
    }


def tpot_of(sample: Sample) -> float:
    """Seconds an output token after the first; 0 where there is only one."""
    further = sample.output_tokens - 1
    return (sample.latency - sample.ttft) / further if further > 0 else 0.0


def course(good: Sequence[Sample], begin: float) -> dict[str, object]:
    """Output tokens per second over the time of a repeat: `window_s` and one rate a window."""
    end = max((sample.start + sample.latency for sample in good), default=begin)
    window = (end - begin) / WINDOWS
    if window <= 0 or not math.isfinite(window):
        return {"window_s": None, "tok_s": []}
    counts = [0] * WINDOWS
    for sample in good:
        for moment in moments(sample):
            counts[max(0, min(WINDOWS - 1, int((moment - begin) / window)))] += 1
    return {"window_s": _short(window), "tok_s": [_short(count / window) for count in counts]}


def moments(sample: Sample) -> Iterator[float]:
    """Time of every token of an answered request, on the clock of `Sample.start`."""
    moment = sample.start + sample.ttft
    yield moment
    for itl in sample.itls:
        moment += itl
        yield moment


def _spread(count: int) -> Sequence[float]:
    if count <= MOST:
        return range(count)
    return [index * (count - 1) / (MOST - 1) for index in range(MOST)]


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else 0.0
