"""Durable file replacement. The only module that writes file contents below a target.

Every function leaves the destination complete: new bytes are written to a temporary file in the
same directory, synced, renamed over the name, and the directory is synced. A hard link elsewhere
keeps the old inode, hence the old bytes. Files of a target are reached through directory
descriptors, opened one component at a time without following a link, so that nobody who exchanges
a directory for a link meanwhile can lead a write elsewhere.
"""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sm120patch.errors import ConflictError
from sm120patch.relpath import fault
from sm120patch.signals import held_back

TEMP_PREFIX = ".sm120patch-"
TEMP_SUFFIX = ".tmp"
_NAME_MAX = 255
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NOT_FOR_US = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENODATA, errno.EINVAL, errno.ERANGE)
"""Answers to an extended attribute that this process, or this file system, may not set."""


class Spot(NamedTuple):
    """A name in an open directory: what every access to a file of a target goes through."""

    directory: int
    """Descriptor of the directory; valid inside the block of `spot` only."""
    name: str
    shown: Path
    """Full path, for messages and nothing else."""

    def beside(self, name: str) -> "Spot":
        """Return another name in the same directory."""
        return Spot(self.directory, name, self.shown.with_name(name))


@contextlib.contextmanager
def spot(root: str | Path, path: str) -> Iterator[Spot]:
    """Open the directory of `path` below `root`; no link below `root` is followed.

    Raises ConflictError for a path that leaves the root and for a link, naming it, and
    FileNotFoundError or NotADirectoryError where a directory is not there.
    """
    if fault(path):
        raise ConflictError(f"the path {path!r} does not stay below {root}")
    *parents, name = path.split("/")
    # All stay open until the end: ^C between a close and what notes it would close another's.
    opened, shown = [os.open(root, _DIRECTORY)], Path(root)
    try:
        for part in parents:
            shown = shown / part
            opened.append(_enter(opened[-1], part, shown))
        yield Spot(opened[-1], name, shown / name)
    finally:
        while opened:
            os.close(opened.pop())


def _enter(directory: int, part: str, shown: Path) -> int:
    """Open a directory inside an open one; a link is refused."""
    try:
        return os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(directory, part):
            raise linked(shown) from error
        raise


def _is_link(directory: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False


def linked(path: Path) -> ConflictError:
    """Error for a symbolic link where a file or directory of the target should be."""
    return ConflictError(
        f"{path} is a symbolic link; its file may belong to several environments",
        hint="install the package as real files, or patch the environment it points to",
        details={"path": str(path)},
    )


def open_file(place: Spot) -> int | None:
    """Open a regular file for reading, None when there is none.

    Raises ConflictError for a link and for what is no regular file; never blocks on a FIFO.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(place.name, flags, dir_fd=place.directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise linked(place.shown) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConflictError(
            f"{place.shown} is no regular file",
            hint="reinstall the package, then repeat",
            details={"path": str(place.shown)},
        )
    return fd


def digest(place: Spot) -> str | None:
    """Hex sha256 of a regular file, None when there is none. Raises as `open_file`."""
    fd = open_file(place)
    if fd is None:
        return None
    sha = hashlib.sha256()
    with os.fdopen(fd, "rb", buffering=0) as stream:
        while block := stream.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def read_file(path: Path, limit: int) -> bytes:
    """Return at most `limit` bytes of a file.

    Raises OSError, also for what is no regular file; never waits for a FIFO.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        with os.fdopen(fd, "rb", closefd=False) as stream:
            return stream.read(limit)
    finally:
        os.close(fd)


def status(place: Spot) -> os.stat_result:
    """`lstat` of a name."""
    return os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)


def sync_directory(directory: Path) -> None:
    """Make renames and unlinks inside `directory` durable."""
    with _opened(directory) as fd:
        os.fsync(fd)


def sync_file(path: Path) -> None:
    """Make the content of one of our own files durable."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def temp_name(name: str, tag: str, suffix: str = TEMP_SUFFIX) -> str:
    """Name of the file that stages new content for `name`; `tag` names the writer."""
    full = f"{TEMP_PREFIX}{tag}-{name}{suffix}"
    if len(os.fsencode(full)) <= _NAME_MAX:
        return full
    return f"{TEMP_PREFIX}{tag}-{hashlib.sha256(os.fsencode(name)).hexdigest()}{suffix}"


def stage(
    temporary: Spot,
    data: bytes,
    *,
    mode: int,
    mtime_ns: int | None = None,
    like: int | None = None,
) -> None:
    """Write `data` durably under a temporary name, with mode and modification time.

    Owner (where the process may) and extended attributes come from the open file `like`. A stale
    temporary file is replaced; it is opened exclusively and never through a link. On an error
    nothing is left.
    """
    remove(temporary)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary.name, flags, 0o600, dir_fd=temporary.directory)
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(data)
            stream.flush()
            if like is not None:
                _copy_ownership(fd, like)
                _copy_attributes(fd, like)
            os.fchmod(fd, mode)
            if mtime_ns is not None:
                os.utime(fd, ns=(mtime_ns, mtime_ns))
            os.fsync(fd)  # after mode and time, or they could be lost
    except BaseException:
        remove(temporary)
        raise


def _copy_ownership(fd: int, like: int) -> None:
    current, wanted = os.fstat(fd), os.fstat(like)
    if (current.st_uid, current.st_gid) != (wanted.st_uid, wanted.st_gid):
        # Only root may give a file away; an ordinary owner keeps its own name on the new inode.
        with contextlib.suppress(PermissionError):
            os.fchown(fd, wanted.st_uid, wanted.st_gid)


def _copy_attributes(fd: int, like: int) -> None:
    """Copy extended attributes, access control lists among them, as far as this process may.

    What the new file has from its directory, an access control list that would let others in,
    goes: nothing but what `like` has stays.
    """
    try:
        names = os.listxattr(like)
        inherited = [name for name in os.listxattr(fd) if name not in names]
    except OSError:
        return
    for name in inherited:
        with contextlib.suppress(OSError):  # a label that the system gives is not ours to take
            os.removexattr(fd, name)
    for name in names:
        try:
            os.setxattr(fd, name, os.getxattr(like, name))
        except OSError as error:
            if error.errno not in _NOT_FOR_US:
                raise


def rename(source: Spot, name: str) -> None:
    """Rename within the directory, over whatever holds the name."""
    os.replace(source.name, name, src_dir_fd=source.directory, dst_dir_fd=source.directory)


def appear(source: Spot, name: str) -> bool:
    """Give a file its name where nothing has that name; False when something has it by now."""
    try:
        os.link(
            source.name,
            name,
            src_dir_fd=source.directory,
            dst_dir_fd=source.directory,
            follow_symlinks=False,
        )
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        rename(source, name)
    else:
        remove(source)
    return True


def link(source: Spot, name: str) -> bool:
    """Give a file a second name in its directory; False where the file system has no links."""
    remove(source.beside(name))
    try:
        os.link(
            source.name,
            name,
            src_dir_fd=source.directory,
            dst_dir_fd=source.directory,
            follow_symlinks=False,
        )
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        return False
    return True


def remove(place: Spot) -> bool:
    """Remove a name, not durably yet; False when there is none."""
    try:
        os.unlink(place.name, dir_fd=place.directory)
    except FileNotFoundError:
        return False
    return True


def write_file(path: Path, data: bytes, tag: str = "w", mode: int = 0o644) -> None:
    """Replace `path` (a file of our own, such as the journal) durably in one call.

    ^C and termination wait until it has ended: it leaves no temporary file.
    """
    with held_back(), _opened(path.parent) as directory:
        temporary = Spot(directory, temp_name(path.name, tag), path)
        stage(temporary, data, mode=mode)
        try:
            rename(temporary, path.name)
        except BaseException:
            remove(temporary)
            raise
        os.fsync(directory)


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, _DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def make_directory(path: Path, mode: int = 0o755) -> None:
    """Create one directory durably where it is missing; never wider than `mode`."""
    try:
        path.mkdir(mode)
    except FileExistsError:
        if path.is_symlink() or not path.is_dir():
            raise
        return
    if stat.S_IMODE(path.lstat().st_mode) & 0o700 != 0o700:
        path.chmod(mode & 0o700)  # a umask that keeps even the owner out
    sync_directory(path.parent)


def remove_file(path: Path) -> None:
    """Remove one of our own files durably; a missing file is fine."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        sync_directory(path.parent)


def sweep(directory: Path) -> list[str]:
    """Remove temporary files that dead writers left in one of our own directories."""
    removed = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in directory.iterdir():
            if entry.name.startswith(TEMP_PREFIX) and stat.S_ISREG(entry.lstat().st_mode):
                entry.unlink()
                removed.append(entry.name)
    return removed
