"""List the files of a package with what the kernel says of them, and hash them. Reads disk only.

A file is hashed through descriptors that were opened one directory after the other, so that below
another root nothing outside it is read (see `tree`). A package that is a link as a whole, and links
to files in it, are followed: some installers lay out environments that way. A link to a directory
is listed and not entered: what lies there is no bounded part of the package.
"""

import errno
import hashlib
import os
import stat
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from sm120patch.audit.tree import Tree

SHA256, BLOB = 32, 20
"""Bytes of a digest, and of the name that git gives to a content."""
WIDTH = 4
"""Numbers that are kept of each file: size, mtime_ns, ctime_ns, inode."""
HUGE = 1 << 30
"""Bytes. Larger files are hashed where upstream shipped them, and else only named."""
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
    signs: "array[int]" = field(default_factory=lambda: array("q"))
    real: dict[str, str] = field(default_factory=dict)
    """Path -> where it really lies (inside path), for those that a link leads to."""
    linked: set[int] = field(default_factory=set)
    """Positions of files with more than one name on the file system."""
    leads: dict[str, str] = field(default_factory=dict)
    """Directory that is not entered, listed like a file -> the directory that it leads to."""
    bytecode: list[str] = field(default_factory=list)
    """Directories of cached bytecode, which is no part of the listing."""
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

    def extend(self, other: "Listing") -> None:
        """Append the files of another listing."""
        start = len(self.paths)
        self.paths += other.paths
        self.signs.extend(other.signs)
        self.real.update(other.real)
        self.linked |= {start + index for index in other.linked}
        self.leads.update(other.leads)
        self.bytecode += other.bytecode
        self.problems += other.problems

    def below_leads(self, paths: Iterable[str]) -> list[str]:
        """Return those of `paths` that lie below a directory that was not entered."""
        starts = tuple(f"{path}/" for path in self.leads)
        return sorted({path for path in paths if path.startswith(starts)}) if starts else []

    def is_huge(self, index: int) -> bool:
        """Tell whether a file is larger than any that is shipped: a few bytes on disk may be."""
        return self.signs[index * WIDTH] > HUGE

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.signs[::WIDTH])


def is_bytecode(path: str) -> bool:
    """Tell whether a file is cached bytecode, which Python writes anew whoever shipped it."""
    return f"/{BYTECODE}/" in path


def list_package(tree: Tree, root: str, package: str, named: Collection[str] = ()) -> Listing:
    """List every file of `root`/`package` but cached bytecode in a fixed order.

    No directory is entered twice, and none through a link but that of the package itself. Of
    `named`, files below directories that are not entered are listed where they are there.
    """
    listing = Listing()
    try:
        real = tree.real(f"{root}/{package}")
        above = tree.real(root)
        listing.device = os.lstat(tree.outside(real)).st_dev
        if f"{above}/".startswith(f"{real.rstrip('/')}/"):
            raise OSError(errno.ELOOP, f"it leads to {real}, in which it lies itself")
        fd = tree.open_directory(real)
    except OSError as error:
        listing.problems.append(f"{root}/{package}: {error.strerror}")
        return listing
    linked = real != f"{root}/{package}"
    _walk(_Walk(tree, listing, linked), fd, real, package)
    listing.extend(list_named(tree, root, listing.below_leads(named)))
    return listing


@dataclass
class _Walk:
    """What one walk knows everywhere."""

    tree: Tree
    listing: Listing
    linked: bool
    """The package is reached through a link."""
    seen: dict[tuple[int, int], str] = field(default_factory=dict)
    """Device and inode of each directory that was entered -> its real path."""


def _walk(walk: _Walk, fd: int, real: str, path: str) -> None:
    """List an open directory and those below it; closes `fd`."""
    try:
        status = os.fstat(fd)
        # A mount can show a directory twice.
        first = walk.seen.setdefault((status.st_dev, status.st_ino), real)
        if first != real:
            walk.listing.leads[path] = first
            walk.listing.add(path, status)
            return
        with os.scandir(fd) as found:
            for entry in sorted(found, key=_BY_NAME):
                _list(walk, fd, entry, f"{real}/{entry.name}", f"{path}/{entry.name}")
    except OSError as error:
        # What vanishes meanwhile ends the list of its directory: then that is not known.
        walk.listing.problems.append(f"{path}: {error.strerror}")
    finally:
        os.close(fd)


def _list(walk: _Walk, fd: int, entry: os.DirEntry[str], real: str, path: str) -> None:
    if entry.is_dir(follow_symlinks=False):
        if entry.name == BYTECODE:
            walk.listing.bytecode.append(real)
        else:
            _walk(walk, os.open(entry.name, _DIRECTORY, dir_fd=fd), real, path)
    elif entry.is_symlink():
        _follow(walk, real, path)
    else:
        walk.listing.add(path, entry.stat(follow_symlinks=False))
        if walk.linked:
            walk.listing.real[path] = real


def _follow(walk: _Walk, link: str, path: str) -> None:
    tree, listing = walk.tree, walk.listing
    try:
        real = tree.real(link)
        status = os.lstat(tree.outside(real) or "/")
        if stat.S_ISDIR(status.st_mode):
            listing.leads[path] = real
            real, status = link, os.lstat(tree.outside(link))
    except OSError:
        return  # A dangling link is no file; where RECORD lists it, it is missing.
    listing.real[path] = real
    listing.add(path, status)


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
