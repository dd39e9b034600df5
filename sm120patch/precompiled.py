"""Sets of the shipped catalogue as values already: checked when they were compiled, not again.

Pure. Decoding TOML and looking at every key takes longer than all other work of `status`.
`tools/compile_catalogue.py` writes what `manifest.examine` made of each manifest, under the digest
of its text: an edited manifest is not found here and is read as any other. Payloads are not in it;
their bytes are read and held against their digests as always.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from sm120patch import model
from sm120patch.model import PatchSet, sha256_hex
from sm120patch.values import replace

FORMAT = 1
FILE = "catalogue.json"
_KIND = "~"
"""Key of an object that names the class whose fields the others are."""


def write(sets: Iterable[tuple[bytes, PatchSet]]) -> bytes:
    """Return the file for manifests (as text) and what became of them."""
    entries = {sha256_hex(text): _plain(patch_set) for text, patch_set in sets}
    document = {"format": FORMAT, "sets": entries}
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def read(data: bytes) -> Mapping[str, Any]:
    """Return the entries by digest of the manifest's text; none of a file of another format."""
    try:
        document = json.loads(data)
    except ValueError:
        return {}
    known = isinstance(document, dict) and document.get("format") == FORMAT
    return document["sets"] if known else {}


def restore(entry: Any, read_payload: Callable[[str], bytes]) -> PatchSet | None:
    """Return the set with its payloads; None when one of them is not what was compiled."""
    patch_set = _value(entry)
    if not isinstance(patch_set, PatchSet):
        return None
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
            variants.append(replace(variant, data=data))
        changes.append(replace(change, variants=tuple(variants)))
    return replace(patch_set, changes=tuple(changes))


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return {_KIND: type(value).__name__, "value": value.value}
    if hasattr(type(value), "__dataclass_fields__"):
        fields = {name: _plain(inner) for name, inner in vars(value).items()}
        return {_KIND: type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, bytes):
        return ""  # of a payload: it is read from its own file
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return value


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple(map(_value, plain))
    if not isinstance(plain, dict):
        return plain
    fields = {key: _value(inner) for key, inner in plain.items()}
    kind = fields.pop(_KIND, None)
    return fields if kind is None else getattr(model, kind)(**fields)
