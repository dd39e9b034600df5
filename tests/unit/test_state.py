"""States come from disk, ledger and evidence, in a fixed order."""

from __future__ import annotations

import pytest

from sm120patch.evidence import Evidence
from sm120patch.model import State
from sm120patch.plan import (
    ActiveSet,
    History,
    OwnedFile,
    Role,
    content_digest,
)
from sm120patch.state import DiskFact, EvidenceBook, active_status, disk_state

VERSIONS = {"sglang": "0.5.9"}
FILE = OwnedFile(
    "sglang", "sglang/a.py", "/site", "0.5.9", "pristine", 0o644, 1, "ours", ("one/change",)
)


def history(*names: str, file: OwnedFile = FILE) -> History:
    active = {n: ActiveSet(n, 1, Role.REQUESTED, (), "digest") for n in names}
    return History(active, {(file.target, file.path): file})


def evidence(content: str, *, passed: bool = True, **changes: object) -> Evidence:
    values: dict[str, object] = {
        "content_digest": content,
        "baseline_digest": "base",
        "host": "here",
        "profile": "p",
        "kind": "real",
        "verdict": "improved" if passed else "regressed",
        "passed": passed,
        "sets": ("one",),
        "baseline_sets": (),
        "data": {},
    }
    return Evidence(**{**values, **changes})


def book(*entries: Evidence, host: str = "here") -> EvidenceBook:
    def lookup(content: str) -> list[Evidence]:
        return [e for e in entries if e.content_digest == content]

    return EvidenceBook(lookup, lambda e: e.host == host)


def status_of(name: str, past: History, fact: DiskFact, known: EvidenceBook) -> State:
    facts = {("sglang", "sglang/a.py"): fact}
    return active_status(name, past, [name], facts, known, VERSIONS, interrupted=False).state


OURS = DiskFact("ours", "0.5.9", "pristine")


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (OURS, None),
        (DiskFact("pristine", "0.5.9", "pristine"), State.LOST),
        (DiskFact("other", "0.5.10", "other"), State.LOST),
        (DiskFact(None, None, None), State.LOST),
        (DiskFact("foreign", "0.5.9", "pristine"), State.DRIFTED),
        (DiskFact(None, "0.5.9", "pristine"), State.DRIFTED),
    ],
)
def test_disk_against_ledger(fact: DiskFact, expected: State | None) -> None:
    assert disk_state(FILE, fact)[0] is expected


def test_without_evidence_a_set_is_only_staged() -> None:
    assert status_of("one", history("one"), OURS, book()) is State.STAGED


def test_evidence_for_exactly_this_content_makes_it_applied() -> None:
    past = history("one")
    content = past.content(VERSIONS)
    assert status_of("one", past, OURS, book(evidence(content))) is State.APPLIED
    assert status_of("one", past, OURS, book(evidence("other content"))) is State.STAGED


def test_evidence_from_another_host_does_not_count() -> None:
    past = history("one")
    entry = evidence(past.content(VERSIONS))
    assert status_of("one", past, OURS, book(entry, host="elsewhere")) is State.STAGED


def test_the_newest_conclusive_evidence_decides() -> None:
    past = history("one")
    content = past.content(VERSIONS)
    failed, passed = evidence(content, passed=False), evidence(content)
    undecided = evidence(content, passed=False, verdict="inconclusive")
    assert status_of("one", past, OURS, book(failed, passed)) is State.STAGED
    assert status_of("one", past, OURS, book(passed, failed)) is State.APPLIED
    assert status_of("one", past, OURS, book(undecided, passed)) is State.APPLIED


def test_a_real_failure_is_not_outvoted_by_a_simulated_pass() -> None:
    past = history("one")
    content = past.content(VERSIONS)
    simulated = evidence(content, kind="simulated")
    real = evidence(content, passed=False)
    assert status_of("one", past, OURS, book(simulated, real)) is State.STAGED


def test_simulated_evidence_is_always_named_and_never_counts() -> None:
    past = history("one")
    content = past.content(VERSIONS)
    facts = {("sglang", "sglang/a.py"): OURS}
    known = book(evidence(content, kind="simulated"))
    status = active_status("one", past, ["one"], facts, known, VERSIONS, interrupted=False)
    assert status.label == "applied (simulated)"
    assert not status.counts


def test_a_set_below_a_verified_one_rests_on_its_own_evidence() -> None:
    past = history("one", "two")
    content = past.content(VERSIONS)
    above = evidence(content, sets=("two",), baseline_sets=("one",), baseline_digest="below")
    assert status_of("one", past, OURS, book(above, evidence("below"))) is State.APPLIED
    assert status_of("one", past, OURS, book(above)) is State.STAGED


def test_a_chain_of_evidence_is_worth_its_weakest_link() -> None:
    past = history("one", "two")
    content = past.content(VERSIONS)
    above = evidence(
        content, sets=("two",), baseline_sets=("one",), baseline_digest="below", kind="simulated"
    )
    facts = {("sglang", "sglang/a.py"): OURS}
    known = book(above, evidence("below"))
    status = active_status("one", past, ["one"], facts, known, VERSIONS, interrupted=False)
    assert status.label == "applied (simulated)" and not status.counts


def test_evidence_does_not_outlive_a_foreign_edit_elsewhere() -> None:
    other = OwnedFile(
        "sglang", "sglang/b.py", "/site", "0.5.9", "pristine-b", 0o644, 1, "ours-b", ("two/x",)
    )
    past = history("one", "two")
    past = History(past.active, {**past.files, ("sglang", "sglang/b.py"): other})
    known = book(evidence(past.content(VERSIONS), sets=("one", "two")))
    facts = {
        ("sglang", "sglang/a.py"): OURS,
        ("sglang", "sglang/b.py"): DiskFact("foreign", "0.5.9", "pristine-b"),
    }
    status = active_status("one", past, ["one"], facts, known, VERSIONS, interrupted=False)
    assert status.state is State.STAGED


def test_a_set_of_which_nothing_is_on_disk_is_lost() -> None:
    past = History(history("one").active, {})
    status = active_status("one", past, ["one"], {}, book(), VERSIONS, interrupted=False)
    assert status.state is State.LOST


def test_drift_beats_evidence_and_interruption_beats_drift() -> None:
    past = history("one")
    known = book(evidence(past.content(VERSIONS)))
    foreign = DiskFact("foreign", "0.5.9", "pristine")
    assert status_of("one", past, foreign, known) is State.DRIFTED
    facts = {("sglang", "sglang/a.py"): foreign}
    status = active_status("one", past, ["one"], facts, known, VERSIONS, interrupted=True)
    assert status.state is State.INTERRUPTED


def test_partly_lost_is_drifted_not_lost() -> None:
    other = OwnedFile(
        "sglang", "sglang/b.py", "/site", "0.5.9", "pristine-b", 0o644, 1, "ours-b", ("one/x",)
    )
    past = history("one")
    past = History(past.active, {**past.files, ("sglang", "sglang/b.py"): other})
    facts = {
        ("sglang", "sglang/a.py"): DiskFact("pristine", "0.5.9", "pristine"),
        ("sglang", "sglang/b.py"): DiskFact("ours-b", "0.5.9", "pristine-b"),
    }
    status = active_status("one", past, ["one"], facts, book(), VERSIONS, interrupted=False)
    assert status.state is State.DRIFTED


def test_of_two_packages_one_reinstalled_makes_the_bundle_lost_unless_something_drifted() -> None:
    other = OwnedFile(
        "flashinfer-python", "f.py", "/site", "0.6", "pristine-f", 0o644, 1, "ours-f", ("one/x",)
    )
    past = history("one")
    past = History(past.active, {**past.files, ("flashinfer-python", "f.py"): other})

    def state(sha256: str) -> State:
        facts = {
            ("sglang", "sglang/a.py"): DiskFact("pristine", "0.5.9", "pristine"),
            ("flashinfer-python", "f.py"): DiskFact(sha256, "0.6", "pristine-f"),
        }
        return active_status("one", past, ["one"], facts, book(), VERSIONS, interrupted=False).state

    assert state("ours-f") is State.LOST
    assert state("pristine-f") is State.LOST
    assert state("foreign") is State.DRIFTED


def test_content_digest_depends_on_files_and_versions() -> None:
    files = {("sglang", "a.py"): "1", ("flashinfer-python", "b.py"): "2"}
    reordered = dict(reversed(list(files.items())))
    assert content_digest(files, VERSIONS) == content_digest(reordered, VERSIONS)
    assert content_digest(files, VERSIONS) != content_digest(files, {"sglang": "0.5.10"})
    assert content_digest(files, VERSIONS) != content_digest({}, VERSIONS)
