"""Sets of the shipped catalogue as values already: checked when they were compiled, not again.

Pure. Decoding TOML and looking at every key takes longer than all other work of `status`.
`tools/compile_catalogue.py` writes what `manifest.examine` made of each manifest, under the digest
of its text: an edited manifest is not found here and is read as any other. Payloads are not in it;
their bytes are read and held against their digests as always.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from sm120patch import model, versions
from sm120patch.model import PatchSet, sha256_hex

FORMAT = 1
FILE = "catalogue.json"
_KIND = "~"
"""Key of an object that names the class whose fields the others are."""


def write(sets: Iterable[tuple[bytes, PatchSet]], published: Sequence[str]) -> bytes:
    """Return the file for manifests (as text) and what became of them.

    For the `published` versions it also keeps which of them lie in which range of a manifest.
    """
    entries = {sha256_hex(text): _plain(patch_set) for text, patch_set in sets}
    numbers = list(enumerate(published))
    ranges = {
        text: sum(1 << number for number, version in numbers if versions.within(version, text))
        for text in sorted(set(_ranges(list(entries.values()))))
    }
    document = {
        "format": FORMAT,
        "published": list(published),
        "ranges": {text: f"{bits:x}" for text, bits in ranges.items()},
        "sets": entries,
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def read(data: bytes) -> Mapping[str, PatchSet]:
    """Return the sets by digest of the manifest's text; none of a file of another format.

    They lack the bytes of their payloads, see `restore`.
    What the file knows of versions and ranges is handed to `versions`.
    """
    try:
        document = json.loads(data, object_hook=_value)
    except (ValueError, TypeError, AttributeError):  # no JSON, or other classes than ours
        return {}
    known = isinstance(document, dict) and document.get("format") == FORMAT
    if not known:
        return {}
    answers = {text: int(bits, 16) for text, bits in document["ranges"].items()}
    versions.learn(document["published"], answers)
    sets: Mapping[str, PatchSet] = document["sets"]
    return sets


def restore(patch_set: PatchSet, read_payload: Callable[[str], bytes]) -> PatchSet | None:
    """Return the set with its payloads; None when one of them is not what was compiled."""
    changes = []
    for change in patch_set.changes:
        variants = []
        for variant in change.variants:
            try:
                data = read_payload(variant.payload)
            except (OSError, ValueError):
                return None
            if sha256_hex(data) != variant.sha256:
                return None
            variants.append(variant._replace(data=data))
        changes.append(change._replace(variants=tuple(variants)))
    return patch_set._replace(changes=tuple(changes))


def _ranges(plain: object) -> Iterator[str]:
    """Every range in the JSON form of a set."""
    if isinstance(plain, list):
        for inner in plain:
            yield from _ranges(inner)
    elif isinstance(plain, dict):
        yield from filter(None, [plain.get("versions")])
        requires = plain.get("requires")
        yield from requires.values() if isinstance(requires, dict) else ()
        for inner in plain.values():
            yield from _ranges(inner)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return {_KIND: type(value).__name__, "value": value.value}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields = {name: _plain(inner) for name, inner in value._asdict().items()}
        return {_KIND: type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, bytes):
        return ""  # of a payload: it is read from its own file
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return value


def _value(plain: dict[str, Any]) -> Any:
    """Make a value of its fields, which are values already but for lists."""
    fields = {k: tuple(inner) if isinstance(inner, list) else inner for k, inner in plain.items()}
    kind: Any = fields.pop(_KIND, None)
    return fields if kind is None else getattr(model, kind)(**fields)
