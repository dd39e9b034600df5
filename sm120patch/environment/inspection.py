"""What a file holds and what the target's interpreter would run in its place.

Runs inside the *target* interpreter: `child` gets this text together with the question, so it uses
the standard library only. Reads disk only.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def stale_bytecode(path: str, source: bytes) -> str | None:
    """Name the cached bytecode that would be run in place of `source`, if there is any.

    A `.pyc` that Python would reject anyway (other magic, time or size) is harmless. One that it
    would accept is compared with freshly compiled code: a file replaced within one second by one
    of the same size, or an unchecked-hash `.pyc`, keeps old code alive.
    """
    directory, name = os.path.split(path)
    if not sys.pycache_prefix and not _cached(directory, name):
        return None
    import importlib.util
    import marshal

    for level, optimization in ((0, ""), (1, 1), (2, 2)):
        cached = importlib.util.cache_from_source(path, optimization=optimization)
        try:
            data = _read(cached)
        except OSError:
            continue
        if not would_be_used(data, path, source):
            continue
        fresh = compile(source, path, "exec", dont_inherit=True, optimize=level)
        try:
            same = marshal.loads(data[16:]) == fresh
        except (EOFError, TypeError, ValueError):
            same = False
        if not same:
            return cached
    return None


def _cached(directory: str, name: str) -> bool:
    """Tell whether there may be any bytecode of a file in the usual place."""
    stem = name.rpartition(".")[0] + "."
    try:
        return any(entry.startswith(stem) for entry in os.listdir(f"{directory}/__pycache__"))
    except FileNotFoundError:
        return False
    except OSError:
        return True


def would_be_used(data: bytes, path: str, source: bytes) -> bool:
    """Apply CPython's own acceptance rule for a `.pyc` (PEP 552) to these bytes."""
    import importlib.util

    if len(data) < 16 or data[:4] != importlib.util.MAGIC_NUMBER:
        return False
    flags = int.from_bytes(data[4:8], "little")
    if flags & 0b1:
        checked = bool(flags & 0b10)
        return not checked or data[8:16] == importlib.util.source_hash(source)
    mtime = int(os.stat(path).st_mtime) & 0xFFFFFFFF
    return data[8:16] == mtime.to_bytes(4, "little") + (len(source) & 0xFFFFFFFF).to_bytes(
        4, "little"
    )


def inspect(root: str, relative: str) -> dict[str, Any]:
    """Digest of a file below the import root, and what would be run in its place."""
    import hashlib

    path = f"{root}/{relative}"
    try:
        data = _read(path)
    except OSError as error:
        return {"error": str(error)}
    facts: dict[str, Any] = {"sha256": hashlib.sha256(data).hexdigest()}
    stem, suffix = os.path.splitext(os.path.basename(path))
    if suffix != ".py":
        return facts
    if stem != "__init__":
        spec = PathFinder.find_spec(stem, [os.path.dirname(path)])
        # A package directory or an extension module of the same name wins over the source.
        if spec is None or not isinstance(spec.loader, SourceFileLoader) or spec.origin != path:
            facts["shadowed_by"] = "nothing" if spec is None else str(spec.origin)
    try:
        facts["stale"] = stale_bytecode(path, data)
    except (SyntaxError, ValueError) as error:
        facts["error"] = f"does not compile: {error}"
    return facts


def _read(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()
