"""Removes the cached bytecode of one changed source file. Deletes `.pyc` files only.

Python trusts a `.pyc` whose recorded source time (whole seconds) and size match, or that carries
an unchecked hash (PEP 552), so replacing a source is not enough.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from sm120patch.disk import sync_directory
from sm120patch.errors import HostError


def purge(root: Path, path: str, trees: Iterable[Path] = ()) -> list[Path]:
    """Remove every cached `.pyc` of `root`/`path`; return what was removed.

    All interpreters and optimization levels are meant. `trees` are PYTHONPYCACHEPREFIX of
    whoever runs the code: Python mirrors the absolute source path there. Absent files and sources
    that are no Python are fine. Raises HostError when one cannot be removed.
    """
    source = root / path
    if source.suffix != ".py":
        return []
    removed: list[Path] = []
    for directory in _directories(source, trees):
        before = len(removed)
        for cached in sorted(directory.glob(f"{glob.escape(source.stem)}.*.pyc")):
            try:
                cached.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise HostError(
                    f"cannot remove stale bytecode {cached}: {error.strerror}",
                    hint="run as the owner of the environment",
                ) from error
            removed.append(cached)
        if len(removed) > before:
            sync_directory(directory)  # a power failure must not bring it back
    return removed


def _directories(source: Path, trees: Iterable[Path]) -> Iterator[Path]:
    local = source.parent / "__pycache__"
    if not local.is_symlink():
        yield local
    spellings = (source.parent.absolute(), Path(os.path.realpath(source.parent)))
    for tree in trees:
        for directory in dict.fromkeys(spellings):
            yield tree / directory.relative_to(directory.anchor)
