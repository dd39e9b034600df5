"""Write `catalogue.json`, the manifests as values, or compare it with `--check`.

For maintainers, after a manifest was edited (`make fingerprints` does it too):

    python tools/compile_catalogue.py

A stale file is never wrong, only slow: an edited manifest is not found in it and is read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sm120patch import manifest, precompiled, published, versions

ROOT = Path(__file__).resolve().parent.parent


def compile_all(root: Path) -> bytes:
    """Return the file for the manifests below `root`; CatalogueError for a broken one."""
    versions.learn((), {})  # nothing of what an old file says
    sets = []

    def read(payload: str) -> bytes:
        return (root / "patches" / payload).read_bytes()

    for path in sorted((root / "manifests").glob("*.toml")):
        text = path.read_bytes()
        sets.append((text, manifest.parse(text, path.name, read)))
    known = published.known(ROOT).values()
    return precompiled.write(sets, list(dict.fromkeys(v for listed in known for v in listed)))


def main(arguments: list[str] | None = None) -> int:
    """Write the file, or compare it; return 1 when `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when it differs")
    options = parser.parse_args(arguments)
    file = ROOT / precompiled.FILE
    data = compile_all(ROOT)
    if options.check:
        return 0 if file.is_file() and file.read_bytes() == data else 1
    file.write_bytes(data)
    sys.stderr.write(f"{file}: {len(data)} bytes\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
