"""Which files the processes of a server have mapped, and whether a JIT module is of this content.

Reads /proc and the markers beside FlashInfer's builds.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from sm120patch.caches.builds import SHELF, UNOWNED, read_marker
from sm120patch.host import proc

_TICK = 1.0  # seconds: time stamps of files are coarser than the clock on some file systems
_GONE = " (deleted)"


def mapped_files(pids: Iterable[int]) -> frozenset[str] | None:
    """Paths of all files mapped by the processes; None when none of them can be looked at."""
    maps = list(filter(None, (proc.read(pid, "maps") for pid in pids)))
    return frozenset().union(*map(proc.mapped, maps)) if maps else None


def matching(files: Iterable[str], pattern: str) -> list[str]:
    """Mapped files that still exist and match a regular expression."""
    wanted = re.compile(pattern)
    return sorted(path for path in files if not path.endswith(_GONE) and wanted.search(path))


def judge_module(files: Iterable[str], module: str, swapped_at: float) -> tuple[bool, str]:
    """Whether the server runs FlashInfer's `module`, built from the content that is in place.

    `swapped_at` (epoch seconds) is when the content was put in place. Returns the answer and what
    was found, in words. A build that the cache switch put back counts: it is of this content.
    """
    name = f"/{module}/{module}.so"
    loaded = sorted(path for path in files if path.removesuffix(_GONE).endswith(name))
    if not loaded:
        return False, f"no process of the server has loaded {module}.so"
    judged = [_judge_build(path, swapped_at) for path in loaded]
    wrong = [words for good, words in judged if not good]
    return (False, wrong[0]) if wrong else judged[0]


def _judge_build(path: str, swapped_at: float) -> tuple[bool, str]:
    if path.endswith(_GONE):
        return False, f"{path.removesuffix(_GONE)} was replaced after the server had loaded it"
    directory = Path(path).parent
    if f"/{SHELF}/" in path:
        return False, f"{path} is a build that was put away"
    if directory.parent.name != "cached_ops":
        return False, f"{path} is prebuilt, not compiled from the sources that are in place"
    key = read_marker(directory).get("key")
    if key == UNOWNED:
        return False, f"{path} was built while files were being exchanged"
    try:
        age = Path(path).stat().st_mtime - swapped_at
    except OSError as error:
        return False, f"{path} cannot be looked at: {error.strerror}"
    if isinstance(key, str):
        return True, f"{path}, the build of this content"
    built = time.strftime("%H:%M:%S", time.localtime(swapped_at + age))
    if age < -_TICK:
        return False, f"{path} was built at {built}, before the patch was put in place"
    return True, f"{path}, built at {built}, after the patch was put in place"


def first_lines(found: Sequence[str], most: int = 3) -> str:
    """A few of many paths, for people."""
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
