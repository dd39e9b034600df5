"""What an audit looks at beside the files: start-up code, caches, builds, servers, mounts.

Reads disk and /proc only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sm120patch.audit import byhand, carriers, live, sharing, staleness
from sm120patch.audit.examine import Examined
from sm120patch.audit.findings import EnvironmentReport, Finding, Kind
from sm120patch.audit.mounts import Mount
from sm120patch.audit.places import Place
from sm120patch.audit.tree import Tree
from sm120patch.catalogue import Catalogue

_HOME = re.compile(r"/(root|home/[^/]+)/\.local")


class Surroundings:
    """What is looked at beside the files: start-up code, caches, builds, servers, mounts."""

    def __init__(
        self,
        tree: Tree,
        catalogue: Catalogue,
        mounts: Mapping[str, Mount],
        environ: Mapping[str, str],
        caches: list[str],
        *,
        named: bool,
    ) -> None:
        """`caches` are installers' caches that a search met; `named`: one environment is meant."""
        self._tree = tree
        self._catalogue = catalogue
        self._mounts = mounts
        self._environ = environ
        self._named = named
        places = [*caches, *sharing.default_caches(tree, environ)]
        self._copies = list(dict.fromkeys(sharing.cached_copies(tree, _real_paths(tree, places))))
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
            cached = examined.comparisons[package.target].bytecode
            yield from staleness.bytecode_findings(tree, package, paths, cached)
            yield from sharing.in_package(tree, package, self._copies)
            if tree.is_host:
                yield from staleness.build_findings(package, layout.path, self._homes())
        if tree.is_host:
            yield from live.in_environment(self._look(), examined)

    def of_host(self, reports: list[EnvironmentReport]) -> Iterator[Finding]:
        """What belongs to no single environment."""
        edited: dict[tuple[str, str], set[str]] = {}
        for report in reports:
            for package in report.packages:
                key = (package.target, package.version)
                edited.setdefault(key, set()).update(f.path for f in package.files)
        for copy in self._copies:
            # For one environment only what its own reinstall would bring counts.
            if self._named and (copy.target, copy.version) not in edited:
                continue
            asked = self._asked({copy.target: copy.version})
            wanted = asked.get(copy.target, set()) | edited.get((copy.target, copy.version), set())
            yield from sharing.in_cache(self._tree, copy, wanted)
        yield from _user_sites(reports)
        where = "/etc/environment"
        yield from carriers.in_variables(self._tree, carriers.settings(self._tree), where)
        if self._tree.is_host:
            here = "the environment of this command"
            start = self._environ.get("PWD", "/")
            yield from carriers.in_variables(self._tree, self._environ, here, start)
            if self._live is not None:
                yield from live.untold(self._live)
                yield from live.gone_libraries(self._live, self._watched(reports))

    def _watched(self, reports: list[EnvironmentReport]) -> list[str]:
        """Where a library that is gone matters: anywhere, or in what belongs to one environment."""
        if not self._named:
            return ["/"]
        roots = [self._tree.resolved(p.root) for e in reports for p in e.packages]
        home = self._environ.get("HOME")
        return [*roots, *([f"{self._tree.resolved(home)}/.cache"] if home else [])]

    def _asked(self, versions: Mapping[str, str]) -> dict[str, set[str]]:
        key = tuple(sorted(versions.items()))
        if key not in self._paths:
            self._paths[key] = byhand.paths_of(self._catalogue, versions)
        return self._paths[key]

    def _homes(self) -> list[str]:
        environ = self._environ
        named = [environ.get("HOME"), environ.get("FLASHINFER_WORKSPACE_BASE")]
        served = [s.environ.get("HOME") for s in self._look().servers]
        homes = ["/root", *(f"/home/{name}" for name in self._tree.names("/home"))]
        return list(dict.fromkeys(home for home in (*named, *served, *homes) if home))

    def _look(self) -> live.Live:
        """Look at the processes once, when the first environment with a target is met."""
        if self._live is None:
            self._live = live.look()
        return self._live


def _user_sites(reports: list[EnvironmentReport]) -> Iterator[Finding]:
    """Copies in a user's own site: that user's Python imports them, nobody else's does."""
    for user in (r for r in reports if r.kind == "user" and _HOME.fullmatch(r.prefix)):
        for other in reports:
            shared = other.kind in ("system", "python", "conda") and other.python == user.python
            for package in user.packages if shared else ():
                if package.target in other.versions:
                    detail = (
                        f"in a user's site: there it is imported in place of {package.target}"
                        f" {other.versions[package.target]} of {other.prefix}"
                    )
                    yield Finding(Kind.COPIES, package.target, package.root, detail)


def _real_paths(tree: Tree, paths: list[str]) -> list[str]:
    return list(dict.fromkeys(tree.resolved(path) for path in paths if tree.is_dir(path)))
