"""How distributions are named, and what their metadata says of them. Pure."""

import json
import re
from typing import Any

_SUFFIXES = (".dist-info", ".egg-info")


def normalized(name: str) -> str:
    """Spell a distribution's name as indexes do (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def describes(entry: str, target: str) -> bool:
    """Tell whether an entry of site-packages is named as the metadata of a distribution."""
    stem = entry.rpartition(".")[0].partition("-")[0]
    return entry.endswith(_SUFFIXES) and normalized(stem) == normalized(target)


def version_in(metadata: str) -> str | None:
    """Return the version that METADATA or PKG-INFO states."""
    header = metadata.partition("\n\n")[0]
    found = re.search(r"^Version:[ \t]*(\S+)[ \t]*\r?$", header, re.MULTILINE | re.IGNORECASE)
    return found[1] if found else None


def editable_url(direct_url: str | bytes) -> str | None:
    """Return where an editable installation stands by its `direct_url.json`; None for others."""
    try:
        data: Any = json.loads(direct_url)
    except (ValueError, RecursionError):
        return None
    info = data.get("dir_info") if isinstance(data, dict) else None
    if not isinstance(info, dict) or info.get("editable") is not True:
        return None
    return str(data.get("url", ""))
