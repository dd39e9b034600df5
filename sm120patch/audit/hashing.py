"""Hash many files at the speed of the machine: in several processes, and inodes seen once.

Reads disk only. Threads are no help: the files are small, and the interpreter lock is held between
them. Without processes (one CPU, no fork, one that was killed) this process does it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from types import TracebackType

from sm120patch.audit.files import (
    BLOB,
    SHA256,
    Batch,
    Digest,
    Listing,
    batches,
    hash_batch,
)
from sm120patch.audit.tree import Tree
from sm120patch.audit.workers import Share

POOL_FROM = 16 << 20
"""Bytes of one package from which on starting processes pays."""
_REMEMBERED = 1 << 16
"""Inodes with several names whose digests are kept: environments share them by the thousand."""
_OPENING = 20_000
"""Bytes that are hashed in the time that opening a file takes."""
_WIDTH = SHA256 + BLOB


class Hasher:
    """Hashes files of listings. Use as a context manager; its processes end with it."""

    def __init__(self, workers: int | None = None) -> None:
        self._count = cpus() if workers is None else workers
        self._shares: list[Share[Batch]] = []
        self._seen: dict[tuple[int, ...], Digest] = {}
        self.bytes = 0
        """Bytes hashed so far."""

    def __enter__(self) -> Hasher:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for share in self._shares:
            share.close()

    def digests(
        self, tree: Tree, root: str, listing: Listing, wanted: Iterable[int], *, blobs: bool = False
    ) -> dict[int, Digest]:
        """Return position -> digests of the files at the wanted positions."""
        return self.begin(tree, root, listing, wanted, blobs=blobs)()

    def begin(
        self, tree: Tree, root: str, listing: Listing, wanted: Iterable[int], *, blobs: bool = False
    ) -> Callable[[], dict[int, Digest]]:
        """Begin with the files at the wanted positions; what is returned waits for their digests.

        Other work can be done before: where it pays, other processes are at it.
        """
        known: dict[int, Digest] = {}
        rest: list[int] = []
        for index in wanted:
            key = _key(listing, index)
            digest = None if key is None else self._seen.get(key)
            if digest is not None and (digest.blob or not blobs):
                known[index] = digest
            else:
                rest.append(index)
        size = sum(listing.signs[index * 4] for index in rest)
        self.bytes += size
        work = list(batches(tree, root, listing, rest, blobs=blobs))
        shared = size >= POOL_FROM and self._count > 1
        parts = _parts(work, self._count) if shared else []
        shares = [Share(_packed, [work[index] for index in part]) for part in parts]
        self._shares = [*(share for share in self._shares if share.running), *shares]

        def digests() -> dict[int, Digest]:
            by_batch = _received(work, parts, shares) if shared else map(hash_batch, work)
            found = dict(zip(rest, chain.from_iterable(by_batch), strict=True))
            self._remember(listing, found)
            return {**known, **found}

        return digests

    def _remember(self, listing: Listing, found: Mapping[int, Digest]) -> None:
        for index in listing.linked & found.keys():
            key, digest = _key(listing, index), found[index]
            if key is None or not digest.sha256:
                continue
            if len(self._seen) >= _REMEMBERED:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = digest


def _key(listing: Listing, index: int) -> tuple[int, ...] | None:
    if index not in listing.linked:
        return None
    return (listing.device, *listing.sign(index))


def _parts(work: Sequence[Batch], count: int) -> list[list[int]]:
    """Positions of batches, shared out so that all parts take about as long; none is empty."""
    parts: list[list[int]] = [[] for _ in range(count)]
    filled = [0] * count
    sizes = [batch.size + _OPENING * batch.files for batch in work]
    for index in sorted(range(len(work)), key=sizes.__getitem__, reverse=True):
        least = filled.index(min(filled))
        parts[least].append(index)
        filled[least] += sizes[index]
    return [part for part in parts if part]


def _packed(batch: Batch) -> bytes:
    """Digests of a batch in _WIDTH bytes each; zeros stand for none."""
    return b"".join(
        (d.sha256 or bytes(SHA256)) + (d.blob or bytes(BLOB)) for d in hash_batch(batch)
    )


def _received(
    work: Sequence[Batch], parts: Sequence[Sequence[int]], shares: Sequence[Share[Batch]]
) -> list[list[Digest]]:
    """Digests of every batch, in the order of `work`."""
    found: list[list[Digest]] = [[] for _ in work]
    for part, share in zip(parts, shares, strict=True):
        data, start = share.result(), 0
        for index in part:
            end = start + work[index].files * _WIDTH
            found[index] = [_digest(data[at : at + _WIDTH]) for at in range(start, end, _WIDTH)]
            start = end
    return found


def _digest(packed: bytes) -> Digest:
    sha256, blob = packed[:SHA256], packed[SHA256:]
    return Digest(sha256 if any(sha256) else b"", blob if any(blob) else b"")


def cpus() -> int:
    """CPUs that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
