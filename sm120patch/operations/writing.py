"""Write the files of a set into a catalogue directory; nothing is overwritten unasked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sm120patch.disk import write_file
from sm120patch.errors import UsageError
from sm120patch.manifest.toml import ID


def check_name(set_id: str) -> None:
    """Raise UsageError unless a set may have this name."""
    if not re.fullmatch(ID, set_id):
        raise UsageError(
            f"{set_id!r} is no name of a set: lower case words joined by '-'",
            hint="for example my-arch-list",
        )


def write_new(files: Mapping[str, bytes], catalogue: Path, *, force: bool) -> None:
    """Write `files` (path below the catalogue -> content), the manifest last.

    Raises UsageError that names every file that exists, unless `force` is given.
    """
    places = {catalogue / name: data for name, data in files.items()}
    there = [str(p) for p in places if p.exists() or p.is_symlink()]
    if there and not force:
        raise UsageError(
            f"would overwrite {', '.join(there)}",
            hint="add --force to overwrite, or name another directory with --into",
            code="exists",
            details={"paths": there},
        )
    for place, data in sorted(places.items(), key=lambda item: item[0].suffix == ".toml"):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_file(place, data, tag="new")
