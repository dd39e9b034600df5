"""What RECORD of an installed distribution says, and how the disk differs from it. Reads disk only.

RECORD (binary distribution format specification) is a CSV of path, `algorithm=urlsafe-base64
digest`, size. It is treated as hostile: nothing in it leads outside the import root.
"""

import base64
import binascii
import csv
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from sm120patch.errors import HostError

_FAULTS = 20
"""Lines of a RECORD that are named one by one; a garbled one has thousands."""


class Record(NamedTuple):
    """One line of RECORD."""

    sha256: str | None
    """Hex digest; None when the line carries none, or one of another algorithm."""
    size: int | None


class RecordTable(NamedTuple):
    """A RECORD as far as it can be trusted."""

    entries: Mapping[str, Record] = {}
    """Path relative to the import root -> its line. Nothing in it leads out of the root."""
    faults: tuple[str, ...] = ()
    """What was wrong with the rest, in words. Scripts in `../../../bin` are normal, no fault."""


class Difference(NamedTuple):
    """One file that is not as RECORD (or, in a checkout, HEAD) says."""

    path: str
    kind: str
    """`changed`, `missing`, `added` or `unreadable`."""
    expected: str | None = None
    """sha256 that upstream shipped, when known."""
    found: str | None = None
    """sha256 on disk, when readable."""
    leads_to: str = ""
    """Directory that stands elsewhere and was not looked into, of what was added."""


def safe_relative(path: str) -> bool:
    """Tell whether `path` is a plain relative POSIX path: no root, no `..`, `.` or empty part."""
    whole = f"/{path}/"
    return not ("//" in whole or "/./" in whole or "/../" in whole or "\0" in whole)


def read_record(path: Path, only: Collection[str] | None = None) -> RecordTable:
    """Parse a RECORD file; garbage becomes `faults`, a file that cannot be read is a HostError.

    `only` names the paths that are asked for: other lines are passed over, faults in them too. A
    path that RECORD would have to quote is never among them.
    """
    try:
        if only is not None:
            return parse_record(_lines_of(path.read_text("utf-8", "surrogateescape"), only))
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
            return parse_record(stream)
    except OSError as error:
        raise HostError(f"cannot read {path}: {error.strerror}") from error


def _lines_of(text: str, paths: Collection[str]) -> Iterator[str]:
    """Lines of a RECORD that begin with one of the paths: found by search, not looked at each."""
    text = f"\n{text}"
    for path in dict.fromkeys(paths):
        start = text.find(f"\n{path},")
        while start >= 0:
            end = text.find("\n", start + 1)
            yield text[start + 1 :] if end < 0 else text[start + 1 : end]
            start = text.find(f"\n{path},", start + 1)


def parse_record(lines: Iterable[str]) -> RecordTable:
    """Parse the lines of a RECORD file; garbage becomes `faults`."""
    entries: dict[str, Record] = {}
    faults: list[str] = []
    more = 0
    try:
        for number, row in enumerate(csv.reader(lines), start=1):
            if not row or not (fault := _take(row, entries)):
                continue
            if len(faults) < _FAULTS:
                faults.append(f"line {number}: {fault}")
            else:
                more += 1
    except csv.Error as error:
        faults.append(f"not a CSV file: {error}")
    if more:
        faults.append(f"and {more} more lines that cannot be used")
    return RecordTable(entries, tuple(faults))


def _take(row: list[str], entries: dict[str, Record]) -> str | None:
    if len(row) != 3:
        return f"{len(row)} columns, expected 3"
    path, digest, size = row
    if path.startswith("../"):
        return None
    if not safe_relative(path):
        return f"path {path!r} is not a plain relative path"
    decoded = fault = None
    if digest:
        algorithm, _, value = digest.partition("=")
        decoded = _decode(value) if algorithm == "sha256" else None
        if decoded is None:
            fault = f"{path}: digest {digest!r} is not a usable sha256"
    record = Record(decoded, int(size) if size.isascii() and size.isdigit() else None)
    if entries.setdefault(path, record) != record:
        entries[path] = Record(None, None)
        fault = f"{path}: listed twice with different digests"
    return fault


def _decode(value: str) -> str | None:
    try:
        raw = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw.hex() if len(raw) == 32 else None


def differences(
    root: Path, package: str, table: RecordTable, skip: Collection[str] = ()
) -> Iterator[Difference]:
    """Compare every file of `table` with the disk, then name files of the package it does not list.

    `skip` are paths that somebody else answers for (our own patched files). Bytecode is ignored.
    Symbolic links are followed: some installers lay out whole environments that way.
    """
    base = os.fspath(root)
    for path, record in table.entries.items():
        if record.sha256 is None or path in skip:
            continue
        found = _digest(f"{base}/{path}")
        if found != record.sha256:
            kind = {None: "missing", "": "unreadable"}.get(found, "changed")
            yield Difference(path, kind, record.sha256, found or None)
    yield from _added(base, package, table.entries, skip)


def _digest(path: str) -> str | None:
    """Hex digest of a file; None when it is missing, empty when it is there but unreadable."""
    try:
        # A FIFO in place of the file must not block us.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        with open(descriptor, "rb", buffering=0, closefd=False) as stream:
            return sha256(stream.read()).hexdigest()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _added(
    base: str, package: str, known: Collection[str], skip: Collection[str]
) -> Iterator[Difference]:
    start = len(base) + 1
    for directory, names, files in os.walk(f"{base}/{package}"):
        names[:] = sorted(name for name in names if name != "__pycache__")
        prefix = directory[start:]
        for name in sorted(files):
            path = f"{prefix}/{name}"
            if path not in known and path not in skip:
                yield Difference(path, "added", None, _digest(f"{base}/{path}") or None)
