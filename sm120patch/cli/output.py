"""Print results and errors: data on stdout, talk on stderr, one JSON envelope for machines."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from sm120patch.cli import following
from sm120patch.errors import ExitCode, HostError, Sm120PatchError
from sm120patch.plaintext import clean

SCHEMA = 1
UNWRITTEN = "output"
"""Code of the error that says that standard output took no result."""


class Output:
    """How one command speaks; `command` names it in the envelope.

    `given` are the options that commands to be run next must repeat.
    """

    def __init__(self, given: following.Given = ()) -> None:
        self.as_json = False
        self.command = ""
        self.given = given
        self._answered = False
        """The one result is printed, or in part: after ^C half of it may be."""

    def data(
        self,
        result: Mapping[str, object],
        text: str,
        code: ExitCode = ExitCode.OK,
        *,
        exact: bool = False,
    ) -> None:
        """Print the result: the envelope with `--output json`, else `text`.

        With `exact`, what reads it gets its bytes unchanged (surrogates as the bytes they stand
        for), and a terminal is told when it does not.
        """
        self._answered = True
        if self.as_json:
            self._envelope(result, code, None)
        elif exact and text and not _to_terminal():
            _write(text.rstrip("\n") + "\n", exact=True)
        elif text:
            _write(_fitting(clean(text).rstrip("\n"), sys.stdout) + "\n")
            if exact and clean(text) != text:
                self.talk(
                    "note: some bytes are shown escaped here; a pipe or a file gets them as is"
                )

    def error(self, error: Sm120PatchError) -> None:
        """Print an expected failure, with its hint; commands in it get the options given here.

        Standard output holds one envelope: what comes after a result is told on standard error.
        """
        hint = error.hint and following.prose(error.hint, self.given)
        if self.as_json and error.code != UNWRITTEN and not self._answered:
            self._envelope(None, error.exit_code, error, hint)
            return
        self.talk(f"error: {error.message}")
        if hint:
            self.talk(f"hint: {hint}")

    def talk(self, text: str) -> None:
        """Say something to the person at the terminal; nothing fails because nobody listens."""
        stream: TextIO | None = sys.stderr  # None where it was closed from the beginning
        if stream is None:
            return
        try:
            stream.write(_fitting(clean(text).rstrip("\n"), stream) + "\n")
            stream.flush()
        except OSError:
            silence(stream)

    def _envelope(
        self,
        result: Mapping[str, object] | None,
        code: ExitCode,
        error: Sm120PatchError | None,
        hint: str | None = None,
    ) -> None:
        errors = []
        if error is not None:
            errors.append(
                {
                    "code": error.code,
                    "message": error.message,
                    "hint": hint,
                    "details": dict(error.details),
                }
            )
        envelope = {
            "schema": SCHEMA,
            "command": self.command,
            "ok": code is ExitCode.OK,
            "exit_code": int(code),
            "result": result,
            "errors": errors,
        }
        _write(json.dumps(envelope, indent=2, sort_keys=True, default=str) + "\n")


def width(stream: TextIO | None) -> int | None:
    """Columns of the terminal that a stream writes to; None for anything else."""
    if stream is None or not stream.isatty():
        return None
    named = os.environ.get("COLUMNS", "")
    try:
        return int(named) if named.isdecimal() else os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return None


def _fitting(text: str, stream: TextIO | None) -> str:
    """Fold text to the width of a terminal; as it is for anything else."""
    columns = width(stream)
    if columns is None:
        return text
    from sm120patch.cli.folding import fold

    return fold(text, columns)


def _to_terminal() -> bool:
    stream: TextIO | None = sys.stdout
    return stream is not None and stream.isatty()


def _write(text: str, *, exact: bool = False) -> None:
    stream: TextIO | None = sys.stdout
    if stream is None:
        raise unwritten("it is closed")
    try:
        if exact:
            stream.buffer.write(text.encode("utf-8", "surrogateescape"))
        else:
            stream.write(text)
        stream.flush()
    except BrokenPipeError:
        silence(stream)  # the reader has seen enough; the exit code is for somebody else
    except OSError as error:
        raise unwritten(error.strerror) from error


def unwritten(why: str | None) -> HostError:
    """Error for a result that standard output did not take; nothing more is written there."""
    stream: TextIO | None = sys.stdout
    if stream is not None:
        silence(stream)
    return HostError(
        f"the command has ended, but its result could not be printed: {why}",
        code=UNWRITTEN,
        hint="`sm120patch status` shows what holds now; standard output was full or closed",
    )


def flushed() -> bool:
    """True when standard output has taken all; a closed one has nothing to take.

    Where its reader has gone, nobody misses the rest.
    """
    stream: TextIO | None = sys.stdout
    try:
        if stream is not None:
            stream.flush()
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError:
        return False
    return True


def hold_closed_streams() -> None:
    """Keep the numbers of closed standard streams from files that are opened later.

    A child, or a message, would be written into a lock or a ledger.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def silence(stream: TextIO) -> None:
    """Lead a stream nowhere: Python must not complain again while it closes it."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
