"""Hold back ^C and termination signals while files are being exchanged."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Deliver SIGINT, SIGTERM and SIGHUP after the block instead of inside it.

    The kernel keeps them: no handler is exchanged, so none can be lost in between. Blocks nest.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def raise_on_termination() -> None:
    """Make SIGTERM and SIGHUP unwind like ^C, so that every rollback and server stop runs."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup must keep working
        signal.signal(signal.SIGHUP, interrupt)
