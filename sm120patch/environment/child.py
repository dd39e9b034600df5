"""Answers from inside a Python environment what it would import, and which bytes.

Runs as `EXE -I -c <this text>` in the *target* interpreter, so it uses the standard library only
and imports none of the packages it is asked about. Reads disk only.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import sysconfig
from importlib.machinery import PathFinder, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:  # What only some questions need is imported where it is: every start counts.
    from pathlib import Path
    from typing import Any

BEGIN = "<<<sm120patch "
END = " sm120patch>>>"
"""Site hooks may print; only what stands between these two is ours."""


def find(package: str) -> dict[str, Any]:
    """Say where a top-level package would come from, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except Exception as error:  # an import hook of the environment may raise anything
        return {"error": f"{type(error).__name__}: {error}"}
    if spec is None:
        return {}
    locations = spec.submodule_search_locations
    return {
        "origin": spec.origin if spec.has_location else None,
        "locations": None if locations is None else [str(entry) for entry in locations],
    }


def describe(packages: list[str]) -> dict[str, Any]:
    """Facts about the interpreter and where each of `packages` would come from."""
    import site

    paths = sysconfig.get_paths()
    return {
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "version": ".".join(str(part) for part in sys.version_info[:3]),
        "cache_tag": sys.implementation.cache_tag or "",
        "path": [entry for entry in sys.path if entry],
        "site": [paths["purelib"], paths["platlib"]],
        "user_site": site.getusersitepackages(),
        "packages": {package: find(package) for package in packages},
    }


def stale_bytecode(path: Path, source: bytes) -> str | None:
    """Name the cached bytecode that would be run in place of `source`, if there is any.

    A `.pyc` that Python would reject anyway (other magic, time or size) is harmless. One that it
    would accept is compared with freshly compiled code: a file replaced within one second by one
    of the same size, or an unchecked-hash `.pyc`, keeps old code alive.
    """
    import marshal
    from pathlib import Path

    for level, optimization in ((0, ""), (1, 1), (2, 2)):
        cached = Path(importlib.util.cache_from_source(str(path), optimization=optimization))
        try:
            data = cached.read_bytes()
        except OSError:
            continue
        if not would_be_used(data, path, source):
            continue
        fresh = compile(source, str(path), "exec", dont_inherit=True, optimize=level)
        try:
            same = marshal.loads(data[16:]) == fresh
        except (EOFError, TypeError, ValueError):
            same = False
        if not same:
            return str(cached)
    return None


def would_be_used(data: bytes, path: Path, source: bytes) -> bool:
    """Apply CPython's own acceptance rule for a `.pyc` (PEP 552) to these bytes."""
    if len(data) < 16 or data[:4] != importlib.util.MAGIC_NUMBER:
        return False
    flags = int.from_bytes(data[4:8], "little")
    if flags & 0b1:
        checked = bool(flags & 0b10)
        return not checked or data[8:16] == importlib.util.source_hash(source)
    mtime = int(path.stat().st_mtime) & 0xFFFFFFFF
    return data[8:16] == mtime.to_bytes(4, "little") + (len(source) & 0xFFFFFFFF).to_bytes(
        4, "little"
    )


def inspect(root: str, relative: str) -> dict[str, Any]:
    """Digest of a file below the import root, and what would be run in its place."""
    import hashlib
    from pathlib import Path

    path = Path(root) / relative
    try:
        data = path.read_bytes()
    except OSError as error:
        return {"error": str(error)}
    facts: dict[str, Any] = {"sha256": hashlib.sha256(data).hexdigest()}
    if path.suffix != ".py":
        return facts
    if path.stem != "__init__":
        spec = PathFinder.find_spec(path.stem, [str(path.parent)])
        # A package directory or an extension module of the same name wins over the source.
        if (
            spec is None
            or not isinstance(spec.loader, SourceFileLoader)
            or spec.origin != str(path)
        ):
            facts["shadowed_by"] = "nothing" if spec is None else str(spec.origin)
    try:
        facts["stale"] = stale_bytecode(path, data)
    except (SyntaxError, ValueError) as error:
        facts["error"] = f"does not compile: {error}"
    return facts


def main() -> None:
    """Write one JSON object: `describe` of argv[1], plus `inspect` of the files named on stdin."""
    facts = describe(json.loads(sys.argv[1]))
    facts["files"] = [
        inspect(root, relative) for root, relative in json.loads(sys.stdin.read() or "[]")
    ]
    sys.stdout.write(BEGIN + json.dumps(facts) + END)


if __name__ == "__main__":
    main()
