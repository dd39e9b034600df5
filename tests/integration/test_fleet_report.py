"""`fleet-report` as a command, on the answers of real environments."""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.catalogue import A
from tests.support.command import Ran, run
from tests.support.facts import (
    Facts,
    change_set,
    facts_of,
    made_real,
    renamed,
    result,
    small,
    unreachable,
    write_facts,
)
from tests.support.pages import Page, check_harmless
from tests.support.place import Place, checked, refused
from tests.support.serving import GOOD, Host, apply

SLOWER = "null"
"""Simulated host on which the fusion changes nothing, while it gains 5 % on the other."""


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Facts]:
    """Facts of two simulated hosts that verified the same set."""
    found = {}
    for name, scenario in (("fast", GOOD), ("slow", SLOWER)):
        root = tmp_path_factory.mktemp(name)
        host = Host(root)
        done = apply(host, scenario)
        assert done.code == 0, done.err
        found[name] = facts_of(name, host.prefix, host.run)
        shutil.rmtree(root)
    return found


def report(*arguments: str | Path, **env: str) -> Ran:
    return checked(run("fleet-report", *arguments, "--output", "json", **env))


def states(ran: Ran, name: str) -> dict[str, str]:
    """Node -> label of a set; unknown nodes have none."""
    return {
        n["node"]: next((s["label"] for s in n["sets"] if s["id"] == name), "-")
        for n in ran.result["nodes"]
        if n["known"]
    }


def kinds(ran: Ran) -> set[str]:
    return {finding["kind"] for finding in ran.result["findings"]}


def test_patched_unpatched_and_drifted_nodes_are_told_apart(tmp_path: Path):
    facts = tmp_path / "facts"
    for name in ("patched", "twin", "bare", "edited"):
        (tmp_path / name).mkdir()
        place = Place(tmp_path / name)
        if name != "bare":
            place.stage("one")
        if name == "edited":
            place.write(A, place.read(A) + "another = 1\n")
        write_facts(facts, facts_of(name, place.prefix, place.run, groups=("server",)))
    ran = report(facts, "--html", tmp_path / "fleet.html")
    assert ran.code == 1
    assert states(ran, "one") == {
        "patched": "staged", "twin": "staged", "bare": "absent", "edited": "drifted",
    }  # fmt: skip
    first = ran.result["findings"][0]
    assert (first["kind"], first["subject"]) == ("unequal", "server")
    codes = {n["node"]: n["code"] for n in ran.result["nodes"]}
    assert codes["patched"] == codes["twin"] and len(set(codes.values())) == 3
    contents = {n["node"]: n["content"] for n in ran.result["nodes"]}
    assert contents["patched"] == contents["twin"] != contents["bare"]
    assert ran.result["counts"]["applied"]["one"] == 0
    page = Page((tmp_path / "fleet.html").read_text())
    check_harmless(page)
    assert "drifted" in page.text and "UNEQUAL" in page.text


def test_an_environment_that_was_named_through_a_link_is_the_same_one(tmp_path: Path):
    place = Place(tmp_path)
    place.stage("one")
    link = tmp_path / "link"
    link.symlink_to(place.prefix)

    def ask(*words: str) -> Ran:
        return run(*words, "--env", link, "--catalogue", place.catalogue, "--output", "json")

    ran = report(write_facts(tmp_path / "facts", facts_of("a", link, ask)))
    assert [n["reason"] for n in ran.result["nodes"]] == [None]


def test_a_fleet_in_order_exits_with_0(tmp_path: Path):
    every = [small(f"gpu-{n}") for n in range(4)]
    (tmp_path / "list").write_text("".join(f"gpu-{n}\n" for n in range(4)))
    ran = report(write_facts(tmp_path / "facts", *every), "--expect", tmp_path / "list",
                 "--group", "s0=gpu-0,gpu-1")  # fmt: skip
    assert ran.code == 0 and ran.result["findings"] == []
    assert ran.result["counts"] == {"nodes": 4, "known": 4, "unknown": 0, "applied": {"one": 4}}
    assert ran.result["groups"] == [{"name": "s0", "nodes": ["gpu-0", "gpu-1"], "equal": True}]


def test_what_was_verified_on_a_simulated_host_is_never_counted(
    tmp_path: Path, verified: dict[str, Facts]
):
    ran = report(write_facts(tmp_path / "facts", verified["fast"]))
    assert states(ran, "fusion") == {"fast": "applied (simulated)"}
    assert ran.result["counts"]["applied"]["fusion"] == 0 and ran.code == 1
    claiming = copy.deepcopy(verified["fast"])
    for entry in result(claiming, "status")["sets"]:
        entry.update(counts=True, label="applied")
    ran = report(write_facts(tmp_path / "facts", claiming))
    assert ran.code == 1 and ran.result["counts"]["applied"] == {}
    assert "the facts contradict themselves" in ran.result["nodes"][0]["reason"]


@pytest.mark.parametrize(
    "damage", ["away", "missing", "stale", "cut", "huge", "pipe", "folder", "twice"]
)
def test_a_node_that_is_not_known_is_unknown_and_fails(tmp_path: Path, damage: str):
    facts = write_facts(tmp_path / "facts", small("good"), small("bad"))
    bad = facts / "bad.json"
    more: tuple[str | Path, ...] = ()
    if damage == "away":
        write_facts(facts, unreachable("bad"))
    elif damage == "stale":
        write_facts(facts, small("bad", collected_at="2026-01-01T00:00:00+00:00"))
    elif damage == "cut":
        bad.write_bytes(bad.read_bytes()[:500])
    elif damage == "huge":
        with bad.open("r+b") as file:
            file.truncate((64 << 20) + 1)
    elif damage == "twice":
        (tmp_path / "second").mkdir()
        more = (shutil.copy(bad, tmp_path / "second" / "bad.json"),)
    else:
        bad.unlink()
        if damage == "pipe":
            os.mkfifo(bad)
        elif damage == "folder":
            bad.mkdir()
    (tmp_path / "list").write_text("good\nbad\n")
    ran = report(facts, *more, "--expect", tmp_path / "list", "--fail-on", "unequal")
    assert ran.code == 1 and kinds(ran) == {"unknown"}
    (unknown,) = (n for n in ran.result["nodes"] if not n["known"])
    assert unknown["node"] == "bad" and unknown["reason"] and unknown["sets"] == []
    assert states(ran, "one") == {"good": "applied"}


def test_old_facts_are_read_when_asked_for(tmp_path: Path):
    facts = write_facts(tmp_path / "facts", small("a", collected_at="2026-11-20T13:00:00Z"))
    assert report(facts).code == 1
    assert report(facts, "--max-age", "800000").code == 0


def test_the_slower_of_two_nodes_is_found_by_what_both_measured(
    tmp_path: Path, verified: dict[str, Facts]
):
    one, other = (made_real(verified[name]) for name in ("fast", "slow"))
    ran = report(write_facts(tmp_path / "facts", one, other), "--compare", "fast", "slow",
                 "--html", tmp_path / "x.html")  # fmt: skip
    assert ran.code == 0, "the question is answered"
    found = ran.result["compare"]
    (speed,) = found["speeds"]
    assert found["slower"] == "slow" and speed["beyond_noise"]
    assert 0.9 < speed["low"] < speed["ratio"] < speed["high"] < 1
    assert "slow is slower, by more than noise" in Page((tmp_path / "x.html").read_text()).text
    ran = report(write_facts(tmp_path / "twins", one, renamed(one, "twin")),
                 "--compare", "fast", "twin")  # fmt: skip
    assert ran.result["compare"]["slower"] is None and ran.result["compare"]["reasons"] == []


def test_the_patch_that_one_node_lost_is_the_most_probable_reason(
    tmp_path: Path, verified: dict[str, Facts]
):
    one = made_real(verified["fast"])
    other = renamed(made_real(verified["slow"]), "other")
    for name in ("fusion", "jit-list", "runtime-gate"):
        change_set(other, name, state="lost", label="lost")
    (environment,) = result(other, "audit")["environments"]
    for package in environment["packages"]:
        package["files"] = []
    facts = write_facts(tmp_path / "facts", one, other)
    done = run("fleet-report", facts, "--compare", "fast", "other")
    first = done.out.splitlines()[0]
    assert first.startswith("other is slower, by more than noise; most probable: state of fusion")
    found = report(facts, "--compare", "fast", "other").result["compare"]
    assert found["reasons"][0]["slower"] == "other"


def test_a_comparison_with_an_unknown_node_fails(tmp_path: Path):
    facts = write_facts(tmp_path / "facts", small("a"), unreachable("b"))
    ran = report(facts, "--compare", "a", "b")
    assert ran.code == 1 and ran.result["compare"]["slower"] is None
    assert ran.result["compare"]["nodes"][1]["reason"].startswith("was not reached")
    refused(report(facts, "--compare", "a", "c"), 2, "no facts of c")


def test_one_of_several_environments_of_a_node_is_named_with_its_prefix(tmp_path: Path):
    facts = write_facts(tmp_path / "facts", small("a"), small("b"))
    text = json.dumps(small("a")).replace("/opt/sglang", "/opt/second")
    (facts / "a@second.json").write_text(text)
    refused(report(facts, "--compare", "a", "b"), 2, "a:/opt/sglang", "a:/opt/second")
    assert report(facts, "--compare", "a:/opt/second", "b").code == 0


@pytest.mark.parametrize("name", ["fe80::1", "gpu@site", "node.example.org"])
def test_nodes_may_be_called_as_inventories_call_them(tmp_path: Path, name: str):
    ran = report(write_facts(tmp_path / "facts", small(name), small("b")), "--compare", name, "b")
    assert ran.code == 0 and ran.result["compare"]["missing"] == [], "both were read whole"


@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_without_facts_there_is_no_report(tmp_path: Path, place: str):
    (tmp_path / "empty").mkdir()
    refused(report(tmp_path / place), 2, str(tmp_path / place))


def test_sets_that_must_be_applied_are_named(tmp_path: Path):
    facts = write_facts(tmp_path / "facts", small("a"), small("b"))
    assert report(facts, "--sets", "one").code == 0
    ran = report(facts, "--sets", "one,two", "--sets", "two")
    assert ran.code == 1 and kinds(ran) == {"not-applied"}
    assert [f["subject"] for f in ran.result["findings"]] == ["two"]
    refused(report(facts, "--sets", "one,"), 2, "names are expected")


def test_a_group_must_be_known(tmp_path: Path):
    facts = write_facts(tmp_path / "facts", small("a"))
    refused(report(facts, "--group", "s0"), 2, "no such group")
    refused(report(facts, "--group", "s0=a b"), 2, "names are expected")
    (tmp_path / "list").write_text("a\n")
    refused(report(facts, "--group", "s0", "--expect", tmp_path / "list"), 2, "(all)")


def test_an_inventory_that_was_listed_names_nodes_and_groups(tmp_path: Path):
    listed = {"all": {"children": ["s0"]}, "s0": {"hosts": ["a", "b"]}}
    (tmp_path / "fleet.json").write_text(json.dumps(listed))
    ran = report(write_facts(tmp_path / "facts", small("a")), "--group", "s0",
                 "--expect", tmp_path / "fleet.json")  # fmt: skip
    assert ran.code == 1 and ran.result["groups"][0]["equal"] is None
    assert {n["node"]: n["known"] for n in ran.result["nodes"]} == {"a": True, "b": False}


ANSIBLE = shutil.which("ansible-inventory", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(ANSIBLE is None, reason="ansible-core is not installed beside this Python")
def test_ansible_is_asked_what_its_inventory_names(tmp_path: Path):
    inventory = tmp_path / "inventory.yml"
    inventory.write_text("all:\n  children:\n    s0:\n      hosts:\n        gpu-[1:3]:\n")
    path = f"{Path(str(ANSIBLE)).parent}{os.pathsep}{os.environ['PATH']}"
    facts = write_facts(tmp_path / "facts", *(small(f"gpu-{n}") for n in (1, 2)))
    ran = report(facts, "--expect", inventory, "--group", "s0", PATH=path, HOME=str(tmp_path))
    assert ran.result["groups"][0]["nodes"] == ["gpu-1", "gpu-2", "gpu-3"] and ran.code == 1
    inventory.write_text("all: [\n")
    refused(report(facts, "--expect", inventory, PATH=path, HOME=str(tmp_path)), 2, "inventory")


def test_without_ansible_an_inventory_is_refused_with_the_way_out(tmp_path: Path):
    (tmp_path / "inventory.ini").write_text("[gpus]\na\n")
    facts = write_facts(tmp_path / "facts", small("a"))
    ran = report(facts, "--expect", tmp_path / "inventory.ini", PATH=str(tmp_path))
    refused(ran, 10, "ansible-inventory -i INVENTORY --list")


def test_the_page_replaces_a_file_and_nothing_else(tmp_path: Path):
    facts = write_facts(tmp_path / "facts", small("a"))
    (tmp_path / "link").symlink_to("x.html")
    refused(report(facts, "--html", tmp_path / "link"), 2, "no regular file")
    assert report(facts, "--html", tmp_path / "x.html").code == 0
