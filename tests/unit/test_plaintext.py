"""Text from outside on its way to a terminal."""

from __future__ import annotations

import pytest

from sm120patch.plaintext import clean


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("é\n\tx", "é\n\tx"),
        ("\x1b[2J\r", r"\x1b[2J\x0d"),
        ("\x85\udc85\udcff", r"\x85\x85\xff"),
        ("\u202e\ud800\U000e0001", r"\u202e\ud800\U000e0001"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text: str, shown: str) -> None:
    assert clean(text) == shown and clean(shown) == shown


def test_line_breaks_are_shown_where_a_line_must_stay_one() -> None:
    assert clean("a\nb\tc", keep="") == r"a\x0ab\x09c"
