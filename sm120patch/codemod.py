"""Run one codemod payload over one Python file; a misfit is a value, not an error. Pure.

A payload is a Python file whose `CODEMOD` says where to edit, what to edit and what must hold
afterwards:

    from sm120patch.codemod import Codemod, Function, Site, accepts, widen

    GATE = Function("apply_flashinfer_allreduce_fusion")
    CODEMOD = Codemod(
        sites=(Site(GATE, widen("_is_sm90 or _is_sm100", "_is_sm120")),),
        after=(accepts(GATE, "_is_sm90", "_is_sm100", "_is_sm120"),),
    )

Where the edits below do not reach, a payload builds its own `Edit`, and imports libcst inside it.
Payloads are code: the caller pins them by digest before they get here.
"""

from __future__ import annotations

import ast
import itertools
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from sm120patch._conditions import (
    Condition,
    accepts,
    assigns,
    either,
    guarded,
    has,
    imports,
    imports_beside,
    lacks,
    lists,
)
from sm120patch._edits import (
    Edit,
    add_item,
    add_name,
    add_sibling,
    append,
    insert_after,
    replace,
    set_item,
    widen,
)
from sm120patch._scopes import (
    Assignment,
    Branch,
    Class,
    FromImport,
    Function,
    Scope,
    Unwritten,
    places,
)
from sm120patch._slices import Source, Span, cut, read, span_of, splice
from sm120patch.errors import CatalogueError
from sm120patch.model import (
    Changed,
    EditResult,
    Refused,
    Unchanged,
)

__all__ = [
    "Assignment",
    "Branch",
    "Class",
    "Codemod",
    "Condition",
    "Edit",
    "FromImport",
    "Function",
    "Scope",
    "Site",
    "Unwritten",
    "accepts",
    "add_item",
    "add_name",
    "add_sibling",
    "append",
    "assigns",
    "either",
    "guarded",
    "has",
    "imports",
    "imports_beside",
    "insert_after",
    "lacks",
    "lists",
    "replace",
    "run",
    "satisfied",
    "set_item",
    "unwritten",
    "widen",
]

_STEP_BUDGET = 1_000_000
"""Instructions of payload code one call may execute: a thousand times what any payload needs."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Site:
    """One edit in one scope, with the exact number of places it must find there."""

    scope: Scope
    edit: Edit
    count: int = 1


@dataclass(frozen=True)
class Codemod:
    """What a payload declares: all sites fit and all conditions hold afterwards, or nothing."""

    sites: tuple[Site, ...]
    after: tuple[Condition, ...]
    """Post-conditions. A file that satisfies all of them is left alone: upstream has the change."""


def run(source: bytes, name: str, data: bytes) -> EditResult:
    """Apply the payload `source` to the file `data`; `name` is the payload's name for messages.

    Bytes outside the edited statements come back identical. Raises CatalogueError when the payload
    itself is broken, never because of `data`.
    """
    codemod = _load(source, name)
    try:
        with _no_warnings():
            return _apply(codemod, name, data)
    except RecursionError:
        return Refused("its code is nested too deeply to be looked through")


def unwritten(source: bytes, name: str) -> bool:
    """Tell whether a payload is a skeleton whose author has still to name a place."""
    return any(isinstance(site.scope, Unwritten) for site in _load(source, name).sites)


def satisfied(source: bytes, name: str, data: bytes) -> bool:
    """Tell whether the file already satisfies the payload's post-conditions; imports no libcst."""
    codemod = _load(source, name)
    try:
        with _no_warnings():
            file = read(data)
            return isinstance(file, Source) and not _unmet(codemod, name, file.tree)
    except RecursionError:
        return False


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Parsing warns of invalid escapes in the file; those are not ours to judge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# --- payloads -------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _load(source: bytes, name: str) -> Codemod:
    """Execute a payload once for each content and return its `CODEMOD`."""
    module = types.ModuleType("sm120patch_payload")
    module.__file__ = name
    try:
        code = compile(source, _file_name(name), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _broken(name, f"is no Python: {error}") from error
    _bounded(name, lambda: exec(code, module.__dict__))
    codemod = getattr(module, "CODEMOD", None)
    if not isinstance(codemod, Codemod):
        found = "nothing" if codemod is None else type(codemod).__name__
        raise _broken(name, f"must assign a Codemod to CODEMOD, found {found}")
    if not (codemod.sites and codemod.after):
        raise _broken(name, "must have a site and a post-condition at least")
    return codemod


def _broken(name: str, what: str) -> CatalogueError:
    message = f"payload {name} {what}"
    hint = "reinstall sm120patch, or correct the payload and its sha256 in the manifest"
    return CatalogueError(message, hint=hint, details={"faults": [message]})


class _TooLong(BaseException):
    """Raised inside payload code; not an Exception, so that a payload does not swallow it."""


def _call(name: str, function: Callable[..., Result], *args: object) -> Result:
    """Call a condition or an edit; those that the payload defines itself are not trusted to end."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_filename == _file_name(name):
        return _bounded(name, lambda: function(*args))
    return function(*args)


def _bounded(name: str, call: Callable[[], Result]) -> Result:
    """Run code of a payload: whatever it raises, and a loop without end, is the catalogue's fault.

    Counts instructions in the payload's own frames (a loop on one line has no line events), so the
    answer does not depend on the machine.
    """
    left, previous = _STEP_BUDGET, sys.gettrace()

    def trace(frame: types.FrameType, _: str, __: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != _file_name(name):
            return None
        frame.f_trace_opcodes = True
        left -= 1
        if left < 0:
            raise _TooLong
        return trace

    sys.settrace(trace)
    try:
        return call()
    except _TooLong:
        raise _broken(name, "does not come to an end") from None
    except (Exception, SystemExit) as error:
        raise _broken(name, f"failed: {type(error).__name__}: {error}") from error
    finally:
        sys.settrace(previous)


def _file_name(name: str) -> str:
    return f"<payload {name}>"


# --- one file -------------------------------------------------------------------------------------


def _apply(codemod: Codemod, name: str, data: bytes) -> EditResult:
    file = read(data)
    if isinstance(file, Refused):
        return file
    if not _unmet(codemod, name, file.tree):
        return Unchanged(f"already satisfies every post-condition of {name}")
    groups = _locate(codemod, file)
    if isinstance(groups, Refused):
        return groups
    edits = []
    for statement, sites in groups:
        block = _edit(name, file, statement, sites)
        if isinstance(block, Refused):
            return block
        edits.append((span_of(statement), block))
    return _checked(codemod, name, splice(file, edits))


def _unmet(codemod: Codemod, name: str, tree: ast.Module) -> list[str]:
    return [unmet for check in codemod.after for unmet in _call(name, check, tree)]


def _locate(codemod: Codemod, file: Source) -> list[tuple[ast.stmt, list[Site]]] | Refused:
    """Find the statement of every site; sites of one statement are edited together."""
    groups: dict[Span, tuple[ast.stmt, list[Site]]] = {}
    for site in codemod.sites:
        if isinstance(site.scope, Unwritten):
            return Refused(str(site.scope))
        found = site.scope.find(file.tree)
        if len(found) != 1:
            lines = ", ".join(str(s.lineno) for s in found)
            at = f" (lines {lines})" if lines else ""
            return Refused(f"{site.scope}: found {len(found)}{at}, expected 1")
        groups.setdefault(span_of(found[0]), (found[0], []))[1].append(site)
    spans = sorted(groups, key=lambda s: s.first)
    for one, two in itertools.pairwise(spans):
        if one.overlaps(two):
            return Refused(f"{one} and {two} overlap, but are edited apart")
    return list(groups.values())


def _edit(name: str, file: Source, statement: ast.stmt, sites: Sequence[Site]) -> bytes | Refused:
    piece = cut(file, statement)
    if isinstance(piece, Refused):
        return piece
    module = piece.module
    for site in sites:
        module, hits = _call(name, site.edit.apply, module)
        if hits != site.count:
            return Refused(_miss(site, hits, file))
    return piece.restore(module)


def _miss(site: Site, hits: int, file: Source) -> str:
    reason = f"{site.scope}: found {site.edit.what} {hits} times, expected {site.count}"
    elsewhere = places(file.tree, site.edit.code) if site.edit.code and not hits else []
    return f"{reason}; it stands in {', '.join(elsewhere)} instead" if elsewhere else reason


def _checked(codemod: Codemod, name: str, data: bytes) -> EditResult:
    """Let out only what parses and satisfies every post-condition."""
    file = read(data)
    if isinstance(file, Refused):
        return Refused(f"the edited file would not parse: {file.reason}")
    if unmet := _unmet(codemod, name, file.tree):
        return Refused(f"the edited file would not satisfy: {'; '.join(unmet)}")
    return Changed(data, sum(site.count for site in codemod.sites))
