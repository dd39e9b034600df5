"""Where catalogues are looked for: options, SM120PATCH_CATALOGUE_PATH, site directories.

Looks at the environment and for directories, and asks ssh-keygen where signers are named; writes
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sm120patch.catalogue import Places
from sm120patch.errors import UsageError
from sm120patch.userdirs import user_directory

SITE = Path("/etc/sm120patch/catalogue")
"""Directory of the host's administrator."""
VARIABLE = "SM120PATCH_CATALOGUE_PATH"
SIGNERS = Path("/etc/sm120patch/allowed_signers")
"""Whose catalogues this host takes; without the file, and without the variable, anybody's."""
SIGNERS_VARIABLE = "SM120PATCH_ALLOWED_SIGNERS"


def find_places(base: Path | None, extra: tuple[Path, ...], environ: Mapping[str, str]) -> Places:
    """Return the places that count: `base` and `extra` as given, or else all of the host.

    With `base` the shipped catalogue does not count, and neither does what the host adds to it:
    the command then means the same on every host. Directories of SM120PATCH_CATALOGUE_PATH
    (separated like PATH) must be there; site directories count where they are.
    """
    if base is not None:
        return _signed(Places(base, extra), environ)
    named = [Path(text) for text in environ.get(VARIABLE, "").split(os.pathsep) if text]
    site = [SITE, user_directory("XDG_CONFIG_HOME", environ) / "catalogue"]
    there = [place for place in site if any((place / "manifests").glob("*.toml"))]
    return _signed(Places(None, tuple(dict.fromkeys([*there, *named, *extra]))), environ)


def _signed(places: Places, environ: Mapping[str, str]) -> Places:
    """Require a valid signature of every catalogue that is not shipped, where signers are named.

    Raises CatalogueError, and UsageError for a variable that names no file.
    """
    named = environ.get(SIGNERS_VARIABLE)
    signers = Path(named) if named else SIGNERS
    if not signers.is_file():
        if named:
            raise UsageError(
                f"{SIGNERS_VARIABLE} names {named}, which is no file",
                hint="name a file in the format of ssh's allowed_signers, or unset the variable",
            )
        return places
    from sm120patch import signing

    for directory in filter(None, (places.base, *places.extra)):
        signing.check(directory, signers)
    return places
