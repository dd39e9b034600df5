"""Facts of a node: what is believed, and what makes it unknown."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from sm120patch.evidence import Event
from sm120patch.fleet.node import NodeFacts
from sm120patch.fleet.words import age_words, moment
from sm120patch.model import Snapshot
from sm120patch.operations.inactive import _rejection
from tests.support.facts import (
    NOW,
    Facts,
    audited_of,
    change_set,
    parsed,
    result,
    set_of,
    small,
    unreachable,
)


def changed(change: Callable[[Facts], object]) -> NodeFacts:
    facts = small(now=NOW)
    change(facts)
    return parsed(facts)


def environment(facts: Facts) -> dict[str, Any]:
    (found,) = result(facts, "audit")["environments"]
    assert isinstance(found, dict)
    return found


def test_a_whole_file_is_read():
    node = parsed(small(now=NOW, groups=["server-0"]))
    assert node.unknown == "" and node.name == "gpu-01" and node.groups == ("server-0",)
    assert node.versions == {"sglang": "0.5.9"} and node.tool == "0.1.0"
    one, two = node.sets["one"], node.sets["two"]
    assert one.counts and one.label == "applied" and one.verdict == "improved"
    assert one.digest and one.at == datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
    assert two.is_quiet and two.digest == "" and not two.counts
    assert node.host is not None and node.host.gpu_words == "2 x RTX"
    assert len(node.code) == 64 and node.content == "c" * 64


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.update(schema=2), "schema 2"),
        (lambda f: f.update(schema=True), "schema True"),
        (lambda f: f.update(kind="other"), "kind"),
        (lambda f: f.pop("kind"), "kind"),
        (lambda f: f.update(node="../etc"), "no name"),
        (lambda f: f.update(node=7), "no name"),
        (lambda f: f.update(node="gpu-02"), "is of gpu-02, not of gpu-01"),
        (lambda f: f.update(reachable=None), "reachable"),
        (lambda f: f.update(reachable="true"), "reachable"),
        (lambda f: f.update(collected_at="yesterday"), "collected_at"),
        (lambda f: f.update(collected_at="2026-11-30T12:00:00"), "collected_at"),
        (lambda f: f.update(collected_at=(NOW - timedelta(hours=25)).isoformat()), "stale"),
        (lambda f: f.update(collected_at=(NOW + timedelta(hours=1)).isoformat()), "clocks"),
        (lambda f: f.update(commands=None), "facts are missing: status"),
        (lambda f: f["commands"].pop("audit"), "facts are missing: audit"),
        (lambda f: f["commands"].update(audit=None), "facts are missing: audit"),
        (lambda f: f["commands"]["audit"].update(result=None), "no answer of audit"),
        (lambda f: f["commands"].update(audit=f["commands"]["status"]), "no answer of audit"),
        (lambda f: f["commands"]["status"].update(schema=3), "no answer of status"),
        (lambda f: result(f, "status").update(prefix="/opt/other"), "status is of /opt/other"),
        (lambda f: result(f, "status").update(prefix=""), "status is of ?"),
        (lambda f: result(f, "audit").update(environments=[]), "audit of nothing"),
        (lambda f: result(f, "status").update(versions={"sglang": "9"}), "different versions"),
        (lambda f: set_of(f, "one").update(state="perfect"), "'perfect'"),
        (lambda f: set_of(f, "one").update(id="a\x1b[31m"), "malformed"),
    ],
)  # fmt: skip
def test_what_cannot_be_relied_on_is_unknown(change: Callable[[Facts], object], words: str):
    node = changed(change)
    assert words in node.unknown
    assert node.name == "gpu-01" or words == "no name"
    assert node.sets == {} and node.code == ""


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"NaN", b"[" * 100_000, b"1" * 5000, b"{}"],
)
def test_what_is_no_object_of_ours_is_unknown(data: bytes):
    node = parsed(data)
    assert node.name == "gpu-01" and "malformed" in node.unknown


@pytest.mark.parametrize("word", ["reachable", "state", "passed"])
def test_keys_that_are_there_twice_contradict_each_other(word: str):
    text = json.dumps(small(now=NOW))
    assert f'"{word}": ' in text
    twice = text.replace(f'"{word}": ', f'"{word}": false, "{word}": ', 1)
    node = parsed(twice.encode())
    assert node.unknown == f"the facts contradict themselves: {word} is there twice"
    assert node.sets == {}


@pytest.mark.parametrize(
    ("kind", "label", "words"),
    [
        ("simulated", "rejected (simulated)", "regressed (simulated)"),
        ("real", "rejected", "regressed (real)"),
    ],
)
def test_a_rejected_set_has_the_verdict_and_the_kind_that_status_gives_as_its_reason(
    kind: str, label: str, words: str
):
    data = {"versions": {}, "kind": kind, "verdict": "regressed"}
    event = Event("rejected", ("two",), data, at=(NOW - timedelta(days=2)).isoformat())
    reason = _rejection(event, Snapshot("/p", {}))
    node = changed(lambda f: set_of(f, "two").update(state="rejected", reason=reason))
    two = node.sets["two"]
    assert (two.label, two.verdict_words) == (label, words)
    assert two.at == NOW - timedelta(days=2) and not two.counts


def test_a_rejection_without_a_verdict_is_one_all_the_same():
    node = changed(lambda f: set_of(f, "two").update(state="rejected", reason="by somebody"))
    assert (node.sets["two"].label, node.sets["two"].verdict_words) == ("rejected", "")


def test_a_node_that_was_not_reached_is_unknown_with_its_reason():
    node = parsed(unreachable("gpu-01", "ssh: no route to host"))
    assert node.unknown == "was not reached: ssh: no route to host"


def test_the_reason_of_a_command_that_failed_is_told():
    facts = small(now=NOW)
    error = {"code": "host", "message": "no interpreter", "hint": None, "details": {}}
    facts["commands"]["audit"].update(result=None, exit_code=10, ok=False, errors=[error])
    assert parsed(facts).unknown == "audit failed there: no interpreter"


def test_answers_with_findings_and_of_an_interrupted_change_are_answers():
    facts = small(now=NOW)
    facts["commands"]["audit"].update(exit_code=1, ok=False)
    facts["commands"]["status"].update(exit_code=7, ok=False)
    result(facts, "status")["interrupted"] = "apply"
    change_set(facts, "one", state="interrupted")
    node = parsed(facts)
    assert node.unknown == "" and node.sets["one"].label == "interrupted"


@pytest.mark.parametrize("kind", ["simulated", "rehearsal"])
def test_evidence_that_is_not_real_never_counts(kind: str):
    node = changed(lambda f: change_set(f, "one", evidence={"kind": kind}))
    assert not node.sets["one"].counts and node.sets["one"].label == f"applied ({kind})"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "simulated"}, "one counts for status, with simulated evidence"),
        ({"kind": "REAL"}, "one is applied without evidence that passed"),
        ({"kind": None}, "one is applied without evidence that passed"),
        ({"passed": False}, "did not pass, with the verdict improved"),
        ({"passed": "true"}, "did not pass, with the verdict improved"),
        ({"verdict": "regressed"}, "passed, with the verdict regressed"),
        ({"verdict": "inconclusive"}, "passed, with the verdict inconclusive"),
        ({"verdict": ""}, "passed, with the verdict none"),
        ({"verdict": "no-regression"}, "rests on other evidence for audit (improved, real)"),
        ({"id": 5}, "rests on other evidence for audit"),
        ({"at": None}, "has no date"),
        ({"at": (NOW + timedelta(hours=1)).isoformat()}, "after the facts were gathered"),
    ],
)
def test_evidence_that_contradicts_itself_or_the_audit_leaves_the_node_unknown(
    change: dict[str, Any], words: str
):
    node = changed(lambda f: set_of(f, "one")["evidence"].update(change))
    assert node.unknown.startswith("the facts contradict themselves: ") and words in node.unknown
    assert node.sets == {}, "nothing of it is counted"


@pytest.mark.parametrize("state", ["drifted", "staged", "lost", "interrupted", "by-hand"])
def test_a_set_that_the_audit_gives_another_state_leaves_the_node_unknown(state: str):
    node = changed(lambda f: audited_of(f, "one").update(state=state, counts=False))
    assert f"one is applied for status, and {state} for audit" in node.unknown


def test_an_edit_between_status_and_audit_is_told():
    def staged_then_edited(facts: Facts) -> None:
        change_set(facts, "one", state="staged")
        audited_of(facts, "one").update(state="drifted")

    words = "one is staged for status, and drifted for audit"
    assert words in changed(staged_then_edited).unknown


def finding(kind: str, **values: Any) -> dict[str, Any]:
    return {"kind": kind, "target": "-", "path": "one", "detail": "d", "sets": ["one"], **values}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: environment(f).update(sets=[]), "and not in the ledger for audit"),
        (lambda f: audited_of(f, "one").update(counts=False), "does not count for audit"),
        (lambda f: audited_of(f, "one").update(verification=None), "knows no verification"),
        (lambda f: audited_of(f, "one")["verification"].update(passed=False), "other evidence"),
        (lambda f: audited_of(f, "one")["verification"].update(kind="simulated"), "other evid"),
        (lambda f: environment(f)["findings"].append(finding("unverified")), "unverified (d)"),
        (lambda f: environment(f)["findings"].append(finding("unknown")), "unknown (d)"),
        (lambda f: environment(f)["findings"].append(
            finding("drifted", target="sglang", path="a.py")), "drifted (d)"),
        (lambda f: environment(f)["packages"][0]["files"][0].update(state="drifted"),
         "sglang/a.py is drifted"),
        (lambda f: environment(f)["packages"][0].update(files=[]), "no patched file"),
        (lambda f: environment(f).update(ledger=False), "audit found no ledger"),
        (lambda f: environment(f).pop("ledger"), "audit found no ledger"),
        (lambda f: result(f, "status").update(interrupted="apply"), "a change was interrupted"),
        (lambda f: result(f, "status").update(ledger_lost=True), "the ledger is lost"),
        (lambda f: set_of(f, "one").update(counts=False), "one does not count for status"),
        (lambda f: set_of(f, "one").update(evidence=None), "without evidence"),
        (lambda f: result(f, "status")["sets"].append(set_of(f, "one")), "more than once"),
        (lambda f: environment(f)["sets"].append(audited_of(f, "one")), "more than once"),
        (lambda f: result(f, "status").update(sets=[]), "status has nothing of it"),
        (lambda f: f["commands"]["status"].update(exit_code=1), "status ended with 1"),
        (lambda f: f["commands"]["audit"].update(ok=False), "audit ended with 0"),
    ],
)  # fmt: skip
def test_what_cannot_all_be_true_leaves_the_node_unknown(
    change: Callable[[Facts], object], words: str
):
    node = changed(change)
    assert node.unknown.startswith("the facts contradict themselves: ") and words in node.unknown
    assert node.sets == {}, "nothing of it is counted"


@pytest.mark.parametrize("command", ["status", "audit"])
@pytest.mark.parametrize(
    "envelope",
    [
        {"exit_code": 10, "ok": False},
        {"exit_code": None},
        {"exit_code": 10, "ok": False, "errors": [{"message": "no interpreter"}]},
        {"errors": [{"message": "no interpreter"}]},
    ],
)
def test_a_result_beside_an_error_is_no_answer(command: str, envelope: dict[str, Any]):
    node = changed(lambda f: f["commands"][command].update(envelope))
    words = "no interpreter" if "errors" in envelope else "exit code"
    assert f"{command} failed there: {words}" in node.unknown
    optional = changed(lambda f: f["commands"]["doctor"].update(envelope))
    assert optional.unknown == "" and optional.host is None


def test_newer_evidence_of_another_host_is_no_contradiction():
    """The audit shows the newest evidence wherever it is from: an image brings its ledger."""
    other = {"event": 9, "here": False, "verdict": "regressed", "passed": False}
    node = changed(lambda f: audited_of(f, "one")["verification"].update(other))
    assert node.unknown == "" and node.sets["one"].counts


def test_one_foreign_file_makes_it_other_code_but_no_other_contents_of_a_set():
    def foreign(facts: Facts) -> None:
        file = {"path": "sglang/z.py", "state": "foreign", "sha256": "f" * 64, "changes": []}
        environment(facts)["packages"][0]["files"].append(file)

    usual, other = parsed(small(now=NOW)), changed(foreign)
    assert other.code != usual.code and other.sets["one"].digest == usual.sets["one"].digest


def test_places_and_order_of_files_do_not_matter_and_commits_do():
    facts = small(now=NOW)
    package = environment(facts)["packages"][0]
    package["files"] += [{"path": p, "sha256": "e" * 64, "changes": ["one/b"]} for p in "ab"]
    turned = copy.deepcopy(facts)
    environment(turned)["packages"][0]["files"].reverse()
    environment(turned)["packages"][0].update(root="/elsewhere", origin="/elsewhere/RECORD")
    one, other = parsed(facts), parsed(turned)
    assert one.code == other.code and one.sets["one"].digest == other.sets["one"].digest
    codes = set()
    for commit in ("1" * 40, "2" * 40):
        package["origin"] = f"git commit {commit} of /src"
        codes.add(parsed(facts).code)
    assert len(codes | {one.code}) == 3


def test_content_that_the_audit_could_not_tell_is_no_code():
    finding = {"kind": "unknown", "target": "sglang", "path": "-", "detail": "no RECORD"}
    node = changed(lambda f: environment(f)["findings"].append(finding))
    assert node.unknown == "" and node.code == "" and node.troubles[0].detail == "no RECORD"


def test_what_the_audit_found_on_the_host_counts_for_the_node():
    finding = {"kind": "stale-server", "target": "-", "path": "1", "detail": "old"}
    both = [{**finding, "environment": None}, {**finding, "environment": "/opt/other"}]
    node = changed(lambda f: result(f, "audit")["findings"].extend(both))
    assert [t.kind for t in node.troubles] == ["stale-server"]


def test_what_is_unknown_is_not_cut_off_with_the_other_findings():
    def many(facts: Facts) -> None:
        usual = {"kind": "foreign", "target": "sglang", "path": "x", "detail": "d"}
        environment(facts)["findings"] += [*[usual] * 500, {**usual, "kind": "unknown"}]

    node = changed(many)
    assert node.troubles[0].kind == "unknown" and node.more_troubles == 401
    assert node.code == ""


def test_a_set_that_only_the_audit_knows_is_by_hand():
    def by_hand(facts: Facts) -> None:
        set_of(facts, "two").update(state="drifted")
        environment(facts)["sets"] += [{"id": n, "state": "by-hand"} for n in ("two", "three")]

    node = changed(by_hand)
    assert [node.sets[n].label for n in ("two", "three")] == ["by-hand", "by-hand"]


def test_another_name_of_the_environment_is_the_same_environment():
    def through_a_link(facts: Facts) -> None:
        environment(facts).update(prefix="/srv/x", names=["/opt/sglang"])

    assert changed(through_a_link).unknown == ""


def test_a_file_may_be_named_after_node_and_environment():
    assert parsed(small(now=NOW), "gpu-01@second").unknown == ""
    assert "not of gpu-011" in parsed(small(now=NOW), "gpu-011").unknown


@pytest.mark.parametrize("words", ["2026-11-30T12:00:00Z", "2026-11-30T13:00:00+01:00"])
def test_times_of_any_offset_are_the_same_time(words: str):
    assert moment(words) == NOW


@pytest.mark.parametrize("words", ["", "now", "2026-11-30", "9" * 40, "0001-01-01T00:00:00+23:59"])
def test_what_is_no_time_is_none(words: str):
    assert moment(words) is None


def test_ages_are_said_in_the_unit_that_fits():
    said = [age_words(timedelta(hours=h)) for h in (0.5, 7.5, 288, -3)]
    assert said == ["30 min", "7.5 h", "12.0 days", "0 min"]
