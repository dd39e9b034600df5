"""Many nodes at once: who is unknown, which groups are unequal, who differs, what fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from sm120patch.fleet.expected import Expected
from sm120patch.fleet.overview import FailOn, Fleet, Kind, overview
from sm120patch.fleet.page import render
from sm120patch.fleet.tables import fleet_text
from tests.support.facts import (
    NOW,
    Facts,
    add_set,
    change_set,
    drifted,
    node,
    nodes,
    parsed,
    result,
    set_of,
    unreachable,
)
from tests.support.pages import Page, check_harmless


def kinds(fleet: Fleet) -> list[str]:
    return [finding.kind.value for finding in fleet.findings]


def shown(fleet: Fleet) -> str:
    return fleet_text(fleet, NOW)


def test_nodes_that_are_alike_give_no_finding_and_one_line():
    fleet = overview(nodes(5))
    assert fleet.findings == () and not FailOn().fails(fleet.findings)
    assert fleet.applied("one") == 5 and fleet.sets == ("one",)
    text = shown(fleet)
    assert "one applied on 5" in text and "gpu-00, gpu-01 and 3 more" in text
    assert len(text.splitlines()) == 4
    assert len(fleet_text(fleet, NOW, every=True).splitlines()) == 8


def test_what_all_nodes_have_alike_is_told_once_and_else_in_a_column():
    text = shown(overview(nodes(3)))
    assert re.search(r"\(sglang 0.5.9; 2 x RTX, driver 580.95; code \w{8}; profile p{8}\)", text)
    assert text.count("sglang") == text.count("p" * 8) == 1 and "PROFILE" not in text

    def other(facts: Facts) -> None:
        result(facts, "doctor")["host"]["driver"] = "570.1"
        result(facts, "status")["versions"] = {"sglang": "0.5.10"}
        environment(facts)["packages"][0]["version"] = "0.5.10"
        set_of(facts, "one")["evidence"]["profile"] = "q" * 64

    rows = shown(overview([*nodes(3), node("z", other)])).splitlines()
    (row,) = (line for line in rows if line.startswith("z "))
    assert "sglang 0.5.10" in row and "2 x RTX, driver 570.1" in row and "qqqqqqqq" in row


def test_nodes_whose_profiles_alone_differ_share_a_line_and_so_do_sets_that_are_alike():
    """Every node has ports of its own in its profile: the finding names them, not the table."""

    def own(facts: Facts) -> None:
        for name in ("kernel", "jit-list"):
            add_set(facts, name)
        for name in ("one", "kernel", "jit-list"):
            profile = facts["node"][-1] * 64
            change_set(facts, name, evidence={"kind": "simulated", "profile": profile})

    fleet = overview(node(f"gpu-0{n}", own, groups=["s0"]) for n in range(4))
    (finding,) = fleet.findings
    assert finding.subject == "profile of the verification of jit-list, kernel, one"
    rows = shown(fleet).partition("\n\n")[2].splitlines()
    assert len(rows) == 2 and "gpu-00, gpu-01 and 2 more" in rows[1]
    assert "jit-list, kernel, one" in rows[1] and "PROFILE" not in rows[0]
    assert f"code {fleet.rows[0].node.code[:8]}" in shown(fleet).splitlines()[0]
    assert "CODE" not in rows[0] and "CONTENTS" not in rows[0]
    assert len(fleet_text(fleet, NOW, every=True).partition("\n\n")[2].splitlines()) == 5


def test_the_one_that_differs_comes_first_with_what_it_differs_in():
    fleet = overview([*nodes(5), node("gpu-99", drifted)])
    assert fleet.rows[0].label == "gpu-99" and fleet.applied("one") == 5
    assert set(kinds(fleet)) == {"differs"}
    assert {aspect for aspect, _v, _u in fleet.rows[0].differs} == {
        "state of one", "contents of one", "verdict of one"
    }  # fmt: skip
    assert "state of one: drifted on gpu-99; applied on 5 others" in shown(fleet)


@pytest.mark.parametrize(
    ("change", "aspect"),
    [
        (lambda f: f.update(tool="0.0.9"), "version of sm120patch"),
        (lambda f: result(f, "doctor")["host"].update(driver="570.1"), "driver"),
        (lambda f: result(f, "doctor")["host"]["gpus"].pop(), "GPUs"),
        (lambda f: result(f, "doctor")["host"].update(topology=["no-p2p"]), "topology"),
        (lambda f: change_set(f, "one", evidence={"verdict": "no-regression"}), "verdict of one"),
        (lambda f: change_set(f, "one", evidence={"kind": "simulated"}), "state of one"),
        (lambda f: set_of(f, "one")["evidence"].update(profile="q"), "profile"),
        (lambda f: set_of(f, "one").update(revision=2), "revision of one"),
        (lambda f: set_of(f, "one").update({"with": ["extra"]}), "optional changes of one"),
        (lambda f: set_of(f, "one")["evidence"].update(at="2026-01-01T00:00:00Z"), "age"),
        (lambda f: result(f, "status")["sets"].pop(0) and environment(f).update(sets=[]), "state"),
    ],
)  # fmt: skip
def test_every_aspect_is_looked_at(change: Callable[[Facts], object], aspect: str):
    fleet = overview([*nodes(4), node("gpu-99", change)])
    assert any(aspect in finding.subject for finding in fleet.findings), fleet.findings
    assert fleet.rows[0].label == "gpu-99" and FailOn().fails(fleet.findings)


def environment(facts: Facts) -> dict[str, Any]:
    (found,) = result(facts, "audit")["environments"]
    assert isinstance(found, dict)
    return found


def test_other_versions_are_told_with_those_that_lack_the_package():
    def newer(facts: Facts) -> None:
        result(facts, "status")["versions"] = {"sglang": "0.5.10"}
        environment(facts)["packages"][0]["version"] = "0.5.10"

    def without(facts: Facts) -> None:
        result(facts, "status").update(versions={}, sets=[])
        environment(facts).update(packages=[], sets=[])

    fleet = overview([*nodes(4), node("gpu-98", newer), node("gpu-99", without)])
    (found,) = (f for f in fleet.findings if f.subject == "version of sglang")
    assert "0.5.10 on gpu-98" in found.detail and "not installed on gpu-99" in found.detail


def test_without_a_majority_all_values_are_told_and_nobody_stands_out():
    fleet = overview([node("a"), node("b", drifted)])
    (state,) = (d for d in fleet.differences if d.aspect == "state")
    assert state.usual is None and len(state.nodes) == 2
    assert [row.weight for row in fleet.rows] == [0, 0]
    assert "applied on a" in shown(fleet) and "drifted on b" in shown(fleet)


def test_sets_that_differ_together_are_told_together():
    def more(facts: Facts) -> None:
        add_set(facts, "kernel")

    def both(facts: Facts) -> None:
        more(facts)
        for name in ("one", "kernel"):
            change_set(facts, name, evidence={"verdict": "no-regression"})

    fleet = overview([*(node(f"n{i}", more) for i in range(3)), node("z", both)])
    assert [f.subject for f in fleet.findings] == ["verdict of kernel, one"]


def test_unequal_code_in_one_group_is_the_worst_finding_and_its_minority_stands_first():
    every = [*nodes(4, groups=["s0"]), node("gpu-50", drifted, groups=["s0"]),
             parsed(unreachable("gpu-51"), "gpu-51")]  # fmt: skip
    fleet = overview(every)
    first = fleet.findings[0]
    assert first.kind is Kind.UNEQUAL and first.subject == "s0" and len(first.nodes) == 5
    assert re.search(r"different code: \w{12} on gpu-50; \w{12} on gpu-00", first.detail)
    assert [row.label for row in fleet.rows[:2]] == ["gpu-50", "gpu-51"]
    assert [row.unequal for row in fleet.rows[:2]] == [True, False]
    assert "1 group UNEQUAL" in shown(fleet)


def test_a_group_with_an_unknown_member_is_not_equal():
    gone = parsed(unreachable("gpu-51"), "gpu-51")
    fleet = overview([*nodes(2), gone], Expected((), {"s0": ("gpu-00", "gpu-01", "gpu-51")}))
    assert fleet.groups[0].equal is None
    assert kinds(fleet) == ["unknown", "unknown"]
    assert overview(nodes(2), Expected((), {"s0": ("gpu-00", "gpu-01")})).groups[0].equal is True


def test_groups_that_are_equal_within_may_differ_from_one_another():
    one, other = nodes(2, groups=["s0"]), [node(n, drifted, groups=["s1"]) for n in ("x", "y")]
    fleet = overview([*one, *other])
    assert [group.equal for group in fleet.groups] == [True, True]
    assert Kind.UNEQUAL not in {f.kind for f in fleet.findings}


def test_a_node_that_should_be_there_and_is_not_is_unknown():
    fleet = overview(nodes(2), Expected(("gpu-00", "gpu-01", "gpu-02")))
    assert fleet.rows[0].label == "gpu-02" and kinds(fleet) == ["unknown"]
    assert "facts are missing" in fleet.findings[0].detail
    assert overview([], Expected(("a",))).unknown[0].label == "a"


def test_a_node_that_should_not_be_there_is_told():
    fleet = overview(nodes(2), Expected(("gpu-00",)))
    assert kinds(fleet) == ["unexpected"] and fleet.findings[0].nodes == ("gpu-01",)


def unpatched(facts: Facts) -> None:
    set_of(facts, "one").update(state="absent", role="", counts=False, evidence=None)
    environment(facts).update(sets=[], ledger=False)
    environment(facts)["packages"][0]["files"] = []


def test_a_fleet_that_was_never_patched_says_so():
    fleet = overview([node(f"n{i}", unpatched) for i in range(3)])
    assert fleet.findings == () and fleet.bare
    assert "no patch set on any known node" in shown(fleet).splitlines()[0]
    assert "no patch set on any of them" in render(fleet, None, NOW, "9.9")
    patched = overview([node("a", unpatched), *nodes(2)])
    assert not patched.bare and "no patch set" not in shown(patched)
    gone = overview([], Expected(("gone",)))
    assert "no patch set" not in shown(gone), "of unknown nodes nobody knows"


def test_sets_that_must_be_applied_are_found_where_they_do_not_count():
    def simulated(facts: Facts) -> None:
        change_set(facts, "one", evidence={"kind": "simulated"})

    every = [*nodes(3), node("bare", unpatched), node("simulated", simulated)]
    fleet = overview(every, Expected(sets=("one",)))
    found = {f.nodes: f.detail for f in fleet.findings if f.kind is Kind.NOT_APPLIED}
    assert found == {("bare",): "is absent", ("simulated",): "is applied (simulated)"}
    assert "not-applied bare: one: is absent" in " ".join(shown(fleet).split())
    assert not overview(nodes(3), Expected(sets=("one",))).findings
    fleet = overview(nodes(3), Expected(sets=("never",)))
    (finding,) = fleet.findings
    assert finding.detail == "is not in its catalogue" and len(finding.nodes) == 3
    assert "never" in fleet.sets and fleet.applied("never") == 0
    assert "Sets that should be on every node are not." in render(fleet, None, NOW, "9.9")


def test_two_files_about_one_environment_leave_it_unknown():
    fleet = overview([*nodes(2), node("gpu-00")])
    (row,) = fleet.unknown
    assert row.label == "gpu-00" and "two files are about it" in row.node.unknown
    assert len(fleet.rows) == 2


def test_two_environments_of_one_node_are_two_rows():
    def second(facts: Facts) -> None:
        result(facts, "status")["prefix"] = environment(facts)["prefix"] = "/opt/second"

    fleet = overview([node("a"), node("a", second)])
    assert {row.label for row in fleet.rows} == {"a:/opt/sglang", "a:/opt/second"}


def test_unknown_fails_whatever_was_chosen_and_others_only_when_chosen():
    fleet = overview([*nodes(4), node("gpu-99", drifted)])
    assert not FailOn(frozenset({Kind.UNEQUAL})).fails(fleet.findings)
    assert FailOn(frozenset({Kind.DIFFERS})).fails(fleet.findings)
    fleet = overview(nodes(1), Expected(("gpu-00", "gpu-01")))
    assert FailOn(frozenset({Kind.DIFFERS})).fails(fleet.findings)


def test_a_set_whose_state_a_node_could_not_tell_is_unknown_and_fails():
    def unreadable(facts: Facts) -> None:
        change_set(facts, "one", state="unknown", reason="a.py cannot be read")

    fleet = overview([*nodes(3), node("gpu-99", unreadable)])
    assert fleet.findings[0].kind is Kind.UNKNOWN and fleet.findings[0].nodes == ("gpu-99",)
    assert FailOn(frozenset()).fails(fleet.findings) and "a.py cannot be read" in shown(fleet)


def test_what_audits_found_is_told_once_for_all_nodes():
    def found(facts: Facts) -> None:
        for path in ("one", "two"):
            finding = {"kind": "copies", "target": "-", "path": path, "detail": "nobody did"}
            environment(facts)["findings"].append(finding)

    fleet = overview([node(f"n{i}", found) for i in range(3)])
    (finding,) = fleet.findings
    assert finding.kind is Kind.FINDING and finding.nodes == ("n0", "n1", "n2")
    assert finding.detail == "one, two: nobody did"


def test_simulated_nodes_are_alike_and_none_counts():
    def simulated(facts: Facts) -> None:
        change_set(facts, "one", evidence={"kind": "simulated"})

    fleet = overview([node(f"n{i}", simulated) for i in range(3)])
    assert fleet.applied("one") == 0 and fleet.findings == ()
    assert "applied (simulated)" in shown(fleet) and "one applied on 0" in shown(fleet)


# --- on the page --------------------------------------------------------------------------------


def test_the_page_shows_every_node_with_what_it_stands_out_by():
    every = [*nodes(3, groups=["s0"]), node("gpu-50", drifted, groups=["s0"]),
             parsed(b"<script>", "gpu-51")]  # fmt: skip
    page = Page(render(overview(every), None, NOW, "9.9"))
    check_harmless(page)
    for words in (
        "Nodes that serve as one hold different code", "UNEQUAL", "gpu-00", "drifted", "gpu-51",
        "UNKNOWN", "malformed facts", "state of one: drifted, usually applied", "improved (real)",
        "2 x RTX, driver 580.95", "sglang 0.5.9", "profile pppppppppppp", "9.9",
    ):  # fmt: skip
        assert words in page.text, words
    places = [page.text.rindex(f" {name} s0 ") for name in ("gpu-50", "gpu-00")]
    assert places == sorted(places), "outliers first"


def test_the_page_of_a_fleet_that_is_alike_says_so():
    page = Page(render(overview(nodes(3)), None, NOW, "9.9"))
    assert "All nodes are known and alike." in page.text and "None." in page.text


def test_nothing_from_a_node_becomes_markup_or_reaches_the_terminal():
    evil = '<script>alert(1)</script>\x1b[31m"\u202e\ud800'

    def change(facts: Facts) -> None:
        facts["tool"] = evil
        set_of(facts, "one").update(reason=evil, **{"with": [evil]})
        set_of(facts, "two").update(state="edited", reason=evil)
        set_of(facts, "one")["evidence"].update(profile=evil)
        result(facts, "doctor")["host"].update(driver=evil, topology=[evil])
        for name in ("detail", "path", "kind", "target"):
            finding = {"kind": "foreign", "target": "t", "path": "p", "detail": "d", name: evil}
            environment(facts)["findings"].append(finding)

    fleet = overview([*nodes(2), node("gpu-99", change)])
    html = render(fleet, None, NOW, "9.9")
    check_harmless(Page(html))
    for text in (html, shown(fleet)):
        assert not any(c in text for c in "\x1b\u202e\ud800")
    assert "<script" not in html and "&lt;script" in html
