"""Finds SGLang's own kernel builds, and its measured tactics, that depend on changed files.

Reads disk only. SGLang 0.5.8 to 0.5.17 builds kernels through tvm-ffi into
`${TVM_FFI_CACHE_DIR:-~/.cache/tvm-ffi}/<module>/`. Up to 0.5.13 ninja decides by time, with the
traps of FlashInfer's builds; from 0.5.14 a library that is there is loaded without a look, and its
name tells SGLang's own sources only, not the headers it takes from FlashInfer. From 0.5.18 on the
name tells everything (`~/.cache/sglang/jit`): nothing to do there.

FlashInfer's autotuner keeps the tactics it measured for SGLang under
`$SGLANG_CACHE_DIR/flashinfer/autotune/<FlashInfer version>/`, and nothing in that name tells
which tactics the patched code offers (read in 0.5.12 to 0.5.23). From 0.7.1 on FlashInfer has such
a store of its own for whoever asks for it, `.cache/flashinfer/autotune/v2`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sm120patch.caches.builds import LOCKS, SHELF, Entry, Kind, directories_in, plain_name
from sm120patch.caches.includes import IncludeGraph
from sm120patch.caches.ninja import CXX_SUFFIXES, read_build_file, read_deps_log

PREFIX = "sgl_kernel_jit_"
"""Begin of the names of SGLang's modules among those of others that use tvm-ffi."""
MANAGED = "v2"
"""Directory in FlashInfer's own store, whose sub-directories are named by hashes."""
ARCH_IN_NAME = "__arch_"
"""From 0.5.14 on the name tells the architecture: other flags, another directory."""
_SHAPING = ("sglang/jit_kernel/utils", "sglang/kernels/jit/utils")
"""Files that choose the compiler flags of every module."""

Roots = Mapping[str, Path]
"""Import package -> import root."""


def jit_directories(bases: Iterable[Path], environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Existing tvm-ffi caches of the homes `bases` and of the serving environment; real paths."""
    named = environ.get("TVM_FFI_CACHE_DIR")
    places = [base / ".cache" / "tvm-ffi" for base in bases]
    return _existing([*places, *([Path(named).expanduser()] if named else [])])


def autotune_directories(bases: Iterable[Path], environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Existing places of measured tactics, likewise."""
    named = environ.get("SGLANG_CACHE_DIR")
    caches = [base / ".cache" / "sglang" for base in bases]
    caches += [Path(named).expanduser()] if named else []
    return _existing([cache / "flashinfer" / "autotune" for cache in caches])


def managed_directories(bases: Iterable[Path], environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Existing stores of tactics that FlashInfer manages itself, likewise."""
    named = environ.get("FLASHINFER_AUTOTUNE_CACHE_DIR")
    places = [base / ".cache" / "flashinfer" / "autotune" for base in bases]
    return _existing([*places, *([Path(named).expanduser()] if named else [])])


def jit_builds(
    directories: Iterable[Path], roots: Roots, changed: Iterable[str], problems: list[str]
) -> Iterator[Entry]:
    """Find the modules, live or put away, that were built from a changed file.

    `changed` are paths below the roots. Evidence is ninja's log, and the `#include` closure for
    C++ sources and where there is no log.
    """
    files = {path: roots[package] / path for path, package in _by_package(changed, roots)}
    if not files:
        return
    wanted = {os.path.realpath(file): path for path, file in files.items()}
    wanted |= {os.fspath(file.absolute()): path for path, file in files.items()}
    for workspace in directories:
        for module, places in sorted(_modules(workspace, problems).items()):
            found: set[str] = set()
            for place in places:
                found |= _inputs(place, roots, wanted)
            shaping = [path for path in files if path.startswith(_SHAPING)]
            found |= set() if ARCH_IN_NAME in module else set(shaping)
            if found:
                why = "ninja's log or an #include names a changed file"
                why = "its compiler flags come from a changed file" if shaping else why
                yield _entry(workspace, module, roots, sorted(found), why, Kind.SGLANG)


def tactics(
    directories: Iterable[Path], roots: Roots, changed: Iterable[str], version: str
) -> Iterator[Entry]:
    """Name the tactics measured with this FlashInfer; `changed` decide which tactics there are."""
    paths = sorted(path for path, _ in _by_package(changed, roots))
    for workspace in directories if paths and plain_name(version) else ():
        why = "tactics measured with other code; the file does not tell which"
        yield _entry(workspace, version, roots, paths, why, Kind.AUTOTUNE)


def _entry(
    workspace: Path, module: str, roots: Roots, paths: list[str], why: str, kind: Kind
) -> Entry:
    root = roots[paths[0].partition("/")[0]]
    places = tuple(sorted((package, place) for package, place in roots.items()))
    return Entry(workspace, "", "", module, root, tuple(paths), why, kind=kind, roots=places)


def _by_package(changed: Iterable[str], roots: Roots) -> Iterator[tuple[str, str]]:
    for path in sorted(set(changed)):
        package = path.partition("/")[0]
        if package in roots:
            yield path, package


def _existing(places: Iterable[Path]) -> tuple[Path, ...]:
    real = (Path(os.path.realpath(place)) for place in places)
    return tuple(path for path in dict.fromkeys(real) if path.is_dir())


def _modules(workspace: Path, problems: list[str]) -> dict[str, list[Path]]:
    """SGLang's modules by name: the live directory first, then those put away."""
    found: dict[str, list[Path]] = {}
    shelves = [
        shelf for shelf in directories_in(workspace / SHELF, problems) if shelf.name != LOCKS
    ]
    for parent in (workspace, *shelves):
        for place in directories_in(parent, problems):
            name = place.name.partition("~")[0]
            if name.startswith(PREFIX):
                found.setdefault(name, []).append(place)
    return found


def _inputs(directory: Path, roots: Roots, wanted: Mapping[str, str]) -> set[str]:
    """Changed files that a build was made from."""
    log = read_deps_log(directory / ".ninja_deps") or {}
    named = {os.path.normpath(directory / n) for inputs in log.values() for n in inputs}
    found = {wanted[name] for name in named if name in wanted}
    build = read_build_file(directory / "build.ninja")
    if build is None:
        return found
    graph = IncludeGraph([*map(os.fspath, roots.values()), os.fspath(directory)])
    for output, source in build.sources.items():
        if output in log and not source.endswith(CXX_SUFFIXES):
            continue
        for real, path in wanted.items():
            if path not in found and graph.reaches(source, build.include_dirs, {real}):
                found.add(path)
    return found
