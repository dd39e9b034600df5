"""docs/reviewed-gates.md names every `sm90 or sm100` condition of every release, and no other."""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sm120patch import catalogue
from tests.support.wheels import PINS, wheel

pytestmark = pytest.mark.network

DOCUMENT = Path(__file__).parents[2] / "docs" / "reviewed-gates.md"
SRT = "sglang/srt/"
RELEASES = tuple(PINS)
FAST = ("0.5.9", "0.5.23")
ROW = re.compile(r"\| ([^|]+) \| `([^|]+)` \| `([^|]+)` \| `([^|]+)` \| ([^|]+) \| [^|]{20,} \|")

Place = tuple[str, str, str]
"""File below `sglang/srt`, function, condition as `ast` writes it."""


def rows() -> list[tuple[frozenset[str], Place, str]]:
    """Releases, place and decision of every row of the tables."""
    found = []
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if row := ROW.fullmatch(line):
            releases, file, function, condition, decision = row.groups()
            found.append((between(releases), (file, function, condition), decision))
    return found


def between(text: str) -> frozenset[str]:
    """Releases of `A to B, C`."""
    named: set[str] = set()
    for part in text.split(", "):
        first, _, last = part.partition(" to ")
        named |= set(RELEASES[RELEASES.index(first) : RELEASES.index(last or first) + 1])
    return frozenset(named)


SM90 = re.compile(r"sm_?90|hopper", re.I)
SM100 = re.compile(r"sm_?100|sm_?10x", re.I)
SM120 = re.compile(r"sm_?12|blackwell", re.I)


def conditions(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield function and condition: an `or` of SM90 and SM100, or one of both by number."""
    if not re.search(rb"sm_?90|hopper|capability", data, re.I):
        return
    for function, node in walk(ast.parse(data), ""):
        text = ast.unparse(node) if isinstance(node, ast.BoolOp | ast.Compare) else ""
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            parts = [ast.unparse(value) for value in node.values]
            if asks_both(parts) and not SM120.search(text):
                yield function, text
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            choices = ast.walk(node.comparators[0])
            numbers = {n.value for n in choices if isinstance(n, ast.Constant)}
            if {9, 10} <= numbers <= {9, 10} or {90, 100} <= numbers <= {90, 100}:
                yield function, text


def asks_both(parts: list[str]) -> bool:
    return any(
        SM90.search(one) and SM100.search(other)
        for one in parts
        for other in parts
        if one is not other
    )


def walk(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}".lstrip(".")
        yield inner, child
        yield from walk(child, inner)


def asked_in(version: str) -> set[Place]:
    with zipfile.ZipFile(wheel("sglang", version)) as archive:
        names = [n for n in archive.namelist() if n.startswith(SRT) and n.endswith(".py")]
        return {
            (name.removeprefix(SRT), function, condition)
            for name in names
            for function, condition in conditions(archive.read(name))
        }


def every() -> list[Any]:
    return [pytest.param(v, marks=() if v in FAST else pytest.mark.slow) for v in RELEASES]


@pytest.mark.parametrize("version", every())
def test_every_condition_of_a_release_was_reviewed(version: str) -> None:
    assert asked_in(version) == {place for releases, place, _ in rows() if version in releases}


def test_what_is_said_to_be_widened_is_a_change_of_the_set() -> None:
    known = catalogue.load().get("sm120-checks")
    decisions = {decision for _, _, decision in rows()}
    widened = {d.removeprefix("widened: `").rstrip("`") for d in decisions if d != "left"}
    assert widened == {"runtime-gate", "resolver", "auto-enable"}
    for releases, (file, _, _), decision in rows():
        if decision == "left":
            continue
        change = known.change(decision.removeprefix("widened: `").rstrip("`"))
        assert change is not None
        for version in releases:
            variant, _ = catalogue.choose(change, {"sglang": version})
            path = getattr(variant, "path", None)
            assert path in (SRT + file, None), "the change is for that file"
