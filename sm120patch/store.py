"""The state directory under the target prefix: lock, and file contents by sha256.

Writes under `PREFIX/.sm120patch/` only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sm120patch.disk import sync_directory, write_file
from sm120patch.errors import BusyError, HostError
from sm120patch.model import sha256_hex

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


@dataclass(frozen=True)
class StateDirectory:
    """Paths inside `PREFIX/.sm120patch`; nothing exists until `ensure` was called."""

    path: Path

    @classmethod
    def of(cls, prefix: Path) -> StateDirectory:
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
    def logs(self) -> Path:
        """Directory for the output of servers that a verification starts."""
        return self.path / "logs"

    def ensure(self) -> None:
        """Create the directory and its README; HostError when the prefix cannot be written."""
        try:
            self.path.mkdir(exist_ok=True)
            (self.path / "objects").mkdir(exist_ok=True)
            self.logs.mkdir(exist_ok=True)
            if not (self.path / "README").exists():
                write_file(self.path / "README", _README.encode())
        except OSError as error:
            raise _unwritable(self.path, error) from error

    @contextlib.contextmanager
    def lock(self, command: str) -> Iterator[None]:
        """Hold the environment exclusively; BusyError at once when another process has it.

        The kernel frees the lock when the process dies, so a stale lock cannot exist.
        """
        self.ensure()
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(fd, 200, 0).decode("utf-8", "replace").strip()
                raise BusyError(
                    f"the environment {self.path.parent} is locked by: {holder or 'unknown'}",
                    hint="wait until it has finished, then run the command again",
                    details={"holder": holder},
                ) from None
            try:
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"pid {os.getpid()}, {command}\n".encode(), 0)
            except OSError as error:
                raise _unwritable(self.path, error) from error
            yield
        finally:
            os.close(fd)


def _unwritable(path: Path, error: OSError) -> HostError:
    return HostError(
        f"the state directory {path} cannot be written: {error.strerror}",
        hint="run as the owner of the environment, or make its file system writable",
        details={"path": str(path), "errno": error.errno},
    )


class Store:
    """Contents by sha256. What is returned was re-hashed; what is put was synced."""

    def __init__(self, state: StateDirectory) -> None:
        self._objects = state.path / "objects"

    def _path(self, digest: str) -> Path:
        return self._objects / digest[:2] / digest[2:]

    def put(self, data: bytes) -> str:
        """Keep `data` durably and return its digest; an intact copy is left as it is."""
        digest = sha256_hex(data)
        if self.get(digest) is None:
            path = self._path(digest)
            if not path.parent.is_dir():
                path.parent.mkdir(exist_ok=True)
                sync_directory(self._objects)
            write_file(path, data)
        return digest

    def get(self, digest: str) -> bytes | None:
        """Return the content of that digest, or None when it is absent or damaged."""
        try:
            data = self._path(digest).read_bytes()
        except OSError:
            return None
        return data if sha256_hex(data) == digest else None
