"""Read a unified diff for one file into checked hunks and list all that is wrong with it. Pure.

The grammar is parsed by unidiff. It is made for showing diffs and forgives much, so everything
that matters before a file is rewritten (names, counts, order, markers, text that belongs to no
hunk) is checked again here. The diff is hostile input: sizes are bounded before any parsing.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sm120patch import relpath

if TYPE_CHECKING:
    from unidiff.patch import Hunk as ParsedHunk
    from unidiff.patch import PatchedFile

MAX_BYTES = 1 << 20
"""Largest diff that is read. The largest we ship has 10 KB."""
_MAX_HEADER = 4096
BOM = b"\xef\xbb\xbf"

_HUNK_HEADER = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_UNSUPPORTED = (
    (("GIT binary patch", "Binary file"), "is binary"),
    (("rename from ", "rename to ", "copy from ", "copy to "), "renames or copies a file"),
    (("old mode ", "new mode "), "changes the mode of a file"),
    (("new file mode ", "deleted file mode "), "creates or deletes a file"),
)


class Line(NamedTuple):
    """A line and its ending: LF, CRLF, or nothing at the end of a file without last newline."""

    content: bytes
    ending: bytes


class Segment(NamedTuple):
    """Lines of a hunk that stay (`context`), or a maximal group that is replaced."""

    before: tuple[Line, ...]
    after: tuple[Line, ...]
    context: bool


class Hunk(NamedTuple):
    """Lines to find in one piece, and what becomes of them."""

    start: int
    """Line at which the diff says the lines were; not trusted, see `unified.apply`."""
    segments: tuple[Segment, ...]

    @property
    def before(self) -> tuple[Line, ...]:
        """All lines that must be found."""
        return tuple(line for segment in self.segments for line in segment.before)

    @property
    def after(self) -> tuple[Line, ...]:
        """All lines that stand there afterwards."""
        return tuple(line for segment in self.segments for line in segment.after)

    @property
    def sites(self) -> int:
        """Groups of edited lines."""
        return sum(not segment.context for segment in self.segments)

    @property
    def at_start(self) -> bool:
        """True when only the first line of a file can precede so little context."""
        lead, trail = self._context
        return lead == 0 or (lead < trail and self.start <= 1)

    @property
    def at_end(self) -> bool:
        """True when only the last line of a file can follow so little context."""
        lead, trail = self._context
        return trail == 0 or trail < lead or self.marked_before or self.marked_after

    @property
    def marked_before(self) -> bool:
        """True when the diff says that the old file had no last newline."""
        return bool(self.before) and not self.before[-1].ending

    @property
    def marked_after(self) -> bool:
        """True when the diff says that the new file has no last newline."""
        return bool(self.after) and not self.after[-1].ending

    @property
    def _context(self) -> tuple[int, int]:
        first, last = self.segments[0], self.segments[-1]
        return len(first.before) * first.context, len(last.before) * last.context


class Diff(NamedTuple):
    """A checked diff of one file."""

    path: str
    hunks: tuple[Hunk, ...]
    verbatim: bool
    """True when line endings are part of the change, so that they must match exactly.

    That is so when the diff itself mixes endings, or adds or removes the last newline.
    """

    @property
    def sites(self) -> int:
        """Groups of edited lines, over all hunks."""
        return sum(hunk.sites for hunk in self.hunks)

    @property
    def names_bom(self) -> bool:
        """True when the diff shows a byte order mark, so that it must match exactly."""
        return any(
            line.content.startswith(BOM)
            for hunk in self.hunks
            for line in (*hunk.before, *hunk.after)
        )

    def flipped(self) -> "Diff":
        """Return the diff that undoes this one."""
        return self._replace(
            hunks=tuple(
                Hunk(
                    hunk.start,
                    tuple(Segment(s.after, s.before, s.context) for s in hunk.segments),
                )
                for hunk in self.hunks
            ),
        )


def read(patch: bytes) -> tuple[Diff | None, list[str]]:
    """Parse `patch`; return the diff, or None and every fault that was found. Never raises."""
    if len(patch) > MAX_BYTES:
        return None, [f"the diff has {len(patch)} bytes; at most {MAX_BYTES} are read"]
    # latin-1 maps bytes to characters one to one, so every byte survives unidiff's text.
    text = patch.decode("latin-1")
    # A diff whose own last newline got lost still says all that it has to say.
    text = text if text.endswith("\n") else text + "\n"
    outside = list(_outside_hunks(text.split("\n")[:-1]))
    if any(len(line) > _MAX_HEADER for _, line, _ in outside):
        return None, [f"a header line is longer than {_MAX_HEADER} characters"]
    faults = _header_faults(outside)
    parsed = _parse(text, faults)
    if parsed is None:
        return None, faults
    path = _path(parsed, faults)
    hunks = [_hunk(h, number, faults) for number, h in enumerate(parsed, 1)]
    _check_order(parsed, hunks, faults)
    return (None, faults) if faults else (Diff(path, tuple(hunks), _verbatim(hunks)), [])


def _outside_hunks(lines: Iterable[str]) -> Iterator[tuple[int, str, bool]]:
    """Yield number and text of every line that no hunk counts, and whether a hunk came before."""
    before = after = 0
    seen = False
    for number, line in enumerate(lines, 1):
        kind = line[:1].strip("\r") or " "
        if (before > 0 or after > 0) and kind in " -+\\":
            before -= kind in " -"
            after -= kind in " +"
        elif match := _HUNK_HEADER.match(line):
            seen = True
            before, after = int(match[2] or 1), int(match[4] or 1)
        elif not (seen and kind == "\\"):
            before = after = 0
            yield number, line, seen


def _header_faults(outside: Sequence[tuple[int, str, bool]]) -> list[str]:
    """List what the lines around the hunks ask for and no single-file text diff may."""
    found: dict[str, int] = {}
    for number, line, after_hunk in outside:
        for prefixes, message in _UNSUPPORTED:
            if line.startswith(prefixes):
                found.setdefault(f"the diff {message}, which is not supported", number)
        if line.startswith("@@"):
            found.setdefault("a malformed hunk header", number)
        if line.startswith(("--- ", "+++ ", "diff --git ")) and line.endswith("\r"):
            found.setdefault("the headers of the diff end in CRLF", number)
        if after_hunk and line[:1] in ("+", "-", " ") and not _may_follow(line):
            found.setdefault("a line follows a hunk that does not count it", number)
    return [f"{message} (line {number})" for message, number in found.items()]


def _may_follow(line: str) -> bool:
    """True for the headers of a further file and for the signature of a mailed patch."""
    return line.startswith(("--- ", "+++ ")) or line.rstrip() == "--"


def _parse(text: str, faults: list[str]) -> "PatchedFile | None":
    """Let unidiff parse; add what it or the number of files is at fault for."""
    from unidiff.patch import PatchSet

    try:
        files = PatchSet(text)
    except Exception as error:  # unidiff fails in many ways on text that is no diff
        faults.append(f"not a unified diff: {str(error).strip() or type(error).__name__}")
        return None
    if len(files) > 1:
        names = ", ".join(repr(file.target_file) for file in files[:5])
        faults.append(f"the diff changes {len(files)} files ({names}); it must change one")
    if not any(len(file) for file in files):
        faults.append("the diff has no hunk")
    return files[0] if len(files) == 1 and len(files[0]) else None


def _path(file: "PatchedFile", faults: list[str]) -> str:
    """Return the path that both names agree on once `a/` and `b/` are taken off."""
    paths = []
    for prefix, name in (("a/", file.source_file), ("b/", file.target_file)):
        if name == "/dev/null":
            faults.append("the diff creates or deletes a file, which is not supported")
        elif not name.startswith(prefix):
            faults.append(f"the file name {name!r} does not start with {prefix!r}")
        else:
            # As text, a name is UTF-8; latin-1 was only the vehicle.
            path = name[2:].encode("latin-1").decode("utf-8", "surrogateescape")
            paths.append(path)
            if problem := relpath.fault(path):
                faults.append(problem)
    if len(set(paths)) > 1:
        faults.append(f"the diff renames {paths[0]!r} to {paths[1]!r}, which is not supported")
    return paths[-1] if paths else ""


def _hunk(parsed: "ParsedHunk", number: int, faults: list[str]) -> Hunk:
    """Turn one hunk of unidiff into ours; add what is wrong inside it."""
    items: list[tuple[str, Line]] = []
    for line in parsed:
        if line.line_type == "\\":
            if not items or not items[-1][1].ending:
                faults.append(f"hunk {number}: a 'no newline' marker follows no line")
                continue
            kind, marked = items[-1]
            # The marker takes back the LF only: a CR before it is content.
            items[-1] = (kind, Line(marked.content + marked.ending[:-1], b""))
        elif line.line_type:
            items.append((line.line_type, _line(line.value.encode("latin-1"))))
    segments = []
    for context, group in itertools.groupby(items, key=lambda item: item[0] == " "):
        members = list(group)
        segments.append(
            Segment(
                tuple(line for kind, line in members if kind != "+"),
                tuple(line for kind, line in members if kind != "-"),
                context,
            )
        )
    hunk = Hunk(parsed.source_start, tuple(segments))
    if any(not line.ending for line in (*hunk.before[:-1], *hunk.after[:-1])):
        faults.append(f"hunk {number}: a 'no newline' marker is not at the end")
    if hunk.before == hunk.after:
        faults.append(f"hunk {number} changes nothing")
    return hunk


def _line(value: bytes) -> Line:
    content = value.removesuffix(b"\n")
    if content.endswith(b"\r"):
        return Line(content[:-1], b"\r\n")
    return Line(content, b"\n")


def _check_order(parsed: "Sequence[ParsedHunk]", hunks: Sequence[Hunk], faults: list[str]) -> None:
    """Add hunks that overlap, and hunks inside the file that lack context."""
    for number, (first, second) in enumerate(itertools.pairwise(parsed), 2):
        if second.source_start < first.source_start + first.source_length:
            faults.append(f"hunk {number} overlaps the one before it")
    for number, hunk in enumerate(hunks, 1):
        if not hunk.segments:
            continue
        if (number > 1 and hunk.at_start) or (number < len(hunks) and hunk.at_end):
            faults.append(f"hunk {number} lacks context lines on one side")


def _verbatim(hunks: Sequence[Hunk]) -> bool:
    lines = [line for hunk in hunks for line in (*hunk.before, *hunk.after)]
    endings = {line.ending for line in lines} - {b""}
    last = hunks[-1]
    return len(endings) > 1 or last.marked_before != last.marked_after
