"""`content` of a plan and of `status`: the same on every node that runs the same code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.catalogue import A
from tests.support.command import run
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
