"""Write the files of a set into a catalogue directory; nothing is overwritten unasked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sm120patch.disk import make_directory, remove_file, write_file
from sm120patch.errors import HostError, UsageError
from sm120patch.model import ID


def check_name(set_id: str) -> None:
    """Raise UsageError unless a set may have this name."""
    if not re.fullmatch(ID, set_id):
        raise UsageError(
            f"{set_id!r} is no name of a set: lower case words joined by '-'",
            hint="for example my-arch-list",
        )


def write_new(files: Mapping[str, bytes], catalogue: Path, *, force: bool) -> None:
    """Write `files` (path below the catalogue -> content) durably, the manifest last.

    Whoever reads meanwhile, or after a kill, finds the earlier set, the new one, or no set; never
    a manifest with payloads of another. Raises UsageError that names every file that exists, unless
    `force` is given, and HostError when the disk refuses.
    """
    places = {catalogue / name: data for name, data in files.items()}
    there = [p for p in places if p.exists() or p.is_symlink()]
    if there and not force:
        shown = [str(p) for p in there]
        raise UsageError(
            f"would overwrite {', '.join(shown)}",
            hint="add --force to overwrite, or name another directory with --into",
            code="exists",
            details={"paths": shown},
        )
    manifests = [catalogue / name for name in files if name.startswith("manifests/")]
    payloads = [catalogue / name for name in files if name.startswith("patches/")]
    try:
        if any(_differs(p, places[p]) for p in payloads if p in there):
            for manifest in manifests:
                remove_file(manifest)
        for place, data in sorted(places.items(), key=lambda item: item[0] in manifests):
            _make_directories(place.parent)
            write_file(place, data, tag="new")
    except OSError as error:
        raise HostError(
            f"cannot write into {catalogue}: {error.strerror or error}",
            hint="mend the cause and repeat; with --force where files of the set are there already",
            details={"errno": error.errno},
        ) from error


def _differs(path: Path, data: bytes) -> bool:
    return path.is_symlink() or path.read_bytes() != data


def _make_directories(directory: Path) -> None:
    if not directory.is_dir():
        _make_directories(directory.parent)
        make_directory(directory)
