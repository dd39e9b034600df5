"""Apply, reverse and make unified diffs on bytes: exact context, no fuzz, all or nothing. Pure."""

from __future__ import annotations

import bisect
import difflib
import itertools
from collections.abc import Iterable, Sequence

from sm120patch import diffparse
from sm120patch.diffparse import BOM, Diff, Hunk, Line
from sm120patch.model import (
    Changed,
    EditResult,
    Refused,
    Unchanged,
)

_NAMED_ESCAPES = dict(zip("\a\b\t\n\v\f\r", "abtnvfr", strict=True))
_ENDING_FLAGS = {b"\n": b"l", b"\r\n": b"c", b"": b"n"}


def apply(patch: bytes, path: str, data: bytes, *, reverse: bool = False) -> EditResult:
    r"""Apply `patch`, a diff of the one file `path`, to its content `data`, or take it back.

    A hunk fits where its context and removed lines stand in one piece after the previous hunk.
    They must do so at *exactly one* place: line numbers come from another version of the file, so
    the stated line is not taken as an argument for one of several equal places. (One header has
    13 gates with the same lines around them; a patch tool that takes the nearest edits the wrong
    function.) A diff therefore needs as much context as makes each hunk unique. A hunk whose
    context shows that it began or ended the file must do so again.

    Line endings: a diff that is consistent in them says nothing about them, so it fits LF, CRLF
    and mixed files alike. Kept lines keep theirs, an added line takes that of the line it
    replaces, else of the line before it; a missing last newline stays missing, a byte order mark
    stays. A diff that mixes endings, or adds or drops the last newline, must match exactly.

    `Changed.sites` counts groups of edited lines that no kept line divides.

    Returns `Unchanged` when only the opposite direction fits. Refuses, beyond a hunk that is not
    found: an ambiguous hunk; content that fits both directions, so that nobody can tell whether
    it was applied; a result that would fit again or that the opposite direction would not turn
    back into `data`. So whatever is `Changed` reverses to the byte and is `Unchanged` next time.
    """
    diff, problems = diffparse.read(patch)
    if diff is None:
        return Refused("the diff cannot be used: " + "; ".join(problems))
    if diff.path != path:
        return Refused(f"the diff is for {diff.path}, not for {path}")
    opposite = diff.flipped()
    if reverse:
        diff, opposite = opposite, diff
    result, undone = _fit(diff, data), _fit(opposite, data)
    if isinstance(result, Refused):
        done = "taken back" if reverse else "applied"
        return result if isinstance(undone, Refused) else Unchanged(f"the diff is already {done}")
    if not isinstance(undone, Refused):
        return Refused("the diff fits forwards and backwards: it may be applied already")
    if not isinstance(_fit(diff, result), Refused) or _fit(opposite, result) != data:
        return Refused("the result could not be turned back: places or line endings are ambiguous")
    return Changed(result, diff.sites)


def faults(patch: bytes) -> list[str]:
    """List everything wrong with a diff by itself, without a file to apply it to."""
    return diffparse.read(patch)[1]


def make_diff(path: str, before: bytes, after: bytes, context: int = 3) -> str:
    """Return the unified diff of two contents of `path`, empty when they are equal.

    Bytes that are not UTF-8 become surrogates: encode with `surrogateescape` to get them back.
    A name that would not stay in its line is `quoted`.
    """
    old, new = (_text_lines(data) for data in (before, after))
    marker = "\n\\ No newline at end of file\n"
    names = quoted(f"a/{path}"), quoted(f"b/{path}")
    lines = [] if before == after else [f"--- {names[0]}\n", f"+++ {names[1]}\n"]
    for group in _opcodes(old, new).get_grouped_opcodes(context):
        (_, i, _, k, _), (_, _, j, _, m) = group[0], group[-1]
        lines.append(f"@@ -{_range(i, j)} +{_range(k, m)} @@\n")
        for tag, first, last, start, end in group:
            if tag == "equal":
                lines += [" " + line for line in old[first:last]]
                continue
            lines += ["-" + line for line in old[first:last]]
            lines += ["+" + line for line in new[start:end]]
    return "".join(line if line.endswith("\n") else line + marker for line in lines)


def quoted(name: str) -> str:
    """Return a file name as one line that can be read: as it is, or in C's quotes as git has it.

    Quoted are names that are not all printable; of these, bytes become octal numbers.
    """
    if name.isprintable():
        return name
    text = "".join(_quoted(c) for c in name)
    return f'"{text}"'


def _quoted(character: str) -> str:
    if character in _NAMED_ESCAPES or character in '"\\':
        return f"\\{_NAMED_ESCAPES.get(character, character)}"
    if character.isprintable():
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))


def _opcodes(old: Sequence[str], new: Sequence[str]) -> difflib.SequenceMatcher[str]:
    """Compare lines; what is alike at both ends costs difflib more than the rest, so it is cut."""
    pairs = zip(old, new, strict=False)
    shorter = min(len(old), len(new))
    head = next((n for n, (a, b) in enumerate(pairs) if a != b), shorter)
    ends = zip(reversed(old), reversed(new), strict=False)
    tail = next(
        (n for n, (a, b) in enumerate(ends) if a != b or n == shorter - head), shorter - head
    )
    a, b = len(old) - tail, len(new) - tail
    middle = difflib.SequenceMatcher(None, old[head:a], new[head:b]).get_opcodes()
    codes = [("equal", 0, head, 0, head)] if head else []
    codes += [(tag, i + head, j + head, k + head, m + head) for tag, i, j, k, m in middle]
    codes += [("equal", a, len(old), b, len(new))] if tail else []
    whole: difflib.SequenceMatcher[str] = difflib.SequenceMatcher()
    whole.opcodes = codes  # type: ignore[attr-defined]  # What `get_opcodes` returns if it is set.
    return whole


def _range(first: int, last: int) -> str:
    """Lines as a hunk header has them; an empty range is named by the line before it."""
    length = last - first
    return str(first + 1) if length == 1 else f"{first + 1 if length else first},{length}"


def _text_lines(data: bytes) -> list[str]:
    # str.splitlines would also cut at form feeds and other separators that are content here.
    *lines, rest = data.decode("utf-8", "surrogateescape").split("\n")
    return [line + "\n" for line in lines] + ([rest] if rest else [])


def _split(data: bytes) -> list[Line]:
    *lines, rest = data.split(b"\n")
    return [
        Line(line[:-1], b"\r\n") if line.endswith(b"\r") else Line(line, b"\n") for line in lines
    ] + ([Line(rest, b"")] if rest else [])


def _join(lines: Iterable[Line]) -> bytes:
    return b"".join(line.content + line.ending for line in lines)


def _fit(diff: Diff, data: bytes) -> bytes | Refused:
    """Return `data` with every hunk applied in this direction, or why one does not fit."""
    bom = BOM if data.startswith(BOM) and not diff.names_bom else b""
    lines = _split(data[len(bom) :])
    text = _Searchable(lines, diff.verbatim)
    result: list[Line] = []
    position = 0
    for number, hunk in enumerate(diff.hunks, 1):
        found = text.find(hunk, position)
        if isinstance(found, str):
            return Refused(f"hunk {number} of {len(diff.hunks)} {found}")
        end = found + len(hunk.before)
        result += lines[position:found]
        result += hunk.after if diff.verbatim else _rewrite(hunk, lines[found:end])
        position = end
    result += lines[position:]
    if not diff.verbatim:
        result = _settle_endings(result, terminated=not lines or bool(lines[-1].ending))
    return bom + _join(result)


class _Searchable:
    """Lines of a file as one byte string, so that a block is found in linear time."""

    def __init__(self, lines: Sequence[Line], verbatim: bool) -> None:
        self.verbatim = verbatim
        self.count = len(lines)
        keys = [self.key(line) for line in lines]
        # A line feed before every line and none inside: a match of a block that starts with one
        # starts at a line.
        self.text = b"\n" + b"".join(keys)
        self.starts = list(itertools.accumulate(map(len, keys), initial=0))

    def key(self, line: Line) -> bytes:
        return line.content + (_ENDING_FLAGS[line.ending] if self.verbatim else b"") + b"\n"

    def find(self, hunk: Hunk, position: int) -> int | str:
        """Return the only line at which `hunk` fits from `position` on, or why there is none."""
        block = b"\n" + b"".join(map(self.key, hunk.before))
        shown = _excerpt(hunk)
        if not hunk.before:
            return 0 if not self.count else "has no context, so it fits an empty file only"
        if hunk.at_start or hunk.at_end:
            place = 0 if hunk.at_start else self.count - len(hunk.before)
            whole = hunk.at_start and hunk.at_end
            fits = place >= position and self.text.startswith(block, self.starts[place])
            if fits and not (whole and len(hunk.before) != self.count):
                return place
            return f"does not fit the {'start' if hunk.at_start else 'end'} of the file: {shown}"
        first = self.text.find(block, self.starts[position])
        if first < 0:
            return f"was not found: {shown}"
        if self.text.find(block, first + 1) >= 0:
            return f"is ambiguous, its lines stand at several places: {shown}"
        return bisect.bisect_left(self.starts, first)


def _excerpt(hunk: Hunk) -> str:
    """First edited line of a hunk, printable and short."""
    edited = next(segment for segment in hunk.segments if not segment.context)
    line = (*edited.before, *edited.after)[0].content.decode("utf-8", "replace").strip()
    return repr(line if len(line) <= 80 else line[:77] + "...")


def _rewrite(hunk: Hunk, found: Sequence[Line]) -> list[Line]:
    """Apply a hunk to the lines it was found at; new lines follow their neighbours' endings."""
    result: list[Line] = []
    position = 0
    for segment in hunk.segments:
        old = found[position : position + len(segment.before)]
        position += len(old)
        if segment.context:
            result += old
            continue
        for index, line in enumerate(segment.after):
            neighbours = (*old[index : index + 1], *result[-1:], *found[position:])
            ending = next((n.ending for n in neighbours if n.ending), line.ending)
            result.append(Line(line.content, ending))
    return result


def _settle_endings(lines: list[Line], *, terminated: bool) -> list[Line]:
    """Give every line an ending but the last, which has one only in a `terminated` file."""
    usual = next((line.ending for line in lines if line.ending), b"\n")
    settled: list[Line] = []
    for line in lines:
        previous = settled[-1].ending if settled else usual
        settled.append(line if line.ending else line._replace(ending=previous))
    if settled and not terminated:
        settled[-1] = settled[-1]._replace(ending=b"")
    return settled
