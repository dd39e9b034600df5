from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm120patch.verify.effect import (
    KNOWN,
    Floor,
    Interval,
    Look,
    Start,
    between_starts,
    from_course,
    interval,
    pooled,
    undecidable,
    units_needed,
)

speeds = st.lists(st.lists(st.floats(1.0, 1e5), min_size=1, max_size=4), min_size=1, max_size=5)
ORDER = (False, False, True, True, False, False, True, True, False)  # null run, A B B A A B B A


def starts_of(baseline, patched) -> list[Start]:
    rows = [(False, b) for b in baseline] + [(True, b) for b in patched]
    return [Start(arm, n, tuple(values)) for n, (arm, values) in enumerate(rows)]


def noisy(rng: random.Random, *, effect=1.0, between=0.02, within=0.02, drift=0.0, count=9):
    return [
        Start(
            patched,
            n,
            tuple(
                100 * (effect if patched else 1) * math.exp(level + rng.gauss(0, within))
                for _ in range(3)
            ),
        )
        for n, patched in enumerate(ORDER[:count])
        for level in [rng.gauss(0, between) + drift * n]
    ]


@pytest.mark.parametrize(("between", "count", "drift"), [
    (0.0, 5, 0.0), (0.02, 5, 0.0), (0.02, 9, 0.0), (0.02, 9, 0.03), (0.08, 7, -0.02)])  # fmt: skip
def test_the_true_ratio_lies_inside_as_often_as_promised(between, count, drift):
    rng = random.Random(7)
    near = sure = 0
    for _ in range(1000):
        found = interval(noisy(rng, effect=1.05, between=between, count=count, drift=drift))
        near += found.low <= 1.05 <= found.high
        sure += found.sure_low <= 1.05 <= found.sure_high
    assert near >= 880 and sure >= 984  # 90 % and 99 %, two standard errors down


def test_looking_after_every_pair_does_not_make_it_careless():
    rng = random.Random(9)
    false = 0
    for _ in range(400):
        data = noisy(rng)
        looks = [interval(data[:n], Look(k, 3)) for k, n in ((1, 5), (2, 7), (3, 9))]
        false += any(i.sure_low > 1 or i.sure_high < 1 for i in looks)
    assert false <= 8


def test_runs_of_one_start_do_not_count_as_independent():
    # Two starts that differ by 10 %, with runs that hardly differ at all.
    a = [[100.0, 100.1, 99.9], [110.0, 110.1, 109.9]]
    b = [[105.0, 105.1, 104.9], [105.2, 105.1, 105.3]]
    found = interval(starts_of(a, b))
    assert found.unit == "start" and found.high / found.low > 1.2


@settings(max_examples=80, deadline=None)
@given(speeds, speeds)
def test_swapping_the_arms_inverts_the_interval(a, b):
    data = starts_of(a, b)
    forward = interval(data)
    backward = interval([Start(not s.patched, s.position, s.values) for s in data])
    assert forward.unit == backward.unit
    assert forward.ratio * backward.ratio == pytest.approx(1)
    assert forward.low * backward.high == pytest.approx(1)
    assert forward.sure_low <= forward.low <= forward.high <= forward.sure_high


@settings(max_examples=60, deadline=None)
@given(speeds, speeds, st.floats(0.01, 100))
def test_the_unit_of_measurement_does_not_matter(a, b, factor):
    scaled = [[[v * factor for v in block] for block in arm] for arm in (a, b)]
    plain, other = interval(starts_of(a, b)), interval(starts_of(*scaled))
    assert other.ratio == pytest.approx(plain.ratio, rel=1e-6)
    assert other.low == pytest.approx(plain.low, rel=1e-6)


@pytest.mark.parametrize("arm", [[], [[]], [[math.nan]], [[math.inf, -math.inf]]])
def test_an_arm_without_measurements_has_no_interval(arm):
    found = interval(starts_of(arm, [[1.0, 2.0]]))
    assert not found.bounded
    assert found.as_dict()["ratio"] is None and found.as_dict()["high"] is None
    assert found.as_dict()["smallest_effect"] is None


def test_single_starts_decide_only_what_no_noise_explains():
    small = interval(starts_of([[100.0, 101.0]], [[110.0, 111.0]]))
    assert small.unit == "bound" and small.low < 1 < small.high
    collapse = interval(starts_of([[1867.0, 1850.0]], [[236.0, 240.0]]))
    assert collapse.high < 0.3
    triple = interval(starts_of([[100.0, 101.0]], [[300.0, 303.0]]))
    assert triple.low > 1


def test_noisy_runs_widen_even_the_bound():
    quiet = interval(starts_of([[100.0, 101.0]], [[50.0, 51.0]]))
    wild = interval(starts_of([[100.0, 30.0]], [[50.0, 150.0]]))
    assert wild.high / wild.low > quiet.high / quiet.low


def test_a_measured_zero_is_a_collapse_and_not_a_missing_value():
    assert interval(starts_of([[100.0, 101.0]] * 2, [[0.0, 0.0]] * 2)).high < 0.001


def test_values_that_are_not_finite_are_left_out():
    clean = interval(starts_of([[100.0, 101.0]], [[99.0, 100.0]]))
    dirty = interval(starts_of([[100.0, math.nan, 101.0]], [[99.0, math.inf, 100.0]]))
    assert repr(clean) == repr(dirty)  # it holds NaN, which equals nothing


def test_a_stalled_run_hardly_moves_the_start():
    steady = [[100.0, 101.0, 99.0], [100.0, 99.0, 101.0]]
    hit = interval(starts_of(steady, [[100.0, 101.0, 40.0], [99.0, 100.0, 101.0]]))
    assert 0.98 < hit.ratio < 1.01


def test_a_drift_of_the_host_is_not_taken_for_an_effect():
    rng = random.Random(1)
    still = interval(noisy(rng, between=0.002, within=0.002))
    drifting = interval(noisy(rng, between=0.002, within=0.002, drift=0.05))
    assert drifting.ratio == pytest.approx(1, abs=0.01)
    assert drifting.high / drifting.low < 1.2 * still.high / still.low


# --- the noise floor ---------------------------------------------------------------------------


def test_a_recorded_floor_narrows_what_few_starts_leave_open():
    rng = random.Random(3)
    data = noisy(rng, count=5)
    alone, helped = interval(data), interval(data, floor=Floor(0.023, 8, "recorded"))
    assert helped.high / helped.low < alone.high / alone.low
    assert helped.ratio == alone.ratio


def test_a_floor_of_a_quieter_time_is_not_believed():
    data = noisy(random.Random(3), between=0.1, count=5)
    assert interval(data, floor=Floor(0.001, 50, "recorded")) == interval(data)


def test_a_floor_alone_decides_nothing_unless_it_is_declared():
    data = starts_of([[100.0, 100.0]], [[105.0, 105.0]])
    assert interval(data, floor=Floor(0.003, 8, "recorded")).unit == "bound"
    declared = interval(data, floor=Floor(0.003, KNOWN, "declared"))
    assert declared.unit == "start" and declared.sure_low > 1


def test_the_floor_of_a_run_is_what_its_equal_starts_differ_by():
    rng = random.Random(5)
    found = [between_starts(noisy(rng, effect=1.5, between=0.03, within=0.001)) for _ in range(80)]
    floor = pooled(found)
    assert floor is not None and floor.sd == pytest.approx(0.03, rel=0.1)
    assert floor.df == 80 * 6
    assert between_starts(starts_of([[100.0]], [[1.0]]))[1] == 0
    assert between_starts(starts_of([[100.0], [110.0]], []))[1] == 1
    assert between_starts([]) == (0.0, 0) and pooled([(0.0, 0)]) is None


# --- how much more -----------------------------------------------------------------------------


def test_the_smallest_effect_is_one_that_would_have_been_seen():
    rng = random.Random(8)
    smallest = sorted(interval(noisy(rng)).smallest for _ in range(200))[100]
    seen = sum(interval(noisy(rng, effect=1 + smallest)).sure_low > 1 for _ in range(300))
    assert 0.65 * 300 < seen < 0.95 * 300


def test_units_needed_grows_as_the_effect_nears_the_threshold():
    far = units_needed(Interval(1.05, 0.95, 1.16), 0.97, 2)
    near = units_needed(Interval(1.00, 0.95, 1.053), 0.97, 2)
    assert far is not None and near is not None and 2 < far < near
    assert units_needed(Interval(0.971, 0.9, 1.05), 0.97, 2) is None
    assert units_needed(Interval(1.0, 0.0, math.inf), 0.97, 1) == 2


def test_a_run_is_given_up_only_when_more_starts_would_not_help():
    look = Look(3, 6)
    hopeless = interval(noisy(random.Random(4), between=0.2, count=7), look)
    assert 0.8 < hopeless.ratio < 1.2
    assert undecidable(hopeless, look, 13, 0.97, 0.9)
    clear = interval(noisy(random.Random(2), between=0.002, within=0.002, count=7), look)
    assert not undecidable(clear, look, 13, 0.97, 0.9)
    assert not undecidable(hopeless, look, hopeless.starts, 0.97, 0.9), "nothing is left to save"
    assert not undecidable(Interval(math.nan, 0, math.inf), look, 13, 0.97, 0.9)


def test_the_course_of_the_first_seconds_has_the_widest_interval():
    found = from_course(236 / 1867)
    assert found.unit == "course" and found.high < 0.3 and found.sure_high == found.high
