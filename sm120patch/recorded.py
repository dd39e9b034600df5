"""Careful access to recorded data: whatever a ledger holds, a value of the wanted kind. Pure.

Evidence was written by some release of this tool, on some host, about a server that may say
anything of itself. A page about it must come out whatever is missing or odd: nothing here raises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

Record = Mapping[str, object]


def look(data: object, *keys: str) -> object:
    """Descend through mappings; None where a key is missing or something is no mapping."""
    for key in keys:
        if not isinstance(data, Mapping):
            return None
        data = data.get(key)
    return data


def record(data: object, *keys: str) -> Record:
    """Mapping below the keys, empty when there is none; keys that are no text are left out."""
    found = look(data, *keys)
    if not isinstance(found, Mapping):
        return {}
    return {key: value for key, value in found.items() if isinstance(key, str)}


def items(data: object, *keys: str) -> list[object]:
    """List below the keys, empty when there is none."""
    found = look(data, *keys)
    return list(found) if isinstance(found, list | tuple) else []


def records(data: object, *keys: str) -> list[Record]:
    """Mappings of the list below the keys."""
    return [record(item) for item in items(data, *keys) if isinstance(item, Mapping)]


def number(data: object, *keys: str) -> float | None:
    """Finite number below the keys; a truth value is none."""
    found = look(data, *keys)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        value = float(found)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def text(data: object, *keys: str, most: int = 2000) -> str:
    """Text of the scalar below the keys, at most `most` characters; empty when there is none."""
    found = look(data, *keys)
    if found is None or isinstance(found, Mapping | list | tuple):
        return ""
    words = str(found)
    return words if len(words) <= most else words[: most - 1] + "…"


def texts(data: object, *keys: str, most: int = 200) -> list[str]:
    """Texts of the list below the keys, at most `most` of them."""
    return [text(item) for item in items(data, *keys)[:most]]
