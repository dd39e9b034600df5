"""The list of commands is whole on a narrow terminal, and costs no command's module."""

from __future__ import annotations

import pytest

from sm120patch.cli.group import SUMMARIES
from sm120patch.cli.main import COMMANDS
from tests.support.command import run, run_after


def test_every_command_has_a_line_of_its_own() -> None:
    assert sorted(SUMMARIES) == sorted(name for names in COMMANDS.values() for name in names)


@pytest.mark.parametrize("columns", [80, 120])
def test_no_description_is_cut_or_folded(columns: int) -> None:
    shown = run("--help", COLUMNS=str(columns)).out
    listed = shown.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == sorted(SUMMARIES)
    assert all(len(line) <= 80 and "..." not in line for line in listed)
    assert all(SUMMARIES[line.split()[0]] in line for line in listed)


def test_it_loads_no_command() -> None:
    tell = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sorted(m for m in sys.modules if '.cli.' in m)))"
    )
    loaded = run_after(tell, "--help").out.splitlines()[-1].split()
    assert "sm120patch.cli.group" in loaded
    assert not {f"sm120patch.cli.{holder}" for holder in COMMANDS} & set(loaded)
