"""List the files of a package with what the kernel says of them, and hash them. Reads disk only.

A file is hashed through descriptors that were opened one directory after the other, so that below
another root nothing outside it is read (see `tree`). Links in a package are followed: some
installers lay out whole environments that way.
"""

from __future__ import annotations

import hashlib
import os
import stat
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from sm120patch.audit.tree import Tree

SHA256, BLOB = 32, 20
"""Bytes of a digest, and of the name that git gives to a content."""
WIDTH = 4
"""Numbers that are kept of each file: size, mtime_ns, ctime_ns, inode."""
_BLOCK = 1 << 20
_BATCH_BYTES = 2 << 20
_BATCH_FILES = 100
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_BY_NAME = attrgetter("name")
BYTECODE = "__pycache__"


@dataclass
class Listing:
    """Files below one import root in the order of the walk; `signs` has WIDTH numbers for each."""

    paths: list[str] = field(default_factory=list)
    """Relative to the import root."""
    signs: array[int] = field(default_factory=lambda: array("q"))
    real: dict[str, str] = field(default_factory=dict)
    """Path -> where it really lies (inside path), for those that a link leads to."""
    linked: set[int] = field(default_factory=set)
    """Positions of files with more than one name on the file system."""
    device: int = 0
    problems: list[str] = field(default_factory=list)
    """Directories that could not be listed, in words."""

    def add(self, path: str, status: os.stat_result) -> None:
        """Append one file."""
        if status.st_nlink > 1:
            self.linked.add(len(self.paths))
        self.paths.append(path)
        sign = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        try:
            self.signs.extend(sign)
        except OverflowError:  # inodes of some network file systems use all 64 bits
            del self.signs[(len(self.paths) - 1) * WIDTH :]
            self.signs.extend(number & 0x7FFF_FFFF_FFFF_FFFF for number in sign)

    def sign(self, index: int) -> tuple[int, ...]:
        """Size, mtime_ns, ctime_ns and inode of the file at that position."""
        return tuple(self.signs[index * WIDTH : (index + 1) * WIDTH])

    def extend(self, other: Listing) -> None:
        """Append the files of another listing."""
        start = len(self.paths)
        self.paths += other.paths
        self.signs.extend(other.signs)
        self.real.update(other.real)
        self.linked |= {start + index for index in other.linked}
        self.problems += other.problems

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.signs[::WIDTH])


def list_package(tree: Tree, root: str, package: str) -> Listing:
    """List every file of `root`/`package` but cached bytecode, links followed, in a fixed order."""
    listing = Listing()
    try:
        real = tree.real(f"{root}/{package}")
        listing.device = os.lstat(tree.outside(real)).st_dev
    except OSError as error:
        listing.problems.append(f"{root}/{package}: {error.strerror}")
        return listing
    _enter(tree, real, package, listing, (), linked=real != f"{root}/{package}")
    return listing


def _enter(
    tree: Tree, real: str, path: str, listing: Listing, above: tuple[str, ...], *, linked: bool
) -> None:
    """List a directory that is reached by its path; `above` are those that were entered so."""
    if real in above:
        return  # A link leads back to a directory that it lies in.
    try:
        fd = tree.open_directory(real)
    except OSError as error:
        listing.problems.append(f"{path}: {error.strerror}")
        return
    _walk(tree, fd, real, path, listing, (*above, real), linked)


def _walk(
    tree: Tree,
    fd: int,
    real: str,
    path: str,
    listing: Listing,
    above: tuple[str, ...],
    linked: bool,
) -> None:
    """List an open directory and those below it; closes `fd`."""
    add = listing.add
    try:
        with os.scandir(fd) as found:
            for entry in sorted(found, key=_BY_NAME):
                name = entry.name
                below = f"{path}/{name}"
                if entry.is_dir(follow_symlinks=False):
                    if name != BYTECODE:
                        inside = os.open(name, _DIRECTORY, dir_fd=fd)
                        _walk(tree, inside, f"{real}/{name}", below, listing, above, linked)
                elif entry.is_symlink():
                    _follow(tree, f"{real}/{name}", below, listing, above)
                else:
                    add(below, entry.stat(follow_symlinks=False))
                    if linked:
                        listing.real[below] = f"{real}/{name}"
    except OSError as error:
        # What vanishes meanwhile ends the list of its directory: then that is not known.
        listing.problems.append(f"{path}: {error.strerror}")
    finally:
        os.close(fd)


def _follow(tree: Tree, link: str, path: str, listing: Listing, above: tuple[str, ...]) -> None:
    try:
        real = tree.real(link)
        status = os.lstat(tree.outside(real))
    except OSError:
        return  # A dangling link is no file; where RECORD lists it, it is missing.
    if not stat.S_ISDIR(status.st_mode):
        listing.real[path] = real
        listing.add(path, status)
    elif not f"{link}/".startswith(f"{real}/"):  # else a circle: it leads to where it lies
        _enter(tree, real, path, listing, above, linked=True)


def list_named(tree: Tree, root: str, paths: Iterable[str]) -> Listing:
    """List single files below `root`, such as those of the metadata; missing ones are left out."""
    listing = Listing()
    for path in paths:
        status = tree.status(f"{root}/{path}")
        if status is not None and not stat.S_ISDIR(status.st_mode):
            listing.real[path] = tree.real(f"{root}/{path}")
            listing.add(path, status)
    return listing


# --- hashing -----------------------------------------------------------------------------------


class Digest(NamedTuple):
    """Digests of one file's content; both empty when it could not be read."""

    sha256: bytes
    blob: bytes
    """Name that git gives to the content; empty unless asked for."""


UNREADABLE = Digest(b"", b"")


class Batch(NamedTuple):
    """Files that are hashed in one go: (real directory, names in it) pairs."""

    tree: Tree
    places: tuple[tuple[str, tuple[str, ...]], ...]
    blobs: bool
    size: int = 0
    """Bytes of all of them."""

    @property
    def files(self) -> int:
        """How many there are."""
        return sum(len(names) for _directory, names in self.places)


def hash_batch(batch: Batch) -> list[Digest]:
    """Hash the files of a batch in their order; one that is no readable file is `UNREADABLE`."""
    found: list[Digest] = []
    for directory, names in batch.places:
        try:
            fd = batch.tree.open_directory(directory)
        except OSError:
            found += [UNREADABLE] * len(names)
            continue
        try:
            found += [_hash(fd, name, batch.blobs) for name in names]
        finally:
            os.close(fd)
    return found


def _hash(directory: int, name: str, blob: bool) -> Digest:
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(name, flags, dir_fd=directory)
    except OSError:
        return UNREADABLE
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return UNREADABLE
        sha256 = hashlib.sha256()
        other = hashlib.sha1(b"blob %d\0" % status.st_size, usedforsecurity=False) if blob else None
        while data := os.read(fd, _BLOCK):
            sha256.update(data)
            if other is not None:
                other.update(data)
        return Digest(sha256.digest(), b"" if other is None else other.digest())
    except OSError:
        return UNREADABLE
    finally:
        os.close(fd)


def batches(
    tree: Tree, root: str, listing: Listing, wanted: Sequence[int], *, blobs: bool
) -> Iterator[Batch]:
    """Cut the files at the `wanted` positions into batches, in their order."""
    places: list[tuple[str, tuple[str, ...]]] = []
    names: list[str] = []
    current, size, count = "", 0, 0
    for index in wanted:
        path = listing.paths[index]
        real = listing.real.get(path) or f"{root}/{path}"
        directory, _, name = real.rpartition("/")
        if directory != current and names:
            places.append((current, tuple(names)))
            names = []
        current = directory
        names.append(name)
        size += listing.signs[index * WIDTH]
        count += 1
        if size >= _BATCH_BYTES or count >= _BATCH_FILES:
            yield Batch(tree, (*places, (current, tuple(names))), blobs, size)
            places, names, size, count = [], [], 0, 0
    if names:
        yield Batch(tree, (*places, (current, tuple(names))), blobs, size)
