"""What a compiler must make anew when headers of a finished build change. Reads disk only."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from sm120patch.caches.includes import IncludeGraph
from sm120patch.caches.ninja import CXX_SUFFIXES, BuildFile, read_build_file, read_deps_log


def renewed(directory: Path, headers: Collection[Path]) -> frozenset[str] | None:
    """Outputs that depend on one of the changed headers, with what is linked from them.

    Absolute paths. None when that is not known, or when ninja would not notice the change: a build
    that is not finished, or a C++ source that includes a header (to g++ FlashInfer's headers are
    system headers, which its log leaves out).
    """
    build = read_build_file(directory / "build.ninja")
    log = read_deps_log(directory / ".ninja_deps")
    if build is None or not log or not build.sources:
        return None
    wanted = {os.fspath(h.absolute()) for h in headers} | {os.path.realpath(h) for h in headers}
    inputs = {_full(directory, out): names for out, names in log.items()}
    hit = set()
    for output, source in build.sources.items():
        made_from = inputs.get(_full(directory, output))
        if made_from is None:
            return None
        if source.endswith(CXX_SUFFIXES) and _reaches(source, build, wanted):
            return None
        if any(_full(directory, name) in wanted for name in made_from):
            hit.add(_full(directory, output))
    if not hit:
        return None
    return frozenset({*hit, *(_full(directory, output) for output in build.links)})


def saves_work(directory: Path, headers: Collection[Path]) -> bool:
    """Tell whether some object of the build does not depend on the changed headers."""
    build = read_build_file(directory / "build.ninja")
    found = renewed(directory, headers)
    if build is None or found is None:
        return False
    return any(_full(directory, output) not in found for output in build.sources)


def _full(directory: Path, name: str) -> str:
    return os.path.normpath(directory / name)


def _reaches(source: str, build: BuildFile, wanted: Collection[str]) -> bool:
    graph = IncludeGraph(["/"])
    return graph.reaches(source, build.include_dirs, wanted) is not None
