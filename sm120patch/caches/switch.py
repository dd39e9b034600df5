"""Let FlashInfer's builds follow a transaction: put away before the files change, back after.

Renames below FlashInfer workspaces only (see `shelf`). The scan is repeated at every swap, since a
server that ran in between may have built modules that did not exist before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from sm120patch.caches import flashinfer, shelf
from sm120patch.caches.builds import Entry, build_key, kept_mtimes
from sm120patch.environment import Environment
from sm120patch.errors import BusyError
from sm120patch.journal import CacheScope, Side
from sm120patch.plan import FileStep

TARGET = "flashinfer-python"
Contents = Callable[[str], bytes | None]
"""Bytes by sha256."""


def scope_for(
    environment: Environment,
    a: Mapping[tuple[str, str], str],
    b: Mapping[tuple[str, str], str],
    pristine: Mapping[tuple[str, str], str],
    homes: Iterable[Path],
) -> CacheScope | None:
    """Describe which builds follow a swap between the patched files `a` and `b`.

    `a` and `b` map (target, path) of every patched file to its sha256, `pristine` to that of
    upstream's content; `homes` are the homes and workspace bases of whoever serves. None when
    FlashInfer is not touched.
    """
    installation = environment.installations.get(TARGET)
    sides = [{p: s for (t, p), s in side.items() if t == TARGET} for side in (a, b, pristine)]
    if installation is None or sides[0] == sides[1]:
        return None
    return CacheScope(
        homes=tuple(sorted({str(home) for home in homes})),
        root=str(installation.root),
        version=flashinfer.cache_version(installation.root, installation.version),
        pristine=sides[2],
        a_patched=sides[0],
        b_patched=sides[1],
    )


def _scan(scope: CacheScope, contents: Contents) -> flashinfer.Affected:
    changed = []
    for path in sorted({*scope.a_patched, *scope.b_patched}):
        sides = (scope.pristine, scope.a_patched, scope.b_patched)
        versions = [contents(side[path]) for side in sides if path in side]
        whole = tuple(v for v in versions if v is not None)
        # One missing content means that not every reference can be seen: assume the worst.
        changed.append(flashinfer.ChangedFile(path, whole if len(whole) == len(versions) else ()))
    roots = flashinfer.workspaces({}, [Path(home) for home in scope.homes])
    return flashinfer.affected(roots, Path(scope.root), scope.version, changed)


def problems(scope: CacheScope, contents: Contents) -> tuple[str, ...]:
    """Places of the caches that cannot be looked at: a stale build may stay there."""
    return _scan(scope, contents).problems


def _entries(scope: CacheScope, contents: Contents) -> tuple[Entry, ...]:
    return _scan(scope, contents).entries


def _key(entry: Entry, scope: CacheScope, side: Side) -> str:
    return build_key(entry, scope.patched(side))


def park(scope: CacheScope, at: Side, contents: Contents, step: Callable[[str], None]) -> None:
    """Put the builds of side `at` away; call before the first file changes."""
    for entry in _entries(scope, contents):
        keys = {_key(entry, scope, side) for side in ("a", "b")}
        if len(keys) == 2:
            shelf.park(entry, _key(entry, scope, at), trusted=keys, step=step)


def place(scope: CacheScope, side: Side, contents: Contents, step: Callable[[str], None]) -> None:
    """Bring the builds of `side` back, or leave room for them; call after the last file."""
    for entry in _entries(scope, contents):
        if _key(entry, scope, "a") != _key(entry, scope, "b"):
            shelf.place(entry, _key(entry, scope, side), step=step)


def unpark(scope: CacheScope, at: Side, contents: Contents, step: Callable[[str], None]) -> None:
    """Bring back what `park` put away, when no file has changed since.

    A module whose lock is held was never parked: FlashInfer is compiling it.
    """
    for entry in _entries(scope, contents):
        key = _key(entry, scope, at)
        with contextlib.suppress(BusyError):
            shelf.swap(entry, key, key, step=step)


def kept_times(scope: CacheScope, side: Side, contents: Contents) -> dict[str, int]:
    """Path -> modification time (ns) that makes stored builds of `side` count as up to date.

    The earliest where several builds disagree: ninja rebuilds for a newer file only.
    """
    times: dict[str, int] = {}
    for entry in _entries(scope, contents):
        for path, mtime in kept_mtimes(entry, _key(entry, scope, side)).items():
            times[path] = min(mtime, times.get(path, mtime))
    return times


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
    modules = flashinfer.expected_modules(installation.root, changed)
    return flashinfer.traps(installation.root, environment.path, modules, environ)
