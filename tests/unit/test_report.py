"""The report page: what it shows, and that nothing recorded can break or abuse it."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm120patch.evidence import Event, Evidence
from sm120patch.report.charts import effect_chart, spread_chart, time_chart
from sm120patch.report.measured import Effect, Measured, block_order, measured
from sm120patch.report.page import render
from sm120patch.report.scales import Axis, axis
from sm120patch.report.view import Changed, Subject, build
from tests.support.pages import Page, check_harmless


def figures(throughput: float, **more: float) -> dict[str, float]:
    return {"output_throughput": throughput, "duration": 2.0, "median_ttft_ms": 40.0, **more}


def samples(throughput: float) -> dict[str, Any]:
    """Single requests of a repeat, as `verify.samples` keeps them."""
    times = [6400 / throughput + n for n in range(8)]
    return {"of": 8, "failed": 0, "latency_ms": times, "ttft_ms": [t / 10 for t in times],
            "tpot_ms": [t / 40 for t in times],
            "course": {"window_s": 0.5, "tok_s": [0.0, throughput, 1.1 * throughput]}}  # fmt: skip


def telemetry(start: int, watts: float) -> dict[str, Any]:
    """Readings of two GPUs during a server start, as `verify.telemetry` keeps them."""
    gpu = {"name": "GPU", "power_w": {"mean": watts}, "sm_mhz": {"mean": 2100.0},
           "util": {"mean": 96.0}, "temp_c": None, "mem_bytes": {"mean": 2.0**33},
           "throttled": {"power-cap": 0.25}}  # fmt: skip
    series = {
        "t": [start * 10.0 + n for n in range(4)],
        "power_w": [[watts - 5, watts, None, watts]] * 2,
    }
    return {"source": "nvml", "reason": None, "gpus": [gpu, gpu], "series": series}


def block(start: int, values: list[float], watts: float) -> dict[str, Any]:
    return {
        "start": start,
        "workloads": {"c64": list(map(figures, values))},
        "samples": {"c64": list(map(samples, values))},
        "telemetry": telemetry(start, watts),
        "excluded": [{"workload": "c64", "reason": "a stall", "output_throughput": 3.0}],
    }


def evidence_data() -> dict[str, Any]:
    """As the runner records it: A B B A, two repeats a start, one workload."""
    starts = {
        "baseline": [block(1, [100.0, 102.0], 250.0), block(4, [98.0, 100.0], 250.0)],
        "patched": [block(2, [110.0, 112.0], 300.0), block(3, [108.0, 110.0], 300.0)],
    }
    return {
        "margin": 0.03,
        "goal": "no-regression",
        "reasons": ["c64: +10.0 %"],
        "workloads": [
            {"name": "c64", "input_len": 256, "output_len": 128, "concurrency": 64, "prompts": 128}
        ],
        "blocks_run": ["baseline", "patched", "patched", "baseline"],
        "arms": {
            arm: {"blocks": blocks, "server_info": {"version": "0.5.9"}}
            for arm, blocks in starts.items()
        },
        "intervals": {"c64": {"ratio": 1.1, "low": 1.05, "high": 1.15, "confidence": 0.9,
                              "sure_low": 1.03, "sure_high": 1.17, "noise": 0.01,
                              "smallest_effect": 0.02}},
        "correctness": {
            "comparable": ["copy"],
            "faults": [],
            "tolerance": "tolerance",
            "agreement": {"copy": {"tokens": 6, "agreed": 5, "logprob_distance": 0.0125,
                                   "own_logprob_distance": None}},
            "not_examined": ["long-recall: too long"],
            "answers": {arm: [{"probe": "copy", "passed": True, "flaw": None, "text": " blue"}]
                        for arm in starts},
        },
        "commands": {"baseline": "serve", "patched": "serve --fast"},
        "versions": {"sglang": "0.5.9"},
        "host": {"topology": ["2-gpus", "bare-metal"], "driver": "580.65"},
    }  # fmt: skip


def subject(data: Any = None, **fields: Any) -> Subject:
    known = {"verdict": "improved", "passed": True, "kind": "real", "sets": ("fusion",), **fields}
    evidence = Evidence(
        "content" * 9, "base", "host", "profile" * 9, known["kind"], known["verdict"],
        known["passed"], known["sets"], (), evidence_data() if data is None else data,
        at="2026-11-29T12:00:00+00:00", id=4,
    )  # fmt: skip
    event = Event("applied", known["sets"], {"command": "sm120patch apply"}, id=7, tool="0.1.0")
    diff = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-old\n+new\n"
    return Subject(event, evidence, "/env", (Changed("sglang", "x.py", "a" * 64, "b" * 64, diff),))


def text_of(found: Subject) -> str:
    page = Page(render(found))
    check_harmless(page)
    return page.text


def test_too_few_starts_are_not_said_to_show_an_effect_beyond_a_doubling():
    found = subject()
    found.evidence.data["intervals"]["c64"]["smallest_effect"] = 11.3
    assert "even an effect of 100% need not have been seen" in text_of(found)


def test_the_page_says_what_was_measured_and_what_came_of_it():
    text = text_of(subject())
    for words in (
        "improved", "every file holds the patched content", "c64: +10.0 %", "A B B A",
        "256 tokens in, 128 out, 64 at a time", "baseline 100.0 tok/s, patched 110.0 tok/s",
        "serve --fast", "0.5.9", "580.65", "2-gpus, bare-metal", "+new", "-old", "event 7 of /env",
        "read from the driver", "power of all GPUs, W 500 600", "power-cap 25%",
        "memory of all GPUs, GiB 16 16",
        "time to first token, ms; the patched server is dashed",
        "an effect of 2.0% would have been seen",
        "5 of 6 tokens", "0.0125 (baseline to itself: unknown)", "long-recall: too long",
        "Not counted: baseline, server start 1: a stall",
    ):  # fmt: skip
        assert words in text, words
    assert "evidence." not in text.partition("fusion")[0], "real evidence needs no warning"


@pytest.mark.parametrize("kind", ["simulated", "rehearsal"])
def test_evidence_that_does_not_count_says_so_first(kind: str):
    assert (
        text_of(subject(kind=kind))
        .partition("fusion: improved")[2]
        .lstrip()
        .startswith(f"{kind.capitalize()} evidence.")
    )


def test_both_arms_are_put_back_into_the_order_in_which_they_ran():
    data = evidence_data()
    (workload,) = measured(data)
    assert block_order(data) == ["baseline", "patched", "patched", "baseline"]
    assert [(p.block, p.value) for p in workload.points] == [
        (1, 100), (1, 102), (2, 110), (2, 112), (3, 108), (3, 110), (4, 98), (4, 100)
    ]  # fmt: skip
    chart = time_chart(workload)
    assert chart is not None and [s.label for s in chart.starts] == ["A", "B", "B", "A"]
    places = [span.x for span in chart.spans]
    assert places == sorted(places) and len(set(places)) == 8


def test_a_record_without_an_order_is_read_arm_by_arm():
    data = evidence_data()
    del data["blocks_run"]
    assert block_order(data) == ["baseline", "baseline", "patched", "patched"]


def test_bounds_that_are_no_bounds_are_not_drawn():
    data = evidence_data()
    data["intervals"]["c64"].update(low=0.0, high=None)
    (workload,) = measured(data)
    assert workload.effect == Effect(1.1, None, None, 0.9, None, 0.01, 0.02)
    chart = effect_chart([workload], 0.03)
    assert chart is not None and (chart.rows[0].low, chart.rows[0].high) == (None, None)
    assert "no interval" in chart.rows[0].words


def test_a_workload_that_was_not_reached_is_named_as_such():
    data = evidence_data()
    data["workloads"].append({"name": "c512"})
    assert "c512" in text_of(subject(data)) and "Nothing was measured." in text_of(subject(data))


def test_nothing_measured_at_all_still_makes_a_page():
    text = text_of(subject({"reasons": ["the server died"]}, verdict="broken", passed=False))
    assert "No power was recorded." in text
    assert "the server died" in text and "No workload was measured in both arms." in text


HOSTILE = (
    "</style></pre><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b[31m\x00\u202e"
)


def test_hostile_text_is_shown_and_never_obeyed():
    data = evidence_data()
    data["reasons"] = [HOSTILE]
    data["advice"] = HOSTILE
    data["commands"]["patched"] = HOSTILE
    data["versions"][HOSTILE] = HOSTILE
    data["correctness"]["answers"]["patched"][0].update(text=HOSTILE, flaw=HOSTILE)
    data["correctness"]["faults"] = [HOSTILE]
    data["server_differences"] = {HOSTILE: [HOSTILE, None]}
    data["workloads"][0].update(name=HOSTILE, input_len=HOSTILE)
    data["intervals"][HOSTILE] = data["intervals"]["c64"]
    for arm in data["arms"].values():
        for block in arm["blocks"]:
            block["workloads"][HOSTILE] = block["workloads"]["c64"]
    changed = Changed(HOSTILE, HOSTILE, HOSTILE, HOSTILE, f"--- {HOSTILE}\n+++ b\n+{HOSTILE}\n")
    found = subject(data, sets=(HOSTILE,), verdict=HOSTILE, kind=HOSTILE)
    html = render(Subject(found.event, found.evidence, HOSTILE, (changed,)))
    page = Page(html)
    check_harmless(page)
    assert page.text.count("<script>alert(1)</script>") > 15
    assert re.search("[\x00-\x08\x0b-\x1f\u202e]", html) is None, "control characters are shown"
    html.encode("utf-8", "replace")


def test_curves_stay_inside_their_charts():
    page = build(subject())
    (workload,) = page.workloads
    assert workload.time is not None and page.power is not None
    lines = [s.course for s in workload.time.spans] + [c.points for c in page.power.curves]
    lines += [s.points for chart in workload.requests for s in chart.shares]
    assert len(lines) == 8 + 4 + 3 * 2 and all(lines)
    for line in lines:
        for point in line.split():
            x, y = map(float, point.split(","))
            assert 96 <= x <= 700 and 12 <= y <= 150, line
    assert page.power.curves[0].words == "baseline, server start 1: 497 W on average"


def test_power_of_a_host_that_declares_it_is_a_bar_an_arm():
    data = evidence_data()
    for arm, watts in (("baseline", 300.0), ("patched", 125.0)):
        for entry in data["arms"][arm]["blocks"]:
            gpu = {"power_w": {"mean": watts}}
            entry["telemetry"] = {"source": "declared", "gpus": [gpu, gpu], "series": {}}
    found = build(subject(data)).power
    assert found is not None and found.curves == ()
    assert [bar.words for bar in found.bars] == ["baseline: 600 W", "patched: 250 W"]
    assert found.source == "declared by the server"


def test_an_experiment_has_a_variant_and_no_patch():
    data = {**evidence_data(), "experiment": {"name": "--steps 4"}}
    found = subject(data, sets=())
    event = found.event._replace(kind="experiment", sets=())
    text = text_of(Subject(event, found.evidence, "/env", ()))
    assert text.startswith("--steps 4: improved") and "no file was changed" in text
    said = text.replace("patched content", "").replace("sm120patch", "")
    assert "patched" not in said and "variant, server start 2" in said


def test_lone_surrogates_do_not_end_the_writing():
    data = evidence_data()
    data["reasons"] = ["bad \ud800 text"]
    assert "\\ud800" in render(subject(data)).encode("utf-8", "replace").decode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_garbage_in_the_ledger_never_breaks_the_page(data: st.DataObject):
    """Any value may stand anywhere in an evidence: put some in places that the page reads."""
    record = evidence_data()
    for _ in range(3):
        place: Any = record
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = data.draw(st.sampled_from(keys))
            inner = place[key]
            if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
                place[key] = data.draw(JSON)
                break
            place = inner
    check_harmless(Page(render(subject(record))))


def test_a_long_diff_is_cut_and_says_so():
    found = subject()
    long = "--- a\n+++ b\n" + "+line\n" * 5000
    (view,) = build(
        Subject(found.event, found.evidence, "/env", (Changed("t", "p", "a", "b", long),))
    ).files
    assert len(view.lines) == 3000 and view.note == "2002 more lines are not shown."


def test_contents_that_are_no_longer_kept_are_named():
    found = subject()
    gone = Changed("sglang", "x.py", "a" * 64, "b" * 64, None)
    text = text_of(Subject(found.event, found.evidence, "/env", (gone,)))
    assert "no longer kept" in text and "sha256 " + "a" * 16 in text


@given(
    values=st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=20), zero=st.booleans(),
    most=st.integers(1, 9),
)  # fmt: skip
def test_every_value_lies_on_its_axis_and_ticks_are_few(values: list[float], zero: bool, most: int):
    scale = axis(values, 96.0, 700.0, zero=zero)
    places = [scale.at(value) for value in values]
    assert all(96.0 <= place <= 700.0 for place in places)
    ordered = [scale.at(value) for value in sorted(values)]
    assert ordered == sorted(ordered)
    assert len(scale.ticks(most)) <= most + 1


def test_ticks_are_round_and_percentages_signed():
    scale = Axis(-4.0, 7.0, 0.0, 110.0)
    assert [t.label for t in scale.ticks(6, percent=True)] == [
        "-4 %",
        "-2 %",
        "0 %",
        "+2 %",
        "+4 %",
        "+6 %",
    ]
    assert [t.at for t in scale.ticks(6)] == [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    assert [t.label for t in Axis(0.1, 0.32, 0, 1).ticks(4)] == ["0.1", "0.2", "0.3"]


def test_equal_values_have_an_axis_and_the_spread_of_few_has_no_box():
    point = measured(evidence_data())[0].points[0]
    chart = spread_chart(Measured("w", "", (point, point), None))
    assert chart is not None and chart.boxes[0].low is None
    assert all(math.isfinite(mark.x) for mark in chart.marks)
