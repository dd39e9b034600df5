"""docs/field-cases.md: every numbered case has its tests, and every test its case."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CASES = {
    *range(1, 12), *range(13, 17), 18, 21, 23, 24, 27, 28, 29, 30, *range(32, 36), *range(37, 41),
    *range(42, 50), *range(51, 55), *range(56, 59), *range(60, 64),
}  # fmt: skip
"""Numbers of the collected cases; the others were never given, or merged into their neighbours."""


def documented() -> dict[int, set[str]]:
    text = (ROOT / "docs/field-cases.md").read_text()
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE)
    numbers = [int(number) for number, _tests in rows]
    assert numbers == sorted(set(numbers)), "once each, in order"
    return {int(number): set(re.findall(r"`(\w+)`", tests)) for number, tests in rows}


def existing() -> set[str]:
    return {
        node.name
        for path in Path(__file__).parent.glob("test_*.py")
        if path != Path(__file__)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_case_is_in_the_table() -> None:
    assert set(documented()) == CASES


def test_the_table_names_the_tests_that_exist_and_no_other() -> None:
    listed = documented()
    names = [name for tests in listed.values() for name in tests]
    assert len(names) == len(set(names)) and set(names) == existing()
    for number, tests in listed.items():
        assert tests and all(name.startswith(f"test_case_{number:02}_") for name in tests)
