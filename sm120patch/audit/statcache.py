"""Digests of files by what the kernel says of them, so that unchanged ones need no hashing.

Writes below the user's cache directory only. A file counts as unchanged when size, mtime, ctime and
inode are as they were and none of the times was fresh when it was hashed: within the resolution of
its clock a file can change without a trace ("racy"). What is in a cache file is not trusted beyond
that: damage, or anything that is not ours, makes it count for nothing. What is kept of the files of
a mounted image (squashfs) is not believed.
"""

import contextlib
import hashlib
import json
import os
import stat
import time
import zlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sm120patch.audit.files import BLOB, SHA256, WIDTH, Digest, Listing
from sm120patch.environment.records import Difference
from sm120patch.relpath import fault
from sm120patch.userdirs import user_directory

FORMAT = 1
RACY_NS = 2_000_000_000
"""Files that changed less than this before they were hashed are hashed again the next time."""
_LIMIT = 256 << 20
_CHECK = 9
"""Bytes of the checksum in front, which tells damage and nothing else."""
_NEVER = -1
"""Stands in place of numbers that must not match."""


class Cached(NamedTuple):
    """What was kept of one package."""

    basis: str
    """What it was compared with: digest of RECORD, or the commit."""
    names: bytes
    """Paths, joined by NUL."""
    signs: "array[int]"
    sha256: bytes
    blobs: bytes
    """20 bytes a file, or empty."""
    compared: int
    """Files that upstream shipped and that were compared."""
    differences: tuple[Difference, ...] | None
    """Result of the comparison; None when it has to be made again from the digests."""

    def same(self, listing: Listing) -> bool:
        """Tell whether every file is as it was."""
        return self.signs == listing.signs and self.names == joined(listing.paths)

    def digest(self, index: int) -> Digest:
        """Return the digests of the file at a position."""
        return Digest(
            self.sha256[index * SHA256 : (index + 1) * SHA256],
            self.blobs[index * BLOB : (index + 1) * BLOB],
        )

    def known(self, listing: Listing, *, blobs: bool) -> dict[int, Digest]:
        """Return position in `listing` -> digests, of the files that are as they were."""
        if blobs and not self.blobs:
            return {}
        names = self.names.split(b"\0") if self.names else []
        places = {name: index for index, name in enumerate(names)}
        found = {}
        for index, path in enumerate(listing.paths):
            old = places.get(os.fsencode(path))
            if old is None:
                continue
            here = listing.signs[index * WIDTH : (index + 1) * WIDTH]
            if here == self.signs[old * WIDTH : (old + 1) * WIDTH]:
                found[index] = self.digest(old)
        return found


def joined(paths: Sequence[str]) -> bytes:
    """Paths as one text; a path holds no NUL."""
    return os.fsencode("\0".join(paths))


class StatCache(NamedTuple):
    """A directory of cache files, one for each package of each environment."""

    directory: Path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "StatCache":
        """The user's own."""
        return cls(user_directory("XDG_CACHE_HOME", environ) / "audit")

    def _file(self, place: str) -> Path:
        return self.directory / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:32]}.stat"

    def read(self, place: str) -> Cached | None:
        """Return what is kept for a place; None when there is nothing of use."""
        try:
            fd = os.open(self._file(place), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            with os.fdopen(fd, "rb") as stream:
                status = os.fstat(stream.fileno())
                ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
                if not ours or status.st_size > _LIMIT:
                    return None
                data = stream.read()
            return _decode(data, place)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def write(
        self,
        place: str,
        basis: str,
        listing: Listing,
        digests: Mapping[int, Digest],
        result: tuple[int, Sequence[Difference]] | None,
        started_ns: int,
    ) -> None:
        """Keep the digests of a listing made at `started_ns`, and how many files differed how.

        A failure is no matter.
        """
        fresh = started_ns - RACY_NS
        signs = listing.signs[:]
        for index in range(len(listing.paths)):
            times = signs[index * WIDTH + 1 : index * WIDTH + 3]
            digest = digests.get(index)
            # What was not compared (RECORD itself) has no digest and needs none.
            unread = listing.is_huge(index) if digest is None else not digest.sha256
            if unread or max(times) >= fresh or _of_an_image(*times):
                signs[index * WIDTH] = _NEVER
        data = _encode(place, basis, listing, signs, digests, result)
        path = self._file(place)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        with contextlib.suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                with os.fdopen(os.open(temporary, flags, 0o600), "wb") as stream:
                    stream.write(data)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)


def now_ns() -> int:
    """Wall clock, which file times are compared with."""
    return time.time_ns()


def _of_an_image(mtime_ns: int, ctime_ns: int) -> bool:
    """Tell whether both times are one whole second: then the second is no time of a change.

    So it is in squashfs and the like, where numbers of inodes follow the order of names: another
    image in its place, of which one file was edited, may differ in nothing that the kernel says.
    """
    return mtime_ns == ctime_ns and ctime_ns % 1_000_000_000 == 0


def _encode(
    place: str,
    basis: str,
    listing: Listing,
    signs: "array[int]",
    digests: Mapping[int, Digest],
    result: tuple[int, Sequence[Difference]] | None,
) -> bytes:
    count = len(listing.paths)
    empty = Digest(bytes(SHA256), bytes(BLOB))
    found = [digests.get(index, empty) for index in range(count)]
    blobs = all(len(d.blob) == BLOB for d in found)
    names = joined(listing.paths)
    head = {
        "format": FORMAT,
        "place": place,
        "basis": basis,
        "count": count,
        "names": len(names),
        "blobs": blobs,
        "compared": 0 if result is None else result[0],
        "differences": None
        if result is None
        else [[d.path, d.kind, d.expected, d.found] for d in result[1]],
    }
    body = b"".join(
        [
            json.dumps(head).encode(),
            b"\n",
            names,
            signs.tobytes(),
            *(d.sha256 or empty.sha256 for d in found),
            *((d.blob for d in found) if blobs else ()),
        ]
    )
    return b"%08x\n" % zlib.crc32(body) + body


def _decode(data: bytes, place: str) -> Cached | None:
    body = memoryview(data)[_CHECK:]
    if data[:_CHECK] != b"%08x\n" % zlib.crc32(body):
        return None
    line = bytes(body[: data.index(b"\n", _CHECK) - _CHECK])
    head = json.loads(line)
    if head["format"] != FORMAT or head["place"] != place:
        return None
    count, width = int(head["count"]), int(head["names"])
    start = len(line) + 1
    ends = [start + width]
    for size in (WIDTH * 8, SHA256, BLOB if head["blobs"] else 0):
        ends.append(ends[-1] + count * size)
    if min(count, width) < 0 or ends[-1] != len(body):
        return None
    names = bytes(body[start : ends[0]])
    if (names.count(b"\0") + 1 if names else 0) != count:
        return None
    signs = array("q")
    signs.frombytes(body[ends[0] : ends[1]])
    return Cached(
        basis=str(head["basis"]),
        names=names,
        signs=signs,
        sha256=bytes(body[ends[1] : ends[2]]),
        blobs=bytes(body[ends[2] : ends[3]]),
        compared=int(head["compared"]),
        differences=_differences(head["differences"]),
    )


def _differences(entries: object) -> tuple[Difference, ...] | None:
    if entries is None:
        return None
    if not isinstance(entries, list):
        raise TypeError("differences are a list")
    found = []
    for path, kind, expected, digest in entries:
        texts = [path, kind, expected or "", digest or ""]
        if not all(isinstance(text, str) for text in texts) or fault(path):
            raise TypeError("a difference is four texts")
        found.append(Difference(path, kind, expected, digest))
    return tuple(found)
