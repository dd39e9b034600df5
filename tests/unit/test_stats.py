from __future__ import annotations

import math
import random
import statistics

import pytest

from sm120patch.verify.stats import (
    centre,
    coefficient_of_variation,
    logs,
    median,
    percentile,
    pooled_scale,
    student,
)


@pytest.mark.parametrize(("tail", "freedom", "table"), [
    (0.05, 1, 6.3138), (0.005, 1, 63.6567), (0.005, 2, 9.9248), (0.05, 4, 2.1318),
    (0.001, 3, 10.2145), (0.025, 10, 2.2281), (0.005, 30, 2.7500), (0.0005, 5, 6.8688),
    (0.05, math.inf, 1.6449), (0.005, 1e6, 2.5758)])  # fmt: skip
def test_quantiles_are_those_of_the_tables(tail, freedom, table):
    assert student(tail, freedom) == pytest.approx(table, rel=1e-4)


def test_without_freedom_nothing_is_known():
    assert student(0.05, 0) == math.inf


def test_the_scale_inside_groups_does_not_see_their_centres():
    rng = random.Random(1)
    for size in (2, 3, 4, 5, 8):
        groups = [[c + rng.gauss(0, 0.1) for _ in range(size)] for c in range(400)]
        assert pooled_scale(groups) == pytest.approx(0.1, rel=0.1), size
    assert pooled_scale([[1.0], []]) == 0.0


def test_the_centre_is_the_mean_of_good_values_and_shrugs_at_one_bad_one():
    good = [1.0, 1.1, 0.9, 1.05, 0.95]
    assert centre(good, 0.1) == pytest.approx(statistics.fmean(good), abs=0.01)
    assert centre([*good, -5.0], 0.1) > 0.9
    assert centre([2.0], 0.0) == 2.0 and centre([1.0, 2.0, 9.0], 0.0) == 2.0


def test_logarithms_keep_zeros_and_drop_what_is_no_number():
    assert logs([math.e, math.nan, math.inf]) == [1.0]
    assert logs([0.0, -1.0])[0] < -20


def test_percentile_interpolates_as_numpy_does():
    assert percentile([1, 2, 3, 4], 50) == 2.5
    assert percentile([10, 20, 30], 99) == pytest.approx(29.8)
    assert percentile([], 99) == 0.0


def test_small_helpers_survive_empty_input():
    assert math.isnan(median([])) and median([3, 1, 2]) == 2
    assert math.isnan(coefficient_of_variation([1.0]))
    assert math.isnan(coefficient_of_variation([0.0, 0.0]))
    assert coefficient_of_variation([9.0, 11.0]) == pytest.approx(math.sqrt(2) / 10)
