"""Durable file replacement. The only module that writes file contents below a target.

Every function leaves the destination complete: new bytes are written to a temporary file in the
same directory, synced, renamed over the name, and the directory is synced. A hard link elsewhere
keeps the old inode, hence the old bytes.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

TEMP_PREFIX = ".sm120patch-"
TEMP_SUFFIX = ".tmp"


def sync_directory(directory: Path) -> None:
    """Make renames and unlinks inside `directory` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def temp_path(path: Path, tag: str) -> Path:
    """Name of the temporary file that stages new content for `path`; `tag` names the writer."""
    return path.with_name(f"{TEMP_PREFIX}{tag}-{path.name}{TEMP_SUFFIX}")


def stage(path: Path, data: bytes, tag: str, like: os.stat_result | None = None) -> Path:
    """Write `data` durably beside `path` and return the temporary file.

    Permission bits and, where the process may, the owner come from `like`. A stale temporary file
    of the same writer is replaced. The temporary file is opened exclusively and never through a
    symbolic link.
    """
    temporary = temp_path(path, tag)
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(data)
            if like is not None:
                _copy_ownership(stream.fileno(), like)
            os.fchmod(stream.fileno(), 0o644 if like is None else stat.S_IMODE(like.st_mode))
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _copy_ownership(fd: int, like: os.stat_result) -> None:
    current = os.fstat(fd)
    if (current.st_uid, current.st_gid) != (like.st_uid, like.st_gid):
        # Only root may give a file away; an ordinary owner keeps its own name on the new inode.
        with contextlib.suppress(PermissionError):
            os.fchown(fd, like.st_uid, like.st_gid)


def set_mtime(path: Path, mtime_ns: int) -> None:
    """Set the modification time without following a link; the access time becomes the same."""
    os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)


def write_file(path: Path, data: bytes, tag: str = "w") -> None:
    """Replace `path` (a file of our own, such as the journal) durably in one call."""
    temporary = stage(path, data, tag)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def remove_file(path: Path) -> None:
    """Remove one of our own files durably; a missing file is fine."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        sync_directory(path.parent)
