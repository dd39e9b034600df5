"""Audit a host, an unpacked image or one environment: search, examine, look around, sum up.

Reads disk and /proc; writes the stat cache only. No code of what is audited is run.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sm120patch.audit import examine, places
from sm120patch.audit.compare import Means
from sm120patch.audit.discovery import DIRECTORIES, Limits, Search, ticking
from sm120patch.audit.examine import Examined, Knowledge
from sm120patch.audit.findings import (
    EnvironmentReport,
    Finding,
    HostReport,
    Kind,
    PackageReport,
)
from sm120patch.audit.hashing import Hasher
from sm120patch.audit.mounts import mounts
from sm120patch.audit.places import Place
from sm120patch.audit.statcache import StatCache
from sm120patch.audit.surroundings import Surroundings
from sm120patch.audit.tree import Tree
from sm120patch.catalogue import Catalogue
from sm120patch.errors import HostError, Sm120PatchError, UsageError
from sm120patch.evidence import Evidence
from sm120patch.model import IMPORT_NAMES

if TYPE_CHECKING:
    from sm120patch.published import Shelf


class Scope(NamedTuple):
    """What is audited, and how."""

    root: Path | None = None
    """An unpacked image or a container's file system; None: this host."""
    env: str | None = None
    """One environment, as the inside of `root` spells it; None: all that a search finds."""
    python: str | None = None
    network: bool = False
    quick: bool = False
    directories: int = DIRECTORIES
    environ: Mapping[str, str] = os.environ

    @property
    def is_named(self) -> bool:
        """One environment is meant."""
        return bool(self.env or self.python)


def audit(
    scope: Scope, catalogue: Catalogue, progress: Callable[[str], None] = lambda _text: None
) -> HostReport:
    """Audit what `scope` names. Raises UsageError or HostError when there is no such thing."""
    tree = _tree(scope)
    search = _search(tree, scope, progress)
    found = [_named(tree, scope)] if scope.is_named else list(search.places())
    found = [p._replace(names=_names(p, search)) for p in found]
    known = {p.prefix for p in found}
    knowledge = Knowledge(catalogue, _here(tree), lambda: _shelf(scope))
    around = _surroundings(tree, scope, catalogue, search)
    reports: list[EnvironmentReport] = []
    seen = _Seen(tree)
    tick = ticking(progress, "auditing environments")
    with Hasher() as hasher:
        means = Means(tree, hasher, StatCache.of(scope.environ), scope.quick)
        for place in found:
            tick(len(reports), place.prefix)
            report = _examined(means, place, knowledge, seen, around)
            if place.kind != "checkout" or not seen.imported(place, known):
                reports.append(_not_empty(report) if scope.is_named else report)
    return HostReport(
        root=tree.root,
        environments=tuple(sorted(reports, key=lambda r: r.prefix)),
        skipped=tuple(search.skipped),
        findings=examine.ordered([*around.of_host(reports), *_unfinished(search)]),
        directories=search.directories,
    )


def _surroundings(tree: Tree, scope: Scope, catalogue: Catalogue, search: Search) -> Surroundings:
    return Surroundings(
        tree, catalogue, search.mounts, scope.environ, search.installer_caches,
        named=scope.is_named,
    )  # fmt: skip


def _unfinished(search: Search) -> Iterator[Finding]:
    for missed in search.unfinished:
        yield Finding(Kind.UNKNOWN, "-", missed.path, missed.reason)


def _examined(
    means: Means, place: Place, knowledge: Knowledge, seen: "_Seen", around: Surroundings
) -> EnvironmentReport:
    """Examine one environment; what is wrong with it must not end the audit of the others."""
    try:
        examined = examine.examine(means, place, knowledge)
        more = list(around.of_environment(place, examined)) if examined.report.packages else []
        return seen.named(examined._replace(report=examine.with_findings(examined, more)))
    except (OSError, ValueError, RecursionError, Sm120PatchError) as error:
        detail = f"could not be examined: {type(error).__name__}: {error}"
        unknown = Finding(Kind.UNKNOWN, "-", "-", detail)
        return EnvironmentReport(
            place.prefix, place.kind, place.python, place.names, findings=(unknown,)
        )


def _not_empty(report: EnvironmentReport) -> EnvironmentReport:
    """An environment that was named and has nothing to compare is hardly the one that was meant."""
    if report.packages or report.findings:
        return report
    detail = f"it has neither {' nor '.join(IMPORT_NAMES)}: nothing was compared"
    return report._replace(findings=(Finding(Kind.UNKNOWN, "-", "-", detail),))


def _tree(scope: Scope) -> Tree:
    if scope.root is None:
        return Tree()
    try:
        return Tree.at(scope.root)
    except OSError as error:
        raise HostError(
            f"--root {scope.root}: {error.strerror}",
            hint="name the directory that an image or a container's file system lies in",
            code="no-root",
        ) from error


def _search(tree: Tree, scope: Scope, progress: Callable[[str], None]) -> Search:
    limits = Limits(directories=scope.directories, network=scope.network)
    return Search(tree, limits, mounts(), ticking(progress, "searching directories"))


def _named(tree: Tree, scope: Scope) -> Place:
    if scope.env is not None and scope.python is not None:
        raise UsageError(
            f"--env {scope.env} and --python {scope.python} were both given",
            hint="leave one of the two out",
        )
    if scope.env is not None:
        asked = f"--env {scope.env}"
        prefix = scope.env if not tree.is_host else str(Path(scope.env).expanduser().absolute())
    else:
        asked = f"--python {scope.python}"
        prefix = _prefix_of(tree, scope.python or "")
    place = _at(tree, prefix) if prefix.startswith("/") else None
    if place is None:
        within = "" if tree.is_host else "; with --root, spell it as the inside of the root does"
        raise HostError(
            f"{asked}: no Python environment at {tree.outside('/' + prefix.lstrip('/'))}: neither"
            " pyvenv.cfg nor conda-meta nor lib/python3*/site-packages",
            hint=f"name the prefix of an environment: the directory that holds bin/python{within}",
            code="no-environment",
        )
    return place


def _at(tree: Tree, path: str) -> Place | None:
    """What a search would have found there: an environment, or a checkout that nobody installed."""
    return places.of_prefix(tree, path) or places.of_checkout(tree, tree.resolved(path))


def _prefix_of(tree: Tree, python: str) -> str:
    """Prefix that an interpreter belongs to: links are followed unless it is a virtual one."""
    path = python if not tree.is_host else str(Path(python).absolute())
    for spelling in (path, tree.resolved(path)):
        prefix = spelling.rpartition("/")[0].rpartition("/")[0] or "/"
        if tree.is_file(f"{prefix}/pyvenv.cfg"):
            return prefix
    return prefix


def _names(place: Place, search: Search) -> tuple[str, ...]:
    names = (*place.names, *search.links.get(place.prefix, ()))
    # The same path with `..` in it is no other name.
    return tuple(n for n in dict.fromkeys(names) if os.path.normpath(n) != place.prefix)


def _here(tree: Tree) -> Callable[[Evidence], bool]:
    """Evidence kept in an image was gathered where that image ran, whatever host this is."""
    judges: list[Callable[[Evidence], bool]] = []

    def here(evidence: Evidence) -> bool:
        if not judges:
            from sm120patch.operations import inspecting

            judges.append(inspecting.here())
        return tree.is_host and judges[0](evidence)

    return here


def _shelf(scope: Scope) -> "Shelf":
    from sm120patch.published import Shelf, cache_directory

    return Shelf(cache_directory(scope.environ), lambda _text: None, offline=True)


class _Seen:
    """Packages seen so far, so that copies of one another are named. Bounded: one entry each."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._roots: dict[str, str] = {}
        self._inodes: dict[tuple[int, int], str] = {}

    def named(self, examined: Examined) -> EnvironmentReport:
        """Return the report with every package named that was seen in another environment."""
        report = examined.report
        packages = tuple(
            p._replace(same_as=tuple(self._same(p, examined, report.prefix)))
            for p in report.packages
        )
        return report._replace(packages=packages)

    def _same(self, package: PackageReport, examined: Examined, prefix: str) -> Iterator[str]:
        where = f"{self._tree.resolved(package.root)}:{package.target}"
        first = self._roots.setdefault(where, prefix)
        if first != prefix:
            yield first
        probes = examined.comparisons[package.target].probes
        if probes:
            others = {self._inodes.setdefault(probe, prefix) for probe in probes}
            if len(others) == 1 and prefix not in others and first == prefix:
                yield others.pop()

    def imported(self, place: Place, known: set[str]) -> bool:
        """Tell whether an environment that was seen imports this checkout."""
        return any(
            owner in known and owner != place.prefix and where.startswith(f"{site}:")
            for site in place.sites
            for where, owner in self._roots.items()
        )
