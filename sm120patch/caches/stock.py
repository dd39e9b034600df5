"""What stands on the shelves of all caches, what of it may go, and its removal when asked.

Deletes builds below a shelf only, after a rename under the module's lock: nobody ever sees half of
one, and what a kill leaves is found and named by the next look.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sm120patch.caches.builds import (
    COPY,
    LOCKS,
    MARKER,
    SHELF,
    UNOWNED,
    Entry,
    Kind,
    plain_name,
    read_marker,
    refused,
    size_of,
)
from sm120patch.caches.shelf import locked
from sm120patch.disk import sync_directory

TRASH = "trash-"
"""Begin of the name under which a build waits for its removal."""
PATIENCE = 1.0
"""Seconds to wait for a module that is being compiled: the others go first."""


@dataclass(frozen=True)
class Stored:
    """A directory on a shelf."""

    entry: Entry
    """The module that it is a build of; `paths` and `reason` are empty."""
    key: str
    """Content that it was put away for; empty for what a kill left of a copy or a removal."""
    path: Path
    size: int
    """Bytes on disk."""
    put_away: float
    """Seconds since the epoch."""
    back: bool
    """It has the name under which it would come back; false for leftovers and second copies."""


def stock(workspaces: Iterable[tuple[Kind, Path]]) -> tuple[Stored, ...]:
    """Find everything on the shelves of the workspaces, of every version and installation."""
    return tuple(item for kind, workspace in workspaces for item in _shelf(kind, workspace))


def expendable(
    items: Collection[Stored], needed: Collection[Path], bound: int
) -> tuple[Stored, ...]:
    """Choose what goes so that `bound` bytes at most are left.

    What can never come back goes first and in any case, then what was put away longest ago; the
    paths in `needed`, which the next revert would bring back, go last.
    """
    dead = [item for item in items if not item.back]
    alive = sorted(
        (item for item in items if item.back), key=lambda i: (i.path in needed, i.put_away)
    )
    left = sum(item.size for item in alive)
    chosen = list(dead)
    for item in alive:
        if left <= bound:
            break
        chosen.append(item)
        left -= item.size
    return tuple(chosen)


def remove(item: Stored) -> None:
    """Delete one; HostError when the disk refuses, BusyError while its module is being built."""
    shelf = item.entry.workspace / SHELF
    try:
        if item.key:
            trash = shelf / f"{TRASH}{secrets.token_hex(4)}"
            with locked(item.entry, PATIENCE):
                trash.mkdir()
                item.path.rename(trash / item.path.name)
                # Or a power failure could leave half of it under the name it would come back by.
                for directory in (shelf, trash, item.path.parent):
                    sync_directory(directory)
            shutil.rmtree(trash)
        else:
            shutil.rmtree(item.path)
        _drop_empty(item.path.parent, shelf)
    except FileNotFoundError:
        return  # somebody else was quicker
    except OSError as error:
        raise refused("remove", item.path, error) from error


def _drop_empty(directory: Path, shelf: Path) -> None:
    while directory != shelf and shelf in directory.parents:
        try:
            directory.rmdir()
        except OSError:
            return
        directory = directory.parent


def _shelf(kind: Kind, workspace: Path) -> Iterator[Stored]:
    # A copy towards a live place is made beside it.
    live = workspace.glob(f"*/*/cached_ops/{COPY}*") if kind is Kind.FLASHINFER else ()
    for place in (*live, *workspace.glob(f"{COPY}*")):
        yield _leftover(kind, workspace, place)
    depth = 3 if kind is Kind.FLASHINFER else 1
    for place in _directories(workspace / SHELF):
        if place.name.startswith(TRASH):
            yield _leftover(kind, workspace, place)
        elif place.name != LOCKS and plain_name(place.name):
            yield from _builds(kind, workspace, place, (), place.name, depth)


def _builds(
    kind: Kind, workspace: Path, place: Path, names: tuple[str, ...], key: str, depth: int
) -> Iterator[Stored]:
    for child in _directories(place):
        if child.name.startswith(COPY):
            yield _leftover(kind, workspace, child)
        elif len(names) + 1 < depth:
            yield from _builds(kind, workspace, child, (*names, child.name), key, depth)
        elif plain_name(child.name):
            version, arch = names or ("", "")
            module = child.name.partition("~")[0]
            entry = Entry(workspace, version, arch, module, workspace, (), "", kind=kind)
            yield _stored(entry, key, child)


def _leftover(kind: Kind, workspace: Path, path: Path) -> Stored:
    """What a kill left of a copy or of a removal."""
    return _stored(Entry(workspace, "", "", "", workspace, (), "", kind=kind), "", path)


def _stored(entry: Entry, key: str, path: Path) -> Stored:
    named = key not in ("", UNOWNED) and path.name == entry.module
    back = named and read_marker(path).get("key") == key
    return Stored(entry, key, path, size_of(path), _time(path), back)


def _time(path: Path) -> float:
    """When it was put away: then its marker was written."""
    for place in (path / MARKER, path):
        with contextlib.suppress(OSError):
            return place.lstat().st_mtime
    return 0.0


def _directories(parent: Path) -> list[Path]:
    """Real sub-directories, sorted; a link is never followed."""
    try:
        if parent.is_symlink():
            return []
        with os.scandir(parent) as scan:
            found = [child for child in scan if child.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(Path(child.path) for child in found)
