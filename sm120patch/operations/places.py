"""Where catalogues are looked for: options, SM120PATCH_CATALOGUE_PATH, site directories.

Looks at the environment and for directories; writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sm120patch.catalogue import Places

SITE = Path("/etc/sm120patch/catalogue")
"""Directory of the host's administrator."""
VARIABLE = "SM120PATCH_CATALOGUE_PATH"


def find_places(base: Path | None, extra: tuple[Path, ...], environ: Mapping[str, str]) -> Places:
    """Return the places that count: `base` and `extra` as given, or else all of the host.

    With `base` the shipped catalogue does not count, and neither does what the host adds to it:
    the command then means the same on every host. Directories of SM120PATCH_CATALOGUE_PATH
    (separated like PATH) must be there; site directories count where they are.
    """
    if base is not None:
        return Places(base, extra)
    named = [Path(text) for text in environ.get(VARIABLE, "").split(os.pathsep) if text]
    site = [place for place in _site(environ) if any((place / "manifests").glob("*.toml"))]
    return Places(None, tuple(dict.fromkeys([*site, *named, *extra])))


def _site(environ: Mapping[str, str]) -> list[Path]:
    configured = environ.get("XDG_CONFIG_HOME")
    home = environ.get("HOME")
    base = Path(configured) if configured else Path(home) / ".config" if home else None
    return [SITE, *([base / "sm120patch" / "catalogue"] if base else [])]
