"""Cut one statement out of a Python file for libcst, and put it back byte for byte. Pure.

Parsing a whole `server_args.py` with libcst takes a second, `ast` finds the statement in 25 ms.
Everything outside the statement is never decoded, let alone written anew.
"""

from __future__ import annotations

import ast
import io
import platform
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sm120patch.model import Refused

if TYPE_CHECKING:
    import libcst as cst

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Source:
    """A Python file as bytes, with its tree and its lines as Python counts them."""

    tree: ast.Module = field(repr=False)
    encoding: str
    bom: bytes
    lines: tuple[bytes, ...] = field(repr=False)
    """Without the byte order mark, line ends kept."""


@dataclass(frozen=True)
class Span:
    """Lines of one statement, counted from 1, both ends included."""

    first: int
    last: int

    def __str__(self) -> str:
        one = self.first == self.last
        return f"line {self.first}" if one else f"lines {self.first}-{self.last}"

    def overlaps(self, other: Span) -> bool:
        """True when a line belongs to both."""
        return self.first <= other.last and other.first <= self.last


def read(data: bytes) -> Source | Refused:
    """Parse the bytes of a Python file; refuse what this interpreter cannot read."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        data.decode(encoding)
        tree = ast.parse(data)
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError) as error:
        return Refused(f"Python {platform.python_version()} cannot read it: {error}")
    bom = _BOM if data.startswith(_BOM) else b""
    body = data.removeprefix(_BOM)
    return Source(tree, encoding.removesuffix("-sig"), bom, tuple(body.splitlines(keepends=True)))


def span_of(statement: ast.stmt) -> Span:
    """Lines of a statement, decorators included."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(d.lineno for d in decorators)])
    return Span(first, statement.end_lineno or statement.lineno)


@dataclass(frozen=True)
class Slice:
    """One statement, parsed. `restore` turns an edited module back into the bytes of its lines."""

    module: cst.Module = field(repr=False)
    source: Source = field(repr=False)
    header: str
    lead: bytes
    """Form feeds before the statement: legal to Python, lost on libcst."""

    def restore(self, module: cst.Module) -> bytes:
        """Return the edited statement as bytes in the encoding of its file."""
        return self.lead + module.code.removeprefix(self.header).encode(self.source.encoding)


def cut(source: Source, statement: ast.stmt) -> Slice | Refused:
    """Parse the lines of `statement` with libcst, under a header if they are indented."""
    import libcst as cst

    span = span_of(statement)
    block = source.lines[span.first - 1 : span.last]
    try:
        if len(block) != span.last - span.first + 1 or _shares_lines(source, statement, span):
            return Refused(f"{span}: another statement shares them")
        raw = b"".join(block).lstrip(b"\x0c")
        text = raw.decode(source.encoding)
        newline = _newline(source, span)
        margin = text[: len(text) - len(text.lstrip(" \t"))]
        header = _header(margin, _indent(source, statement, margin), newline)
        module = cst.parse_module(header + text).with_changes(default_newline=newline)
    except (UnicodeError, cst.ParserSyntaxError) as error:
        return Refused(f"{span}: libcst cannot parse them: {error}")
    piece = Slice(module, source, header, b"".join(block).removesuffix(raw))
    if piece.restore(module) != b"".join(block):
        return Refused(f"{span}: libcst does not reproduce them byte for byte")
    return piece


def splice(source: Source, edits: Iterable[tuple[Span, bytes]]) -> bytes:
    """Return the file with the lines of each span replaced; the spans must not overlap."""
    lines = list(source.lines)
    for span, block in sorted(edits, key=lambda e: e[0].first, reverse=True):
        lines[span.first - 1 : span.last] = [block]
    return source.bom + b"".join(lines)


def _shares_lines(source: Source, statement: ast.stmt, span: Span) -> bool:
    """True when the first or last line also belongs to a neighbour (`a = 1; b = 2`)."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    start = next((d.col_offset for d in decorators if d.lineno == span.first), statement.col_offset)
    before = _columns(source, span.first)[:start].strip(b" \t\x0c")
    after = _columns(source, span.last)[statement.end_col_offset :].strip()
    return before not in (b"", b"@") or not (after == b"" or after.startswith(b"#"))


def _columns(source: Source, line: int) -> bytes:
    """Return the line as `ast` counts its columns: UTF-8 whatever the encoding of the file."""
    return source.lines[line - 1].decode(source.encoding).encode()


def _newline(source: Source, span: Span) -> str:
    """Return the line end that new lines get: that of the statement, else that of the file."""
    for line in (source.lines[span.first - 1], source.lines[0]):
        if end := line[len(line.rstrip(b"\r\n")) :]:
            return end.decode("ascii")
    return "\n"


def _header(margin: str, indent: str, newline: str) -> str:
    """Return lines under which an indented statement parses on its own.

    libcst takes the first indentation it meets as the one for new blocks, hence step by step.
    """
    steps = len(margin) // len(indent)
    if indent * steps != margin:
        return f"if True:{newline}"
    return "".join(f"{indent * step}if True:{newline}" for step in range(steps))


def _indent(source: Source, statement: ast.stmt, margin: str) -> str:
    """Return one step of indentation as the statement's own body uses it."""
    body: list[ast.stmt] = getattr(statement, "body", [])
    if body and body[0].lineno > statement.lineno:
        line = source.lines[body[0].lineno - 1].decode(source.encoding)
        inner = line[: len(line) - len(line.lstrip(" \t"))]
        if inner.startswith(margin) and inner != margin:
            return inner.removeprefix(margin)
    return margin or "    "
