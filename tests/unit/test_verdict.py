from __future__ import annotations

import math

import pytest

from sm120patch.model import Goal
from sm120patch.verify.answers import Answer, Examination, flaw_of
from sm120patch.verify.correctness import judge
from sm120patch.verify.effect import Interval
from sm120patch.verify.engagement import engaged_baseline, failures, info_seen, log_seen
from sm120patch.verify.probes import probes
from sm120patch.verify.verdict import Findings, Verdict, collapsed, decide, describe
from tests.support.simulated import ENGAGEMENT


def interval(low: float, high: float) -> Interval:
    return Interval(math.sqrt(low * high), low, high)


def verdict(*bounds: tuple[float, float], goal: Goal = Goal.NO_REGRESSION, **more: object):
    effects = {f"w{number}": interval(*pair) for number, pair in enumerate(bounds)}
    return decide(goal, 0.03, Findings(effects=effects, **more))


@pytest.mark.parametrize(
    ("bounds", "goal", "expected"),
    [
        ([(1.02, 1.06)], Goal.NO_REGRESSION, Verdict.IMPROVED),
        ([(1.02, 1.06), (0.98, 1.01)], Goal.NO_REGRESSION, Verdict.IMPROVED),
        ([(0.98, 1.02)], Goal.NO_REGRESSION, Verdict.NO_REGRESSION),
        ([(0.975, 0.99)], Goal.NO_REGRESSION, Verdict.NO_REGRESSION),
        ([(0.9, 0.96)], Goal.NO_REGRESSION, Verdict.REGRESSED),
        ([(0.9, 0.98)], Goal.NO_REGRESSION, Verdict.INCONCLUSIVE),
        ([(1.02, 1.06), (0.9, 0.96)], Goal.NO_REGRESSION, Verdict.REGRESSED),
        ([(1.02, 1.06), (0.9, 1.2)], Goal.NO_REGRESSION, Verdict.INCONCLUSIVE),
        ([(0, math.inf)], Goal.NO_REGRESSION, Verdict.INCONCLUSIVE),
        ([], Goal.NO_REGRESSION, Verdict.INCONCLUSIVE),
        ([(1.02, 1.06)], Goal.SPEED, Verdict.IMPROVED),
        ([(0.98, 1.02)], Goal.SPEED, Verdict.INCONCLUSIVE),
        ([(0.98, 0.995)], Goal.SPEED, Verdict.REGRESSED),
        ([(0.98, 1.02)], Goal.CRASH_FIX, Verdict.NO_REGRESSION),
        ([(0.98, 1.02)], Goal.CAPACITY, Verdict.NO_REGRESSION),
    ],
)
def test_the_interval_decides(bounds, goal, expected):
    assert verdict(*bounds, goal=goal).verdict is expected


def test_garbage_at_high_speed_is_broken():
    assert verdict((2.9, 3.1), broken=("one token for ever",)).verdict is Verdict.BROKEN


def test_what_was_not_seen_running_is_not_engaged_whatever_the_speed():
    decision = verdict((1.1, 1.2), not_engaged=("the log never says /x/",))
    assert decision.verdict is Verdict.NOT_ENGAGED
    assert decision.reasons == ("the log never says /x/",)


def test_wrong_answers_come_before_engagement():
    assert verdict(broken=("wrong",), not_engaged=("off",)).verdict is Verdict.BROKEN


def test_a_run_that_was_cut_off_is_never_more_than_inconclusive():
    for bounds in ((1.1, 1.2), (0.2, 0.3)):
        decision = verdict(bounds, unfinished="the time ran out")
        assert decision.verdict is Verdict.INCONCLUSIVE
        assert "the time ran out" in decision.reasons


def test_a_crash_fix_needs_no_before_number():
    decision = verdict(goal=Goal.CRASH_FIX, baseline_failure="exit status 1")
    assert decision.verdict is Verdict.IMPROVED
    assert "exit status 1" in decision.reasons[0]


def test_a_crash_fix_is_told_when_the_baseline_does_not_run_either():
    decision = verdict(goal=Goal.CRASH_FIX, broken=("no numpy",), baseline_failure="exit status 1")
    assert decision.verdict is Verdict.BROKEN
    assert "the baseline does not run either (exit status 1)" in decision.reasons[0]
    assert decision.reasons[1] == "no numpy"


def test_only_two_verdicts_pass_and_three_reject():
    assert {v.value for v in Verdict if v.passed} == {"improved", "no-regression"}
    assert {v.value for v in Verdict if v.rejected} == {"regressed", "broken", "not-engaged"}


def test_an_inconclusive_verdict_says_what_would_decide():
    wide = verdict((0.94, 1.08), blocks=2)
    assert "server starts an arm" in (wide.advice or "")
    hopeless = verdict((0.80, 1.20), blocks=2)
    assert "noise" in (hopeless.advice or "")
    assert verdict((1.02, 1.06)).advice is None


def test_effects_are_described_with_their_interval():
    text = describe("c64", interval(1.02, 1.06))
    assert text.startswith("c64: +4.0 % (90 % interval +2.0 .. +6.0 %)")
    assert "not enough" in describe("c64", interval(0, math.inf))


def sure(low: float, high: float, at_99: tuple[float, float]) -> Interval:
    return Interval(math.sqrt(low * high), low, high, sure=at_99, smallest=0.05, noise=0.02)


@pytest.mark.parametrize(("effect", "expected"), [
    (sure(1.01, 1.06, (0.99, 1.08)), Verdict.NO_REGRESSION),
    (sure(1.03, 1.06, (1.01, 1.08)), Verdict.IMPROVED),
    (sure(0.98, 1.02, (0.88, 1.14)), Verdict.INCONCLUSIVE),
    (sure(0.90, 0.96, (0.85, 1.01)), Verdict.INCONCLUSIVE),
    (sure(0.90, 0.96, (0.87, 0.99)), Verdict.REGRESSED)])  # fmt: skip
def test_what_is_said_of_a_difference_must_hold_at_99_percent(effect, expected):
    assert decide(Goal.NO_REGRESSION, 0.03, Findings({"w": effect})).verdict is expected


def test_a_verdict_names_noise_and_the_smallest_effect_it_could_have_seen():
    text = describe("c64", sure(0.98, 1.02, (0.95, 1.05)))
    assert "90 % interval -2.0 .. +2.0 %, 99 % -5.0 .. +5.0 %" in text
    assert "noise between starts 2.0 %" in text
    assert "an effect of 5.0 % would have been seen" in text


def test_with_too_few_starts_no_effect_beyond_a_doubling_is_named():
    text = describe("c64", Interval(1.0, 0.4, 2.5, noise=0.1, smallest=11.3))
    assert text.endswith(
        "noise between starts 10.0 %, even an effect of 100 % need not have been seen"
    )


def test_an_effect_beyond_all_noise_says_that_the_noise_is_not_known():
    text = describe("w", Interval(3.0, 1.7, 5.2, unit="bound", smallest=0.7))
    assert "far beyond what equal starts differ by" in text
    assert "noise between starts not known yet" in text


def test_a_collapse_decides_even_where_other_workloads_are_fine():
    decision = verdict((0.99, 1.01), collapses=("c512: collapsed",))
    assert decision.verdict is Verdict.REGRESSED and decision.reasons[0] == "c512: collapsed"
    late = verdict((0.99, 1.01), collapses=("c512: collapsed",), unfinished="the time ran out")
    assert late.verdict is Verdict.REGRESSED, "it needed no more time"


def test_a_collapse_is_an_interval_far_below():
    assert collapsed(interval(0.1, 0.2))
    assert not collapsed(interval(0.5, 0.8))
    assert not collapsed(interval(0, math.inf))


# --- answers -----------------------------------------------------------------------------------


def exam(texts: dict[str, str] | None = None, flaw: str | None = None) -> Examination:
    """Three right answers to every probe, or the given text in their place."""
    right = {"arithmetic": " 68", "copy": " copper lantern seven quiet rivers",
             "count": " ".join(map(str, range(21, 60))), "recall": " marigold.",
             "long-recall": " tamarind."}  # fmt: skip
    answers = []
    for probe in probes():
        text = (texts or {}).get(probe.name, right[probe.name])
        passed = probe.passes(text)
        answers += [Answer(probe.name, text, passed, flaw or flaw_of(text))] * 3
    return Examination(tuple(answers))


def test_right_answers_in_both_arms_speak_for_the_patch():
    result = judge([exam()], [exam()])
    assert result.ok and set(result.comparable) == {p.name for p in probes()}


def test_a_wrong_answer_where_the_baseline_is_right_is_a_fault():
    result = judge([exam(), exam()], [exam(), exam({"arithmetic": " 67"})])
    assert not result.ok and "'67'" in result.faults[0]


def test_what_the_baseline_cannot_do_is_not_held_against_the_patch():
    weak = exam({"arithmetic": " seven or so"})
    assert judge([weak], [exam({"arithmetic": " perhaps nine"})]).ok


def test_degenerate_text_is_a_fault_even_where_the_model_is_random():
    random_weights = dict.fromkeys(("arithmetic", "copy", "count"), "qz lorem wupp ahnd")
    garbage = dict.fromkeys(random_weights, "!" * 40)
    result = judge([exam(random_weights)], [exam(garbage)])
    assert len(result.faults) == 3 and "repeated" in result.faults[0]


def test_a_baseline_that_is_degenerate_itself_proves_nothing():
    garbage = dict.fromkeys(("arithmetic", "copy", "count", "recall", "long-recall"), "!" * 40)
    assert judge([exam(garbage)], [exam(garbage)]).ok


def test_a_patched_server_that_contradicts_itself_is_a_fault():
    def answers(*texts: str) -> Examination:
        return Examination(tuple(Answer("count", text, False, None) for text in texts))

    steady = answers("abc def ghi jkl mno", "abc def ghi jkl mno", "xyz")
    wild = answers("abc def ghi jkl mno", "0xf 9 % && ~~", "xyz")
    assert judge([steady], [steady]).ok
    assert "differently" in judge([steady], [wild]).faults[0]
    assert judge([wild], [wild]).ok


def test_without_a_baseline_only_degeneracy_counts():
    assert judge([], [exam({"arithmetic": " nine"})]).ok
    assert not judge([], [exam({"arithmetic": "!" * 40})]).ok


@pytest.mark.parametrize(
    ("text", "flawed"),
    [("", True), (" \n ", True), ("!" * 30, True), ("ab" * 20, True), ("\ufffd" * 5 + "abc", True),
     ("the the the the the the the the the", True), (" 68", False), ("11", False),
     ("21 22 23 24 25 26", False), ("a quiet river of stones and paper boats", False)],
)  # fmt: skip
def test_text_that_is_no_text(text, flawed):
    assert bool(flaw_of(text)) is flawed


# --- engagement --------------------------------------------------------------------------------


def test_every_field_must_have_its_value():
    assert failures(info_seen([ENGAGEMENT], {"enable_flashinfer_allreduce_fusion": True})) == []
    for info in ({}, {"enable_flashinfer_allreduce_fusion": False},
                 {"enable_flashinfer_allreduce_fusion": 1}):  # fmt: skip
        assert len(failures(info_seen([ENGAGEMENT], info))) == 1


def test_a_baseline_that_looks_patched_is_noticed():
    assert engaged_baseline([ENGAGEMENT], {"enable_flashinfer_allreduce_fusion": True})
    assert not engaged_baseline([ENGAGEMENT], {"enable_flashinfer_allreduce_fusion": False})


def test_dots_descend_into_tables_and_lists():
    probe = ENGAGEMENT._replace(server_info={"internal_states.0.fusion": "trtllm"})
    assert failures(info_seen([probe], {"internal_states": [{"fusion": "trtllm"}]})) == []
    assert failures(info_seen([probe], {"internal_states": []}))


def test_the_log_must_say_one_thing_and_must_not_say_another(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("old: falling back to standard implementation\n")
    offset = log.stat().st_size
    assert "never says" in failures(log_seen([ENGAGEMENT], log, offset))[0]
    with log.open("a") as stream:
        stream.write("[TP0] FlashInfer workspace initialized for rank 0, world_size 2\n")
    assert failures(log_seen([ENGAGEMENT], log, offset)) == []
    with log.open("ab") as stream:
        stream.write(b"\xff\xfe falling back to standard implementation\n")
    assert "the log says" in failures(log_seen([ENGAGEMENT], log, offset))[0]
    assert "never says" in failures(log_seen([ENGAGEMENT], tmp_path / "missing.log"))[0]
