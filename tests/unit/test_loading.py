from __future__ import annotations

from sm120patch.verify.loadgen import Repeat
from sm120patch.verify.loading import stalled
from sm120patch.verify.profile import DEFAULT_WORKLOADS, parse
from sm120patch.verify.tally import Tally


def repeat(silence: float) -> Repeat:
    tally = Tally(0.0)
    for moment in (1.0, 1.0 + silence, 2.0 + silence):
        tally.note(10, moment)
    return Repeat((), silence, {"output_throughput": 1.0}, tally=tally)


def test_a_repeat_with_a_silence_of_its_own_is_stalled():
    good, other, bad = repeat(1.0), repeat(1.5), repeat(40.0)
    assert stalled([good, other, bad]) == [bad]
    assert stalled([good, other]) == []


def test_silences_that_all_repeats_have_belong_to_the_server():
    assert stalled([repeat(16.0), repeat(18.0), repeat(15.0)]) == [], "prompts that take long"


def test_one_repeat_alone_has_nothing_to_be_compared_with():
    assert stalled([repeat(40.0)]) == []


def test_only_workloads_that_nobody_asked_for_are_left_out():
    server = '[server]\ncommand = ["x"]\n'
    plain = parse(server, origin="p", python="p", prefix="q")
    long = DEFAULT_WORKLOADS[-1]
    assert "8320 tokens" in (plain.too_long(long, {"context_length": 4096}) or "")
    assert plain.too_long(long, {"context_length": 32768, "max_total_num_tokens": 10**6}) is None
    assert plain.too_long(long, {"context_length": None}) is None
    own = parse(server + "[workload.long]\ninput_len = 8192\n", origin="p", python="p", prefix="q")
    assert own.too_long(own.workloads[0], {"context_length": 4096}) is None
