"""Where the Ansible collection lies that comes with this package.

Looks at the disk only.
"""

from __future__ import annotations

from pathlib import Path

import sm120patch
from sm120patch.errors import HostError

COLLECTION = Path("ansible_collections", "sm120patch", "fleet")


def collections_path() -> Path:
    """Directory for ANSIBLE_COLLECTIONS_PATH; HostError where the package was installed without."""
    path = Path(sm120patch.__file__).resolve().parent / "collections"
    if not (path / COLLECTION / "galaxy.yml").is_file():
        raise HostError(
            f"the collection sm120patch.fleet is not in {path}",
            hint="reinstall sm120patch from its wheel",
        )
    return path
