from __future__ import annotations

import pytest

from sm120patch.verify.tally import Tally, collapsed, slowdown


def steady(rate: float, seconds: float, *, step: float = 0.1, begin: float = 100.0) -> Tally:
    tally = Tally(begin)
    for n in range(1, int(seconds / step) + 1):
        tally.note(int(rate * step), begin + n * step)
    return tally


BASELINE = [steady(1867, 35), steady(1800, 36)]


def test_the_published_collapse_is_seen_after_seconds_of_load():
    slow = Tally(0.0)
    seen = None
    for second in range(1, 60):
        slow.note(472 if second % 2 else 0, float(second))  # 236 tok/s in steps of two seconds
        if seen is None and collapsed(slow, float(second), BASELINE, cold=False):
            seen = second
    assert seen == 7
    factor = slowdown(slow, 60.0, BASELINE)
    assert 6 < factor < 9


@pytest.mark.parametrize("rate", [1867, 1200, 700])
def test_what_noise_can_do_is_no_collapse(rate):
    tally = Tally(0.0)
    for second in range(1, 30):
        tally.note(rate, float(second))
        assert collapsed(tally, float(second), BASELINE, cold=False) is None


def test_a_compile_is_no_collapse_and_what_follows_it_is():
    tally = Tally(0.0)
    tally.note(50, 1.0)
    assert collapsed(tally, 240.0, BASELINE, cold=True) is None, "silent: it compiles"
    assert tally.running(240.0) == pytest.approx(11.0)
    for second in range(241, 300):
        tally.note(20, float(second))
    assert tally.steady(300.0) == pytest.approx(60.0)
    assert tally.stalled == pytest.approx(230.0) and tally.longest == pytest.approx(240.0)
    assert collapsed(tally, 300.0, BASELINE, cold=True)


@pytest.mark.parametrize("silence", [6.0, 9.0, 60.0])
def test_one_silence_at_any_moment_of_a_repeat_is_no_collapse(silence):
    for before in (0, 1, 3):
        tally = Tally(0.0)
        for second in range(before):
            tally.note(1800, float(second + 1))
        for moment in range(int(silence)):
            now = before + float(moment)
            assert collapsed(tally, now, BASELINE, cold=False) is None, (before, moment)


def test_the_very_first_tokens_do_not_decide():
    """Prompts first, answers later: slow to begin with, and no collapse."""
    tally = Tally(0.0)
    for second in range(1, 30):
        tally.note(20, float(second))
        assert collapsed(tally, float(second), BASELINE, cold=False) is None
    for second in range(30, 60):  # but not for longer than a whole repeat
        tally.note(20, float(second))
    assert collapsed(tally, 60.0, BASELINE, cold=False)


def test_without_a_baseline_nothing_is_slow():
    assert collapsed(steady(1, 30, step=1.0, begin=0.0), 30.0, [], cold=False) is None


def test_more_tokens_than_the_baseline_had_is_no_collapse():
    short = [steady(100, 1, step=0.5)]
    assert slowdown(steady(100, 60, step=1.0, begin=0.0), 60.0, short) == 0.0


def test_marks_are_bounded_and_still_reach_the_end():
    tally = Tally(0.0)
    for n in range(100_000):
        tally.note(1, n / 50_000)
    assert len(tally.times) < 50 and tally.tokens == 100_000
    assert tally.reached(100_000) == pytest.approx(2.0, abs=0.1) and tally.reached(100_001) is None
    tally.note(0, 99.0)
    assert tally.last < 2.1
