"""Hold back ^C and termination signals while files are being exchanged."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Deliver SIGINT, SIGTERM and SIGHUP after the block instead of inside it.

    The first signal waits; its usual handler runs when the block has ended. Outside the main
    thread, where handlers cannot be set, the block runs unprotected.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        pending.append(number)

    previous = {number: signal.signal(number, remember) for number in HELD}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if pending:
            signal.raise_signal(pending[0])


def raise_on_termination() -> None:
    """Make SIGTERM and SIGHUP unwind like ^C, so that every rollback and server stop runs."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup must keep working
        signal.signal(signal.SIGHUP, interrupt)
