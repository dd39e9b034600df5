"""Where a codemod may edit: named places of a Python file, found by `ast` alone. Pure.

A scope names exactly one statement. Finding none, or more than one, is for the caller to refuse.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol


class Scope(Protocol):
    """A place to edit; `str()` of it is what messages call it."""

    def find(self, tree: ast.Module) -> list[ast.stmt]:
        """Return every statement that answers to the name."""
        ...


@dataclass(frozen=True)
class Function:
    """A function of the module (`f`) or a method (`Class.f`), its decorators included."""

    name: str

    def __str__(self) -> str:
        return f"function {self.name}"

    def find(self, tree: ast.Module) -> list[ast.stmt]:
        """Conditional definitions (`if`, `try`) count: which of them runs cannot be told."""
        body, found = tree.body, list[ast.stmt]()
        for part in self.name.split("."):
            found = [s for s in statements(body) if _defines(s, part)]
            if len(found) != 1:
                return found
            body = getattr(found[0], "body", [])
        return [s for s in found if isinstance(s, _FUNCTIONS)]


@dataclass(frozen=True)
class Class:
    """A class of the module, its decorators included; also says where a `Branch` is."""

    name: str

    def __str__(self) -> str:
        return f"class {self.name}"

    def find(self, tree: ast.Module) -> list[ast.stmt]:
        """Conditional definitions count, as with functions."""
        found = (s for s in statements(tree.body) if _defines(s, self.name))
        return [s for s in found if isinstance(s, ast.ClassDef)]


@dataclass(frozen=True)
class FromImport:
    """The `from MODULE import ...` of the module's top level that brings in `having`.

    `module` None: whichever module it comes from, where releases moved it.
    """

    module: str | None
    having: str

    def __str__(self) -> str:
        return f"`from {self.module or '...'} import ... {self.having}`"

    def find(self, tree: ast.Module) -> list[ast.stmt]:
        """Imports inside a function, `if` or `try` do not count: they bind something else."""
        return [
            s
            for s in tree.body
            if isinstance(s, ast.ImportFrom)
            and s.level == 0
            and self.module in (None, s.module)
            and any(a.name == self.having and a.asname is None for a in s.names)
        ]


@dataclass(frozen=True)
class Assignment:
    """The assignment of the module's top level that binds `name`."""

    name: str

    def __str__(self) -> str:
        return f"assignment of {self.name}"

    def find(self, tree: ast.Module) -> list[ast.stmt]:
        """Conditional assignments count, as with functions."""
        return [s for s in statements(tree.body) if self.name in _bound(s)]


@dataclass(frozen=True)
class Branch:
    """The `if` inside `within` that is known by what it does and what it asks.

    `sets` is a statement at any depth of its body, `asks` an expression somewhere in its condition.
    Text alone would not do: one release holds the same condition for an unrelated feature.
    """

    within: Scope
    sets: str
    asks: str

    def __str__(self) -> str:
        return f"the `if` of {self.within} that leads to `{self.sets}`"

    def find(self, tree: ast.Module) -> list[ast.stmt]:
        """Look at every depth of the place it is in."""
        return [
            node
            for place in self.within.find(tree)
            for node in ast.walk(place)
            if isinstance(node, ast.If)
            and any(occurrences(s, self.sets) for s in node.body)
            and occurrences(node.test, self.asks)
        ]


@dataclass(frozen=True)
class Unwritten:
    """Stands in a skeleton for the place that its author has still to name; it is never found."""

    def __str__(self) -> str:
        return "write the edit (this codemod is a skeleton that names no place)"

    def find(self, tree: ast.Module) -> list[ast.stmt]:
        """Find nothing."""
        return []


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of one namespace: through `if`, `try`, `with`, loops; not into defs."""
    for statement in body:
        yield statement
        if not isinstance(statement, _DEFINITIONS):
            for block in blocks(statement):
                yield from statements(block)


def blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the statement lists directly inside a compound statement."""
    for field in ("body", "orelse", "finalbody"):
        yield getattr(statement, field, [])
    for field in ("handlers", "cases"):
        for part in getattr(statement, field, ()):
            yield part.body


def _defines(statement: ast.stmt, name: str) -> bool:
    return isinstance(statement, _DEFINITIONS) and statement.name == name


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = [statement.target]
    else:
        return set()
    return {t.id for t in targets if isinstance(t, ast.Name)}


@lru_cache(maxsize=256)
def _pattern(code: str) -> tuple[type[ast.AST], str]:
    node: ast.AST = ast.parse(code).body[0]
    if isinstance(node, ast.Expr):
        node = node.value
    return type(node), ast.dump(node)


def same(node: ast.AST, code: str) -> bool:
    """True when `node` means what `code` means; layout, quotes and comments do not matter."""
    kind, dump = _pattern(code)
    return type(node) is kind and ast.dump(node) == dump


def occurrences(node: ast.AST, code: str) -> int:
    """Count the places below `node` (itself included) that mean `code`."""
    return sum(same(n, code) for n in ast.walk(node))


def places(tree: ast.Module, code: str) -> list[str]:
    """Name the top-level functions and methods in which `code` occurs, for messages."""
    found = []
    for statement in statements(tree.body):
        if isinstance(statement, ast.ClassDef):
            found += [
                f"{statement.name}.{method.name}"
                for method in statement.body
                if isinstance(method, _FUNCTIONS) and occurrences(method, code)
            ]
        elif isinstance(statement, _FUNCTIONS) and occurrences(statement, code):
            found.append(statement.name)
    return found
