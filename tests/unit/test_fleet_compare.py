"""Why is one node slower than another: what is named, in which order, and what is not claimed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from sm120patch.fleet.answers import comparison_dict
from sm120patch.fleet.compare import Comparison, compare
from sm120patch.fleet.node import NodeFacts
from sm120patch.fleet.overview import overview
from sm120patch.fleet.page import render
from sm120patch.fleet.tables import comparison_text
from tests.support.command import CHECKOUT
from tests.support.facts import (
    DEEP,
    NOW,
    Facts,
    add_set,
    change_set,
    event,
    parsed,
    result,
    set_of,
    small,
    unreachable,
)
from tests.support.pages import Page, check_harmless

Change = Callable[[Facts], object]


def blocks_of(facts: Facts) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = data_of(facts)["arms"]["patched"]["blocks"]
    return found


def data_of(facts: Facts) -> dict[str, Any]:
    found: dict[str, Any] = result(facts, "history")["events"][0]["evidence"]["data"]
    return found


def node(name: str, level: float | None = 1000.0, *changes: Change) -> NodeFacts:
    facts = small(name, now=NOW)
    result(facts, "history")["events"] = [] if level is None else [event(level)]
    for change in changes:
        change(facts)
    found = parsed(facts, name, DEEP)
    assert found.unknown == "", found.unknown
    return found


def pair(*changes: Change, level: float = 1000.0) -> Comparison:
    """Node `a` at 1000 tokens a second against a node `b` with these changes."""
    return compare(node("a"), node("b", level, *changes))


def matters(found: Comparison) -> list[str]:
    return [reason.matter for reason in found.reasons]


def everything(found: Comparison) -> str:
    """Text, page and JSON hold the same; the text is returned."""
    page = Page(render(overview([found.one, found.other]), found, NOW, "9.9"))
    check_harmless(page)
    assert json.dumps(comparison_dict(found))
    return comparison_text(found)


def test_two_nodes_that_are_alike_give_no_reason_and_no_difference():
    found = pair()
    assert found.reasons == () and found.slower == "" and found.missing == ()
    assert "differ by no more than noise" in everything(found)
    assert "nothing in the facts differs" in everything(found)


def test_a_slower_node_is_told_with_its_interval_and_without_an_invented_reason():
    found = pair(level=900.0)
    (speed,) = found.speeds
    assert found.slower == "b" and speed.beyond_noise
    assert 0.85 < speed.interval.sure_low < 0.9 < speed.interval.sure_high < 0.95
    assert "nothing in the facts explains it" in everything(found)
    assert compare(found.other, found.one).slower == "b", "in whichever order they are named"


@pytest.mark.parametrize("level", [1000.0, 900.0])
@pytest.mark.parametrize("kind", ["real", "simulated", "rehearsal"])
def test_figures_that_are_not_of_gpus_are_called_so_wherever_they_are_shown(
    kind: str, level: float
):
    def of_kind(facts: Facts) -> None:
        result(facts, "history")["events"][0]["evidence"]["kind"] = kind

    found = compare(node("a", 1000.0, of_kind), node("b", level, of_kind))
    assert len(found.speeds) == 1 and comparison_dict(found)["speeds"][0]["kind"] == kind
    page = Page(render(overview([found.one, found.other]), found, NOW, "9.9")).text
    said = everything(found).splitlines()
    shown = [line for line in said if "slower" in line or "noise" in line]
    assert len(shown) == 2 and all((f"({kind})" in line) == (kind != "real") for line in shown)
    assert all(line in page for line in shown)


def test_a_difference_within_noise_is_not_called_slower():
    noisy = node("b", 970.0)
    assert compare(node("a"), noisy).slower == "b", "quiet nodes: 3 % is seen"
    loud = [node(n, None, lambda f, at=at: result(f, "history")["events"].append(
        event(at, spread=0.08))) for n, at in (("a", 1000.0), ("b", 970.0))]  # fmt: skip
    found = compare(*loud)
    assert found.slower == "" and not found.speeds[0].beyond_noise
    assert "no more than noise" in everything(found)


def test_one_start_each_decides_only_what_no_noise_explains():
    def once(level: float) -> Change:
        return lambda f: result(f, "history")["events"].append(event(level, starts=1))

    for level, slower in ((900.0, ""), (236.0, "b")):
        found = compare(node("a", None, once(1867.0)), node("b", None, once(level * 1.867)))
        assert found.slower == slower, level


def test_noise_that_was_known_before_is_used_where_both_nodes_know_it():
    def floor(sd: float) -> Change:
        def change(facts: Facts) -> None:
            data_of(facts)["noise"] = {"c64": {"floor": {"sd": sd, "df": 1e6}}}

        return change

    assert compare(node("a", 1000.0, floor(0.05)), node("b", 970.0, floor(0.05))).slower == ""
    assert compare(node("a", 1000.0, floor(0.002)), node("b", 990.0, floor(0.001))).slower == "b"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: data_of(f)["workloads"][0].update(prompts=9), "not the same load"),
        (lambda f: data_of(f).update(client="bench_serving"), "not the same load"),
        (lambda f: data_of(f)["workloads"][0].update(name="x"), "no workload"),
        (lambda f: result(f, "history")["events"][0]["evidence"].update(kind="simulated"),
         "one measurement is real, the other simulated"),
        (lambda f: result(f, "history")["events"].clear(), "has no measurement"),
        (lambda f: result(f, "history")["events"][0].update(kind="experiment"), "no measurement"),
    ],
)  # fmt: skip
def test_levels_that_say_nothing_about_each_other_are_not_compared(change: Change, words: str):
    def renamed(facts: Facts) -> None:
        change(facts)
        if data_name(facts) == "x":
            for block in blocks_of(facts):
                block["workloads"] = {"x": block["workloads"].pop("c64")}

    found = pair(renamed, level=500.0)
    assert not [s for s in found.speeds if s.beyond_noise] and found.slower == ""
    assert words in everything(found)


def data_name(facts: Facts) -> str:
    events = result(facts, "history")["events"]
    return str(events[0]["evidence"]["data"]["workloads"][0]["name"]) if events else ""


def test_without_any_measurement_what_differs_is_told_all_the_same():
    found = compare(node("a", None), node("b", None, lambda f: f.update(tool="0")))
    assert "was not measured alike" in everything(found) and found.slower == ""
    assert found.not_compared == ("neither node has a measurement with figures",)


def lost(facts: Facts) -> None:
    change_set(facts, "one", state="lost")
    (environment,) = result(facts, "audit")["environments"]
    environment["packages"][0]["files"] = []


def finding(kind: str) -> Change:
    entry = {"kind": kind, "target": "sglang", "path": "x", "detail": "d"}
    return lambda f: result(f, "audit")["environments"][0]["findings"].append(entry)


def module(live: str) -> Change:
    entry = {"module": "trtllm_comm", "arch": "120a", "live": live}
    return lambda f: result(f, "caches")["touched"].append(entry)


def check(status: str, summary: str, name: str = "pcie-link") -> Change:
    entry = {"id": name, "status": status, "summary": summary}
    return lambda f: result(f, "doctor")["checks"].append(entry)


def gpu_reading(name: str, value: object) -> Change:
    def change(facts: Facts) -> None:
        for block in blocks_of(facts):
            for gpu in block["telemetry"]["gpus"]:
                gpu[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "matter", "against"),
    [
        (lost, "state of one", "b"),
        (finding("stale-server"), "stale-server", "b"),
        (finding("foreign"), "foreign", ""),
        (lambda f: result(f, "doctor")["host"]["gpus"].pop(), "GPUs", "b"),
        (lambda f: result(f, "doctor")["host"].update(driver="1"), "driver", ""),
        (lambda f: result(f, "doctor")["host"].update(topology=["no-p2p"]), "topology", ""),
        (gpu_reading("power_limit_w", 300.0), "power limit of a GPU", "b"),
        (gpu_reading("sm_mhz", {"mean": 1500.0}), "SM clock under load", "b"),
        (gpu_reading("throttled", {"sw-thermal": 0.4}), "throttled: sw-thermal", "b"),
        (gpu_reading("temp_c", {"mean": 85.0}), "", ""),
        (lambda f: data_of(f)["arms"]["patched"]["server_info"].update(tp_size=4),
         "server: tp_size", ""),
        (lambda f: data_of(f)["arms"]["patched"]["server_info"].update(pid=99), "", ""),
        (lambda f: data_of(f)["commands"].update(patched="serve --slow"),
         "command line of the server", ""),
        (lambda f: result(f, "history")["events"][0]["evidence"].update(profile="q"),
         "profile of the verification", ""),
        (lambda f: change_set(f, "one", evidence={"verdict": "no-regression"}),
         "verdict of one", ""),
        (lambda f: set_of(f, "one").update({"with": ["x"]}), "optional changes of one", ""),
        (lambda f: result(f, "caches")["traps"].append("jit-cache wins"), "caches", "b"),
        (lambda f: result(f, "caches")["processes"].append(
            {"pid": 7, "library": "x.so", "restart_needed": True}), "caches", "b"),
        (lambda f: result(f, "doctor")["flags"].append(
            {"name": "FLAG", "value": "1", "place": "server 9", "reason": "does nothing"}),
         "flag without effect", ""),
    ],
)  # fmt: skip
def test_every_kind_of_difference_is_named(change: Change, matter: str, against: str):
    found = pair(change)
    if not matter:
        assert found.reasons == ()
        return
    (reason,) = (r for r in found.reasons if r.matter == matter)
    assert reason.slower == against and reason.values[0] != reason.values[1]
    assert matter in everything(found)
    turned = compare(found.other, found.one)
    (back,) = (r for r in turned.reasons if r.matter == matter)
    assert back.values == reason.values[::-1] and back.slower == against


def test_a_state_with_the_same_contents_makes_nothing_slower():
    def staged(facts: Facts) -> None:
        change_set(facts, "one", state="staged")

    found = pair(staged, finding("foreign"), level=900.0)
    (reason,) = (r for r in found.reasons if r.matter == "state of one")
    assert reason.slower == "" and "only what is known of them differs" in reason.why
    assert matters(found) == ["foreign", "state of one"]


def test_sets_that_differ_alike_are_told_together():
    def kernel(verdict: str) -> Change:
        def change(facts: Facts) -> None:
            add_set(facts, "kernel")
            for name in ("one", "kernel"):
                change_set(facts, name, evidence={"verdict": verdict})

        return change

    found = compare(node("a", 1.0, kernel("improved")), node("b", 1.0, kernel("no-regression")))
    assert matters(found) == ["verdict of kernel, one"]


def test_of_two_command_lines_the_words_that_differ_are_shown():
    def command(text: str) -> Change:
        return lambda f: data_of(f)["commands"].update(patched=text)

    one, other = "X=1 serve --tp 2 --model m", "serve --tp 4 --model m"
    found = compare(node("a", 1.0, command(one)), node("b", 1.0, command(other)))
    assert [r.values for r in found.reasons] == [("X=1 2", "4")]
    turned = compare(node("a", 1.0, command("a b")), node("b", 1.0, command("b a")))
    assert [r.values for r in turned.reasons] == [("a b", "b a")]


def test_modules_that_are_not_compiled_are_a_reason():
    one, other = node("a", 1000.0, module("patched")), node("b", 900.0, module("nothing"))
    found = compare(one, other)
    assert matters(found) == ["compiled module trtllm_comm"]
    assert "most probable: compiled module trtllm_comm (not compiled yet" in everything(found)


def test_checks_of_doctor_differ_by_words_and_free_room_only_by_status():
    a = [check("ok", "x16"), check("ok", "62 GiB", "disk-builds")]
    b = [check("warning", "GPU 1 runs at x8"), check("ok", "50 GiB", "disk-builds")]
    found = compare(node("a", 1.0, *a), node("b", 1.0, *b))
    assert matters(found) == ["doctor: pcie-link"]
    b[1] = check("problem", "0 GiB", "disk-builds")
    found = compare(node("a", 1.0, *a), node("b", 1.0, *b))
    assert matters(found) == ["doctor: pcie-link", "doctor: disk-builds"]


def test_the_most_probable_reason_comes_first_and_those_against_the_slower_node_before():
    faults = (gpu_reading("sm_mhz", {"mean": 1500.0}), lost,
              lambda f: result(f, "doctor")["host"].update(driver="1"))  # fmt: skip
    found = pair(*faults, level=800.0)
    assert matters(found)[:2] == ["state of one", "SM clock under load"]
    assert matters(found)[-1] == "driver"
    assert "most probable: state of one (b does not hold the patched code" in everything(found)
    # The faults are on the faster node now: they come last, and are not called the reason.
    one, other = check("warning", "x8"), check("ok", "x16")
    slower = compare(node("a", 500.0, one), node("b", 1000.0, *faults, other))
    assert slower.slower == "a" and matters(slower)[0] != "state of one"
    assert "of what differs nothing is known to make it so" in everything(slower)


def test_what_was_not_collected_is_said():
    found = compare(node("a"), node("b", 1000.0, lambda f: f["commands"].pop("doctor")))
    assert found.missing == ("b: doctor not collected",)
    assert "not looked at: b: doctor" in everything(found)


def test_a_measurement_of_another_content_is_said_to_be_one():
    found = pair(lambda f: change_set(f, "one", evidence={"id": 5}))
    assert found.missing == ("b: its newest measurement is not of what is on disk now",)


def test_a_rejected_set_leaves_the_baseline_that_was_measured():
    def rejected(facts: Facts) -> None:
        set_of(facts, "one").update(state="rejected", role="", counts=False, evidence=None)
        result(facts, "audit")["environments"][0]["sets"] = []
        (found,) = result(facts, "history")["events"]
        found.update(kind="rejected", data={"end": "a"})
        arms = data_of(facts)["arms"]
        arms["baseline"] = copy.deepcopy(arms["patched"])
        for block in arms["patched"]["blocks"]:
            for figures in block["workloads"]["c64"]:
                figures["output_throughput"] /= 8
        data_of(facts)["blocks_run"] = ["baseline"] * 3 + ["patched"] * 3

    found = pair(rejected)
    assert round(found.speeds[0].other) == 1000 and found.slower == ""


def test_nothing_is_compared_with_an_unknown_node():
    gone = parsed(unreachable("b"), "b", DEEP)
    found = compare(node("a"), gone)
    assert found.unknown and found.reasons == () and found.speeds == ()
    assert everything(found) == "b is unknown: was not reached: ssh: connection timed out"


# --- recorded on real GPUs ----------------------------------------------------------------------

MACHINE = json.loads((CHECKOUT / "benchmarks/gpu/results/two-h200-3.json").read_text())
TWO = [("null", "baseline"), ("null", "patched"), ("fusion-verify", "baseline")]
ONE = [("null-one", "baseline"), ("null-one", "patched")]
"""Servers with equal code and options on two GPUs and on one: the null sets change no code."""


def recorded(name: str, run: str, arm: str, change: Change = lambda _f: None) -> NodeFacts:
    """A node whose newest measurement is what one arm of a real run measured on two H200."""
    found = copy.deepcopy(MACHINE["verifications"][run])
    starts = [start["repeats"] for start in found["starts"] if start["arm"] == arm]
    blocks = [
        {"workloads": repeats, "telemetry": reading}
        for repeats, reading in zip(starts, found["telemetry"][arm], strict=True)
    ]
    one = event(1.0)
    one["evidence"]["data"] = {
        "client": "native", "workloads": found["workloads"], "noise": found["noise"],
        "arms": {"patched": {"blocks": blocks}}, "blocks_run": ["patched"] * len(blocks),
        "commands": {"patched": found["commands"][arm]},
    }  # fmt: skip
    return node(name, None, lambda f: result(f, "history")["events"].append(one), change)


@pytest.mark.parametrize(("one", "other"), [*combinations(TWO, 2), *combinations(ONE, 2)], ids=str)
def test_a_real_machine_is_not_slower_than_itself(one: tuple[str, str], other: tuple[str, str]):
    found = compare(recorded("a", *one), recorded("b", *other))
    assert {speed.workload for speed in found.speeds} == {"single", "c64"}
    assert found.slower == "" and not any(s.beyond_noise for s in found.speeds), found.speeds
    assert found.reasons == (), "the same clocks, limits, power and options"


def test_a_real_server_on_one_gpu_of_two_is_told_by_its_readings_and_options():
    found = compare(recorded("a", *TWO[0]), recorded("b", *ONE[0]))
    assert [s.beyond_noise for s in found.speeds if s.workload == "single"] == [True]
    first = found.reasons[0]
    assert (first.matter, first.values) == ("GPUs at work while it was measured", ("2", "1"))
    assert "command line of the server" in matters(found)
    assert "SM clock under load" not in matters(found), "the other GPU idled"


def test_a_real_machine_that_throttles_is_told_by_its_readings():
    def throttled(facts: Facts) -> None:
        for block in blocks_of(facts):
            for gpu in block["telemetry"]["gpus"]:
                gpu["sm_mhz"]["mean"] *= 0.5
                gpu["throttled"] = {"hw-thermal": 0.8}
            for runs in block["workloads"].values():
                for figures in runs:
                    figures["output_throughput"] *= 0.4

    usual = recorded("a", "null", "patched")
    found = compare(usual, recorded("b", "null", "patched", throttled))
    assert found.slower == "b"
    assert matters(found) == ["throttled: hw-thermal", "SM clock under load"]
