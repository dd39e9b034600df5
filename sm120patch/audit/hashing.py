"""Hash many files at the speed of the machine: a pool of processes, and inodes seen once.

Reads disk only. Threads are no help: the files are small, and the interpreter lock is held between
them. Without workers (one CPU, no fork, a worker that was killed) this process does it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from types import TracebackType

from sm120patch.audit.files import Batch, Digest, Listing, batches, hash_batch
from sm120patch.audit.tree import Tree
from sm120patch.audit.workers import Workers

POOL_FROM = 16 << 20
"""Bytes of one package from which on starting workers pays."""
_REMEMBERED = 1 << 16
"""Inodes with several names whose digests are kept: environments share them by the thousand."""


class Hasher:
    """Hashes files of listings. Use as a context manager; the workers end with it."""

    def __init__(self, workers: int | None = None) -> None:
        self._workers = Workers(hash_batch, cpus() if workers is None else workers)
        self._started = False
        self._seen: dict[tuple[int, ...], Digest] = {}
        self.bytes = 0
        """Bytes hashed so far."""

    def __enter__(self) -> Hasher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._workers.__exit__(kind, error, trace)

    def digests(
        self, tree: Tree, root: str, listing: Listing, wanted: Iterable[int], *, blobs: bool = False
    ) -> dict[int, Digest]:
        """Return position -> digests of the files at the wanted positions."""
        found: dict[int, Digest] = {}
        rest: list[int] = []
        for index in wanted:
            key = self._key(listing, index)
            known = None if key is None else self._seen.get(key)
            if known is not None and (known.blob or not blobs):
                found[index] = known
            else:
                rest.append(index)
        size = sum(listing.signs[index * 4] for index in rest)
        self.bytes += size
        work = batches(tree, root, listing, rest, blobs=blobs)
        for index, digest in zip(rest, self._run(work, size), strict=True):
            found[index] = digest
            self._remember(self._key(listing, index), digest)
        return found

    def _key(self, listing: Listing, index: int) -> tuple[int, ...] | None:
        if index not in listing.linked:
            return None
        return (listing.device, *listing.sign(index))

    def _remember(self, key: tuple[int, ...] | None, digest: Digest) -> None:
        if key is None or not digest.sha256:
            return
        if len(self._seen) >= _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = digest

    def _run(self, work: Iterable[Batch], size: int) -> Iterator[Digest]:
        self._started = self._started or size >= POOL_FROM
        found = self._workers.map(work) if self._started else map(hash_batch, work)
        return chain.from_iterable(found)


def cpus() -> int:
    """CPUs that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
