"""Textual closure of `#include` lines: which sources can reach a header. Reads disk only.

An over-approximation, conditions are not evaluated; used where no compiler left a dependency log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)


class IncludeGraph:
    """Follows `#include` lines through files below `roots`; every file is read once.

    Files outside `roots` (real paths) are never opened, whatever the sources say.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = tuple(os.path.realpath(root) + os.sep for root in roots)
        self._lines: dict[str, tuple[tuple[str, bool], ...]] = {}
        self._real: dict[str, str | None] = {}

    def reaches(
        self, source: str, directories: Sequence[str], wanted: Collection[str]
    ) -> str | None:
        """Return the first of the real paths `wanted` that `source` includes or is, else None."""
        first = self._inside(source)
        pending = [first] if first is not None else []
        seen = set(pending)
        while pending:
            path = pending.pop()
            if path in wanted:
                return path
            for included in self._included(path, directories):
                if included not in seen:
                    seen.add(included)
                    pending.append(included)
        return None

    def _included(self, path: str, directories: Sequence[str]) -> Iterator[str]:
        for name, quoted in self._include_lines(path):
            places = (path.rpartition("/")[0], *directories) if quoted else directories
            for place in ("",) if name.startswith("/") else places:
                found = self._inside(os.path.normpath(f"{place}/{name}"))
                if found is not None:
                    yield found
                    break

    def _inside(self, path: str) -> str | None:
        """Real path of an existing file below the roots."""
        if path not in self._real:
            real = os.path.realpath(path)
            good = real.startswith(self._roots) and Path(real).is_file()
            self._real[path] = real if good else None
        return self._real[path]

    def _include_lines(self, path: str) -> tuple[tuple[str, bool], ...]:
        if path not in self._lines:
            try:
                data = Path(path).read_bytes()
            except OSError:
                data = b""
            self._lines[path] = tuple(
                (os.fsdecode(quoted or angled), bool(quoted))
                for quoted, angled in _INCLUDE.findall(data)
                if b"\0" not in (quoted or angled)
            )
        return self._lines[path]
