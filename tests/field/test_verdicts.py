"""Cases 54 to 62: numbers that do not say what they seem to say."""

from __future__ import annotations

import math
from dataclasses import replace

from sm120patch.model import Goal
from sm120patch.verify.commandline import Arm
from sm120patch.verify.correctness import judge
from sm120patch.verify.effect import Start, interval
from sm120patch.verify.probes import LONG_CONTEXT, probes
from sm120patch.verify.schedule import Schedule
from sm120patch.verify.verdict import Findings, Verdict, decide
from tests.integration.test_interrupted import external, served_by_others
from tests.support.serving import (
    FUSION,
    Host,
    apply,
    assert_applied,
    assert_no_baseline,
    assert_rejected,
    assert_untouched,
)
from tests.unit.test_verdict import exam


def goal(host: Host, name: str, margin: float = 0.03) -> None:
    """Give every set of the catalogue another goal."""
    for manifest in (host.catalogue / "manifests").glob("*.toml"):
        text = manifest.read_text().replace('goal = "no-regression"', f'goal = "{name}"')
        manifest.write_text(text.replace("margin = 0.03", f"margin = {margin}"))


def test_case_54_the_server_is_older_than_the_patch(host: Host) -> None:
    with served_by_others(host) as theirs:
        done = host.run("apply", "fusion", "--profile", external(host, "/bin/true"))
        assert theirs.poll() is None, "it was not ours to stop"
    assert_no_baseline(host, done, "stale-server")
    assert f"PID {theirs.pid}" in done.error["message"]


def test_case_56_an_effect_below_the_noise_is_inconclusive(host: Host) -> None:
    done = apply(host, "noisy", verify="")
    assert done.code == 8 and done.result["verification"]["verdict"] == "inconclusive"
    assert {s["state"] for s in done.result["sets"]} == {"staged"}, "not applied, not thrown away"
    assert done.result["verification"]["advice"]


def test_case_57_faster_and_garbage_is_broken(host: Host) -> None:
    done = apply(host, "garbage")
    assert_rejected(host, done, "broken")


def test_case_58_text_that_is_wrong_only_behind_a_long_context() -> None:
    (long,) = [probe for probe in probes() if probe.long]
    assert len(long.prompt.split()) > LONG_CONTEXT, "a short prompt would see nothing"
    before = [exam()]
    assert judge(before, [exam()]).ok
    found = judge(before, [exam({long.name: "the the the the the the the the the"})])
    assert not found.ok and all(fault.startswith(long.name) for fault in found.faults)
    decision = decide(Goal.NO_REGRESSION, 0.03, Findings(effects={}, broken=found.faults))
    assert decision.verdict is Verdict.BROKEN


def test_case_60_the_order_of_the_runs_is_no_effect() -> None:
    """A host that gains 8 % with every start, and a patch that does nothing."""

    def starts(order: tuple[Arm, ...]) -> list[Start]:
        levels = [1000 * 1.08**n for n in range(len(order))]
        return [
            Start(arm is Arm.PATCHED, n, (level * 0.999, level, level * 1.001))
            for n, (arm, level) in enumerate(zip(order, levels, strict=True))
        ]

    naive = (Arm.BASELINE,) * 4 + (Arm.PATCHED,) * 4
    medians = [math.log(s.values[1]) for s in starts(naive)]
    assert sum(medians[4:]) / 4 - sum(medians[:4]) / 4 > 0.25, "all of A, then all of B: +36 %"
    order = Schedule(least=2, most=4, null=False).order
    assert order[:4] == (Arm.BASELINE, Arm.PATCHED, Arm.PATCHED, Arm.BASELINE)
    found = interval(starts(order))
    assert abs(math.log(found.ratio)) < 0.005
    assert found.low < 1.0 < found.high
    effect = {"w": replace(found)}
    assert decide(Goal.SPEED, 0.03, Findings(effects=effect)).verdict is not Verdict.IMPROVED


def test_case_61_a_declared_trade_off_passes_within_what_it_declares(host: Host) -> None:
    goal(host, "capacity", margin=0.12)
    done = apply(host, "slow-mild-regression")
    assert_applied(host, done, "no-regression")


def test_case_61_more_than_was_declared_does_not(host: Host) -> None:
    goal(host, "capacity", margin=0.03)
    done = apply(host, "slow-mild-regression")
    assert_rejected(host, done, "regressed")


def test_case_62_a_crash_fix_needs_no_number_from_before(host: Host) -> None:
    done = apply(host, "crash-unless-patched")
    assert done.code == 10, "for any other goal a baseline that does not run is no baseline"
    assert_untouched(host)
    goal(host, "crash-fix")
    done = apply(host, "crash-unless-patched")
    assert done.code == 0, done.err
    assert host.patched() == FUSION
    assert done.result["verification"]["verdict"] == "improved"
