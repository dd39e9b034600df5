"""The state directory under the target prefix: lock, and file contents by sha256.

Writes under `PREFIX/.sm120patch/` only.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from sm120patch.disk import TEMP_PREFIX, make_directory, sweep, write_file
from sm120patch.errors import BusyError, HostError
from sm120patch.model import sha256_hex

_ATTEMPTS, _PAUSE = 6, 0.05
_LOOK = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
DIRECTORY_NAME = ".sm120patch"
_README = """\
This directory belongs to sm120patch, which changed files of this Python environment.

ledger.sqlite3  what is patched here, since when, and the evidence for it (append-only events)
objects/        original and patched file contents, named by their sha256
journal.json    present only while a change is under way: run `sm120patch recover`
lock            held by a running sm120patch
logs/           output of servers started for a verification

Deleting it loses the originals. Run `sm120patch revert --all` first.
"""


class StateDirectory(NamedTuple):
    """Paths inside `PREFIX/.sm120patch`; nothing exists until `ensure` was called."""

    path: Path

    @classmethod
    def of(cls, prefix: Path) -> "StateDirectory":
        """Return the state directory of an environment prefix, existing or not."""
        return cls(prefix / DIRECTORY_NAME)

    @property
    def ledger(self) -> Path:
        """SQLite file of the ledger."""
        return self.path / "ledger.sqlite3"

    @property
    def journal(self) -> Path:
        """Journal of the transaction under way."""
        return self.path / "journal.json"

    @property
    def objects(self) -> Path:
        """Directory of the contents, see `content`."""
        return self.path / "objects"

    def content(self, digest: str) -> Path:
        """File that holds the content of that sha256."""
        return self.objects / digest[:2] / digest[2:]

    @property
    def logs(self) -> Path:
        """Directory for the output of servers that a verification starts."""
        return self.path / "logs"

    def require_real(self) -> None:
        """Raise HostError where the directory is a symbolic link: it would lead writes away."""
        if self.path.is_symlink():
            raise HostError(
                f"{self.path} is a symbolic link; state is only kept in the environment itself",
                hint="put a real directory there (a bind mount keeps it elsewhere), then repeat",
                code="state-linked",
                details={"path": str(self.path)},
            )

    def ensure(self) -> None:
        """Create the directory and its README; HostError when the prefix cannot be written.

        Every directory is durable before anything in it is relied on.
        """
        self.require_real()
        try:
            for directory in (self.path, self.objects, self.logs):
                make_directory(directory)
            self._explain()
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _explain(self) -> None:
        """Write the README once; who takes the lock meanwhile sweeps what is half written away."""
        for last in (False, False, True):
            if (self.path / "README").exists():
                return
            try:
                write_file(self.path / "README", _README.encode())
            except FileNotFoundError:
                if last:
                    raise

    def holder(self) -> str | None:
        """Say which other command holds the lock now, None when nobody does."""
        with contextlib.suppress(OSError):
            fd = os.open(self.path / "lock", _LOOK)
            try:
                if not _free(fd):
                    text = os.pread(fd, 200, 0).decode("utf-8", "replace").strip()
                    return text or "unknown"
            finally:
                os.close(fd)
        with contextlib.suppress(OSError):
            fd = os.open(self.path, _DIRECTORY)
            try:
                # Somebody has removed the lock file from under its holder.
                return None if _free(fd) else "unknown (its lock file was removed)"
            finally:
                os.close(fd)
        return None

    def _take(self, fd: int) -> bool:
        """Take the lock; a look by `holder` may have it for a moment, so ask a few times."""
        for _ in range(_ATTEMPTS):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_PAUSE)
                continue
            # Whoever removed the file meanwhile would let a second command in beside us.
            found = (self.path / "lock").lstat()
            return (found.st_dev, found.st_ino) == (os.fstat(fd).st_dev, os.fstat(fd).st_ino)
        return False

    def _take_directory(self, fd: int) -> bool:
        """Lock the directory as well: unlike the file, nobody can put another in its place.

        File systems without locks on directories (NFS) leave it at the file.
        """
        for _ in range(_ATTEMPTS):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_PAUSE)
                continue
            except OSError:
                return True
            return True
        return False

    @contextlib.contextmanager
    def lock(self, command: str) -> Iterator[None]:
        """Hold the environment exclusively; BusyError at once when another process has it.

        The kernel frees the lock when the process dies, so a stale lock cannot exist. What dead
        commands left in the state directory is swept away.
        """
        self.ensure()
        with contextlib.ExitStack() as held:
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                directory = os.open(self.path, _DIRECTORY)
                held.callback(os.close, directory)
                fd = os.open("lock", flags, 0o644, dir_fd=directory)
                held.callback(os.close, fd)
                if not (self._take(fd) and self._take_directory(directory)):
                    holder = os.pread(fd, 200, 0).decode("utf-8", "replace").strip()
                    raise busy(self, holder or "unknown")
                os.ftruncate(fd, 0)
                os.pwrite(
                    fd, f"pid {os.getpid()}, {command}\n".encode("utf-8", "surrogateescape"), 0
                )
                self._sweep()
            except OSError as error:
                raise _unwritable(self.path, error) from error
            yield

    def _sweep(self) -> None:
        sweep(self.path)
        for directory in self.objects.iterdir():
            sweep(directory)


def _free(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def busy(state: StateDirectory, holder: str) -> BusyError:
    """Error for an environment that another command is changing."""
    return BusyError(
        f"the environment {state.path.parent} is locked by: {holder}",
        hint="wait until it has finished, then run the command again",
        details={"holder": holder},
    )


def unreadable(path: Path, error: OSError) -> HostError:
    """Error for a file of the state directory that the disk would not let us read."""
    return HostError(
        f"cannot read {path}: {error.strerror}",
        hint="run as the owner of the environment",
        code="unreadable",
    )


def _unwritable(path: Path, error: OSError) -> HostError:
    return HostError(
        f"the state directory {path} cannot be written: {error.strerror}",
        hint="run as the owner of the environment, or make its file system writable",
        details={"path": str(path), "errno": error.errno},
    )


class Store:
    """Contents by sha256. What is returned was re-hashed; what is put was synced."""

    def __init__(self, state: StateDirectory) -> None:
        self._state = state

    def _path(self, digest: str) -> Path:
        return self._state.content(digest)

    def put(self, data: bytes, *, private: bool = False) -> str:
        """Keep `data` durably and return its digest; an intact copy is left as it is.

        `private`: nobody but the owner may read it, as the file it comes from.
        """
        digest = sha256_hex(data)
        if self.get(digest) is None:
            path = self._path(digest)
            make_directory(path.parent)
            write_file(path, data, mode=0o600 if private else 0o644)
        return digest

    def get(self, digest: str) -> bytes | None:
        """Return the content of that digest, or None when it is absent or damaged."""
        try:
            data = self._path(digest).read_bytes()
        except OSError:
            return None
        return data if sha256_hex(data) == digest else None

    def digests(self) -> set[str]:
        """Names of everything that is kept, intact or not."""
        found = set()
        with contextlib.suppress(OSError):
            for entry in self._state.objects.glob("??/*"):
                if not entry.name.startswith(TEMP_PREFIX):
                    found.add(entry.parent.name + entry.name)
        return found

    def drop(self, digests: Iterable[str]) -> int:
        """Remove contents that nothing refers to; return how many could be."""
        count = 0
        for digest in digests:
            with contextlib.suppress(OSError):
                self._path(digest).unlink()
                count += 1
        return count
