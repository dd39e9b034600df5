"""`content` of a plan and of `status`: the same on every node that runs the same code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.catalogue import A_TEXT, KERNEL, KERNEL_TEXT, A
from tests.support.command import run, run_killed_at
from tests.support.place import Place, refused


@pytest.fixture
def nodes(tmp_path: Path) -> tuple[Place, Place]:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    return Place(tmp_path / "first"), Place(tmp_path / "second")


def planned(place: Place, *sets: str) -> str:
    content = place.done("plan", *sets)["content"]
    assert isinstance(content, str)
    return content


def test_it_does_not_depend_on_where_the_environment_lies(nodes: tuple[Place, Place]) -> None:
    first, second = nodes
    plans = [place.done("plan", "bundle") for place in nodes]
    assert plans[0]["digest"] != plans[1]["digest"], "a plan is for one place"
    assert plans[0]["content"] == plans[1]["content"] == planned(second, "one", "kernel")
    assert planned(first, "one") != planned(first, "two") != planned(first, "one", "two")


def test_it_is_the_same_before_and_after_and_is_what_status_reads_back(place: Place) -> None:
    untouched = place.done("status")["content"]
    content = planned(place, "bundle")
    assert content != untouched
    staged = place.stage("bundle")
    assert staged["plan"]["content"] == content == place.done("status")["content"]
    again = place.done("plan", "bundle")
    assert again["noop"] and again["content"] == content
    place.write(A, place.read(A) + "foreign = 1\n")
    assert place.done("status")["content"] not in (content, untouched), "hashed, not remembered"
    place.write(A, place.read(A).removesuffix("foreign = 1\n"))
    place.done("revert", "--all")
    assert place.done("status")["content"] == untouched


def test_sets_that_are_there_already_count(nodes: tuple[Place, Place]) -> None:
    first, second = nodes
    second.stage("two")
    assert planned(first, "one") != planned(second, "one") == planned(first, "one", "two")


def test_another_release_is_another_content(tmp_path: Path, place: Place) -> None:
    other = Place(tmp_path / "other", "1.1")
    assert planned(place, "one") != planned(other, "one")


def test_apply_refuses_to_end_with_another_content_and_writes_nothing(
    nodes: tuple[Place, Place],
) -> None:
    first, second = nodes
    content = planned(first, "one")
    first.done("apply", "one", "--no-verify", "--expect-content", content)
    done = second.run("apply", "one", "two", "--no-verify", "--expect-content", content)
    error = refused(done, 5, content, "would not hold the same code", "sm120patch status")
    assert error["code"] == "other-content"
    assert error["details"]["found"] == planned(second, "one", "two")
    second.assert_nothing_written()
    assert second.done("apply", "one", "--no-verify", "--expect-content", content)["sets"]
    assert second.contents() == first.contents()


def test_the_expected_content_may_be_there_already(place: Place) -> None:
    content = planned(place, "one")
    place.stage("one")
    again = place.done("apply", "one", "--no-verify", "--expect-content", content)
    assert again["outcome"] == "nothing"
    refused(place.run("apply", "one", "--no-verify", "--expect-content", "0" * 64), 5, content)


def test_status_tells_by_its_exit_code_whether_it_is_what_was_expected(place: Place) -> None:
    content = planned(place, "one")
    assert place.run("status", "--expect-content", content).code == 1, "not patched yet"
    place.stage("one")
    assert place.run("status", "--expect-content", content).code == 0
    place.write(A, place.read(A) + "foreign = 1\n")
    drifted = place.run("status", "--expect-content", content)
    assert drifted.code == 1 and drifted.result["content"] != content
    text = run("status", "--expect-content", content, *place.options[:-2])
    assert text.code == 1 and f"expected {content}" in text.out
    for wrong in ("", content[:12]):
        assert place.run("status", "--expect-content", wrong).code == 1, wrong


class Killed:
    """A command that can be killed at each of its steps, from the same beginning."""

    def __init__(self, place: Place, *command: str) -> None:
        self.place = place
        self.words = (*command, *place.options)
        self.kept = shutil.copytree(place.prefix, place.root / "kept", symlinks=True)
        said = run_killed_at(0, *self.words).err.splitlines()
        self.labels = [line.split(": ", 1)[1] for line in said if line.startswith("step ")]

    def at(self, step: int) -> None:
        shutil.rmtree(self.place.prefix)
        shutil.copytree(self.kept, self.place.prefix, symlinks=True)
        assert run_killed_at(step, *self.words).code == -9, f"step {step} was never reached"


@pytest.mark.slow
@pytest.mark.parametrize("command", [("apply", "two", "--no-verify"), ("revert", "--all")])
def test_a_change_killed_at_any_step_is_told_by_what_is_on_disk(
    place: Place, command: tuple[str, ...]
) -> None:
    untouched, full = place.done("status")["content"], planned(place, "two")
    if command[0] == "revert":
        place.stage("two")
    killed = Killed(place, *command)
    seen = set()
    for step, label in enumerate(killed.labels, 1):
        killed.at(step)
        status = place.run("status")
        patched = place.read(A) != A_TEXT
        content = status.result["content"]
        assert content == (full if patched else untouched), f"{label}: {patched}"
        if status.code == 7:
            seen.add(patched)
    assert seen == {True, False}, "interrupted on either side"


def test_an_apply_that_was_killed_half_way_is_neither_content(place: Place) -> None:
    untouched, full = place.done("status")["content"], planned(place, "bundle")
    killed = Killed(place, "apply", "bundle", "--no-verify")
    first, last = [n for n, label in enumerate(killed.labels, 1) if label.startswith("replace ")]
    killed.at(first)
    assert [place.read(A) == A_TEXT, place.read(KERNEL) == KERNEL_TEXT].count(True) == 1
    status = place.run("status")
    assert status.code == 7 and status.result["content"] not in (untouched, full)
    for content in (untouched, full):
        answer = place.run("status", "--expect-content", content)
        assert answer.code == 7 and answer.result["content"] == status.result["content"]
    killed.at(last)
    status = place.run("status", "--expect-content", untouched)
    assert status.code == 7 and status.result["content"] == full, "it is all there"
    refused = place.run("apply", "bundle", "--no-verify", "--expect-content", full)
    assert refused.code == 7 and "recover" in refused.error["hint"]
    place.done("recover")
    assert place.done("status")["content"] == untouched


def test_where_a_damaged_journal_hides_the_change_nobody_claims_to_know(place: Place) -> None:
    untouched = place.done("status")["content"]
    place.stage("one")
    (place.state / "journal.json").write_text("{")
    status = place.run("status", "--expect-content", untouched)
    assert status.code == 7 and status.result["content"] is None
    assert "journal.json cannot be read" in status.result["interrupted"]
    text = run("status", "--expect-content", untouched, *place.options[:-2])
    assert text.code == 7 and "nobody can tell which" in text.out


def test_without_the_ledger_what_it_has_left_is_not_upstreams(place: Place) -> None:
    untouched, content = place.done("status")["content"], planned(place, "one")
    place.stage("one")
    place.write(A, place.read(A) + "foreign = 1\n")
    edited = place.done("status")["content"]
    place.write(A, place.read(A).removesuffix("foreign = 1\n"))
    (place.state / "ledger.sqlite3").unlink()
    assert place.done("status")["content"] == content
    place.write(A, place.read(A) + "foreign = 1\n")
    assert place.done("status")["content"] == edited != untouched
