"""Serving metrics of one repeat, with the definitions of `sglang.bench_serving`. Pure.

Compared with `calculate_metrics` of sglang 0.5.9: same names, same formulas, same one-second
buckets. Two deliberate differences: token counts come from the server's own counter instead of
a tokenizer, and the peak keeps its buckets in a mapping, so that a hostile time stamp costs no
memory.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sm120patch.verify.stats import percentile


@dataclass(frozen=True)
class Token:
    """A generated token and how probable it was."""

    key: int | str
    """Number in the vocabulary, or the text where the server gives no number."""
    logprob: float


@dataclass(frozen=True)
class Sample:
    """One request as the client saw it; times in seconds."""

    ok: bool
    error: str = ""
    start: float = 0.0
    ttft: float = 0.0
    """Time to first token."""
    latency: float = 0.0
    """From sending to the last event."""
    itls: tuple[float, ...] = ()
    """Inter-token latencies; the gap of an event with n new tokens counts as n times gap / n."""
    output_tokens: int = 0
    text: str = ""
    """Generated text, kept for correctness probes only."""
    verify_steps: int = 0
    """Steps of the target model as SGLang counts them with speculative decoding; else 0."""
    chosen: tuple[Token, ...] = ()
    """Generated tokens, where log-probabilities were asked for and the server gives them."""
    prompt_tokens: int | None = None
    """Length of the prompt as the server counts it."""


def calculate(samples: Sequence[Sample], duration: float, input_len: int) -> dict[str, float]:
    """Metrics of one repeat that took `duration` seconds, under bench_serving's names.

    Failed samples count in `failed` only. With no usable duration the rates are 0.
    """
    good = [sample for sample in samples if sample.ok]
    total_input = input_len * len(good)
    total_output = sum(sample.output_tokens for sample in good)
    latencies = [sample.latency for sample in good]
    per_second = 1 / duration if duration > 0 else 0.0
    peak, most = _peaks(good)
    tpots = [(s.latency - s.ttft) / (s.output_tokens - 1) for s in good if s.output_tokens > 1]
    itls = [itl for sample in good for itl in sample.itls]
    return {
        "completed": len(good),
        "failed": len(samples) - len(good),
        "duration": duration,
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "request_throughput": len(good) * per_second,
        "input_throughput": total_input * per_second,
        "output_throughput": total_output * per_second,
        "total_throughput": (total_input + total_output) * per_second,
        **_spread("e2e_latency", latencies, (90, 99)),
        **_spread("ttft", [sample.ttft for sample in good], (99,)),
        **_spread("tpot", tpots, (99,)),
        **_spread("itl", itls, (95, 99)),
        "max_itl_ms": 1000 * max(itls, default=0.0),
        "concurrency": sum(latencies) * per_second,
        "max_output_tokens_per_s": float(peak),
        "max_concurrent_requests": float(most),
        **_speculation(good, tpots),
    }


def _speculation(good: Sequence[Sample], tpots: Sequence[float]) -> dict[str, float]:
    """Step time apart from luck in speculation: a token is quick by either of them.

    Only where the server reports its steps. `accept_length` is that of bench_serving: tokens a
    step; `mean_step_ms` is the time of a step.
    """
    told = [sample for sample in good if sample.verify_steps > 0]
    if not told or not tpots:
        return {}
    accepted = sum(s.output_tokens for s in told) / sum(s.verify_steps for s in told)
    return {
        "accept_length": accepted,
        "mean_step_ms": 1000 * statistics.fmean(tpots) * accepted,
    }


def _spread(name: str, seconds: list[float], percents: Sequence[int]) -> dict[str, float]:
    values = {
        f"mean_{name}_ms": statistics.fmean(seconds) if seconds else 0.0,
        f"median_{name}_ms": statistics.median(seconds) if seconds else 0.0,
        f"std_{name}_ms": statistics.pstdev(seconds) if seconds else 0.0,
    }
    values.update({f"p{p}_{name}_ms": percentile(seconds, p) for p in percents})
    return {key: 1000 * value for key, value in values.items()}


def _peaks(good: Sequence[Sample]) -> tuple[int, int]:
    """Most output tokens in one second, most requests alive in one second."""
    if not good:
        return 0, 0
    begin = min(sample.start for sample in good)
    tokens: Counter[int] = Counter()
    changes: Counter[int] = Counter()
    for sample in good:
        moment = sample.start + sample.ttft - begin
        tokens[int(moment)] += 1
        for itl in sample.itls:
            moment += itl
            tokens[int(moment)] += 1
        changes[int(sample.start - begin)] += 1
        changes[int(sample.start + sample.latency - begin) + 1] -= 1
    alive = most = 0
    for second in sorted(changes):
        alive += changes[second]
        most = max(most, alive)
    return max(tokens.values()), most
