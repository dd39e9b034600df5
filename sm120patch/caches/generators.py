"""Which JIT modules a FlashInfer generator file defines, read from its syntax tree. Pure.

Generators are functions that call `gen_jit_spec(NAME, sources, ...)`. Names are given as glob
patterns: an f-string leaves `*` where its value is computed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

ANY = "*"
"""Pattern of a generator whose module name cannot be read from the source."""


@lru_cache(maxsize=64)  # every scan of a transaction asks for the same files
def changed_modules(versions: tuple[bytes, ...]) -> tuple[str, ...]:
    """Patterns of the modules whose generator differs between the versions of a file.

    A change in a generator function concerns its own modules. A change anywhere else in the file,
    or fewer than two versions to compare, concerns every module that the file generates.
    """
    trees = [tree for tree in map(_parse, versions) if tree is not None]
    if not versions or len(trees) < len(versions):
        return (ANY,)
    every = [pattern for tree in trees for pattern in _patterns(tree)]
    if len(trees) == 1:
        return _unique(every)
    statements = [_statements(tree) for tree in trees]
    found: list[str] = []
    for name in {name for known in statements for name in known}:
        if len({known.get(name) for known in statements}) > 1:
            nodes = [node for tree in trees for node in tree.body if _name(node) == name]
            patterns = [pattern for node in nodes for pattern in _patterns(node)]
            # A helper that no generator hides: whoever calls it is not known.
            found += patterns or every
    return _unique(sorted(found))


def modules_from(source: bytes, file_names: Sequence[str]) -> tuple[str, ...]:
    """Patterns of the generators in `source` that mention one of the source files by name."""
    if b"gen_jit_spec" not in source:
        return ()
    tree = _parse(source)
    if tree is None:
        return (ANY,)
    wanted = set(file_names)
    found: list[str] = []
    for node in tree.body:
        texts = {leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant)}
        mentioned = {text.rpartition("/")[2] for text in texts if isinstance(text, str)}
        if mentioned & wanted:
            found += _patterns(node)
    return _unique(found)


def _parse(source: bytes) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _statements(tree: ast.Module) -> dict[str, str]:
    """Functions and classes by name, everything else together under the empty name."""
    found: dict[str, str] = {}
    for node in tree.body:
        found[_name(node)] = found.get(_name(node), "") + ast.dump(node)
    return found


def _name(node: ast.stmt) -> str:
    defines = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return node.name if isinstance(node, defines) else ""


def _patterns(node: ast.AST) -> Iterator[str]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and _called(call) == "gen_jit_spec":
            named = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
            arguments = call.args or named
            yield _pattern(arguments[0], node) if arguments else ANY


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _pattern(value: ast.expr, scope: ast.AST) -> str:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return _escape(value.value)
    if isinstance(value, ast.JoinedStr):
        parts = (
            _escape(str(part.value)) if isinstance(part, ast.Constant) else ANY
            for part in value.values
        )
        return re.sub(r"\*+", ANY, "".join(parts))
    if isinstance(value, ast.Name):
        assigned = [
            node.value
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign)
            and any(isinstance(to, ast.Name) and to.id == value.id for to in node.targets)
        ]
        if len(assigned) == 1 and isinstance(assigned[0], ast.Constant | ast.JoinedStr):
            return _pattern(assigned[0], scope)
    return ANY


def _escape(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


def _unique(patterns: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(patterns))
