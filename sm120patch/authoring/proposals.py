"""Express an edit of a Python file in the edits of the codemod engine, as source text. Pure.

Two trees are compared from the outside in. What differs is named by the smallest place that an
edit can tell apart from every other place of its scope. Nothing here is trusted: the caller runs
the codemod that comes out of it and compares the result with the author's file.
"""

from __future__ import annotations

import ast
import difflib
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sm120patch._scopes import occurrences

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BARE = (ast.Name, ast.Constant, ast.Attribute)
"""Expressions that say too little to be known again, if there is anything around them."""


class UnexpressedError(ValueError):
    """The engine has no edit for this difference; the message says which and where."""


@dataclass(frozen=True)
class Proposal:
    """One site of a codemod and what must hold of it afterwards, as Python source."""

    scope: str
    edit: str
    after: tuple[str, ...]
    count: int = 1
    inserts: bool = False


@dataclass
class _Chain:
    """A differing expression and the differing expressions around it, outermost first."""

    scope: str
    within: ast.stmt
    links: list[tuple[ast.expr, ast.expr]] = field(default_factory=list)
    keyword: str | None = None
    """Name of the keyword argument whose value the innermost link is."""
    text: str = field(repr=False, default="")
    """The author's whole file."""

    def written(self, node: ast.expr) -> str:
        """An expression of the author's file as it stands there, if it stands on one line."""
        text = ast.get_source_segment(self.text, node) if node.end_lineno == node.lineno else None
        return text or ast.unparse(node)


def quoted(text: str) -> str:
    """Return a Python literal of `text`, one line when the text is one."""
    if "\\" in text or '"""' in text or not text.replace("\n", "").isprintable():
        return repr(text)
    if "\n" in text:
        return f'"""\\\n{text.rstrip(chr(10))}\n"""'
    return f'"{text}"' if '"' not in text else repr(text)


def propose(before: str, after: str, level: int = 0) -> list[Proposal]:
    """Return the sites that lead from one text of a module to the other.

    `level` asks for more of the code around each difference than is needed to tell it apart, for
    a second try. Raises UnexpressedError, and SyntaxError for text that is no Python.
    """
    old, new = ast.parse(before), ast.parse(after)
    if ast.dump(old) == ast.dump(new):
        raise UnexpressedError("only comments or layout differ, and edits go by meaning")
    walk = _Walk(old, new, after)
    walk.namespace(old.body, new.body, "")
    return [*walk.inserted, *walk.others, *_expressions(walk.chains, level)]


class _Walk:
    """One comparison of two trees, and what it found."""

    def __init__(self, old: ast.Module, new: ast.Module, text: str) -> None:
        self.old, self.new = old, new
        self._text, self._lines = text, text.splitlines(keepends=True)
        self.inserted: list[Proposal] = []
        self.others: list[Proposal] = []
        self.chains: list[_Chain] = []

    # --- the module and its classes ------------------------------------------------------------

    def namespace(self, olds: Sequence[ast.stmt], news: Sequence[ast.stmt], owner: str) -> None:
        """Compare the statements of the module, or of the class `owner`."""
        for old, fresh, previous in _aligned(olds, news):
            if isinstance(old, ast.stmt):
                self._statement(old, fresh[0], owner)
            elif owner or previous is None:
                raise UnexpressedError(f"{_at(fresh[0])}: added where no edit can stand")
            else:
                self._insert_at_top(previous, fresh)

    def _statement(self, old: ast.stmt, new: ast.stmt, owner: str) -> None:
        if isinstance(old, _DEFINITIONS) and isinstance(new, _DEFINITIONS):
            self._inside(f'Function("{owner}{old.name}")', old, old, new)
        elif isinstance(old, ast.ClassDef) and isinstance(new, ast.ClassDef):
            self._require_same_head(old, new)
            self.namespace(old.body, new.body, f"{owner}{old.name}.")
        elif owner:
            raise UnexpressedError(f"{_at(old)}: changed in the body of a class, outside methods")
        elif isinstance(old, ast.ImportFrom) and isinstance(new, ast.ImportFrom):
            self._names(old, new)
        elif (name := _bound(old)) is not None and name == _bound(new):
            self._inside(f'Assignment("{name}")', old, old, new)
        elif isinstance(old, ast.If | ast.Try | ast.With) and type(old) is type(new):
            self._require_same_head(old, new)
            for inner, other in zip(_blocks(old), _blocks(new), strict=False):
                self.namespace(inner, other, "")
        else:
            raise UnexpressedError(f"{_at(old)}: a statement of the module that has no name")

    def _require_same_head(self, old: ast.stmt, new: ast.stmt) -> None:
        blocks = ("body", "orelse", "finalbody", "handlers")
        heads = [
            [ast.dump(n) for n in ast.iter_child_nodes(s) if not _in_block(n, s, blocks)]
            for s in (old, new)
        ]
        if heads[0] != heads[1] or len(list(_blocks(old))) != len(list(_blocks(new))):
            raise UnexpressedError(f"{_at(old)}: the head of a compound statement changed")

    def _names(self, old: ast.ImportFrom, new: ast.ImportFrom) -> None:
        """Names added to a `from X import ...`; nothing else about it can be edited."""
        had = [a.name for a in old.names]
        if not set(map(_alias, old.names)) <= set(map(_alias, new.names)) or old not in (
            self.old.body
        ):
            raise UnexpressedError(f"{_at(old)}: an import lost a name, or is not at the top")
        scope = _import_scope(old)
        known = list(had)
        for position, alias in enumerate(new.names):
            if alias.name in had:
                continue
            if alias.asname:
                raise UnexpressedError(f"{_at(old)}: an import under another name")
            before = [a.name for a in new.names[:position] if a.name in known]
            place = before[-1] if before else known[0]
            known.append(alias.name)
            edit = f'add_name("{alias.name}", after="{place}")'
            after = f'imports("{old.module}", "{alias.name}")'
            self.others.append(Proposal(scope, edit, (after,)))

    def _insert_at_top(self, previous: ast.stmt, fresh: Sequence[ast.stmt]) -> None:
        if isinstance(previous, ast.ImportFrom) and previous in self.old.body:
            scope = _import_scope(previous)
        elif (name := _bound(previous)) is not None:
            scope = f'Assignment("{name}")'
        else:
            raise UnexpressedError(
                f"{_at(fresh[0])}: added after something that is neither an import nor an"
                " assignment, where no edit can stand"
            )
        after = tuple(c for statement in fresh for c in _top_conditions(statement))
        self._insert(scope, previous, fresh, after)

    # --- inside one scope ------------------------------------------------------------------------

    def _inside(self, scope: str, within: ast.stmt, old: ast.AST, new: ast.AST) -> None:
        """Compare two nodes that stand in `within`, the statement that `scope` names."""
        if type(old) is not type(new):
            raise UnexpressedError(f"{_at(old)}: one kind of statement became another")
        for name in old._fields:
            one, two = getattr(old, name, None), getattr(new, name, None)
            if _is_block(one, two):
                self._block(scope, within, one or [], two or [])
            elif isinstance(one, ast.expr) and isinstance(two, ast.expr):
                self._expression(scope, within, one, two)
            elif isinstance(one, ast.AST) and isinstance(two, ast.AST):
                self._inside(scope, within, one, two)
            elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
                for left, right in zip(one, two, strict=True):
                    self._pair(scope, within, left, right)
            elif one != two:
                raise UnexpressedError(f"{_at(old)}: its {name} changed")

    def _pair(self, scope: str, within: ast.stmt, old: object, new: object) -> None:
        if isinstance(old, ast.expr) and isinstance(new, ast.expr):
            self._expression(scope, within, old, new)
        elif isinstance(old, ast.AST) and isinstance(new, ast.AST):
            self._inside(scope, within, old, new)
        elif old != new:
            raise UnexpressedError(f"{_at(within)}: {old} changed")

    def _block(
        self, scope: str, within: ast.stmt, olds: Sequence[ast.stmt], news: Sequence[ast.stmt]
    ) -> None:
        for old, fresh, previous in _aligned(olds, news):
            if isinstance(old, ast.stmt):
                self._inside(scope, within, old, fresh[0])
            elif previous is None or list(_blocks(previous)):
                raise UnexpressedError(
                    f"{_at(fresh[0])}: added at the head of a block or after a compound"
                    " statement, where no edit can stand"
                )
            else:
                codes = [ast.unparse(s) for s in fresh]
                counts = {c: occurrences(within, c) + codes.count(c) for c in codes}
                after = tuple(f"has({scope}, {quoted(c)}, {n})" for c, n in counts.items())
                self._insert(scope, previous, fresh, after)

    def _insert(
        self, scope: str, previous: ast.stmt, fresh: Sequence[ast.stmt], after: tuple[str, ...]
    ) -> None:
        first = self._line_before(fresh[0])
        code = "".join(self._lines[first : fresh[-1].end_lineno])
        edit = f"insert_after({quoted(ast.unparse(previous))}, {quoted(textwrap.dedent(code))})"
        self.inserted.append(Proposal(scope, edit, after, inserts=True))

    def _line_before(self, statement: ast.stmt) -> int:
        """Index of the first line that belongs to a new statement: comments and blank lines do."""
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(d.lineno for d in decorators)]) - 1
        while first and self._lines[first - 1].strip()[:1] in ("", "#"):
            first -= 1
        return first

    def _expression(self, scope: str, within: ast.stmt, old: ast.expr, new: ast.expr) -> None:
        if ast.dump(old) == ast.dump(new):
            return
        self.chains += _chains(_Chain(scope, within, text=self._text), old, new)


# --- expressions -------------------------------------------------------------------------------


def _chains(
    outer: _Chain, old: ast.expr, new: ast.expr, keyword: str | None = None
) -> list[_Chain]:
    """Return one chain for each smallest differing expression below the pair."""
    links = [*outer.links, (old, new)]
    chain = _Chain(outer.scope, outer.within, links, keyword, outer.text)
    pairs = list(_parts(old, new)) if type(old) is type(new) else []
    if not pairs or None in pairs:
        return [chain]
    found: list[_Chain] = []
    for pair in pairs:
        if pair is not None and ast.dump(pair[0]) != ast.dump(pair[1]):
            found += _chains(chain, *pair)
    return found or [chain]


def _parts(old: ast.AST, new: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, str | None] | None]:
    """Yield the pairs of expressions directly below two of a kind; None if they do not pair up."""
    for name in old._fields:
        one, two = getattr(old, name, None), getattr(new, name, None)
        ones = one if isinstance(one, list) else [one]
        twos = two if isinstance(two, list) else [two]
        if len(ones) != len(twos):
            yield None
            continue
        for left, right in zip(ones, twos, strict=True):
            if isinstance(left, ast.expr) and isinstance(right, ast.expr):
                yield left, right, None
            elif isinstance(left, ast.keyword) and isinstance(right, ast.keyword):
                yield (left.value, right.value, left.arg) if left.arg == right.arg else None
            elif isinstance(left, ast.AST) and isinstance(right, ast.AST):
                if ast.dump(left) != ast.dump(right):
                    yield None
            elif left != right:
                yield None


def _expressions(chains: Sequence[_Chain], level: int) -> list[Proposal]:
    """Choose how much of each chain is replaced, and count equal replacements of a scope as one."""
    found: dict[tuple[str, str], Proposal] = {}
    for chain in chains:
        proposal = _special(chain) or _replacement(chain, chains, level)
        found[proposal.scope, proposal.edit] = proposal
    return list(found.values())


def _special(chain: _Chain) -> Proposal | None:
    """An alternative that a condition gained, or a number that a listed argument gained."""
    old, new = chain.links[-1]
    if (
        isinstance(old, ast.BoolOp)
        and isinstance(new, ast.BoolOp)
        and isinstance(old.op, ast.Or)
        and isinstance(new.op, ast.Or)
        and (extra := _gained(old.values, new.values))
    ):
        more = " or ".join(f"({s})" if " and " in s else s for s in map(chain.written, extra))
        edit = f"widen({quoted(ast.unparse(old))}, {quoted(more)})"
        operands = ", ".join(quoted(ast.unparse(v)) for v in new.values)
        count = occurrences(chain.within, ast.unparse(old))
        return Proposal(chain.scope, edit, (f"accepts({chain.scope}, {operands})",), count)
    if (
        chain.keyword
        and isinstance(old, ast.List)
        and isinstance(new, ast.List)
        and len(extra := _gained(old.elts, new.elts)) == 1
        and isinstance(number := getattr(extra[0], "value", None), int)
        and not isinstance(number, bool)
    ):
        edit = f'append("{chain.keyword}", {quoted(ast.unparse(old))}, {number})'
        after = f'lists({chain.scope}, "{chain.keyword}", {number})'
        return Proposal(chain.scope, edit, (after,))
    return None


def _gained(old: Sequence[ast.expr], new: Sequence[ast.expr]) -> Sequence[ast.expr]:
    same = [ast.dump(n) for n in old] == [ast.dump(n) for n in new[: len(old)]]
    return new[len(old) :] if same else []


def _replacement(chain: _Chain, chains: Sequence[_Chain], level: int) -> Proposal:
    """Replace the smallest expression that stands in its scope nowhere else."""
    links = [*chain.links]
    while len(links) > 1 and (level or isinstance(links[-1][0], _BARE)):
        level -= not isinstance(links[-1][0], _BARE)
        links.pop()
    while links:
        pair = links.pop()
        old, new = map(ast.unparse, pair)
        alike = sum(
            c.scope == chain.scope and (old, new) in [tuple(map(ast.unparse, k)) for k in c.links]
            for c in chains
        )
        if occurrences(chain.within, old) in (1, alike):
            left = occurrences(chain.within, old)
            gone = () if old in new else (f"lacks({chain.scope}, {quoted(old)})",)
            there = occurrences(chain.within, new) + left
            has = f"has({chain.scope}, {quoted(new)}, {there})"
            edit = f"replace({quoted(old)}, {quoted(chain.written(pair[1]))})"
            return Proposal(chain.scope, edit, (has, *gone), left)
    raise UnexpressedError(
        f"{_at(chain.within)}: `{ast.unparse(chain.links[-1][0])}` stands there several times,"
        " and nothing around it tells the changed one apart"
    )


# --- statements --------------------------------------------------------------------------------


def _aligned(
    olds: Sequence[ast.stmt], news: Sequence[ast.stmt]
) -> Iterator[tuple[ast.stmt | None, Sequence[ast.stmt], ast.stmt | None]]:
    """Yield (old, [new], None) for a changed statement, (None, new, previous) for added ones."""
    left, right = [ast.dump(s) for s in olds], [ast.dump(s) for s in news]
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            continue
        keys = [_key(s) for s in olds[i1:i2]], [_key(s) for s in news[j1:j2]]
        inner = difflib.SequenceMatcher(None, *keys, autojunk=False)
        for kind, k1, k2, m1, m2 in inner.get_opcodes():
            if kind == "equal":
                for k, m in zip(range(k1, k2), range(m1, m2), strict=True):
                    yield olds[i1 + k], news[j1 + m : j1 + m + 1], None
            elif kind == "insert":
                place = i1 + k1
                yield None, news[j1 + m1 : j1 + m2], olds[place - 1] if place else None
            else:
                raise UnexpressedError(f"{_at(olds[i1 + k1])}: removed, or written anew")


def _key(statement: ast.stmt) -> tuple[object, ...]:
    """What makes two versions of a statement the same statement."""
    if isinstance(statement, (*_DEFINITIONS, ast.ClassDef)):
        return type(statement), statement.name
    if isinstance(statement, ast.ImportFrom):
        return ast.ImportFrom, statement.module, statement.level
    return type(statement), _bound(statement)


def _bound(statement: ast.stmt) -> str | None:
    """Name that an assignment binds; None for anything else."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None


def _import_scope(statement: ast.ImportFrom) -> str:
    having = next((a.name for a in statement.names if a.asname is None and a.name != "*"), None)
    if having is None or statement.module is None or statement.level:
        raise UnexpressedError(f"{_at(statement)}: an import that no scope can name")
    return f'FromImport("{statement.module}", having="{having}")'


def _top_conditions(statement: ast.stmt) -> Iterator[str]:
    name = _bound(statement)
    if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        for alias in statement.names:
            yield f'imports("{statement.module}", "{alias.name}")'
    elif name is not None and isinstance(value := getattr(statement, "value", None), ast.expr):
        yield f'assigns("{name}", {quoted(ast.unparse(value))})'
    elif isinstance(statement, _DEFINITIONS):
        yield f'has(Function("{statement.name}"), {quoted(ast.unparse(statement))})'
    else:
        raise UnexpressedError(f"{_at(statement)}: added, and no condition can tell that it is")


def _is_block(one: object, two: object) -> bool:
    lists = [value for value in (one, two) if isinstance(value, list)]
    return any(isinstance(node, ast.stmt) for value in lists for node in value)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(statement, name, None):
            yield block
    for handler in getattr(statement, "handlers", []):
        yield handler.body


def _in_block(node: ast.AST, statement: ast.stmt, blocks: Sequence[str]) -> bool:
    return any(node in getattr(statement, name, []) for name in blocks)


def _alias(alias: ast.alias) -> tuple[str, str | None]:
    return alias.name, alias.asname


def _at(node: ast.AST) -> str:
    return f"line {getattr(node, 'lineno', '?')}"
