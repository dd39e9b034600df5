"""Turn an edit of a text file into a diff that fits one place only, with post-conditions. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sm120patch.model import Changed, Refused, Unchanged
from sm120patch.unified import apply, faults, make_diff

_CONTEXTS = (3, 5, 8, 13, 21, 34, 55)
"""Lines of context that are tried until every hunk fits at one place only."""
_CONDITIONS = 8
"""Largest number of each kind of post-condition that is written."""


@dataclass(frozen=True)
class TextDiff:
    """A diff payload with what must and must not stand in the file afterwards."""

    payload: bytes = field(repr=False)
    present: dict[str, int]
    absent: tuple[str, ...]


def write(path: str, before: bytes, after: bytes) -> TextDiff | Refused:
    """Return the diff that leads from one content of `path` to the other, or why there is none."""
    if b"\0" in before or b"\0" in after:
        return Refused("a binary file: a set changes text, and payloads have to be readable")
    reason = ""
    for context in _CONTEXTS:
        diff = make_diff(path, before, after, context).encode("utf-8", "surrogateescape")
        reason = "; ".join(faults(diff)) or _misfit(diff, path, before, after)
        if not reason:
            break
    else:
        return Refused(f"no diff with up to {_CONTEXTS[-1]} lines of context does it: {reason}")
    present, absent = _conditions(before, after)
    if not (present or absent):
        return Refused(
            "no line tells the edited file from upstream's (lines were only moved or repeated),"
            " so nobody could say whether the edit is in it"
        )
    return TextDiff(diff, present, absent)


def _misfit(diff: bytes, path: str, before: bytes, after: bytes) -> str:
    result = apply(diff, path, before)
    if isinstance(result, Refused | Unchanged):
        return result.reason
    assert isinstance(result, Changed)
    return "" if result.data == after else "it would write other line endings than yours"


def _conditions(before: bytes, after: bytes) -> tuple[dict[str, int], tuple[str, ...]]:
    """Lines whose number of occurrences tells one content from the other."""
    old, new = _lines(before), _lines(after)
    present = {
        text: found
        for text in new
        if text not in old and (found := after.count(text.encode())) != before.count(text.encode())
    }
    absent = [text for text in old if text not in new and not after.count(text.encode())]
    return dict(list(present.items())[:_CONDITIONS]), tuple(absent[:_CONDITIONS])


def _lines(data: bytes) -> dict[str, None]:
    """Distinct lines without their margins that a manifest can hold and that say something."""
    found: dict[str, None] = {}
    for line in data.split(b"\n"):
        try:
            text = line.strip().decode()
        except UnicodeDecodeError:
            continue
        if re.search(r"\w", text) and text.isprintable():
            found.setdefault(text)
    return found
