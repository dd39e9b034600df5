"""Audit a host, an unpacked image or one environment: search, examine, look around, sum up.

Reads disk and /proc; writes the stat cache only. No code of what is audited is run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sm120patch.audit import (
    byhand,
    carriers,
    examine,
    live,
    places,
    sharing,
    staleness,
)
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
from sm120patch.audit.tree import Tree
from sm120patch.catalogue import Catalogue
from sm120patch.errors import HostError, Sm120PatchError, UsageError
from sm120patch.evidence import Evidence
from sm120patch.values import dataclass, field, replace

if TYPE_CHECKING:
    from sm120patch.published import Shelf


@dataclass(frozen=True)
class Scope:
    """What is audited, and how."""

    root: Path | None = None
    """An unpacked image or a container's file system; None: this host."""
    env: str | None = None
    """One environment, as the inside of `root` spells it; None: all that a search finds."""
    python: str | None = None
    network: bool = False
    quick: bool = False
    directories: int = DIRECTORIES
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

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
    found = [replace(p, names=_names(p, search)) for p in found]
    known = {p.prefix for p in found}
    knowledge = Knowledge(catalogue, _here(tree), lambda: _shelf(scope))
    around = _Around(tree, scope, catalogue, search)
    reports: list[EnvironmentReport] = []
    seen = _Seen(tree)
    tick = ticking(progress, "auditing environments")
    with Hasher() as hasher:
        means = Means(tree, hasher, StatCache.of(scope.environ), scope.quick)
        for place in found:
            tick(len(reports), place.prefix)
            report = _examined(means, place, knowledge, seen, around)
            if place.kind != "checkout" or not seen.imported(place, known):
                reports.append(report)
    return HostReport(
        root=tree.root,
        environments=tuple(sorted(reports, key=lambda r: r.prefix)),
        skipped=tuple(search.skipped),
        findings=examine.ordered([*around.of_host(reports), *_unfinished(search)]),
        directories=search.directories,
    )


def _unfinished(search: Search) -> Iterator[Finding]:
    for missed in search.unfinished:
        yield Finding(Kind.UNKNOWN, "-", missed.path, missed.reason)


def _examined(
    means: Means, place: Place, knowledge: Knowledge, seen: _Seen, around: _Around
) -> EnvironmentReport:
    """Examine one environment; what is wrong with it must not end the audit of the others."""
    try:
        examined = examine.examine(means, place, knowledge)
        more = list(around.of_environment(place, examined)) if examined.report.packages else []
        return seen.named(replace(examined, report=examine.with_findings(examined, more)))
    except (OSError, ValueError, RecursionError, Sm120PatchError) as error:
        detail = f"could not be examined: {type(error).__name__}: {error}"
        unknown = Finding(Kind.UNKNOWN, "-", "-", detail)
        return EnvironmentReport(
            place.prefix, place.kind, place.python, place.names, findings=(unknown,)
        )


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
    place = places.of_prefix(tree, prefix) if prefix.startswith("/") else None
    if place is None:
        raise HostError(
            f"{asked}: no Python environment at {tree.outside(prefix)}: neither pyvenv.cfg nor"
            " conda-meta nor lib/python3*/site-packages",
            hint="name the prefix of an environment: the directory that holds bin/python",
            code="no-environment",
        )
    return place


def _prefix_of(tree: Tree, python: str) -> str:
    """Prefix that an interpreter belongs to: links are followed unless it is a virtual one."""
    path = python if not tree.is_host else str(Path(python).absolute())
    for spelling in (path, _real(tree, path)):
        prefix = spelling.rpartition("/")[0].rpartition("/")[0] or "/"
        if tree.is_file(f"{prefix}/pyvenv.cfg"):
            return prefix
    return prefix


def _real(tree: Tree, path: str) -> str:
    try:
        return tree.real(path)
    except OSError:
        return path


def _names(place: Place, search: Search) -> tuple[str, ...]:
    names = (*place.names, *search.links.get(place.prefix, ()))
    return tuple(name for name in dict.fromkeys(names) if name != place.prefix)


def _here(tree: Tree) -> Callable[[Evidence], bool]:
    """Evidence kept in an image was gathered where that image ran, whatever host this is."""
    judges: list[Callable[[Evidence], bool]] = []

    def here(evidence: Evidence) -> bool:
        if not judges:
            from sm120patch.operations import inspecting

            judges.append(inspecting.here())
        return tree.is_host and judges[0](evidence)

    return here


def _shelf(scope: Scope) -> Shelf:
    from sm120patch.published import Shelf, cache_directory

    return Shelf(cache_directory(scope.environ), lambda _text: None, offline=True)


class _Around:
    """What is looked at beside the files: start-up code, caches, builds, servers, mounts."""

    def __init__(self, tree: Tree, scope: Scope, catalogue: Catalogue, search: Search) -> None:
        self._tree = tree
        self._scope = scope
        self._catalogue = catalogue
        self._mounts = search.mounts
        caches = [*search.installer_caches, *sharing.default_caches(tree, scope.environ)]
        self._copies = list(dict.fromkeys(sharing.cached_copies(tree, _real_paths(tree, caches))))
        self._live: live.Live | None = None
        self._paths: dict[tuple[tuple[str, str], ...], dict[str, set[str]]] = {}

    def of_environment(self, place: Place, examined: Examined) -> Iterator[Finding]:
        """What else there is to find of one environment."""
        tree, report, layout = self._tree, examined.report, examined.layout
        yield from carriers.in_environment(tree, place, layout)
        asked = self._asked(report.versions)
        conda = list(sharing.conda_copies(tree, report))
        self._copies += [c for c in conda if c not in self._copies]
        for copy in layout.copies:
            yield from carriers.in_mounts(tree, copy, self._mounts)
        for package in report.packages:
            paths = asked.get(package.target, set())
            yield from staleness.bytecode_findings(tree, package, paths)
            yield from sharing.in_package(tree, package, self._copies)
            if tree.is_host:
                yield from staleness.build_findings(package, layout.path, self._homes())
        if tree.is_host:
            yield from live.in_environment(self._look(), report, examined.changed_at)

    def of_host(self, reports: list[EnvironmentReport]) -> Iterator[Finding]:
        """What belongs to no single environment."""
        edited: dict[tuple[str, str], set[str]] = {}
        for report in reports:
            for package in report.packages:
                key = (package.target, package.version)
                edited.setdefault(key, set()).update(f.path for f in package.files)
        for copy in self._copies:
            # For one environment only what its own reinstall would bring counts.
            if self._scope.is_named and (copy.target, copy.version) not in edited:
                continue
            asked = self._asked({copy.target: copy.version})
            wanted = asked.get(copy.target, set()) | edited.get((copy.target, copy.version), set())
            yield from sharing.in_cache(self._tree, copy, wanted)
        where = "/etc/environment"
        yield from carriers.in_variables(self._tree, carriers.settings(self._tree), where)
        if self._tree.is_host:
            here = "the environment of this command"
            yield from carriers.in_variables(self._tree, self._scope.environ, here)
            if self._live is not None:
                yield from live.gone_libraries(self._live, self._watched(reports))

    def _watched(self, reports: list[EnvironmentReport]) -> list[str]:
        """Where a library that is gone matters: anywhere, or in what belongs to one environment."""
        if not self._scope.is_named:
            return ["/"]
        roots = [_real(self._tree, p.root) for e in reports for p in e.packages]
        home = self._scope.environ.get("HOME")
        return [*roots, *([f"{_real(self._tree, home)}/.cache"] if home else [])]

    def _asked(self, versions: Mapping[str, str]) -> dict[str, set[str]]:
        key = tuple(sorted(versions.items()))
        if key not in self._paths:
            self._paths[key] = byhand.paths_of(self._catalogue, versions)
        return self._paths[key]

    def _homes(self) -> list[str]:
        environ = self._scope.environ
        named = [environ.get("HOME"), environ.get("FLASHINFER_WORKSPACE_BASE")]
        served = [s.environ.get("HOME") for s in self._look().servers]
        homes = ["/root", *(f"/home/{name}" for name in self._tree.names("/home"))]
        return list(dict.fromkeys(home for home in (*named, *served, *homes) if home))

    def _look(self) -> live.Live:
        """Look at the processes once, when the first environment with a target is met."""
        if self._live is None:
            self._live = live.look()
        return self._live


def _real_paths(tree: Tree, paths: list[str]) -> list[str]:
    return list(dict.fromkeys(_real(tree, path) for path in paths if tree.is_dir(path)))


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
            replace(p, same_as=tuple(self._same(p, examined, report.prefix)))
            for p in report.packages
        )
        return replace(report, packages=packages)

    def _same(self, package: PackageReport, examined: Examined, prefix: str) -> Iterator[str]:
        real = f"{_real(self._tree, package.root)}:{package.target}"
        first = self._roots.setdefault(real, prefix)
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
            owner in known and owner != place.prefix and real.startswith(f"{site}:")
            for site in place.sites
            for real, owner in self._roots.items()
        )
