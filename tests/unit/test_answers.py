"""Answers held against the baseline's, token by token, in the three classes of tolerance."""

from __future__ import annotations

import json
import math

import pytest

from sm120patch.model import Answers, Goal, VerificationPolicy
from sm120patch.policy import merge_policies
from sm120patch.verify.agreement import SURE, agreement
from sm120patch.verify.answers import Answer, Examination
from sm120patch.verify.correctness import judge
from sm120patch.verify.events import BadReply, Stream, read_event
from sm120patch.verify.metrics import Token
from sm120patch.verify.probes import LONG_CONTEXT, probes

KEYS = tuple(range(100, 124))


def answer(
    keys: tuple[int | str, ...] = KEYS, logprobs: float | list[float] = -0.3, **more: object
) -> Answer:
    """An answer of a model that cannot do the task: never right, but text."""
    values = logprobs if isinstance(logprobs, list) else [logprobs] * len(keys)
    chosen = tuple(Token(key, value) for key, value in zip(keys, values, strict=True))
    known = {"text": " ".join(f"word{key}" for key in keys), "passed": False, "flaw": None, **more}
    return Answer("count", tokens=len(keys), chosen=chosen, **known)


def exam(*alone: Answer) -> Examination:
    first = alone[0] if alone else answer()
    return Examination((first, *(alone[1:] or (first,)), first))


def faults(
    patched: Examination, baseline: Examination | None = None, answers: Answers = Answers.TOLERANCE
) -> tuple[str, ...]:
    return judge([baseline or exam()], [patched], answers).faults


@pytest.mark.parametrize("answers", list(Answers))
def test_equal_answers_pass_in_every_class(answers: Answers):
    result = judge([exam()], [exam()], answers)
    assert result.ok
    assert result.agreement["count"].as_dict() == {
        "tokens": 24, "agreed": 24, "own_agreed": 24, "settled": 24, "rounding_distance": 0.0,
        "logprob_distance": 0.0, "own_logprob_distance": 0.0, "worst_logprob_difference": 0.0,
        "exact": True, "lost": None,
    }  # fmt: skip


def test_rounding_is_allowed_unless_the_set_is_bit_exact():
    rounded = exam(answer(logprobs=-0.31))
    assert faults(rounded) == ()
    assert faults(rounded, answers=Answers.BEHAVIOUR_CHANGE) == ()
    (fault,) = faults(rounded, answers=Answers.BIT_EXACT)
    assert "not bit-exact: 24 of 24 tokens are equal" in fault and "0.010000" in fault


def test_other_probabilities_for_the_same_words_are_a_fault():
    shifted = exam(answer(logprobs=-0.5))
    (fault,) = faults(shifted)
    assert "differ by 0.200 on average over 48 tokens (allowed 0.100" in fault
    assert faults(shifted, answers=Answers.BEHAVIOUR_CHANGE) == ()


def test_a_baseline_that_differs_from_itself_allows_as_much():
    restless = exam(answer(), answer(logprobs=-0.4))
    assert faults(exam(answer(logprobs=-0.5)), restless) == ()
    assert faults(exam(answer(logprobs=-0.9)), restless)


def test_the_distance_of_a_few_tokens_decides_nothing():
    short = answer(keys=KEYS[:4])
    assert faults(exam(answer(keys=KEYS[:4], logprobs=-3.0)), exam(short)) == ()


def parted(at: int, logprob: float) -> Examination:
    """The same up to a token, which had that probability in the baseline; then other words."""
    return exam(answer(keys=(*KEYS[:at], *(n + 1000 for n in KEYS[at:]))))


def sure_of(at: int, logprob: float) -> Examination:
    values = [-0.3] * len(KEYS)
    values[at] = logprob
    return exam(answer(logprobs=values))


def test_words_may_part_where_the_baseline_was_not_sure():
    assert faults(parted(6, -0.7), sure_of(6, -0.7)) == ()
    (fault,) = faults(parted(6, -0.02), sure_of(6, -0.02))
    assert "at token 7 of 24 the baseline gives 106 with probability 0.98" in fault
    assert "the patched server 1106" in fault
    assert faults(parted(6, -0.02), sure_of(6, -0.02), Answers.BEHAVIOUR_CHANGE) == ()


def test_where_the_baseline_parted_from_itself_nothing_is_held_against_the_patch():
    values = [-0.01] * len(KEYS)
    wavering = exam(answer(logprobs=values), answer(keys=(*KEYS[:3], *range(900, 921))))
    assert faults(parted(6, -0.01), wavering) == ()
    assert faults(parted(2, -0.01), wavering)


def beside(baseline: Answer, together: Answer) -> Examination:
    """Alone twice alike, and something else when asked together with the other questions."""
    return Examination((baseline, baseline, together))


def test_where_rounding_decides_for_the_baseline_nothing_is_held_against_the_patch():
    # On two H200 GPUs: random weights, the same sums in another order inside the fused kernel.
    # Alone the baseline repeats itself bit for bit; in a batch it parts from itself at once.
    chaotic = beside(answer(), answer(keys=(KEYS[0], *range(900, 923))))
    moved = answer(keys=(*KEYS[:8], *range(700, 716)), logprobs=[-0.55] * 24)
    assert faults(exam(moved), chaotic) == ()
    (fault,) = faults(exam(moved))
    assert "differ by 0.250 on average over 16 tokens" in fault
    sure = answer(logprobs=-0.01)
    lost = exam(answer(keys=(*KEYS[:3], *range(700, 721)), logprobs=-0.01))
    assert faults(lost, beside(sure, answer(keys=(KEYS[0], *range(900, 923))))) == ()
    assert faults(lost, exam(sure))


def test_a_baseline_that_rounds_otherwise_in_a_batch_allows_as_much():
    rounding = beside(answer(), answer(logprobs=-0.4))
    assert faults(exam(answer(logprobs=-0.5)), rounding) == ()
    (fault,) = faults(exam(answer(logprobs=-0.7)), rounding)
    assert "the baseline differs from itself by 0.100" in fault
    assert agreement("count", [rounding], [exam()]).exact, "alone it repeats itself bit for bit"


def test_fluent_garbage_is_found_where_the_model_cannot_do_the_task():
    garbage = answer(keys=tuple(range(5000, 5024)))
    (fault,) = faults(exam(garbage), exam(answer(logprobs=-0.05)))
    assert fault.startswith("count: at token 1")


def test_an_answer_that_ends_early_is_a_fault():
    cut = answer(keys=KEYS[:5])
    (fault,) = faults(exam(cut))
    assert "stops after 5 of the 24 tokens" in fault
    other = answer(keys=(900, 901, 902), logprobs=-0.9)
    unsure = exam(answer(logprobs=-0.9))
    assert faults(exam(other), unsure) == (), "other words may end where they like"


def test_bit_exactness_cannot_be_shown_where_the_baseline_does_not_repeat_itself():
    restless = exam(answer(), answer(logprobs=-0.30001))
    result = judge([restless], [exam(answer(logprobs=-0.30002))], Answers.BIT_EXACT)
    assert result.ok
    assert "bit-exactness of count: the baseline does not even repeat itself" in result.not_examined


def test_without_probabilities_answers_may_not_all_begin_otherwise():
    def told(**words: str) -> Examination:
        return Examination(tuple(
            Answer(name, text, False, None) for name, text in words.items() for _ in range(3)
        ))  # fmt: skip

    before = told(arithmetic="one two", copy="three four", count="five six")
    assert judge([before], [told(arithmetic="one x", copy="y", count="z")]).ok
    strange = judge([before], [told(arithmetic="x", copy="y", count="z")])
    assert "no answer begins like the baseline's" in strange.faults[0]
    assert "log-probabilities: not given by both servers" in strange.not_examined


def test_contradictions_by_rounding_are_none():
    def alone(logprob: float) -> Examination:
        values = [logprob] * len(KEYS)
        return exam(answer(logprobs=values), answer(keys=tuple(n + 50 for n in KEYS)))

    steady = exam(answer(logprobs=-0.8))
    assert faults(alone(-0.8), steady) == ()
    assert any("differently" in fault for fault in faults(alone(-0.01), steady))


def test_what_was_not_asked_is_named():
    (long,) = [probe for probe in probes() if probe.long]

    def asked(tokens: int | None, failed: bool = False) -> Examination:
        flaw = "no answer: HTTP 400: too long" if failed else None
        one = Answer(long.name, "x", False, flaw, failed, 4, (), tokens)
        return Examination((one,) * 3)

    def notes(found: Examination) -> str:
        return "; ".join(judge([found], [found]).not_examined)

    assert "long-recall: the baseline gives no answer: HTTP 400" in notes(asked(None, failed=True))
    assert f"counts 4000 tokens, not {LONG_CONTEXT}" in notes(asked(4000))
    assert "long-recall" not in notes(asked(12_000))


def test_the_long_question_is_long_and_answers_itself():
    (long,) = [probe for probe in probes() if probe.long]
    assert len(long.prompt.split()) > LONG_CONTEXT, "no tokenizer joins words of such a text"
    assert long.passes(" tamarind. It") and not long.passes(" marigold")


def test_the_loosest_of_several_sets_says_what_answers_may_do():
    def policy(answers: Answers) -> VerificationPolicy:
        return VerificationPolicy(Goal.SPEED, answers=answers)

    classes = [Answers.TOLERANCE, Answers.BIT_EXACT, Answers.BEHAVIOUR_CHANGE]
    assert merge_policies(map(policy, classes[:2])).answers is Answers.TOLERANCE
    assert merge_policies(map(policy, classes)).answers is Answers.BEHAVIOUR_CHANGE
    assert VerificationPolicy().answers is Answers.TOLERANCE


# --- what comes over the wire ------------------------------------------------------------------


def stream_of(*payloads: dict[str, object], cumulative: bool = True, wanted: int = 8) -> Stream:
    stream = Stream(cumulative=cumulative, wanted=wanted, complete=False)
    for now, payload in enumerate(payloads, start=1):
        stream.feed(json.dumps(payload).encode(), float(now))
    return stream


def told(count: int, pairs: list[object], **more: object) -> dict[str, object]:
    meta = {"completion_tokens": count, "output_token_logprobs": pairs, **more}
    return {"text": "x" * count, "meta_info": meta}


def test_probabilities_are_read_whether_they_are_repeated_or_added():
    first, second = [-0.5, 7, None], [-0.25, 8, None]
    both = (Token(7, -0.5), Token(8, -0.25))
    repeated = stream_of(told(1, [first]), told(2, [first, second], prompt_tokens=99))
    assert (repeated.chosen, repeated.prompt_tokens) == (both, 99)
    assert stream_of(told(1, [first]), told(2, [second])).chosen == both

    def chunk(token: str, logprob: float) -> dict[str, object]:
        logprobs = {"tokens": [token], "token_logprobs": [logprob]}
        return {"choices": [{"text": token, "logprobs": logprobs}]}

    found = stream_of(chunk("a", -0.5), chunk("a", -0.5), cumulative=False).chosen
    assert found == (Token("a", -0.5),) * 2


@pytest.mark.parametrize(
    "pairs",
    [None, 3, "no", [3], [["x", 7]], [[True, 7]], [[math.nan, 7]], [[-0.5, None]], [[-0.5]],
     ["ab"], [[10**400, 7]], [[math.inf, 7]]],
)  # fmt: skip
def test_probabilities_that_are_none_are_left_out(pairs: object):
    event = read_event(json.dumps(told(1, pairs)).encode(), virtual=False)
    assert event.chosen == ()


def test_a_probability_beyond_all_bounds_is_none_worth_telling_apart():
    event = read_event(
        json.dumps(told(1, [[-(10**400), 7], [-math.inf, 8]])).encode(), virtual=False
    )
    assert event.chosen == (Token(7, -1e9), Token(8, -1e9))


def test_an_answer_counts_only_when_its_end_was_seen():
    open_ = stream_of(told(3, []))
    with pytest.raises(BadReply, match="in the middle of the answer"):
        open_.close()
    stream_of(told(3, [], finish_reason={"type": "stop"})).close()
    done = stream_of(told(3, []))
    done.feed(b"[DONE]", 9.0)
    done.close()


@pytest.mark.parametrize("reason", [{"type": "abort", "message": "out of memory"}, "abort"])
def test_an_answer_that_the_server_gave_up_is_a_failure(reason: object):
    with pytest.raises(BadReply, match="gave up"):
        stream_of(told(3, [], finish_reason=reason))


def test_agreement_needs_tokens_of_both_arms():
    silent = Examination((Answer("count", "x", False, None),) * 3)
    assert agreement("count", [exam()], [silent]) is None
    assert agreement("count", [silent], [exam()]) is None
    assert math.exp(SURE) == pytest.approx(0.9)
