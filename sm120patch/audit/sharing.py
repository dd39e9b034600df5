"""Copies of packages in installers' caches: edited too, or the very same inodes. Reads disk only.

uv and conda link files from their caches into environments. An edit that is written through such a
link is in the cache as well, and every later install brings it back.
"""

import io
import json
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from sm120patch import fingerprints
from sm120patch.audit.findings import EnvironmentReport, FileState, Finding, Kind, PackageReport
from sm120patch.audit.tree import Tree
from sm120patch.environment.records import parse_record
from sm120patch.model import IMPORT_NAMES, sha256_hex
from sm120patch.plan import sets_of

_ARCHIVES = "archive-v0"
_MAX_FILE = 256 << 20
_MAX_RECORD = 64 << 20
_EDITED = frozenset((FileState.OURS, FileState.BY_HAND, FileState.FOREIGN, FileState.DRIFTED))


class CachedCopy(NamedTuple):
    """An unpacked package in an installer's cache."""

    tool: str
    """`uv` or `conda`."""
    root: str
    """Directory that holds the package, as `site-packages` would."""
    target: str
    version: str


def cached_copies(tree: Tree, caches: Iterable[str]) -> Iterator[CachedCopy]:
    """Find the targets among the unpacked packages of uv's caches."""
    for cache in dict.fromkeys(caches):
        for name, kind in tree.entries(f"{cache}/{_ARCHIVES}"):
            if kind == "d":
                yield from _in("uv", tree, f"{cache}/{_ARCHIVES}/{name}")


def conda_copies(tree: Tree, environment: EnvironmentReport) -> Iterator[CachedCopy]:
    """Find the targets in conda's cache that an environment was linked from."""
    meta = f"{environment.prefix}/conda-meta"
    for name in tree.names(meta) if environment.kind == "conda" else ():
        if not name.startswith(tuple(IMPORT_NAMES)) or not name.endswith(".json"):
            continue
        try:
            data = json.loads(tree.text(f"{meta}/{name}", 64 << 20))
            source = data.get("extracted_package_dir") or data["link"]["source"]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        if isinstance(source, str) and source.startswith("/"):
            for site in (f"lib/python{environment.python}/site-packages", "site-packages"):
                yield from _in("conda", tree, f"{source}/{site}")


def _in(tool: str, tree: Tree, root: str) -> Iterator[CachedCopy]:
    for name in tree.names(root):
        stem, dot, _ = name.rpartition(".dist-info")
        project, _, version = stem.partition("-")
        target = project.replace("_", "-").lower()
        if dot and target in IMPORT_NAMES:
            yield CachedCopy(tool, root, target, version)


def default_caches(tree: Tree, environ: Mapping[str, str]) -> list[str]:
    """Where uv's caches are when nobody searched for them."""
    homes = ["/root", *(f"/home/{name}" for name in tree.names("/home"))]
    if tree.is_host:
        homes += [home] if (home := environ.get("HOME")) else []
        if named := environ.get("UV_CACHE_DIR"):
            return [named, *(f"{home}/.cache/uv" for home in homes)]
    return [f"{home}/.cache/uv" for home in homes]


def in_cache(tree: Tree, copy: CachedCopy, wanted: Iterable[str]) -> Iterator[Finding]:
    """Find files of a cached copy that are not what its RECORD says: installs bring them along."""
    record = f"{copy.root}/{copy.target.replace('-', '_')}-{copy.version}.dist-info/RECORD"
    data = tree.read(record, _MAX_RECORD)
    if data is None:
        return
    table = parse_record(io.StringIO(data.decode("utf-8", "surrogateescape"), newline=""))
    for path in sorted(wanted):
        entry = table.entries.get(path)
        content = tree.read(f"{copy.root}/{path}", _MAX_FILE) if entry else None
        if entry is None or entry.sha256 is None or content is None:
            continue
        found = sha256_hex(content)
        if found != entry.sha256:
            known = fingerprints.recognise(copy.target, path, found)
            said = f"; this is {known}" if known else ""
            detail = (
                f"the copy in {copy.tool}'s cache is edited (sha256 {found[:12]}, upstream"
                f" {entry.sha256[:12]}): every install of {copy.version} from it brings the edit"
                f" along{said}"
            )
            hint = f"{copy.tool} cache clean {copy.target}" if copy.tool == "uv" else ""
            where, sets = f"{copy.root}/{path}", sets_of(known.changes) if known else ()
            yield Finding(Kind.SHARED, copy.target, where, detail, sets, hint)


def in_package(
    tree: Tree, package: PackageReport, copies: Iterable[CachedCopy]
) -> Iterator[Finding]:
    """Find edited files of an installed package that are the very files of a cached copy."""
    edited = [f for f in package.files if f.state in _EDITED]
    cached = [c for c in copies if (c.target, c.version) == (package.target, package.version)]
    for file in edited:
        here = tree.status(f"{package.root}/{file.path}")
        if here is None or not stat.S_ISREG(here.st_mode):
            continue
        for copy in cached:
            there = tree.status(f"{copy.root}/{file.path}")
            if there is not None and (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                detail = (
                    f"is one file with {copy.root}/{file.path} in {copy.tool}'s cache and has"
                    f" {here.st_nlink} names: the edit is in all of them, and a reinstall brings"
                    " it back"
                )
                yield Finding(Kind.SHARED, package.target, file.path, detail)
                break
        else:
            if here.st_nlink > 1:
                detail = (
                    f"has {here.st_nlink} names on this file system: the edit is in all of them"
                )
                yield Finding(Kind.SHARED, package.target, file.path, detail)
