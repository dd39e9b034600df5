"""Known results are matched with where a server runs, and with nothing else."""

from __future__ import annotations

import pytest

from sm120patch import catalogue
from sm120patch.known import Place, fits, matches, tp_of
from sm120patch.model import KnownResult
from sm120patch.simhost import scenario_words

VM = Place(("8-gpus", "virtual-machine", "no-p2p", "one-host-bridge", "pcie"), 8)
PAIR = Place(("2-gpus", "bare-metal", "p2p", "one-switch", "pcie"), 2)


def known(*where: str, tp: tuple[int, ...] = (), harmful: bool = False) -> KnownResult:
    return KnownResult("somewhere", "-87 %", "a report", harmful, where, tp)


@pytest.mark.parametrize(
    ("result", "place", "expected"),
    [
        (known("virtual-machine", "no-p2p", tp=(8,)), VM, True),
        (known("virtual-machine", "no-p2p", tp=(4, 8)), VM, True),
        (known("virtual-machine", "no-p2p", tp=(4,)), VM, False),
        (known("virtual-machine", "p2p"), VM, False),
        (known("nvlink|one-host-bridge"), VM, True),
        (known("nvlink|one-switch"), VM, False),
        (known(tp=(8,)), VM, True),
        (known(tp=(8,)), Place(VM.words, None), True),
        (known("8-gpus"), PAIR, False),
        (known(), VM, False),
    ],
)
def test_every_word_and_the_tp_size_must_fit(
    result: KnownResult, place: Place, expected: bool
) -> None:
    assert fits(result, place) is expected


def test_a_result_is_told_once_and_harm_comes_first() -> None:
    good, bad = known("8-gpus"), known("no-p2p", harmful=True)
    found = matches([("bundle", [good, bad]), ("member", [bad, good])], VM)
    assert [(m.set_id, m.result) for m in found] == [("bundle", bad), ("bundle", good)]
    assert found[0].shown.startswith("known to be harmful: bundle on somewhere: -87 %")


@pytest.mark.parametrize(
    ("command", "tp"),
    [
        (["serve", "--tp", "8"], 8),
        (["serve", "--tp-size=4", "--port", "1"], 4),
        (["serve", "--tensor-parallel-size", "2"], 2),
        (["serve"], None),
        (["serve", "--tp"], None),
        (["serve", "--tp", "many"], None),
        (["serve", "--tp", "-1"], None),
        ([], None),
    ],
)
def test_the_tp_size_is_read_from_the_command_line(command: list[str], tp: int | None) -> None:
    assert tp_of(command) == tp


def test_the_published_regressions_are_matched_on_such_hosts_only() -> None:
    results = catalogue.load().get("allreduce-fusion").known_results

    def harmful(words: str, tp: int) -> bool:
        place = Place(tuple(words.split()), tp)
        return any(m.result.harmful for m in matches([("x", results)], place))

    assert harmful("8-gpus virtual-machine no-p2p cross-node pcie", 8)
    assert harmful("4-gpus bare-metal p2p one-node pcie", 4)
    assert harmful("8-gpus bare-metal p2p one-host-bridge pcie", 4)
    assert not harmful("2-gpus bare-metal p2p one-switch pcie", 2)
    assert not harmful("4-gpus bare-metal p2p nvlink", 4)
    assert not harmful("8-gpus bare-metal p2p cross-node pcie", 8)


def test_simulated_hosts_are_described_in_the_same_words() -> None:
    assert scenario_words("vm-8gpu-no-p2p") == (VM.words, 8)
    assert scenario_words("root-complex-2gpu") == (PAIR.words, 2)
