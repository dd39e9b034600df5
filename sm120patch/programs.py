"""Finds a program on PATH. Reads disk only.

As `shutil.which` does on POSIX; importing that would load three kinds of compression with it.
"""

from __future__ import annotations

import os
from pathlib import Path


def find_program(name: str, path: str) -> str | None:
    """Return the first executable file of that name in the directories of `path`, else None."""
    if not path:
        return None
    places = [""] if os.sep in name else path.split(os.pathsep)
    for place in dict.fromkeys(places):
        found = f"{place or os.curdir}/{name}" if os.sep not in name else name
        if Path(found).is_file() and os.access(found, os.X_OK):
            return found
    return None
