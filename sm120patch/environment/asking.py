"""Questions to the target's interpreter: what it imports, and what files hold.

Starts one process a question and reads its answer; reads disk only. `subprocess` would do it as
well and costs a tenth of what `status` takes to import.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sm120patch.environment import child
from sm120patch.errors import HostError

PROBE_TIMEOUT = 60.0
"""Seconds. Start-up files of large environments are slow on a cold disk, but do end."""

MAX_OUTPUT, MAX_ERRORS = 64 << 20, 1 << 16
"""Bytes, with what start-up files print."""
MAX_ANSWER = 8 << 20
"""Bytes. An answer takes some hundred a file, and a hundred times as much while it is parsed."""

_BEGIN, _END = child.BEGIN.encode(), child.END.encode()


class Question:
    """A running `child.py`; the answer is asked for once, and other work can be done before.

    The answer says where `packages` come from and, with `about`, what files hold; without it, what
    the interpreter is. The process ends by itself when this one is gone.
    """

    def __init__(
        self,
        python: Path,
        packages: Sequence[str],
        about: bytes = b"",
        timeout: float = PROBE_TIMEOUT,
    ) -> None:
        """Start it, isolated, and do not wait. HostError when it cannot be run."""
        self._fds: tuple[int, ...] = ()
        self._python, self._about, self._timeout = python, about, timeout
        self._deadline = time.monotonic() + timeout
        self._output, self._errors = bytearray(), b""
        self._complete = False
        kind = child.FILES if about else child.ENVIRONMENT
        self._pid, self._fds = _start(python, [kind, *packages])

    def answer(self) -> Mapping[str, Any]:
        """Return what it says; HostError when there is no answer in time, or another one.

        The time begins now: what else was done since the start is no delay of the interpreter.
        """
        self._deadline = time.monotonic() + self._timeout
        answer = self._answer()
        self.close()
        return answer

    def close(self) -> None:
        """End it: all that it was asked for is there, or nobody wants it any more."""
        if self._fds:
            os.kill(self._pid, signal.SIGKILL)
            self._end()

    __del__ = close

    def _answer(self) -> Mapping[str, Any]:
        try:
            self._listen()
        except BaseException:
            self.close()
            raise
        text = self._output.rpartition(_BEGIN)[2].partition(_END)[0]
        whole = _END in self._output and len(text) <= MAX_ANSWER
        try:
            facts = text.decode("utf-8", "surrogatepass")
            answer = json.loads(facts, strict=False) if whole else None
        except (ValueError, RecursionError, MemoryError):
            answer = None
        if isinstance(answer, dict):
            return answer
        code = self._end()
        tail = self._errors.decode("utf-8", "replace").strip().splitlines()[-1:]
        said = f": {tail[0]}" if tail else " and no message"
        raise HostError(
            f"asking {self._python} what it imports: exit status {code}{said}",
            hint="check that this is a working Python 3 interpreter",
        )

    def _listen(self) -> None:
        """Ask, and read until an answer is complete, or nothing more can come.

        Both at once: neither a question nor what a start-up file prints need fit into a pipe.
        """
        poll = select.poll()
        poll.register(self._fds[0], select.POLLOUT)
        for fd in self._fds[1:]:
            poll.register(fd, select.POLLIN)
        open_ends = len(self._fds) - 1
        while open_ends and not self._complete:
            ready = poll.poll(max(0.0, self._deadline - time.monotonic()) * 1000)
            if not ready:
                raise HostError(
                    f"asking {self._python} what it imports: no answer within"
                    f" {self._timeout:.0f} s",
                    hint="start this interpreter by hand: a start-up file (.pth) of it may hang",
                )
            for fd, _event in ready:
                if fd == self._fds[0]:
                    if not self._ask_on():
                        poll.unregister(fd)
                        os.close(fd)
                        self._fds = (-1, *self._fds[1:])
                elif not self._hear(fd):
                    poll.unregister(fd)
                    open_ends -= 1

    def _ask_on(self) -> bool:
        """Write what the pipe takes of the question; False when there is no more to say."""
        try:
            self._about = self._about[os.write(self._fds[0], self._about) :]
        except BrokenPipeError:
            return False  # what it said before it went is in its answer
        return bool(self._about)

    def _hear(self, fd: int) -> bool:
        """Take what there is to read; False at the end."""
        data = os.read(fd, 1 << 16)
        if fd == self._fds[1]:
            self._output += data
            self._complete = _END in self._output[-len(data) - len(_END) :]
            if len(self._output) > MAX_OUTPUT:
                raise HostError(
                    f"asking {self._python} what it imports: it wrote more than {MAX_OUTPUT} bytes",
                    hint="start this interpreter by hand: a start-up file (.pth) of it may print",
                )
        else:
            self._errors = (self._errors + data)[-MAX_ERRORS:]
        return bool(data)

    def _end(self) -> int:
        """Wait until it has ended, at the deadline by force; return its exit status."""
        for fd in self._fds:
            if fd >= 0:
                os.close(fd)
        self._fds = ()
        pause = 0.0
        while not (ended := os.waitpid(self._pid, os.WNOHANG))[0]:
            if time.monotonic() > self._deadline:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(pause)
            pause = 0.001
        return os.waitstatus_to_exitcode(ended[1])


def _start(python: Path, words: Sequence[str]) -> tuple[int, tuple[int, ...]]:
    """Return its pid and our ends of its standard input, output and errors."""
    program = Path(child.__file__).read_text(encoding="utf-8")
    command = [str(python), "-I", "-c", program, *words]
    (theirs_in, ours_in), (ours_out, theirs_out), (ours_err, theirs_err) = (
        os.pipe() for _ in range(3)
    )
    theirs = (theirs_in, theirs_out, theirs_err)
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(theirs)]
    try:
        pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsigmask=())
    except OSError as error:
        for fd in (ours_in, ours_out, ours_err):
            os.close(fd)
        raise HostError(
            f"cannot run {python}: {error.strerror}",
            hint="name the environment that runs SGLang: --env PREFIX (or --python EXE)",
        ) from error
    finally:
        for fd in theirs:
            os.close(fd)
    os.set_blocking(ours_in, False)
    return pid, (ours_in, ours_out, ours_err)


def ask(
    python: Path,
    packages: Sequence[str],
    files: Sequence[tuple[str, str]] = (),
    pycache_prefix: Path | None = None,
    timeout: float = PROBE_TIMEOUT,
) -> Mapping[str, Any]:
    """Start an interpreter for one question: where `packages` come from, and what `files` hold.

    `files` are (import root, relative path) pairs. Raises HostError when it does not start, does
    not answer in time, or answers something else.
    """
    about = b""
    if files:
        program = Path(child.__file__).with_name("inspection.py").read_text(encoding="utf-8")
        words = [program, str(pycache_prefix or ""), *(word for pair in files for word in pair)]
        about = os.fsencode("".join(f"{word}\0" for word in words))
    question = Question(python, packages, about, timeout)
    try:
        return question.answer()
    finally:
        question.close()
