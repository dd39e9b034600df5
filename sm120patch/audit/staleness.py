"""Cached bytecode and FlashInfer builds of contents that are gone. Reads disk only.

Python believes a `.pyc` by the source's time and size, ninja a build by times alone: a content that
is put back with its old time leaves the other content's code in use.
"""

import _imp
import os
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sm120patch.audit.findings import FileState, Finding, Kind, PackageReport
from sm120patch.audit.tree import Tree

TARGET = "flashinfer-python"
_UNPACKING_NS = 60 * 10**9
"""Within this the files of one image are unpacked."""
_CHANGED = frozenset(
    (FileState.OURS, FileState.BY_HAND, FileState.FOREIGN, FileState.DRIFTED, FileState.LOST)
)


class Suspect(NamedTuple):
    """Cached bytecode that Python would accept though it may be of another content."""

    source: str
    cached: str
    certain: bool
    """Its recorded hash is not that of the source."""


def suspects(tree: Tree, root: str, paths: Iterable[str]) -> Iterator[Suspect]:
    """Find bytecode of the Python sources at `paths` that would be run and may be stale."""
    for path in paths:
        directory, _, name = f"{root}/{path}".rpartition("/")
        if not name.endswith(".py"):
            continue
        stem = name.removesuffix(".py")
        for cached in tree.matching(f"{directory}/__pycache__", f"{stem}.", ".pyc"):
            certain = _judge(tree, f"{directory}/{name}", cached)
            if certain is not None:
                yield Suspect(path, cached, certain)


def _judge(tree: Tree, source: str, cached: str) -> bool | None:
    """True: stale for certain; False: may be; None: it is not used, or it is of this source."""
    data, here, there = tree.read(source), tree.status(source), tree.status(cached)
    head = (tree.read(cached, 64 << 20) or b"")[:16]
    if data is None or here is None or there is None or len(head) < 16:
        return None
    flags = int.from_bytes(head[4:8], "little")
    if flags & 0b1:
        key = int.from_bytes(head[:4], "little")  # PEP 552: the hash is keyed by the magic number.
        fresh = _imp.source_hash(key, data) == head[8:16]
        checked = bool(flags & 0b10)
        return None if fresh or checked else True
    mtime = int(here.st_mtime) & 0xFFFFFFFF
    size = len(data) & 0xFFFFFFFF
    if head[8:16] != mtime.to_bytes(4, "little") + size.to_bytes(4, "little"):
        return None
    # Written after the source took its present content: then it was made from that.
    return None if there.st_mtime_ns >= here.st_ctime_ns else False


def unchecked(tree: Tree, root: str, directories: Iterable[str]) -> Iterator[Suspect]:
    """Find bytecode that Python runs without a check and that is of another content.

    Of every file in `directories`, which are `__pycache__` below `root`, only the head is read.
    """
    real = tree.real(root)
    for directory in directories:
        try:
            fd = tree.open_directory(directory)
        except OSError:
            continue
        try:
            with os.scandir(fd) as entries:
                names = sorted(e.name for e in entries if _is_unchecked(fd, e.name))
        except OSError:
            names = []
        finally:
            os.close(fd)
        above = directory.rpartition("/")[0]
        for name in names:
            source = f"{above}/{name.split('.', 1)[0]}.py"
            cached = f"{directory}/{name}"
            if _judge(tree, source, cached):
                yield Suspect(source.removeprefix(f"{real}/"), cached, True)


def _is_unchecked(directory: int, name: str) -> bool:
    if not name.endswith(".pyc"):
        return False
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    except OSError:
        return False
    try:
        return os.read(fd, 8)[4:] == b"\1\0\0\0"
    except OSError:
        return False
    finally:
        os.close(fd)


def bytecode_findings(
    tree: Tree, package: PackageReport, asked: Collection[str], directories: Iterable[str] = ()
) -> Iterator[Finding]:
    """Find stale bytecode of changed files, of those that the catalogue knows, and unchecked one.

    Of what is below `directories` that is all that can be told without compiling every file.
    """
    changed = {f.path for f in package.files if f.state in _CHANGED}
    found = list(suspects(tree, package.root, sorted({*changed, *asked})))
    seen = {tree.real(s.cached) for s in found}
    found += [s for s in unchecked(tree, package.root, directories) if s.cached not in seen]
    sure = {s.cached for s in found if s.certain}
    open_ = [s for s in found if not s.certain and s.source in changed]
    compared = _compared(tree, package.root, open_)
    for suspect in found:
        if suspect.cached in sure:
            detail = (
                f"Python runs it in place of {suspect.source} without a check, and by its own"
                " record it was made from another content"
            )
        elif suspect.cached in compared:
            detail = f"Python runs it in place of {suspect.source}, which holds other code"
        elif suspect in open_ and not _same_python(suspect.cached):
            detail = (
                f"Python runs it in place of {suspect.source}, and it was written before that took"
                " its present content"
            )
        else:
            continue
        hint = "sm120patch audit --fix"
        yield Finding(Kind.STALE_BYTECODE, package.target, suspect.cached, detail, (), hint)


def _same_python(cached: str) -> bool:
    import sys

    return f".{sys.implementation.cache_tag}." in cached.rpartition("/")[2]


def _compared(tree: Tree, root: str, found: Iterable[Suspect]) -> set[str]:
    """Compile anew what this Python can, in a process of its own, and compare."""
    import sys

    wanted = sorted({s.source for s in found if _same_python(s.cached)})
    if not wanted or not tree.is_host:
        return set()
    from sm120patch.environment.asking import ask

    answer = ask(Path(sys.executable), [], [(root, path) for path in wanted])
    return {str(facts["stale"]) for facts in answer["files"] if facts.get("stale")}


def build_findings(
    package: PackageReport, path: Iterable[str], homes: Iterable[str]
) -> Iterator[Finding]:
    """Find builds of changed FlashInfer sources that are not of what the sources hold now.

    For this host only: `homes` are those below which builds are kept. Builds of files that we
    have changed follow them by content and are left out; those that do not bear our mark, and came
    back from a copy of the cache, are not.
    """
    paths = [f.path for f in package.files if f.state in _CHANGED]
    if package.target != TARGET or not paths:
        return
    from sm120patch.caches import builds, flashinfer

    changed = [flashinfer.ChangedFile(p) for p in paths]
    ours = {f.path for f in package.files if f.state is FileState.OURS}
    root = Path(package.root)

    patterns = partial(flashinfer.expected_modules, root, changed)
    for trap in flashinfer.traps(root, [Path(p) for p in path], patterns, {}):
        yield Finding(Kind.STALE_BUILD, TARGET, "-", trap)
    version = flashinfer.cache_version(root, package.version)
    workspaces = flashinfer.workspaces({}, [Path(home) for home in homes])
    found = flashinfer.affected(workspaces, root, version, changed)
    for problem in found.problems:
        yield Finding(Kind.UNKNOWN, TARGET, "-", problem)
    for entry in found.entries:
        library = _library(entry.live)
        foreign = [p for p in entry.paths if p not in ours]
        stale = [p for p in foreign if library and _older(library, root / p)]
        if library and not stale and not builds.read_marker(entry.live):
            stale = [p for p in entry.paths if p in ours and _precedes(library, root / p)]
        if library and stale:
            detail = f"{library} was built before {', '.join(stale)} took its present content"
            yield Finding(Kind.STALE_BUILD, TARGET, str(entry.live), detail)


def _library(live: Path) -> Path | None:
    try:
        return next(iter(sorted(live.glob("*.so"))), None)
    except OSError:
        return None


def _precedes(library: Path, source: Path) -> bool:
    """Tell whether ninja would build again, by the times that it goes by."""
    try:
        return library.stat().st_mtime_ns < source.lstat().st_mtime_ns
    except OSError:
        return False


def _older(library: Path, source: Path) -> bool:
    """Tell whether a build is older than the content of a source.

    A modification time can be put back; the time of the last change of the inode cannot, but it is
    new for every file of an image that was unpacked: then build and source have it alike.
    """
    try:
        built, changed = library.stat(), source.lstat()
    except OSError:
        return False
    return (
        changed.st_mtime_ns > built.st_mtime_ns
        or changed.st_ctime_ns > built.st_ctime_ns + _UNPACKING_NS
    )
