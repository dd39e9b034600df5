"""A file system seen from its root: the host's own, or one that lies in a directory. Reads only.

Below another root every link is followed as the inside would follow it: an absolute target begins
at that root, `..` ends there. What is opened is opened directory by directory without following
anything, so not even a link that is swapped in meanwhile leads out.
"""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_LINKS = 40
"""Links that are followed for one path, as the kernel does."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class Tree(NamedTuple):
    """Paths handed in and out are absolute text as the inside spells them."""

    root: str = "/"
    """Where it lies on this host, without links in it."""

    @classmethod
    def at(cls, root: Path) -> "Tree":
        """Return the tree below a directory. Raises OSError when there is none."""
        real = os.path.realpath(root, strict=True)
        # `/proc/PID/root` leads into another mount namespace, where its text means something else.
        if not Path(real).samefile(root):
            real = os.path.abspath(root)  # noqa: PTH100 - links must not be resolved
        if not Path(real).is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(root))
        return cls(real)

    @property
    def is_host(self) -> bool:
        """True for this host's own file system."""
        return self.root == "/"

    def outside(self, real: str) -> str:
        """Spell a path without links (see `real`) as this host does."""
        return real if self.is_host else f"{self.root}{real}".rstrip("/")

    def real(self, path: str) -> str:
        """Resolve every link of an existing path, as the inside would. Raises OSError."""
        if self.is_host:
            return os.path.realpath(path, strict=True)
        done: list[str] = []
        left = _parts(path)
        links = 0
        while left:
            part = left.pop()
            if part == "..":
                del done[-1:]
                continue
            here = f"{self.root}/{'/'.join([*done, part])}"
            if not stat.S_ISLNK(os.lstat(here).st_mode):
                done.append(part)
                continue
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = str(Path(here).readlink())
            if target.startswith("/"):
                done.clear()
            left += _parts(target)
        return "/" + "/".join(done)

    def resolved(self, path: str) -> str:
        """Resolve every link of a path as `real` does; one that leads nowhere stays as it is."""
        try:
            return self.real(path)
        except OSError:
            return path.rstrip("/") or "/"

    def open_directory(self, real: str) -> int:
        """Open a directory whose path has no links; one that has (by now) raises OSError."""
        if self.is_host:
            return os.open(real, _DIRECTORY)
        fd = os.open(self.root, _DIRECTORY)
        for part in real.split("/"):
            if not part:
                continue
            try:
                below = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
        return fd

    def open(self, path: str) -> int:
        """Open a regular file to be read, through links as the inside has them. Raises OSError."""
        real = self.real(path)
        directory, _, name = real.rpartition("/")
        above = self.open_directory(directory or "/")
        try:
            # A FIFO in place of the file must not block us.
            fd = os.open(name, _FILE | os.O_NOFOLLOW, dir_fd=above)
        finally:
            os.close(above)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return fd

    def read(self, path: str, limit: int = 1 << 24) -> bytes | None:
        """Content of a file; None when it cannot be read or has more than `limit` bytes."""
        try:
            fd = self.open(path)
        except (OSError, ValueError):
            return None
        try:
            with os.fdopen(fd, "rb") as stream:
                data = stream.read(limit + 1)
        except OSError:
            return None
        return data if len(data) <= limit else None

    def text(self, path: str, limit: int = 1 << 20) -> str:
        """Content of a small text file; empty when it cannot be read."""
        data = self.read(path, limit)
        return "" if data is None else data.decode("utf-8", "replace")

    def status(self, path: str) -> os.stat_result | None:
        """What a path leads to; None when it leads nowhere."""
        try:
            return os.lstat(self.outside(self.real(path)) or "/")
        except (OSError, ValueError):
            return None

    def is_dir(self, path: str) -> bool:
        """Tell whether a path leads to a directory."""
        found = self.status(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def is_file(self, path: str) -> bool:
        """Tell whether a path leads to a regular file."""
        found = self.status(path)
        return found is not None and stat.S_ISREG(found.st_mode)

    def names(self, path: str) -> list[str]:
        """Sorted names in a directory; none when it cannot be read."""
        return [name for name, _kind in self.entries(path)]

    def entries(self, path: str) -> list[tuple[str, str]]:
        """Sorted names in a directory, each with `d`, `f`, `l` (link) or `o`; none on errors."""
        try:
            fd = self.open_directory(self.real(path))
        except (OSError, ValueError):
            return []
        try:
            with os.scandir(fd) as found:
                return sorted((e.name, kind_of(e)) for e in found)
        except OSError:
            return []
        finally:
            os.close(fd)

    def matching(self, directory: str, start: str, end: str = "") -> Iterator[str]:
        """Paths in a directory whose names start and end like that."""
        for name in self.names(directory):
            if name.startswith(start) and name.endswith(end):
                yield f"{directory.rstrip('/')}/{name}"


def kind_of(entry: os.DirEntry[str]) -> str:
    """`d`, `f`, `l` or `o`, without following a link."""
    if entry.is_symlink():
        return "l"
    if entry.is_dir(follow_symlinks=False):
        return "d"
    return "f" if entry.is_file(follow_symlinks=False) else "o"


def _parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
