from __future__ import annotations

import json
import random

import pytest

from sm120patch.verify.events import Stream
from sm120patch.verify.metrics import Sample, calculate
from sm120patch.verify.samples import MOST, WINDOWS, kept


def sample(start: float, tokens: int = 5, gap: float = 0.1, **more: object) -> Sample:
    itls = (gap,) * (tokens - 1)
    return Sample(ok=True, start=start, ttft=0.5, latency=0.5 + sum(itls), itls=itls,
                  output_tokens=tokens, **more)  # fmt: skip


def test_every_request_of_a_small_repeat_is_kept_with_its_figures():
    found = kept([sample(100.0), Sample(ok=False, error="HTTP 500", start=100.0), sample(101.0)])
    assert (found["of"], found["failed"]) == (2, 1)
    assert found["start_s"] == [0.0, 1.0]
    assert found["ttft_ms"] == [500.0, 500.0]
    assert found["tpot_ms"] == pytest.approx([100.0, 100.0])
    assert found["latency_ms"] == pytest.approx([900.0, 900.0])
    assert found["output_tokens"] == [5, 5]


def test_a_large_repeat_is_thinned_evenly_and_its_course_counts_all():
    rng = random.Random(1)
    many = [sample(rng.uniform(0, 100), tokens=50) for _ in range(5000)]
    found = kept(sorted(many, key=lambda s: s.start))
    starts = found["start_s"]
    assert found["of"] == 5000 and len(starts) == MOST == len(found["ttft_ms"])
    assert starts[0] == 0.0 and starts[-1] > 99 and starts == sorted(starts)
    course = found["course"]
    assert len(course["tok_s"]) == WINDOWS
    assert sum(course["tok_s"]) * course["window_s"] == pytest.approx(5000 * 50, rel=1e-3)
    assert len(json.dumps(found, allow_nan=False)) < 8000


def test_nothing_answered_leaves_empty_columns():
    found = kept([Sample(ok=False, error="x")])
    assert found["of"] == 0 and found["ttft_ms"] == []
    assert found["course"] == {"window_s": None, "tok_s": []}


def test_step_time_is_told_apart_from_speculation():
    """Twice the tokens a step, steps as slow as before: a token takes half the time."""
    plain = [sample(0.0, tokens=41, gap=0.1, verify_steps=40)]
    lucky = [sample(0.0, tokens=41, gap=0.05, verify_steps=20)]
    one, two = (calculate(s, 5.0, 8) for s in (plain, lucky))
    assert two["mean_tpot_ms"] == pytest.approx(one["mean_tpot_ms"] / 2)
    assert two["mean_step_ms"] == pytest.approx(one["mean_step_ms"])
    assert two["accept_length"] == pytest.approx(2 * one["accept_length"])
    assert "accept_length" not in calculate([sample(0.0)], 5.0, 8)


def test_steps_are_read_from_the_reply_and_nonsense_is_left_out():
    for told, expected in ((7, 7), (-1, 0), ("many", 0), (1 << 40, 0), (True, 0)):
        stream = Stream(cumulative=True, wanted=4)
        meta = {"completion_tokens": 4, "spec_verify_ct": told}
        stream.feed(json.dumps({"text": "abcd", "meta_info": meta}).encode(), 1.0)
        assert stream.verify_steps == expected
