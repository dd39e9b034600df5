"""Where upstream's bytes of a file may be had besides the environment itself. Reads disk only.

A shelf that is not offline downloads what it lacks, below the wheel cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sm120patch.model import sha256_hex
from sm120patch.packages import open_package
from sm120patch.published import Shelf


@dataclass(frozen=True)
class Sources:
    """Where upstream's bytes may be taken from besides the environment itself."""

    given: tuple[Path, ...] = ()
    """Packages, or directories that hold the package as `site-packages` does."""
    shelf: Shelf | None = None

    def look(self, target: str, version: str, path: str, sha256: str) -> tuple[bytes, str] | None:
        """Return bytes with that digest, and where they were found."""
        for place, data in self._candidates(target, version, path):
            if data is not None and sha256_hex(data) == sha256:
                return data, place
        return None

    def _candidates(
        self, target: str, version: str, path: str
    ) -> Iterator[tuple[str, bytes | None]]:
        for place in self.given:
            if place.is_dir():
                file = place / path
                yield str(file), file.read_bytes() if file.is_file() else None
            else:
                yield str(place), open_package(place).read([path]).get(path)
        if self.shelf is not None:
            package = self.shelf.get(target, version)
            yield str(package.path), package.read([path]).get(path)
