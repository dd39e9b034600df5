"""What a bug leaves: an exit code of its own, and a file that can be passed on."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import run_after

BROKEN = """
from sm120patch.operations import site
def broken(*words, **named):
    raise ValueError("odd \\udcff")
site.open_site = broken
"""
WORDS = ("bench", "--try", "--api-key sesame-5781", "--output", "json")


def test_a_bug_is_written_down_without_the_secrets_of_the_command_line(tmp_path: Path) -> None:
    ran = run_after(BROKEN, *WORDS, XDG_STATE_HOME=str(tmp_path))
    (log,) = (tmp_path / "sm120patch").iterdir()
    assert ran.code == 70 and ran.error["code"] == "bug" and str(log) in ran.error["hint"]
    text = log.read_text()
    assert "Traceback" in text and "in broken" in text and "odd \\udcff" in text
    assert "--api-key" in text and "sesame" not in text


def test_a_bug_without_a_place_for_it_is_told_whole(tmp_path: Path) -> None:
    (tmp_path / "sm120patch").write_text("in the way")
    ran = run_after(BROKEN, *WORDS, XDG_STATE_HOME=str(tmp_path))
    assert ran.code == 70 and "in broken" in ran.err and "sesame" not in ran.err
