"""Values within decoded JSON, named by a path like `results.0.ok`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_INDEX = re.compile(r"[0-9]{1,9}")


def descend(data: object, path: str) -> tuple[bool, object]:
    """Whether there is a value at the path, and the value."""
    for name in path.split("."):
        if isinstance(data, list) and _INDEX.fullmatch(name) and int(name) < len(data):
            data = data[int(name)]
        elif isinstance(data, Mapping) and name in data:
            data = data[name]
        else:
            return False, None
    return True, data
