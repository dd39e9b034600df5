"""Fold long lines for a terminal: columns stay columns, commands and diffs stay as they are. Pure.

What is piped is never folded: the caller knows whether somebody reads it on a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_LEAST = 40
"""Columns below which folding would leave nothing readable."""
_DEEP = 4
"""Blanks before a word that has no room below its column."""
_TO_COPY = re.compile(
    r"\s*(next:|(baseline|patched|variant|asked for)(:|  )|.*server( is started)? with:|[$|#] )"
)
"""Lines that are copied as a whole, or that belong to a Markdown table."""
_GAP = re.compile(r"(?<=\S) {2,}(?=\S)")
_WORD = re.compile(r"(?:[^\s`]|`[^`]*`)+")
"""A word; a command between backquotes is one."""
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def fold(text: str, width: int) -> str:
    """Break lines longer than `width` at spaces; a longer word, such as a path, stays whole."""
    if width < _LEAST or all(len(line) <= width for line in text.split("\n")):
        return text
    return "\n".join(_lines(text.split("\n"), width))


def _lines(lines: Iterable[str], width: int) -> Iterator[str]:
    old = new = 0  # lines that the present hunk of a diff still has
    header = False
    for line in lines:
        hunk = _HUNK.match(line)
        if old > 0 or new > 0:
            old -= line[:1] in ("-", " ", "")
            new -= line[:1] in ("+", " ", "")
            yield line
        elif hunk or (header and line.startswith("+++ ")) or line.startswith("\\ "):
            old, new = (int(count or 1) for count in hunk.groups()) if hunk else (0, 0)
            yield line
        elif len(line) <= width or line.startswith("--- ") or _TO_COPY.match(line):
            yield line
        else:
            yield from _folded(line, width)
        header = line.startswith("--- ")


def _folded(line: str, width: int) -> Iterator[str]:
    """Fold one line: the last column below itself, or below the others where it has no room."""
    indent = len(line) - len(line.lstrip(" "))
    gaps = [found.end() for found in _GAP.finditer(line)]
    if not gaps or gaps[-1] <= width * 7 // 10:
        start = gaps[-1] if gaps else indent
        yield from _wrapped(line[:start], line[start:], gaps[-1] if gaps else indent + 2, width)
        return
    head = line[: gaps[-1]].rstrip(" ")
    yield from [head] if len(head) <= width else _folded(head, width)
    yield from _wrapped(" " * (indent + 4), line[gaps[-1] :], indent + 4, width)


def _wrapped(head: str, text: str, hanging: int, width: int) -> Iterator[str]:
    """Break `text` at spaces; the first line begins with `head`, the others with blanks."""
    shown, empty = head, True
    for word in _WORD.findall(text):
        if len(shown) + (not empty) + len(word) > width and shown.strip():
            yield shown.rstrip(" ")
            fits = hanging + len(word) <= width
            shown, empty = " " * (hanging if fits else min(hanging, _DEEP)), True
        shown += word if empty else f" {word}"
        empty = False
    yield shown
