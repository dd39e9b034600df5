"""Knows published files and what the catalogue makes of them, so that they need not be parsed.

Pure but for `_index`, which reads the one file that `tools/build_fingerprints.py` writes.

The index is text, one content a line, sorted: the first 16 bytes of its sha256 in hex, a space, and
a JSON object. A line is found by searching for its digest; nothing else is decoded. Keys:

    t, p   target and path
    v      versions that ship exactly this
    o, c   digest of the shipped content below, and the `set/change` ids that are in it
    e      edit key -> [sites, digest after, [[offset, length, replacement], ...]], or the reason
           why nothing is to be done

Replacements are bytes written as Latin-1. The codemods stay the source of truth: an edit is keyed
by the digest of its payload and of the content before, and what comes out must have the digest that
the codemod's own result had. Whatever the index does not know, or does not know any more, is left
to them.
"""

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from sm120patch.model import (
    Changed,
    PatchSet,
    PayloadKind,
    Unchanged,
    Variant,
    digest_of,
    sha256_hex,
)

FORMAT = 1
FILE = "fingerprints.txt"
_DIGITS = 32
_MARK = b"# sm120patch fingerprints "

Splice = tuple[int, int, bytes]
"""Offset and length in the content before, and the bytes that stand there afterwards."""


class Known(NamedTuple):
    """A content that the index recognises."""

    target: str
    path: str
    versions: tuple[str, ...]
    """Versions whose file this is, or was before the changes."""
    changes: tuple[str, ...]
    """`set/change` ids in it; none in what upstream ships."""

    def __str__(self) -> str:
        """Say what it is and, if it is an edit, that it was not made here."""
        ends = self.versions[:1] + self.versions[1:][-1:]
        where = f"{self.target} {' to '.join(ends)}"
        if not self.changes:
            return f"the file of {where}"
        return f"{' + '.join(self.changes)} applied by hand to {where}"


def recognise(target: str, path: str, sha256: str) -> Known | None:
    """Tell what the file of that digest is; None when it is nothing known."""
    entry = _entry(sha256)
    if entry is None or (entry["t"], entry["p"]) != (target, path):
        return None
    changes, versions = tuple(entry.get("c", ())), tuple(entry.get("v", ()))
    if not versions:
        base = _entry(entry["o"])
        versions = tuple(base.get("v", ())) if base else ()
        return Known(target, path, versions, changes)
    return Known(target, path, versions, ())


def edit_words(target: str, path: str, sha256: str) -> str:
    """Say what a file holds that neither upstream nor a ledger answers for."""
    known = known_as(target, path, sha256)
    return f"this is {known}" if known else "edited by somebody, and no ledger has it"


def known_as(target: str, path: str, sha256: str | None) -> str:
    """Say what a content is, if it is one that somebody published or that the catalogue makes."""
    known = None if sha256 is None else recognise(target, path, sha256)
    return "" if known is None else str(known)


def published(target: str, path: str, version: str) -> bool:
    """Tell whether the index knows what that version shipped as that file."""
    return any(
        (entry["t"], entry["p"]) == (target, path) and version in entry.get("v", ())
        for _digest, entry in entries()
    )


def edit(variant: Variant, data: bytes) -> Changed | Unchanged | None:
    """Return what the variant makes of `data` without running it; None when that is not known."""
    entry = _entry(sha256_hex(data))
    found = None if entry is None else entry.get("e", {}).get(edit_key(variant))
    if isinstance(found, str):
        return Unchanged(found)
    if not isinstance(found, list):
        return None
    sites, digest, splices = found
    after = replay(data, ((o, n, text.encode("latin-1")) for o, n, text in splices))
    return Changed(after, sites) if sha256_hex(after).startswith(digest) else None


def replay(data: bytes, splices: Iterable[Splice]) -> bytes:
    """Apply splices, which are in order and do not overlap."""
    parts, position = [], 0
    for offset, length, replacement in splices:
        parts += [data[position:offset], replacement]
        position = offset + length
    return b"".join([*parts, data[position:]])


@lru_cache(maxsize=256)
def _codemod_key(sha256: str) -> str:
    return digest_of(["codemod", sha256])[:_DIGITS]


def edit_key(variant: Variant) -> str:
    """Name what a variant does: its payload, and for a diff also file and post-conditions."""
    if variant.kind is PayloadKind.CODEMOD:
        return _codemod_key(variant.sha256)
    conditions = [dict(variant.present), list(variant.absent)]
    return digest_of([variant.kind.value, variant.sha256, variant.path, conditions])[:_DIGITS]


# --- the file ----------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _index() -> bytes:
    """Read the shipped index; empty when there is none or one of another format."""
    package = Path(__file__).resolve().parent
    for directory in (package / "_data", package.parent):
        try:
            data = (directory / FILE).read_bytes()
        except OSError:
            continue
        return data if _header(data).get("format") == FORMAT else b""
    return b""


def header() -> dict[str, Any]:
    """What the index was built from: format, digests of catalogue and engine, numbers."""
    return _header(_index())


def _header(data: bytes) -> dict[str, Any]:
    first = data.partition(b"\n")[0]
    try:
        found = json.loads(first.removeprefix(_MARK)) if first.startswith(_MARK) else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@lru_cache(maxsize=512)
def _entry(sha256: str) -> dict[str, Any] | None:
    data, key = _index(), b"\n" + sha256[:_DIGITS].encode() + b" "
    start = data.find(key)
    if len(key) != _DIGITS + 2 or start < 0:
        return None
    end = data.find(b"\n", start + 1)
    found = json.loads(data[start + len(key) : end])
    return found if isinstance(found, dict) else None


def entries() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every digest of the index with its entry."""
    for line in _index().splitlines()[1:]:
        digest, _, text = line.decode("ascii").partition(" ")
        yield digest, json.loads(text)


def edits_digest(sets: Iterable[PatchSet]) -> str:
    """Digest of what decides the index: which payload is for which file of which versions."""
    return digest_of(
        {
            f"{patch_set.id}/{change.id}": [
                [change.target, v.versions, v.path, edit_key(v)] for v in change.variants
            ]
            for patch_set in sets
            for change in patch_set.changes
        }
    )


def write(head: dict[str, Any], contents: dict[str, dict[str, Any]]) -> bytes:
    """Return the index as bytes: equal input gives equal bytes everywhere."""

    def text(value: object) -> bytes:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")

    lines = [_MARK + text({"format": FORMAT, **head})]
    lines += [key[:_DIGITS].encode() + b" " + text(contents[key]) for key in sorted(contents)]
    return b"\n".join(lines) + b"\n"
