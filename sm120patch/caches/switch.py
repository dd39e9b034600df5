"""Let builds and measured tactics follow a transaction: away before the files change, then back.

Renames below caches only (see `shelf`). The scan is repeated at every swap, since a server that ran
in between may have built modules that did not exist before.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from sm120patch.caches import flashinfer, freshness, renewal, sglang, shelf
from sm120patch.caches.builds import (
    Entry,
    Kind,
    Move,
    build_key,
    kept_mtimes,
    pending_moves,
    size_of,
    stored,
)
from sm120patch.environment import Environment
from sm120patch.errors import BusyError
from sm120patch.journal import SIDES, CacheScope, Side, opposite
from sm120patch.plan import FileStep

TARGET = "flashinfer-python"
PLACES = ("TVM_FFI_CACHE_DIR", "SGLANG_CACHE_DIR", "FLASHINFER_AUTOTUNE_CACHE_DIR")
"""Variables of a server that move a cache away from its home."""
ROOM_TO_LEAVE = 0.05
"""Part of the file system that a copy must leave free: others write there too."""
Contents = Callable[[str], bytes | None]
"""Bytes by sha256."""
Files = Mapping[tuple[str, str], str]
"""(target, path) -> sha256."""


def scope_for(
    environment: Environment,
    a: Files,
    b: Files,
    pristine: Files,
    homes: Iterable[Path],
    environ: Mapping[str, str],
    tactics: Iterable[str] = (),
) -> CacheScope | None:
    """Describe which caches follow a swap between the patched files `a` and `b`.

    `pristine` has upstream's content of each; `homes` are the homes and workspace bases of whoever
    serves, `environ` what is known of the server's environment; `tactics` are the changed files
    that decide between which tactics FlashInfer's autotuner chooses. None when nothing changes.
    """
    if a == b:
        return None
    roots = {name: str(i.root) for name, i in environment.installations.items()}
    found = environment.installations.get(TARGET)
    version = flashinfer.cache_version(found.root, found.version) if found else ""
    return CacheScope(
        homes=tuple(sorted({str(home) for home in homes})),
        root=roots.get(TARGET, ""),
        version=version,
        pristine={path: sha256 for (_, path), sha256 in pristine.items()},
        a_patched={path: sha256 for (_, path), sha256 in a.items()},
        b_patched={path: sha256 for (_, path), sha256 in b.items()},
        sglang_root=roots.get("sglang", ""),
        tactics=tuple(sorted(set(tactics))),
        places={name: environ[name] for name in PLACES if environ.get(name)},
        # Also where there is no build yet: servers that are measured may make some.
        ninjas=freshness.ninjas(environment.prefix, environ),
    )


class Found(NamedTuple):
    """Everything that depends on a changed file, and places that could not be looked at."""

    entries: tuple[Entry, ...]
    problems: tuple[str, ...]


def scan(scope: CacheScope, contents: Contents) -> Found:
    """Look for builds and tactics that depend on the files of `scope`; nothing is touched."""
    homes = [Path(home) for home in scope.homes]
    changed = sorted({*scope.a_patched, *scope.b_patched})
    found = _flashinfer(scope, [p for p in changed if p.startswith("flashinfer/")], contents)
    problems = list(found.problems)
    roots = {"flashinfer": Path(scope.root)} if scope.root else {}
    roots |= {"sglang": Path(scope.sglang_root)} if scope.sglang_root else {}
    own = sglang.jit_builds(sglang.jit_directories(homes, scope.places), roots, changed, problems)
    tuned = sglang.autotune_directories(homes, scope.places)
    tactics = sglang.tactics(tuned, roots, scope.tactics, scope.version)
    managed = sglang.managed_directories(homes, scope.places)
    stores = sglang.tactics(managed, roots, scope.tactics, sglang.MANAGED)
    return Found((*found.entries, *own, *tactics, *stores), tuple(problems))


def _flashinfer(scope: CacheScope, paths: list[str], contents: Contents) -> flashinfer.Affected:
    roots = flashinfer.workspaces({}, [Path(home) for home in scope.homes])
    if not scope.root or not paths or not roots:
        return flashinfer.Affected((), ())
    changed = []
    for path in paths:
        sides = (scope.pristine, scope.a_patched, scope.b_patched)
        versions = [contents(side[path]) for side in sides if path in side]
        whole = tuple(v for v in versions if v is not None)
        # One missing content means that not every reference can be seen: assume the worst.
        changed.append(flashinfer.ChangedFile(path, whole if len(whole) == len(versions) else ()))
    return flashinfer.affected(roots, Path(scope.root), scope.version, changed)


def key_of(entry: Entry, scope: CacheScope, side: Side) -> str:
    """Key of the build that goes with a side."""
    return build_key(entry, scope.patched(side))


def moves(entry: Entry, scope: CacheScope, at: Side, to: Side) -> tuple[Move, ...]:
    """Renames that a swap would make now."""
    keys = key_of(entry, scope, at), key_of(entry, scope, to)
    return pending_moves(entry, *keys, trusted=set(keys))


def park(scope: CacheScope, at: Side, contents: Contents, step: Callable[[str], None]) -> None:
    """Put the builds of side `at` away; call before the first file changes."""
    for entry in scan(scope, contents).entries:
        keys = {key_of(entry, scope, side) for side in SIDES}
        if len(keys) == 2:
            key = key_of(entry, scope, at)
            shelf.park(entry, key, trusted=keys, checks=_checks(entry, scope), step=step)


def place(scope: CacheScope, side: Side, contents: Contents, step: Callable[[str], None]) -> None:
    """Bring the builds of `side` back, or leave room for them; call after the last file."""
    for entry in scan(scope, contents).entries:
        key = key_of(entry, scope, side)
        other = key_of(entry, scope, opposite(side))
        if key != other:
            # Only headers changed: what does not include them need not be compiled again.
            seed = other if entry.kind is Kind.FLASHINFER and _headers(entry, scope) else None
            checks = _checks(entry, scope)
            shelf.place(entry, key, seed=seed, checks=checks, step=step)


def unpark(scope: CacheScope, at: Side, contents: Contents, step: Callable[[str], None]) -> None:
    """Bring back what `park` put away, when no file has changed since.

    A module whose lock is held was never parked: FlashInfer is compiling it.
    """
    for entry in scan(scope, contents).entries:
        key = key_of(entry, scope, at)
        with contextlib.suppress(BusyError):
            shelf.swap(entry, key, key, checks=_checks(entry, scope), step=step)


def kept_times(scope: CacheScope, side: Side, contents: Contents) -> dict[str, int]:
    """Path -> modification time (ns) that makes stored builds of `side` count as up to date.

    The earliest where several builds disagree: ninja rebuilds for a newer file only.
    """
    times: dict[str, int] = {}
    for entry in scan(scope, contents).entries:
        if not stored(entry, key_of(entry, scope, side)):
            continue
        for path, mtime in kept_mtimes(entry, key_of(entry, scope, side)).items():
            times[path] = min(mtime, times.get(path, mtime))
    return times


def _changed(entry: Entry, scope: CacheScope) -> list[str]:
    """Files of the entry that differ between the sides."""
    a, b = scope.patched("a"), scope.patched("b")
    return [path for path in entry.paths if a.get(path) != b.get(path)]


def _headers(entry: Entry, scope: CacheScope) -> bool:
    changed = _changed(entry, scope)
    return bool(changed) and not any(path.endswith((".py", ".jinja")) for path in changed)


def _checks(entry: Entry, scope: CacheScope) -> shelf.Checks:
    """A build may stay live when a ninja finds nothing to do, or in a copy just what changed."""
    if entry.kind is Kind.AUTOTUNE:
        return shelf.NO_CHECKS

    def good(entry: Entry, seeded: bool) -> bool:
        if not seeded:
            return freshness.fresh(entry.live, scope.ninjas)
        headers = [entry.file(path) for path in _changed(entry, scope)]
        wanted = renewal.renewed(entry.live, headers)
        if wanted is None:
            return False
        found = (freshness.work_to_do(entry.live, ninja) for ninja in scope.ninjas)
        return any(work is not None and set(work) == wanted for work in found)

    def identity(entry: Entry, directory: Path) -> str:
        return freshness.identity(directory, {str(entry.file(path)) for path in entry.paths})

    def worth(entry: Entry, directory: Path) -> bool:
        headers = [entry.file(path) for path in _changed(entry, scope)]
        if not renewal.saves_work(directory, headers):
            return False
        disk = os.statvfs(directory)
        room = disk.f_bavail * disk.f_frsize - size_of(directory)
        return room >= disk.f_blocks * disk.f_frsize * ROOM_TO_LEAVE

    return shelf.Checks(good, identity, worth)


def traps(
    environment: Environment, steps: Iterable[FileStep], environ: Mapping[str, str]
) -> list[str]:
    """Reasons why the new content of FlashInfer files would have no effect in a server."""
    installation = environment.installations.get(TARGET)
    changed = [
        flashinfer.ChangedFile(s.path, (s.pristine, s.before, s.after))
        for s in steps
        if s.target == TARGET and not s.to_pristine
    ]
    if installation is None or not changed:
        return []

    def modules() -> tuple[str, ...]:
        return flashinfer.expected_modules(installation.root, changed)

    return flashinfer.traps(installation.root, environment.path, modules, environ)
