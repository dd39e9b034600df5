"""One line at the bottom of a terminal that is written over; nothing where there is no terminal."""

from __future__ import annotations

import os
import shutil
from typing import TextIO

from sm120patch.plaintext import clean

_CLEAR = "\r\x1b[K"


class LiveLine:
    """Shows a status on `stream` while it lasts; `clear` it before anything else is printed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._usable = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._shown = False

    def show(self, text: str) -> None:
        """Write over the line; cut to the width of the terminal, so that it stays one line."""
        if not self._usable:
            return
        width = shutil.get_terminal_size((100, 24)).columns
        one_line = " ".join(clean(text).split())
        self._stream.write(_CLEAR + one_line[: width - 1])
        self._stream.flush()
        self._shown = True

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._shown = False
