"""`lint`: read catalogues and releases, and hand them to the judge.

Writes below the wheel cache only.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120patch import catalogue as catalogues
from sm120patch import linting, published
from sm120patch.catalogue import Collected, Places
from sm120patch.linting import Remark, Report
from sm120patch.model import PatchSet
from sm120patch.operations.releases import LEADING
from sm120patch.packages import Package
from sm120patch.published import Shelf


@dataclass(frozen=True)
class Linted:
    """What was looked at, and what was found."""

    names: tuple[str, ...]
    releases: tuple[str, ...]
    report: Report


@dataclass(frozen=True)
class _Release:
    """A published package as the judge asks it."""

    package: Package

    @property
    def target(self) -> str:
        return self.package.name

    @property
    def version(self) -> str:
        return self.package.version

    def read(self, name: str) -> bytes | None:
        return self.package.read([name]).get(name)


def lint(
    places: Places,
    names: Sequence[str],
    against: Sequence[str],
    shelf: Shelf,
    today: datetime.date,
) -> Linted:
    """Lint the named sets, or all of them, against the named releases (see `Shelf.resolve`).

    Raises UsageError for a name that no manifest has, and what `Shelf.resolve` raises.
    """
    found = catalogues.collect(places)
    for name in names:
        if name not in found.files:
            catalogues.Catalogue(found.sets).get(name)
    chosen = tuple(names) or tuple(sorted(found.files))
    releases = [_Release(shelf.resolve(text, LEADING)) for text in against]
    report = linting.lint(found, chosen, releases, today, published.known(places.base))
    unused = tuple(_unused(found, chosen))
    return Linted(
        chosen,
        tuple(f"{r.target} {r.version}" for r in releases),
        Report(report.faults, (*report.warnings, *unused)),
    )


def _unused(found: Collected, names: Sequence[str]) -> Iterator[Remark]:
    """Files below `patches/SET/` that the set does not name: forgotten, or misspelt."""
    for name in names:
        patch_set, file = found.sets.get(name), found.files[name]
        if patch_set is not None:
            for path in _strays(patch_set, file.parent.parent / "patches"):
                yield Remark(name, f"{path} is named by no change")


def _strays(patch_set: PatchSet, patches: Path) -> list[str]:
    named = {variant.payload for change in patch_set.changes for variant in change.variants}
    files = (p for p in (patches / patch_set.id).rglob("*") if p.is_file())
    paths = (p.relative_to(patches).as_posix() for p in files if "__pycache__" not in p.parts)
    return sorted(set(paths) - named)
