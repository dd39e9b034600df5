"""Long lines on a terminal: nothing is lost, columns and commands and diffs stay what they are."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sm120patch.cli.folding import fold
from sm120patch.plaintext import table
from sm120patch.unified import make_diff
from tests.support.command import CHECKOUT, run
from tests.support.environments import create_venv

REASON = "the reason why this set is not applicable takes more than what is left of the line"


def words(text: str) -> list[str]:
    return text.split()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_last_column_is_folded_below_itself(width: int) -> None:
    rows = table([("a-set-of-some-name", "state", REASON), ("b", "state", "short")])
    folded = fold(rows, width)
    lines = folded.split("\n")
    assert words(folded) == words(rows) and all(len(line) <= width for line in lines)
    column = lines[0].index("the reason")
    assert all(line[:column] == " " * column and line[column] != " " for line in lines[1:-1])
    assert lines[-1] == rows.split("\n")[1], "what fits stays"


def test_where_the_last_column_is_narrow_it_goes_below_the_line() -> None:
    line = f"  by-hand  flashinfer-python  flashinfer/a/rather/long/path.py  {REASON}"
    first, *rest = fold(line, 80).split("\n")
    assert first == "  by-hand  flashinfer-python  flashinfer/a/rather/long/path.py"
    assert rest and all(re.match(r" {6}\S", line) and len(line) <= 80 for line in rest)
    assert words(fold(line, 80)) == words(line)


def test_columns_that_do_not_fit_beside_each_other_stay_apart() -> None:
    cells = ("  patch", "a-set/of-changes", "sglang/srt/layers/attention/some_registry.py", REASON)
    first, second, *rest = fold("  ".join(cells), 60).split("\n")
    assert first == "  patch  a-set/of-changes" and second.strip() == cells[2]
    assert words("\n".join(rest)) == words(REASON)


def test_commands_and_paths_are_never_broken() -> None:
    command = "`sm120patch adopt SET --env /a/long/prefix --catalogue /another/long/path/here`"
    folded = fold(f"hint: {command} takes over a set that was applied by hand", 60)
    assert command in folded
    following = "next: sm120patch verify fusion --env /a/long/prefix --profile /another/long/path"
    assert fold(following, 60) == following
    for label in ("baseline: ", "patched            ", "asked for          "):
        assert fold(f"{label}python -m server {'--option value ' * 9}", 60).count("\n") == 0
    path = "/" + "x" * 90
    assert path in fold(f"not looked into: {path}: permission denied", 60).split()[3]


def test_a_diff_stays_as_it_is_and_text_after_it_is_folded() -> None:
    long = "    value = " + " + ".join(map(str, range(40)))
    before = f"def f():\n{long}\n    return 1\n".encode()
    diff = make_diff("a.py", before, before.replace(b"return 1", b"return 2"))
    text = f"  patch  one/first  {REASON}\n{diff}note: {REASON} {REASON}"
    folded = fold(text, 60)
    assert diff in folded
    assert all(len(line) <= 60 for line in folded.replace(diff, "").split("\n"))


def test_a_narrow_or_wide_enough_terminal_changes_nothing() -> None:
    text = table([("a", REASON)])
    assert fold(text, 20) == text == fold(text, 200)


def on_terminal(columns: int, *arguments: str | Path) -> str:
    """What a command writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sm120patch", *map(str, arguments)]
    environ = {**os.environ, "COLUMNS": str(columns), "PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environ) as child:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # what reading gives once the other end is closed
            while part := os.read(ours, 65536):
                said += part
        assert child.wait() == 0
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


def test_status_fits_a_terminal_and_is_whole_in_a_pipe(tmp_path: Path) -> None:
    create_venv(tmp_path / "env")
    asked = ("status", "--env", tmp_path / "env")
    piped = run(*asked, COLUMNS="60").out
    assert max(map(len, piped.splitlines())) > 80
    shown = on_terminal(60, *asked)
    assert words(shown) == words(piped)
    assert len(shown.splitlines()) > len(piped.splitlines())


@pytest.mark.parametrize("asked", [("list",), ("show", "allreduce-fusion"), ("show", "ue8m0-off")])
def test_what_the_catalogue_says_fits_eighty_columns(asked: tuple[str, ...]) -> None:
    shown = on_terminal(80, *asked)
    assert words(shown) == words(run(*asked).out)
    assert all(len(line) <= 80 for line in shown.splitlines())
