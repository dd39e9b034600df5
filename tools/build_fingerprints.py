"""Write fingerprints.txt: the target files of all releases, and what the catalogue makes of them.

For maintainers, after an edit of the catalogue, the list of releases or the payloads' engine:

    python tools/build_fingerprints.py            # or --check: compare, write nothing

Packages that are not in the wheel cache are downloaded. Every edit is made by its codemod or diff.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sm120patch import catalogue, fingerprints, published, versions
from sm120patch.catalogue import Catalogue
from sm120patch.fingerprints import Splice, edit_key, replay
from sm120patch.model import (
    Changed,
    EditResult,
    Unchanged,
    Variant,
    sha256_hex,
)
from sm120patch.published import Shelf
from sm120patch.variants import run

ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT / fingerprints.FILE
MAX_STATES = 512
"""Combinations of changes of one file; more would mean that the index is the wrong means."""

Labelled = tuple[str, Variant]
Contents = dict[str, dict[str, Any]]


def splices(before: bytes, after: bytes) -> list[Splice]:
    """Return the shortest splices, by lines and then by bytes, that turn `before` into `after`."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    offsets = [0]
    for line in old:
        offsets.append(offsets[-1] + len(line))
    found = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "equal":
            found.append(_trimmed(offsets[i], before[offsets[i] : offsets[j]], b"".join(new[k:m])))
    assert replay(before, found) == after
    return found


def _trimmed(offset: int, old: bytes, new: bytes) -> Splice:
    head = _alike(old, new)
    old, new = old[head:], new[head:]
    tail = _alike(old[::-1], new[::-1])
    return offset + head, len(old) - tail, new[: len(new) - tail]


def _alike(one: bytes, other: bytes) -> int:
    """Length of what both begin with."""
    return sum(
        1 for _ in itertools.takewhile(lambda p: p[0] == p[1], zip(one, other, strict=False))
    )


class Builder:
    """Collects contents and edits; each edit is made once for each content."""

    def __init__(self, edit: Callable[[Variant, bytes], EditResult] = run) -> None:
        self.contents: Contents = {}
        self._edit = edit
        self._done: dict[tuple[str, str], EditResult] = {}

    def add(self, target: str, path: str, version: str, data: bytes, chain: list[Labelled]) -> None:
        """Add what a release ships and every combination of the changes that are for it."""
        base = self._content(target, path, data)
        shipped = base.setdefault("v", [])
        if version not in shipped:
            shipped.append(version)
        states: dict[tuple[str, ...], bytes] = {(): data}
        for label, variant in chain:
            for changes, content in list(states.items()):
                result = self._apply(target, path, variant, content)
                if isinstance(result, Changed):
                    state = (*changes, label)
                    states[state] = result.data
                    entry = self._content(target, path, result.data)
                    if "v" not in entry:
                        entry.setdefault("o", sha256_hex(data)[:32])
                        entry.setdefault("c", list(state))
        if len(states) > MAX_STATES:
            raise SystemExit(f"{path}: {len(states)} combinations, at most {MAX_STATES}")

    def _content(self, target: str, path: str, data: bytes) -> dict[str, Any]:
        return self.contents.setdefault(sha256_hex(data)[:32], {"t": target, "p": path})

    def _apply(self, target: str, path: str, variant: Variant, data: bytes) -> EditResult:
        key = (edit_key(variant), sha256_hex(data))
        if key not in self._done:
            result = self._done[key] = self._edit(variant, data)
            known = self._content(target, path, data).setdefault("e", {})
            if isinstance(result, Changed):
                cuts = [[o, n, new.decode("latin-1")] for o, n, new in splices(data, result.data)]
                known[key[0]] = [result.sites, sha256_hex(result.data)[:32], cuts]
            elif isinstance(result, Unchanged):
                known[key[0]] = result.reason
        return self._done[key]


def chains(loaded: Catalogue, target: str, version: str) -> dict[str, list[Labelled]]:
    """Return path -> changes for that version, in the order in which they are planned."""
    installed = versions.installed(version)
    found: dict[str, list[Labelled]] = {}
    for set_id in loaded.closure(loaded.ids):
        for change in loaded.get(set_id).changes:
            for variant in change.variants if change.target == target else ():
                if installed is not None and installed in versions.parse(variant.versions):
                    found.setdefault(variant.path, []).append((f"{set_id}/{change.id}", variant))
    return found


def paths(loaded: Catalogue, target: str) -> list[str]:
    """Every file of a target that some variant edits."""
    changes = [c for s in loaded.sets.values() for c in s.changes if c.target == target]
    return sorted({v.path for c in changes for v in c.variants})


def engine_digest() -> str:
    """Digest of the code that runs payloads: an index of another engine may be out of date."""
    package = ROOT / "sm120patch"
    names = ["codemod.py", "diffparse.py", "unified.py", "variants.py"]
    digest = hashlib.sha256()
    for path in sorted([*(package / name for name in names), *package.glob("_[a-z]*.py")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def build(
    loaded: Catalogue,
    releases: dict[str, tuple[str, ...]],
    shelf: Shelf,
    say: Callable[[str], None],
) -> bytes:
    """Return the index of these releases."""
    builder = Builder()
    for target, version in _each(loaded, releases):
        package = shelf.get(target, version)
        edits = chains(loaded, target, version)
        for path, data in package.read(paths(loaded, target)).items():
            builder.add(target, path, version, data, edits.get(path, []))
        say(f"{target} {version}: {len(builder.contents)} contents")
    head = {
        "catalogue": fingerprints.edits_digest(loaded.sets.values()),
        "contents": len(builder.contents),
        "engine": engine_digest(),
        "releases": {t: len(v) for t, v in releases.items()},
    }
    return fingerprints.write(head, builder.contents)


def _each(loaded: Catalogue, releases: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    for target, listed in releases.items():
        if paths(loaded, target):
            yield from ((target, version) for version in listed)


def main(arguments: list[str] | None = None) -> int:
    """Write the index, or compare it; return 1 when `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when it differs")
    parser.add_argument("--wheel-dir", type=Path, default=published.cache_directory(os.environ))
    options = parser.parse_args(arguments)

    def say(text: str) -> None:
        sys.stderr.write(text + "\n")

    shelf = Shelf(options.wheel_dir, say)
    data = build(catalogue.load(ROOT), published.known(ROOT), shelf, say)
    if options.check:
        same = INDEX.is_file() and INDEX.read_bytes() == data
        say("up to date" if same else f"{INDEX.name} is out of date")
        return 0 if same else 1
    INDEX.write_bytes(data)
    say(f"{INDEX}: {len(data)} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
