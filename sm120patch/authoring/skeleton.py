"""Write the codemod for an edited Python file: one that works, or one that says it does not. Pure.

A codemod is handed out as working only after it ran: it must turn upstream's file into one that
means what the author's file means, and leave that one alone.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from sm120patch import codemod
from sm120patch.authoring.proposals import Proposal, UnexpressedError, propose
from sm120patch.errors import CatalogueError
from sm120patch.model import Changed, Unchanged
from sm120patch.unified import make_diff

_LEVELS = 3
"""How often a derivation is tried, each time with more code around the differences."""


@dataclass(frozen=True)
class Skeleton:
    """A codemod payload, and the pair of small files that it is tested with."""

    source: bytes = field(repr=False)
    works: bool
    note: str
    """What the author should know: why it does not work, or how the result differs."""
    before: bytes = field(repr=False)
    after: bytes = field(repr=False)


def write(path: str, before: bytes, after: bytes, title: str) -> Skeleton:
    """Return the codemod that leads from one content of `path` to the other.

    Where no edit of the engine expresses the difference, the codemod refuses every file with
    "write the edit", and holds the author's diff as a comment.
    """
    reason = "no edit of the engine was tried"
    try:
        for level in range(_LEVELS):
            proposals = propose(before.decode(), after.decode(), level)
            for order in (proposals, sorted(proposals, key=lambda p: p.inserts)):
                source = _working(path, order, title)
                found = _judge(source, path, before, after)
                if isinstance(found, Changed):
                    return _tested(source, path, before, after, found.data)
                reason = found
    except (UnexpressedError, SyntaxError, UnicodeDecodeError, ValueError, RecursionError) as error:
        reason = str(error)
    return Skeleton(_unwritten(path, before, after, title, reason), False, reason, before, after)


def _judge(source: bytes, path: str, before: bytes, after: bytes) -> Changed | str:
    """Run a codemod over upstream's file; return what came out of it, or what is wrong."""
    try:
        result = codemod.run(source, path, before)
        if not isinstance(result, Changed):
            return result.reason
        if ast.dump(ast.parse(result.data)) != ast.dump(ast.parse(after)):
            return "the edits that were found lead to other code than yours"
        again = codemod.run(source, path, after)
    except CatalogueError as error:
        return error.message
    return result if isinstance(again, Unchanged) else "your file does not meet its conditions"


def _tested(source: bytes, path: str, before: bytes, after: bytes, result: bytes) -> Skeleton:
    """Find the smallest pair of files that shows what the codemod does."""
    note = "" if result == after else "writes the code of your edit in another layout"
    old, new = _excerpts(before.decode(), after.decode())
    small = _judge(source, path, old, new)
    if isinstance(small, Changed):
        return Skeleton(source, True, note, old, small.data)
    return Skeleton(source, True, note, before, result)


def _excerpts(before: str, after: str) -> tuple[bytes, bytes]:
    """Cut out the statements of the module that differ, what they follow, and the imports."""
    trees = ast.parse(before), ast.parse(after)
    dumps = [{ast.dump(s) for s in tree.body} for tree in trees]
    names: set[str] = set()
    for tree, others in zip(trees, reversed(dumps), strict=True):
        for previous, statement in zip([None, *tree.body], tree.body, strict=False):
            if ast.dump(statement) not in others:
                names |= _names(statement) | (_names(previous) if previous else set())
    texts = []
    for text, tree, others in zip((before, after), trees, reversed(dumps), strict=True):
        lines = text.splitlines(keepends=True)
        kept = [
            _shown(statement, lines, others)
            for statement in tree.body
            if names & _names(statement) or isinstance(statement, ast.ImportFrom)
        ]
        texts.append("\n\n".join(kept) + "\n")
    return texts[0].encode(), texts[1].encode()


def _shown(statement: ast.stmt, lines: Sequence[str], others: set[str]) -> str:
    """Text of a statement; of a class that differs, its head and the methods that may differ."""
    if not isinstance(statement, ast.ClassDef) or ast.dump(statement) in others:
        return "".join(lines[_first(statement) : statement.end_lineno]).rstrip()
    theirs = " ".join(others)
    methods = [s for s in statement.body if ast.dump(s) not in theirs]
    head = lines[_first(statement) : _first(statement.body[0])]
    parts = ["".join(lines[_first(m) : m.end_lineno]).rstrip() for m in methods]
    return "".join(head) + "\n\n".join(parts)


def _names(statement: ast.stmt) -> set[str]:
    """Names that a statement of the module defines."""
    if isinstance(statement, ast.Assign):
        return {t.id for t in statement.targets if isinstance(t, ast.Name)}
    name = getattr(statement, "name", None)
    return {name} if isinstance(name, str) else set()


def _first(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)]) - 1


# --- source text -------------------------------------------------------------------------------


def _working(path: str, proposals: Sequence[Proposal], title: str) -> bytes:
    names = {p.scope: f"PLACE_{n}" for n, p in enumerate(_first_of(proposals), 1)}
    after = list(dict.fromkeys(c for p in proposals for c in p.after))

    def named(text: str) -> str:
        for scope, name in names.items():
            text = text.replace(f"({scope},", f"({name},")
        return text

    sites = [
        f"Site({names[p.scope]}, {p.edit}{f', count={p.count}' if p.count != 1 else ''}),"
        for p in proposals
    ]
    conditions = [f"{named(condition)}," for condition in after]
    body = [
        *(f"{name} = {scope}" for scope, name in names.items()),
        "",
        "CODEMOD = Codemod(",
        *_listed("sites", sites),
        *_listed("after", conditions),
        ")",
        "",
    ]
    return _file(path, title, [], "\n".join(body))


def _first_of(proposals: Sequence[Proposal]) -> list[Proposal]:
    return list({p.scope: p for p in proposals}.values())


def _listed(name: str, items: Sequence[str]) -> list[str]:
    return [f"    {name}=(", *(f"        {item}" for item in items), "    ),"]


def _unwritten(path: str, before: bytes, after: bytes, title: str, reason: str) -> bytes:
    diff = make_diff(path, before, after).encode("utf-8", "replace").decode()
    shown = [f"# {line}".rstrip() for line in diff.splitlines()]
    lines = [
        *(f"# {line}" for line in textwrap.wrap(f"Why this was not written for you: {reason}", 96)),
        "#",
        "# Name the place to edit and the edit, and what must hold afterwards. Your edit was:",
        "#",
        *shown,
        "",
    ]
    body = "\n".join(
        [
            "CODEMOD = Codemod(",
            "    sites=(Site(Unwritten(), replace('old', 'new')),),",
            "    after=(lambda tree: ['the edit is written'],),",
            ")",
            "",
        ]
    )
    return _file(path, title, lines, body)


def _file(path: str, title: str, comments: Sequence[str], body: str) -> bytes:
    used = [n for n in codemod.__all__ if re.search(rf"\b{n}\(", body)]
    names = "".join(f"    {name},\n" for name in sorted(used, key=lambda n: (n.islower(), n)))
    summary = " ".join(title.split()).replace('"', "'").replace("\\", "/")
    return "\n".join(
        [
            f'"""{summary} (`{path.partition("/")[2]}`)."""',
            "",
            "from __future__ import annotations",
            "",
            f"from sm120patch.codemod import (\n{names})",
            "",
            *comments,
            body,
        ]
    ).encode("utf-8")
