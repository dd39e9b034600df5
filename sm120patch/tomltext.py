"""TOML that may be hostile: decoded within bounds, or a ValueError that says why not. Pure."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

MAX_DOTS = 100
"""Dots of one line, those in quotes apart: a key of n parts costs a parser n * n bytes and more."""
_STRING = re.compile(r""""[^"\\\n]*(?:\\.[^"\\\n]*)*(?:"|$)|'[^'\n]*(?:'|$)""", re.MULTILINE)
_INTEGERS = range(-(1 << 63), 1 << 63)
"""What TOML promises; longer ones cannot be shown, nor made a float."""


def decode(text: str) -> dict[str, Any]:
    """Return the document. Raises ValueError for what is no TOML, and for what is a bomb."""
    if any(line.count(".") > MAX_DOTS for line in _STRING.sub("s", text).split("\n")):
        raise ValueError(f"a line with more than {MAX_DOTS} dots")
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        document: dict[str, Any] = toml.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    _check_integers(document)
    return document


def _check_integers(document: object) -> None:
    left = [document]
    while left:
        value = left.pop()
        if isinstance(value, int) and value not in _INTEGERS:
            raise ValueError("an integer of more than 64 bits")
        if isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
