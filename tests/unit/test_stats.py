from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm120patch.verify.stats import (
    Interval,
    coefficient_of_variation,
    median,
    percentile,
    ratio_interval,
    units_needed,
)

speeds = st.lists(st.lists(st.floats(1.0, 1e5), min_size=1, max_size=4), min_size=1, max_size=4)


def noisy(rng: random.Random, mean: float, blocks: int, between: float, within: float):
    return [
        [mean * math.exp(start + rng.gauss(0, within)) for _ in range(3)]
        for start in (rng.gauss(0, between) for _ in range(blocks))
    ]


@pytest.mark.parametrize(
    ("blocks", "between"), [(2, 0.0), (2, 0.01), (2, 0.02), (3, 0.01), (4, 0.02)]
)
def test_the_true_ratio_lies_inside_in_nine_cases_of_ten(blocks, between):
    rng = random.Random(7)
    inside = 0
    for trial in range(150):
        a = noisy(rng, 100, blocks, between, 0.01)
        b = noisy(rng, 105, blocks, between, 0.01)
        interval = ratio_interval(a, b, seed=trial, draws=300)
        inside += interval.low <= 1.05 <= interval.high
    assert inside >= 0.88 * 150


def test_without_an_effect_few_runs_claim_one():
    rng = random.Random(11)
    false_alarms = 0
    for trial in range(150):
        a, b = (noisy(rng, 100, 2, 0.01, 0.01) for _ in range(2))
        interval = ratio_interval(a, b, seed=trial, draws=300)
        false_alarms += not interval.low <= 1 <= interval.high
    assert false_alarms <= 0.1 * 150


def test_repeats_of_one_start_do_not_count_as_independent():
    # Two starts that differ by 10 %, with repeats that hardly differ at all.
    a = [[100.0, 100.1, 99.9], [110.0, 110.1, 109.9]]
    b = [[105.0, 105.1, 104.9], [105.2, 105.1, 105.3]]
    by_block = ratio_interval(a, b)
    pooled = ratio_interval([a[0] + a[1]], [b[0] + b[1]])
    assert by_block.unit == "block" and pooled.unit == "repeat"
    assert by_block.high / by_block.low > pooled.high / pooled.low


@settings(max_examples=60, deadline=None)
@given(speeds, speeds)
def test_swapping_the_arms_inverts_the_interval(a, b):
    forward = ratio_interval(a, b, draws=50)
    backward = ratio_interval(b, a, draws=50)
    assert forward.unit == backward.unit
    assert forward.ratio * backward.ratio == pytest.approx(1)
    if forward.bounded:
        assert forward.low * backward.high == pytest.approx(1)
        assert forward.low <= forward.high


@settings(max_examples=60, deadline=None)
@given(speeds, speeds, st.floats(0.01, 100))
def test_the_unit_of_measurement_does_not_matter(a, b, factor):
    scaled = [[[v * factor for v in block] for block in arm] for arm in (a, b)]
    plain, other = ratio_interval(a, b, draws=50), ratio_interval(*scaled, draws=50)
    assert other.ratio == pytest.approx(plain.ratio, rel=1e-6)
    assert other.low == pytest.approx(plain.low, rel=1e-6)


def test_the_same_seed_gives_the_same_interval():
    rng = random.Random(3)
    a, b = noisy(rng, 100, 2, 0.01, 0.02), noisy(rng, 100, 2, 0.01, 0.02)
    assert ratio_interval(a, b, seed=5) == ratio_interval(a, b, seed=5)
    assert ratio_interval(a, b, seed=5) != ratio_interval(a, b, seed=6)


@pytest.mark.parametrize("arm", [[], [[]], [[math.nan]], [[math.inf, -math.inf]]])
def test_an_arm_without_measurements_has_no_interval(arm):
    interval = ratio_interval(arm, [[1.0, 2.0]])
    assert not interval.bounded
    assert interval.as_dict()["ratio"] is None
    assert interval.as_dict()["high"] is None


def test_a_single_measurement_an_arm_bounds_nothing():
    interval = ratio_interval([[100.0]], [[50.0]])
    assert interval.ratio == pytest.approx(0.5)
    assert not interval.bounded and interval.low == 0


def test_a_measured_zero_is_a_collapse_and_not_a_missing_value():
    interval = ratio_interval([[100.0, 101.0]] * 2, [[0.0, 0.0]] * 2)
    assert interval.high < 0.001


def test_values_that_are_not_finite_are_left_out():
    clean = ratio_interval([[100.0, 101.0]], [[99.0, 100.0]])
    dirty = ratio_interval([[100.0, math.nan, 101.0]], [[99.0, math.inf, 100.0]])
    assert clean == dirty


def test_units_needed_grows_as_the_effect_nears_the_threshold():
    far = units_needed(Interval(1.05, 0.95, 1.16, 0.9, "block"), 0.97, 2)
    near = units_needed(Interval(1.00, 0.95, 1.053, 0.9, "block"), 0.97, 2)
    assert far is not None and near is not None and 2 < far < near
    assert units_needed(Interval(0.971, 0.9, 1.05, 0.9, "block"), 0.97, 2) is None
    assert units_needed(Interval(1.0, 0.0, math.inf, 0.9, "none"), 0.97, 1) == 2


def test_percentile_interpolates_as_numpy_does():
    assert percentile([1, 2, 3, 4], 50) == 2.5
    assert percentile([10, 20, 30], 99) == pytest.approx(29.8)
    assert percentile([], 99) == 0.0


def test_small_helpers_survive_empty_input():
    assert math.isnan(median([])) and median([3, 1, 2]) == 2
    assert math.isnan(coefficient_of_variation([1.0]))
    assert math.isnan(coefficient_of_variation([0.0, 0.0]))
    assert coefficient_of_variation([9.0, 11.0]) == pytest.approx(math.sqrt(2) / 10)
