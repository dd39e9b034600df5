"""The simulation behind docs/verdicts.md: it follows the product, and the page is in bounds."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "verdicts.md").read_text()


@pytest.fixture(scope="module")
def rates() -> ModuleType:
    path = ROOT / "benchmarks" / "verdict_rates.py"
    spec = importlib.util.spec_from_file_location("verdict_rates", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["verdict_rates"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_arrays_and_product_decide_alike(rates: ModuleType) -> None:
    assert rates.agree(trials=1, seed=8) == 2 * len(rates.PROFILES) * len(rates.EFFECTS)


def test_null_patches_and_grave_losses_hardly_ever_pass(rates: ModuleType) -> None:
    """A small run of what the page counts with more trials; 1 % plus three standard errors."""
    trials = 400
    wrong = {0.0: ("improved",), -0.10: ("improved", "no-regression")}
    for noise in (rates.PROFILES[1], rates.PROFILES[4], rates.PROFILES[6]):
        for size, words in wrong.items():
            data = rates.case(
                noise, size, rates.SCHEDULE, np.random.default_rng(5), trials=trials, workloads=1
            )
            found, _ = rates.sequential(data, rates.SCHEDULE)
            assert np.isin(found, words).mean() <= 0.025, (noise.name, size)


def test_a_collapse_is_decided_at_the_first_patched_start(rates: ModuleType) -> None:
    for noise in rates.PROFILES:
        data = rates.case(
            noise, -0.87, rates.SCHEDULE, np.random.default_rng(5), trials=200, workloads=2
        )
        words, cost = rates.sequential(data, rates.SCHEDULE)
        assert set(words) == {"regressed"} and set(cost) == {3.0}, noise.name


def figure(pattern: str) -> float:
    (found,) = re.findall(pattern, " ".join(PAGE.split()))
    return float(found)


def test_the_published_figures_are_what_was_asked_for() -> None:
    assert figure(r"taken for improvements: \*\*([\d.]+) %") <= 1
    assert figure(r"cost 10 % let through: \*\*([\d.]+) %") <= 1
    assert figure(r"at most \*\*([\d.]+)\*\* of the fixed design") <= 0.5
    assert figure(r"sequential Mann-Whitney is \*\*([\d.]+)\*\*") <= 0.5
    assert figure(r"inconclusive verdicts \*\*([\d.]+)\*\*") <= 0.5
