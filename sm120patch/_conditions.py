"""What must hold of a file once a codemod has run, judged by `ast` alone. Pure.

A condition takes the tree of the file and returns what is missing, in words. They are about
meaning, not about the text our own edit writes: upstream's own lift of a gate satisfies them too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from sm120patch._scopes import Assignment, FromImport, Scope, blocks, occurrences, same

Condition = Callable[[ast.Module], list[str]]
"""Tree of the whole file -> unmet conditions; empty when all hold."""


def imports(module: str, name: str) -> Condition:
    """The module's top level imports `name` from `module`, under that name."""

    def check(tree: ast.Module) -> list[str]:
        found = FromImport(module, having=name).find(tree)
        return [] if found else [f"{name} is not imported from {module}"]

    return check


def imports_beside(name: str, sibling: str) -> Condition:
    """The module's top level imports `name` from where it imports `sibling`, without renaming."""

    def check(tree: ast.Module) -> list[str]:
        found = FromImport(None, having=sibling).find(tree)
        both = [s for s in found if s in FromImport(None, having=name).find(tree)]
        return [] if both else [f"{name} is not imported from where {sibling} is"]

    return check


def assigns(name: str, value: str) -> Condition:
    """The module's top level binds `name` once, to `value`."""

    def check(tree: ast.Module) -> list[str]:
        found = Assignment(name).find(tree)
        values = [getattr(s, "value", None) for s in found]
        if len(values) == 1 and values[0] is not None and same(values[0], value):
            return []
        return [f"{name} is assigned {len(found)} times, expected once as `{value}`"]

    return check


def accepts(scope: Scope, *alternatives: str) -> Condition:
    """Some `or` within `scope` has all `alternatives` among its operands, in any order."""

    def met(place: ast.stmt) -> bool:
        return any(
            isinstance(node, ast.BoolOp)
            and isinstance(node.op, ast.Or)
            and all(any(same(v, wanted) for v in node.values) for wanted in alternatives)
            for node in ast.walk(place)
        )

    return _within(scope, met, f"no condition `{' or '.join(alternatives)}`")


def lacks(scope: Scope, code: str) -> Condition:
    """`code` occurs nowhere within `scope`."""
    return _within(scope, lambda place: not occurrences(place, code), f"still has `{code}`")


def has(scope: Scope, code: str, count: int = 1) -> Condition:
    """`code` occurs exactly `count` times within `scope`."""

    def met(place: ast.stmt) -> bool:
        return occurrences(place, code) == count

    return _within(scope, met, f"does not have `{code}` exactly {count} times")


def lists(scope: Scope, argument: str, number: int) -> Condition:
    """Every list passed as keyword `argument` within `scope` (one at least) holds `number`."""

    def met(place: ast.stmt) -> bool:
        keywords = [k for n in ast.walk(place) if isinstance(n, ast.Call) for k in n.keywords]
        values = [k.value for k in keywords if k.arg == argument]
        return bool(values) and all(
            isinstance(v, ast.List) and any(same(e, str(number)) for e in v.elts) for v in values
        )

    return _within(scope, met, f"{argument} does not list {number}")


def guarded(scope: Scope, word: str, by: Iterable[str]) -> Condition:
    """Nothing within `scope` that mentions `word` runs unless one of the names `by` is true.

    `word` is looked for in names, attributes and string literals. A guard is an `if` around the
    statement, or an earlier `if not ...:` in the same block that leaves it.
    """
    names = frozenset(by)

    def met(place: ast.stmt) -> bool:
        return not any(_unguarded(block, word, names) for block in blocks(place))

    return _within(scope, met, f"`{word}` is reached without {' or '.join(sorted(names))}")


def either(*conditions: Condition) -> Condition:
    """One of the conditions holds."""

    def check(tree: ast.Module) -> list[str]:
        unmet = [condition(tree) for condition in conditions]
        return [] if not all(unmet) else [" or ".join("; ".join(u) for u in unmet)]

    return check


def _within(scope: Scope, met: Callable[[ast.stmt], bool], unmet: str) -> Condition:
    def check(tree: ast.Module) -> list[str]:
        found = scope.find(tree)
        if len(found) != 1:
            return [f"{scope}: found {len(found)}, expected 1"]
        return [] if met(found[0]) else [f"{scope}: {unmet}"]

    return check


def _unguarded(block: list[ast.stmt], word: str, by: frozenset[str]) -> bool:
    for statement in block:
        if isinstance(statement, ast.If):
            if _mentions(statement.test, word):
                return True
            if not _proves(statement.test, True, by) and _unguarded(statement.body, word, by):
                return True
            else_is_safe = _proves(statement.test, False, by)
            if not else_is_safe and _unguarded(statement.orelse, word, by):
                return True
            if else_is_safe and isinstance(statement.body[-1], _LEAVES):
                return False
        elif inner := list(blocks(statement)):
            heads = _heads(statement)
            if any(_mentions(head, word) for head in heads):
                return True
            if any(_unguarded(b, word, by) for b in inner):
                return True
        elif _mentions(statement, word):
            return True
    return False


_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def _heads(statement: ast.stmt) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child


def _mentions(node: ast.AST, word: str) -> bool:
    return any(
        (isinstance(n, ast.Name) and n.id == word)
        or (isinstance(n, ast.Attribute) and n.attr == word)
        or (isinstance(n, ast.Constant) and isinstance(n.value, str) and word in n.value)
        for n in ast.walk(node)
    )


def _proves(test: ast.expr, outcome: bool, by: frozenset[str]) -> bool:
    """True when `test` having `outcome` implies that a name of `by` is true."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _proves(test.operand, not outcome, by)
    if isinstance(test, ast.BoolOp):
        every = isinstance(test.op, ast.And) is not outcome
        return (all if every else any)(_proves(v, outcome, by) for v in test.values)
    return outcome and (
        (isinstance(test, ast.Name) and test.id in by)
        or (isinstance(test, ast.Attribute) and test.attr in by)
    )
