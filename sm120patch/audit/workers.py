"""Calls that forked processes make while this one goes on. Touches no disk.

A child inherits what it works on, so that nothing has to be sent to it, and sends what came of it
back in one piece. It ends with this process, however that went. What a child could not do, since
there is none or it died, is done here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Generic, NoReturn, TypeVar

Item = TypeVar("Item")

_LENGTH = 8
"""Bytes in front of a result, which tell a whole one from one that was cut off."""


class Share(Generic[Item]):
    """Items that a process of its own works on; their results, joined, are asked for once."""

    def __init__(self, function: Callable[[Item], bytes], items: Sequence[Item]) -> None:
        """Start the process and do not wait. `function` must not depend on other threads."""
        self._function, self._items = function, items
        self._parent = os.getpid()
        self._pid = self._end = -1
        # A fork copies one thread only: locks that others hold would stay locked for ever.
        if threading.active_count() == 1:
            with contextlib.suppress(OSError):
                self._fork()

    @property
    def running(self) -> bool:
        """True while there is a process whose result nobody has asked for."""
        return self._pid > 0

    def result(self) -> bytes:
        """Wait for the results of all items, in their order."""
        data = self._received() if self._pid > 0 else b""
        if len(data) >= _LENGTH and int.from_bytes(data[:_LENGTH], "big") == len(data) - _LENGTH:
            return data[_LENGTH:]
        return b"".join(map(self._function, self._items))

    def close(self) -> None:
        """End the process if nobody has asked for its result; for who started it only."""
        if self._pid > 0 and self._parent == os.getpid():
            os.kill(self._pid, signal.SIGKILL)
            self._reap()

    __del__ = close

    def _fork(self) -> None:
        ours, theirs = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(ours)
            os.close(theirs)
            raise
        if pid == 0:
            self._work(theirs)
        os.close(theirs)
        self._pid, self._end = pid, ours

    def _work(self, end: int) -> NoReturn:
        """Body of the child."""
        try:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for the one that started us.
            parts = []
            for item in self._items:
                if os.getppid() != self._parent:
                    os._exit(1)
                parts.append(self._function(item))
            data = b"".join(parts)
            data = len(data).to_bytes(_LENGTH, "big") + data
            while data:
                data = data[os.write(end, data) :]
            os._exit(0)
        except BaseException:
            os._exit(1)

    def _received(self) -> bytes:
        parts = []
        try:
            while part := os.read(self._end, 1 << 20):
                parts.append(part)
        finally:
            self._reap()
        return b"".join(parts)

    def _reap(self) -> None:
        pid, self._pid = self._pid, -1
        os.close(self._end)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
