"""Reusable edits of one parsed statement, written as upstream would have written them. Pure.

Each edit finds its places by meaning (layout and comments do not matter), changes them, and says
how many it found. libcst is imported when an edit runs, not when a payload names it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sm120patch._scopes import occurrences, same

if TYPE_CHECKING:
    import libcst as cst

    Item = TypeVar("Item", cst.ImportAlias, cst.Element)
    Change = Callable[[cst.CSTNode], cst.CSTNode | cst.FlattenSentinel[Any]]

Apply = Callable[["cst.Module"], tuple["cst.Module", int]]


@dataclass(frozen=True)
class Edit:
    """One kind of change to one statement."""

    what: str
    """What it looks for, as messages call it: "found WHAT 0 times"."""
    apply: Apply
    """Module that holds the statement -> edited module, and the number of places."""
    code: str | None = None
    """The code it looks for, so that a refusal can say where else that stands."""


def widen(condition: str, alternative: str) -> Edit:
    """Make `A or B` into `A or B or C`, laid out as the operands before it; `A` into `(A or C)`."""

    def change(node: cst.CSTNode) -> cst.CSTNode:
        import libcst as cst

        if not (isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.Or)):
            code = cst.Module(()).code_for_node(node)
            return cst.parse_expression(f"({code} or {alternative})")
        return cst.BooleanOperation(
            left=node.with_changes(lpar=(), rpar=()),
            operator=node.operator,
            right=cst.parse_expression(alternative),
            lpar=node.lpar,
            rpar=node.rpar,
        )

    return Edit(f"`{condition}`", lambda m: _expressions(m, condition, change), condition)


def replace(old: str, new: str) -> Edit:
    """Replace an expression by another; parentheses around the old one stay."""

    def change(node: cst.CSTNode) -> cst.CSTNode:
        import libcst as cst

        kept = {"lpar": getattr(node, "lpar", ()), "rpar": getattr(node, "rpar", ())}
        return cst.parse_expression(new).with_changes(**kept)

    return Edit(f"`{old}`", lambda m: _expressions(m, old, change), old)


def insert_after(statement: str, code: str) -> Edit:
    """Insert statements after another one, in the same block; both may be compound (`def`, `if`).

    Comments and blank lines at the head of `code` go along; its indentation and line ends become
    those of the file. A scope that already holds one of the new statements is half edited: no hit.
    """

    def apply(module: cst.Module) -> tuple[cst.Module, int]:
        import libcst as cst

        fresh, kind = _parsed(code), type(cst.parse_statement(statement))
        if any(occurrences(s, ast.unparse(new)) for s in _tree(module) for new in _tree(code)):
            return module, 0

        def matches(node: cst.CSTNode) -> bool:
            return _means(cst.Module(()).code_for_node(node), statement)

        def change(node: cst.CSTNode) -> cst.FlattenSentinel[cst.BaseStatement]:
            assert isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement)
            return cst.FlattenSentinel([node, *fresh])

        return _rewrite(module, kind, matches, change)

    return Edit(f"`{statement.strip()}` without what is to follow it", apply, statement)


def append(argument: str, listed: str, number: int) -> Edit:
    """Append a number to the list that is passed as keyword `argument` and reads `listed`."""

    def apply(module: cst.Module) -> tuple[cst.Module, int]:
        import libcst as cst

        def matches(node: cst.CSTNode) -> bool:
            return (
                isinstance(node, cst.Arg)
                and node.keyword is not None
                and node.keyword.value == argument
                and _means(cst.Module(()).code_for_node(node.value), listed)
            )

        def change(node: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(node, cst.Arg)
            assert isinstance(node.value, cst.List)
            new = cst.Element(cst.Integer(str(number)))
            elements = [e for e in node.value.elements if isinstance(e, cst.Element)]
            elements = _inserted(elements, len(elements), new, node.value.lbracket)
            return node.with_changes(value=node.value.with_changes(elements=elements))

        return _rewrite(module, cst.Arg, matches, change)

    return Edit(f"`{argument}={listed}`", apply, listed)


def add_item(item: str, after: str) -> Edit:
    """Add an element to the list display that holds `after`, right behind it."""

    def apply(module: cst.Module) -> tuple[cst.Module, int]:
        import libcst as cst

        def plain(node: cst.CSTNode) -> list[cst.Element]:
            found = list(node.elements) if isinstance(node, cst.List) else []
            elements = [e for e in found if isinstance(e, cst.Element)]
            return elements if len(elements) == len(found) else []

        def holds(node: cst.CSTNode, code: str) -> list[bool]:
            return [_value(e.value, code) for e in plain(node)]

        def matches(node: cst.CSTNode) -> bool:
            return sum(holds(node, after)) == 1 and not any(holds(node, item))

        def change(node: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(node, cst.List)
            position = holds(node, after).index(True) + 1
            new = cst.Element(cst.parse_expression(item))
            return node.with_changes(elements=_inserted(plain(node), position, new, node.lbracket))

        return _rewrite(module, cst.List, matches, change)

    return Edit(f"a list with `{after}` and without `{item}`", apply, after)


def set_item(key: str, old: str, new: str) -> Edit:
    """Change the value that a dictionary display has for `key` from `old` to `new`."""

    def apply(module: cst.Module) -> tuple[cst.Module, int]:
        import libcst as cst

        def matches(node: cst.CSTNode) -> bool:
            if not isinstance(node, cst.DictElement):
                return False
            return _value(node.key, key) and _value(node.value, old)

        def change(node: cst.CSTNode) -> cst.CSTNode:
            return node.with_changes(value=cst.parse_expression(new))

        return _rewrite(module, cst.DictElement, matches, change)

    return Edit(f"`{key}: {old}`", apply)


def add_name(name: str, after: str) -> Edit:
    """Add a name to a `from X import ...`: where it sorts if the names are sorted, else `after`.

    "Sorted" is isort's natural order (`sm90` before `sm100`), which upstream uses.
    """

    def apply(module: cst.Module) -> tuple[cst.Module, int]:
        import libcst as cst

        def matches(node: cst.CSTNode) -> bool:
            names = _imported(node)
            return after in names and name not in names

        def change(node: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(node, cst.ImportFrom)
            assert not isinstance(node.names, cst.ImportStar)
            position = _position(_imported(node), name, after)
            new = cst.ImportAlias(cst.Name(name))
            return node.with_changes(names=_inserted(node.names, position, new, node.lpar))

        return _rewrite(module, cst.ImportFrom, matches, change)

    return Edit(f"an import of {after} without {name}", apply)


def add_sibling(renamed: Mapping[str, str]) -> Edit:
    """Repeat a statement or function behind itself with other names and integers.

    Comments before and behind it are left out. A function gets the two blank lines of PEP 8.
    """

    def apply(module: cst.Module) -> tuple[cst.Module, int]:
        import libcst as cst

        blank = cst.EmptyLine(indent=False)

        def rename(node: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(node, cst.Name | cst.Integer)
            return node.with_changes(value=renamed[node.value])

        def change(node: cst.CSTNode) -> cst.FlattenSentinel[cst.BaseStatement]:
            assert isinstance(node, cst.SimpleStatementLine | cst.FunctionDef)
            function = isinstance(node, cst.FunctionDef)
            bare = node.with_changes(leading_lines=(blank, blank) if function else ())
            if not function:
                bare = bare.with_changes(trailing_whitespace=cst.TrailingWhitespace())
            copy, _ = _rewrite(
                cst.Module((bare,)),
                (cst.Name, cst.Integer),
                lambda n: getattr(n, "value", "") in renamed,
                rename,
            )
            return cst.FlattenSentinel([node, *copy.body])

        def matches(node: cst.CSTNode) -> bool:
            words = set(re.findall(r"\w+", cst.Module(()).code_for_node(node)))
            return words.issuperset(renamed)

        return _rewrite(module, (cst.SimpleStatementLine, cst.FunctionDef), matches, change)

    return Edit(f"a statement with {', '.join(renamed)}", apply)


# --- how places are found and rewritten -----------------------------------------------------------


def _rewrite(
    module: cst.Module,
    kind: type[cst.CSTNode] | tuple[type[cst.CSTNode], ...],
    matches: Callable[[cst.CSTNode], bool],
    change: Change,
) -> tuple[cst.Module, int]:
    """Change every node of `kind` that matches; plain visitor, no metadata, no matchers."""
    import libcst as cst

    blank = (cst.BaseParenthesizableWhitespace, cst.TrailingWhitespace, cst.EmptyLine)

    class Rewriter(cst.CSTTransformer):
        def __init__(self) -> None:
            super().__init__()
            self.hits = 0
            self.chained: set[int] = set()

        def on_visit(self, node: cst.CSTNode) -> bool:
            if isinstance(node, cst.BooleanOperation):
                self.chained.update(id(part) for part in _links(node))
            return not isinstance(node, blank)

        def on_leave(
            self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT
        ) -> Any:  # what fits depends on the place, libcst checks it
            if not isinstance(original_node, kind) or id(original_node) in self.chained:
                return updated_node
            if not matches(original_node):
                return updated_node
            self.hits += 1
            return change(updated_node)

    rewriter = Rewriter()
    return module.visit(rewriter), rewriter.hits


def _links(node: cst.BooleanOperation) -> list[cst.CSTNode]:
    """Operands that only continue a chain: `A or B` inside `A or B or C` is no condition."""
    import libcst as cst

    return [
        part
        for part in (node.left, node.right)
        if isinstance(part, cst.BooleanOperation)
        and not part.lpar
        and type(part.operator) is type(node.operator)
    ]


def _tree(code: str | cst.Module) -> list[ast.stmt]:
    return ast.parse(code if isinstance(code, str) else code.code).body


def _expressions(
    module: cst.Module, code: str, change: Callable[[cst.CSTNode], cst.CSTNode]
) -> tuple[cst.Module, int]:
    import libcst as cst

    return _rewrite(module, type(cst.parse_expression(code)), lambda n: _value(n, code), change)


def _value(node: cst.CSTNode, code: str) -> bool:
    """True when the expression `node` means `code`; it may go over several lines."""
    import libcst as cst

    return _means(f"({cst.Module(()).code_for_node(node)}\n)", code)


def _means(text: str, code: str) -> bool:
    """True when both texts are one statement or expression with the same tree."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return False
    node: ast.AST | None = body[0] if len(body) == 1 else None
    if isinstance(node, ast.Expr):
        node = node.value
    return node is not None and same(node, code)


def _parsed(code: str) -> Sequence[cst.BaseStatement]:
    """Parse new statements; libcst keeps what stands before the first one in a separate header."""
    import libcst as cst

    class Tidy(cst.CSTTransformer):
        def leave_EmptyLine(  # noqa: N802 - libcst finds it by this name
            self, original_node: cst.EmptyLine, updated_node: cst.EmptyLine
        ) -> cst.EmptyLine:
            return updated_node.with_changes(indent=updated_node.comment is not None)

    fresh = cst.parse_module(code)
    fresh = cst.ensure_type(fresh.visit(Tidy()), cst.Module)
    first, *rest = fresh.body
    lines = [*fresh.header, *getattr(first, "leading_lines", ())]
    return [first.with_changes(leading_lines=lines), *rest]


def _imported(node: cst.CSTNode) -> list[str]:
    import libcst as cst

    if not isinstance(node, cst.ImportFrom) or isinstance(node.names, cst.ImportStar):
        return []
    return [alias.evaluated_name for alias in node.names]


def _position(names: Sequence[str], name: str, after: str) -> int:
    keys = [_natural(n) for n in names]
    if keys == sorted(keys):
        return sum(key < _natural(name) for key in keys)
    return names.index(after) + 1


def _natural(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Sort key of isort: constants, classes, the rest; digits compare as numbers."""
    group = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    parts = re.findall(r"\d+|\D+", name)
    return group, [(int(p), "") if p.isdigit() else (-1, p.lower()) for p in parts]


def _inserted(
    items: Sequence[Item],
    position: int,
    new: Item,
    opening: cst.LeftParen | cst.LeftSquareBracket | None,
) -> list[Item]:
    """Insert into a comma-separated list; new commas look like those between the others.

    A trailing comma stays a trailing comma, and a comment after it stays with its item.
    """
    import libcst as cst

    result: list[Item] = list(items)
    separator = _separator(items, position, opening)
    if position < len(items):
        result.insert(position, new.with_changes(comma=separator))
        return result
    trailing = items[-1].comma
    if isinstance(trailing, cst.Comma):
        new = new.with_changes(comma=_bare(trailing))
        separator = _with_comment(separator, trailing)
    result[-1] = items[-1].with_changes(comma=separator)
    result.append(new)
    return result


def _separator(
    items: Sequence[Item],
    position: int,
    opening: cst.LeftParen | cst.LeftSquareBracket | None,
) -> cst.Comma:
    """Return a comma with the white space that stands between items near `position`."""
    import libcst as cst

    neighbour = items[max(min(position, len(items) - 1) - 1, 0)].comma
    if len(items) > 1 and isinstance(neighbour, cst.Comma):
        return _bare(neighbour)
    space = opening.whitespace_after if opening else cst.SimpleWhitespace("")
    if isinstance(space, cst.SimpleWhitespace):
        space = cst.SimpleWhitespace(" ")
    return _bare(cst.Comma(whitespace_after=space))


def _bare(comma: cst.Comma) -> cst.Comma:
    """Return the comma without the comment and the blank lines that follow it."""
    import libcst as cst

    space = comma.whitespace_after
    if isinstance(space, cst.ParenthesizedWhitespace):
        line = cst.TrailingWhitespace(newline=space.first_line.newline)
        space = space.with_changes(first_line=line, empty_lines=())
    return comma.with_changes(whitespace_after=space)


def _with_comment(comma: cst.Comma, other: cst.Comma) -> cst.Comma:
    """Return `comma` followed by the comment that follows `other`."""
    import libcst as cst

    space, commented = comma.whitespace_after, other.whitespace_after
    if isinstance(space, cst.ParenthesizedWhitespace) and isinstance(
        commented, cst.ParenthesizedWhitespace
    ):
        space = space.with_changes(first_line=commented.first_line)
    return comma.with_changes(whitespace_after=space)
