"""Read version ranges of a manifest and keep those that must not overlap apart. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from sm120patch import versions
from sm120patch.tables import Table

_DISTRIBUTION = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"


def read_range(table: Table) -> str:
    """Return the checked range at `versions`."""
    text = table.text("versions")
    if text:
        check_range(table, "versions", text)
    return text


def check_range(table: Table, key: str, text: str) -> None:
    """Note what is wrong with the range `text` that stands at `key`."""
    try:
        versions.parse(text)
    except ValueError as error:
        table.fault(key, str(error))


def read_requires(table: Table) -> dict[str, str]:
    """Return the checked ranges at `requires`: companion distribution -> its versions."""
    requires = table.mapping("requires", str, pattern=_DISTRIBUTION)
    for distribution, text in requires.items():
        check_range(table, f"requires.{distribution}", text)
    return requires


def check_disjoint(tables: Sequence[Table], ranges: Sequence[str]) -> None:
    """Note every pair of ranges that share a version: then nobody could say which one counts."""
    parsed = []
    for table, text in zip(tables, ranges, strict=True):
        try:
            parsed.append((table, versions.parse(text)))
        except ValueError:
            continue  # noted where it was read
    for (_, first), (table, second) in itertools.combinations(parsed, 2):
        if first.overlaps(second):
            table.fault("versions", f"{second.text!r} overlaps {first.text!r}")
