"""Finds the builds in FlashInfer's JIT cache that depend on changed files. Reads disk only.

Layout, all versions to 0.7: `BASE/.cache/flashinfer/<version>/<arch>/cached_ops/<module>/`, with
BASE from FLASHINFER_WORKSPACE_BASE or HOME. FlashInfer runs ninja at every load, and ninja trusts
times: a file put back with its old time leaves the build of the other content in use, and up to
0.6.10 `build.ninja` is never written again. Hence builds follow the content (see `shelf`).
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from sm120patch.caches.builds import SHELF, Entry, directories_in, plain_name
from sm120patch.caches.generators import ANY, changed_modules, modules_from
from sm120patch.caches.includes import IncludeGraph
from sm120patch.caches.ninja import CXX_SUFFIXES, BuildFile, read_build_file, read_deps_log

_SHARED_GENERATORS = frozenset(
    f"flashinfer/{name}"
    for name in ("compilation_context.py", "jit/core.py", "jit/cpp_ext.py", "jit/env.py")
)
"""Files that shape the compiler flags of every module."""

_SOURCES = ("flashinfer/data/csrc", "flashinfer/data/include")
_UNKNOWN_VERSION = "0.0.0+unknown"


class ChangedFile(NamedTuple):
    """A file of the FlashInfer installation that changes, or has been changed."""

    path: str
    """Relative to the import root."""
    versions: tuple[bytes, ...] = ()
    """Contents it has had and will have, upstream's first. Empty: assume the worst."""


class Affected(NamedTuple):
    """The result of a scan."""

    entries: tuple[Entry, ...]
    problems: tuple[str, ...]
    """Places that could not be looked at, in words. A build there may be stale afterwards."""


def bases(environ: Mapping[str, str]) -> list[Path]:
    """Homes and workspace bases that variables name: there may be builds below each."""
    named = (environ.get(name) for name in ("HOME", "FLASHINFER_WORKSPACE_BASE"))
    return [Path(text) for text in named if text]


def workspaces(environ: Mapping[str, str], homes: Iterable[Path] = ()) -> tuple[Path, ...]:
    """Existing `.cache/flashinfer` directories: of the environment given, and of further homes.

    `environ` is that of the serving process. Real paths, without repetition.
    """
    base = environ.get("FLASHINFER_WORKSPACE_BASE") or environ.get("HOME")
    bases = [Path(base)] if base else []
    found = (Path(os.path.realpath(b / ".cache" / "flashinfer")) for b in (*bases, *homes))
    return tuple(path for path in dict.fromkeys(found) if path.is_dir())


def cache_version(root: Path, version: str) -> str:
    """Version under which FlashInfer files its builds.

    It is that of `_build_meta.py`; an editable checkout without one shares `0.0.0+unknown` with all
    others. `version` (from the metadata) is the answer when the file names none.
    """
    try:
        text = (root / "flashinfer" / "_build_meta.py").read_text(encoding="utf-8")
    except FileNotFoundError:
        return _UNKNOWN_VERSION
    except (OSError, UnicodeDecodeError):
        return version
    found = re.search(r"^__version__ *= *[\"']([^\"'\n]+)[\"']", text, re.MULTILINE)
    return found[1] if found else version


def affected(
    workspace_roots: Iterable[Path], root: Path, version: str, changed: Sequence[ChangedFile]
) -> Affected:
    """Find the modules, live or put away, whose build depends on a changed file.

    `changed` should hold every file that is patched or about to be, so that `shelf.build_key` gives
    the same key each time. Evidence, in this order: ninja's dependency log; the `#include` closure
    where there is no log and for C++ sources (FlashInfer's headers are system headers to g++, which
    leaves those out); the generator, for a changed `jit/*.py` or template.
    """
    if not plain_name(version):
        return Affected((), (f"FlashInfer's version {version!r} cannot name a directory",))
    scan = _Scan(root, changed)
    entries: list[Entry] = []
    problems: list[str] = []
    for workspace in workspace_roots:
        for arch, module, directories in _modules(workspace, version, problems):
            evidence: dict[str, str] = {}
            foreign = None
            for directory in directories:
                foreign = scan.collect(directory, workspace, evidence) or foreign
            scan.collect_generated(module, evidence)
            if evidence:
                reasons = sorted(set(evidence.values()))
                paths = tuple(sorted(evidence))
                entries.append(
                    Entry(
                        workspace, version, arch, module, root, paths, "; ".join(reasons), foreign
                    )
                )
    return Affected(tuple(entries), tuple(problems))


def expected_modules(root: Path, changed: Sequence[ChangedFile]) -> tuple[str, ...]:
    """Patterns of the modules that a change concerns, built or not, read from the sources alone."""
    found = list(_generated(root, changed))
    wanted = {os.path.realpath(root / item.path): item.path for item in changed}
    if any(_is_native(item.path) for item in changed):
        graph = IncludeGraph([os.fspath(root)])
        directories = [os.fspath(root / place) for place in reversed(_SOURCES)]
        reaching = [
            source.name
            for source in sorted((root / _SOURCES[0]).rglob("*"))
            if source.suffix in (".cu", *CXX_SUFFIXES)
            and graph.reaches(os.fspath(source), directories, wanted)
        ]
        found += _mentioning(root, reaching)
    return tuple(dict.fromkeys(found))


def traps(
    root: Path,
    path: Iterable[Path],
    modules: Callable[[], Sequence[str]],
    environ: Mapping[str, str],
) -> list[str]:
    """Reasons why patched sources of `modules` (patterns) would never be compiled.

    `path` is the target's `sys.path`, `environ` the environment of the server. A prebuilt module
    is loaded without a look at the sources. `modules` is called only where there are any, since
    telling which modules a change concerns takes a look at every source.
    """
    found = []
    if environ.get("FLASHINFER_DISABLE_JIT"):
        found.append(
            f"FLASHINFER_DISABLE_JIT={environ['FLASHINFER_DISABLE_JIT']} is set: FlashInfer"
            " will not compile the patched sources"
        )
    prebuilt = list(_prebuilt(root, path))
    patterns = modules() if prebuilt else ()
    return found + [
        f"prebuilt module {library} is loaded instead of the patched sources"
        for library in prebuilt
        if any(fnmatchcase(library.stem, pattern) for pattern in patterns)
    ]


def _prebuilt(root: Path, path: Iterable[Path]) -> Iterator[Path]:
    """Libraries of modules that FlashInfer would load without compiling anything."""
    homes = [root / "flashinfer" / "data" / "aot"]
    for directory in dict.fromkeys(path):
        for package in sorted(directory.glob("flashinfer_jit_cache*")):
            if package.is_dir() and not package.name.endswith((".dist-info", ".egg-info")):
                homes += [package, *sorted(child for child in package.iterdir() if child.is_dir())]
    for home in homes:
        for library in sorted(home.glob("*/*.so")):
            if library.parent.name == library.stem:
                yield library


class _Scan:
    """What the directories of one scan are compared with; sources are read once for all."""

    def __init__(self, root: Path, changed: Sequence[ChangedFile]) -> None:
        self._root = root
        # A server that imports through another spelling of the prefix records that one.
        self._wanted = {os.path.realpath(root / item.path): item.path for item in changed}
        self._wanted |= {os.fspath((root / item.path).absolute()): item.path for item in changed}
        self._suffixes = {f"/{item.path}": item.path for item in changed}
        self._names = {name.rpartition("/")[2] for name in (*self._wanted, *self._suffixes)}
        self._changed = changed
        self._python = [item.path for item in changed if not _is_native(item.path)]
        self._graphs: dict[Path, IncludeGraph] = {}

    @cached_property
    def _generated(self) -> dict[str, str]:
        # Parsing generators takes most of a scan, and where nothing was built nobody asks.
        return _generated(self._root, self._changed)

    def collect(self, directory: Path, workspace: Path, evidence: dict[str, str]) -> str | None:
        """Add what one build depends on; return a file of another installation, if any."""
        build = read_build_file(directory / "build.ninja") or BuildFile({}, ())
        log = read_deps_log(directory / ".ninja_deps")
        foreign = None
        for name in {name for inputs in (log or {}).values() for name in inputs}:
            # Thousands of names a module, hundreds of modules: most end here.
            if name.rpartition("/")[2] not in self._names:
                continue
            full = os.path.normpath(directory / name)
            path = self._wanted.get(full) or self._same_file_elsewhere(full)
            if path is not None:
                evidence.setdefault(path, "ninja's dependency log names the file")
                foreign = foreign or (None if full in self._wanted else full)
        logged = {Path(output).name for output in log or {}}
        for output, source in build.sources.items():
            if Path(output).name in logged and not source.endswith(CXX_SUFFIXES):
                continue
            mapped = self._own(source, workspace)
            foreign = foreign or (source if mapped != source else None)
            for real, path in self._wanted.items():
                graph = self._graph(workspace)
                if path not in evidence and graph.reaches(mapped, self._dirs(build), {real}):
                    evidence[path] = f"{Path(source).name} includes the file"
        return foreign

    def collect_generated(self, module: str, evidence: dict[str, str]) -> None:
        for pattern, path in self._generated.items():
            if fnmatchcase(module, pattern):
                why = "shapes every module" if pattern == ANY else "generates the module"
                evidence.setdefault(path, f"{Path(path).name} {why}")

    def _same_file_elsewhere(self, name: str) -> str | None:
        # Up to 0.6.10 a build made by one installation is used by all others of its version.
        return next((path for end, path in self._suffixes.items() if name.endswith(end)), None)

    def _own(self, source: str, workspace: Path) -> str:
        """The same source in our installation, for one that lies in another."""
        real = os.path.realpath(source)
        if real.startswith((f"{os.path.realpath(self._root)}/", f"{workspace}/")):
            return source
        inside = source.rpartition("/flashinfer/data/")[2]
        return os.fspath(self._root / "flashinfer" / "data" / inside) if inside else source

    def _graph(self, workspace: Path) -> IncludeGraph:
        if workspace not in self._graphs:
            self._graphs[workspace] = IncludeGraph([os.fspath(self._root), os.fspath(workspace)])
        return self._graphs[workspace]

    def _dirs(self, build: BuildFile) -> list[str]:
        return [*build.include_dirs, *(os.fspath(self._root / place) for place in _SOURCES)]


def _is_native(path: str) -> bool:
    return not path.endswith((".py", ".jinja"))


def _generated(root: Path, changed: Sequence[ChangedFile]) -> dict[str, str]:
    """Pattern of a module -> the changed Python file or template that shapes it."""
    found: dict[str, str] = {}
    for item in changed:
        if item.path in _SHARED_GENERATORS:
            found.setdefault(ANY, item.path)
        elif item.path.endswith(".jinja"):
            for pattern in _mentioning(root, [Path(item.path).name]):
                found.setdefault(pattern, item.path)
        elif item.path.endswith(".py"):
            for pattern in changed_modules(item.versions):
                found.setdefault(pattern, item.path)
    return found


def _mentioning(root: Path, file_names: Sequence[str]) -> Iterator[str]:
    for generator in sorted((root / "flashinfer").rglob("*.py")):
        try:
            source = generator.read_bytes()
        except OSError:
            continue
        if b"gen_jit_spec" in source:
            yield from modules_from(source, file_names)


def _modules(
    workspace: Path, version: str, problems: list[str]
) -> Iterator[tuple[str, str, list[Path]]]:
    """(arch, module, its directories: live first, then put away) for every module of a version."""
    found: dict[tuple[str, str], list[Path]] = {}
    for arch in directories_in(workspace / version, problems):
        for module in directories_in(arch / "cached_ops", problems):
            if module.name != "tmp":
                found.setdefault((arch.name, module.name), []).append(module)
    for key in directories_in(workspace / SHELF, problems):
        for arch in directories_in(key / version, problems):
            for module in directories_in(arch, problems):
                name = module.name.partition("~")[0]
                found.setdefault((arch.name, name), []).append(module)
    for (arch_name, module_name), directories in sorted(found.items()):
        yield arch_name, module_name, directories
