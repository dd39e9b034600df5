"""The least that a full audit can take: sha256 of the same files, in as many processes as CPUs."""

from __future__ import annotations

import hashlib
import os
import sys


def main() -> None:
    """Hash the files named on the lines of the file argv[1], shared out by size."""
    with open(sys.argv[1]) as stream:  # noqa: PTH123 - what is imported would be measured too
        paths = stream.read().splitlines()
    count = len(os.sched_getaffinity(0))
    shares: list[list[str]] = [[] for _ in range(count)]
    filled = [0] * count
    for path in paths:
        least = filled.index(min(filled))
        shares[least].append(path)
        filled[least] += os.stat(path).st_size + 20_000  # noqa: PTH116 - as fast as can be: it is the limit
    for share in shares[1:]:
        if os.fork() == 0:
            hash_all(share)
            os._exit(0)
    hash_all(shares[0])
    for _ in shares[1:]:
        os.wait()


def hash_all(paths: list[str]) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        data = os.read(fd, 1 << 30)
        os.close(fd)
        hashlib.sha256(data).digest()


if __name__ == "__main__":
    main()
