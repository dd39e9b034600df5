"""The short way to `status` must lead where click would."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120patch.cli import quick
from sm120patch.cli.looking import status
from sm120patch.cli.output import Output

WORDS = [*quick.OPTIONS, "--gpu=12.0", "--env=", "--output=json", "-h", "--help", "json", "text"]
WORDS += ["12.0", "/opt/env", "", "--", "-", "--catalogue", "--env=a=b", "--outpu", "x=y"]


@given(st.lists(st.sampled_from(WORDS), max_size=6))
def test_what_is_answered_here_is_what_click_reads(words: list[str]) -> None:
    found = quick.options(words)
    if found is None or found.get("--output", "text") not in ("text", "json"):
        return
    output = Output()
    context = status.make_context("status", list(words), obj=output)
    read = {f"--{name}": value for name, value in context.params.items() if name != "catalogue"}
    assert {name: found.get(name) for name in read} == read
    assert output.as_json == (found.get("--output") == "json")


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--env", "x"], ["status", "--help"], ["status", "--env"], ["status", "set"], [],
        ["status", "--env", "a", "--env", "b"], ["status", "--output", "xml"],
        ["status", "--env", "--gpu"], ["status", "--catalogue", "x"],
    ],
)  # fmt: skip
def test_everything_else_is_left_to_click(words: list[str]) -> None:
    assert quick.run(words, Output()) is None


def test_completion_is_left_to_click(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_SM120PATCH_COMPLETE", "bash_source")
    assert quick.run(["status"], Output()) is None


def test_the_options_are_those_of_the_command() -> None:
    offered = {name for option in status.params if isinstance(option, click.Option)
               for name in option.opts}  # fmt: skip
    assert set(quick.OPTIONS) <= offered
