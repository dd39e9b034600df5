"""Spread calls over forked processes that die with this one. Touches no disk.

Each worker has a pipe of its own and one call at a time; when this process is gone, however it
went, the pipe ends and so does the worker. A worker that dies has its call made here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers(Generic[Item, Result]):
    """A pool for one function, started at the first use; a context manager."""

    def __init__(self, function: Callable[[Item], Result], count: int) -> None:
        self._function = function
        self._count = count
        self._workers: dict[Connection, int] = {}
        """Our end of the pipe -> pid."""

    def __enter__(self) -> Workers[Item, Result]:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for connection in list(self._workers):
            self._dismiss(connection)

    def map(self, items: Iterable[Item]) -> Iterator[Result]:
        """Yield the result of every item in order; items are drawn as workers become free."""
        self._start()
        if not self._workers:
            yield from map(self._function, items)
            return
        idle = list(self._workers)
        busy: dict[Connection, tuple[int, Item]] = {}
        done: dict[int, Result] = {}
        following = 0
        for index, item in enumerate(items):
            while not idle and busy:
                self._collect(busy, done, idle)
            if not idle or not self._send(idle[-1], item):
                done[index] = self._function(item)
                idle = [c for c in idle if c in self._workers]
            else:
                busy[idle.pop()] = (index, item)
            while following in done:
                yield done.pop(following)
                following += 1
        while busy:
            self._collect(busy, done, idle)
        yield from (done[index] for index in sorted(done))

    def _send(self, connection: Connection, item: Item) -> bool:
        try:
            connection.send(item)
        except OSError:
            self._dismiss(connection)
            return False
        return True

    def _collect(
        self,
        busy: dict[Connection, tuple[int, Item]],
        done: dict[int, Result],
        idle: list[Connection],
    ) -> None:
        from multiprocessing.connection import Connection, wait

        for ready in wait(list(busy)):
            assert isinstance(ready, Connection)
            index, item = busy.pop(ready)
            try:
                done[index] = ready.recv()
                idle.append(ready)
            except (EOFError, OSError):
                self._dismiss(ready)  # Killed, for memory perhaps: its call is made here.
                done[index] = self._function(item)

    def _start(self) -> None:
        # A fork copies one thread only: locks that others hold would stay locked for ever.
        if self._workers or self._count < 2 or threading.active_count() > 1:
            return
        from multiprocessing.connection import Pipe

        for _ in range(self._count):
            ours, theirs = Pipe()
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                theirs.close()
                return
            if pid == 0:
                self._work(theirs, [ours, *self._workers])
            theirs.close()
            self._workers[ours] = pid

    def _work(self, connection: Connection, others: list[Connection]) -> None:
        """Body of a worker; never returns."""
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for the one that started us.
            for other in others:
                other.close()
            while True:
                connection.send(self._function(connection.recv()))
        except (EOFError, OSError):
            os._exit(0)
        except BaseException:
            os._exit(1)

    def _dismiss(self, connection: Connection) -> None:
        pid = self._workers.pop(connection, None)
        connection.close()
        if pid is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
