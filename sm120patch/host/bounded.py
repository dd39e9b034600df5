"""Asks a process of its own for facts that may hang: sysfs, /proc, network mounts, compilers.

Starts and kills its own child processes; reads what they print, nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT = 10.0
"""Seconds that one question may take."""

_CHILD = Path(__file__).with_name("probing.py")

Question = tuple[str, ...]
"""Name of a function of `probing`, and its arguments."""


@dataclass(frozen=True)
class Answer:
    """What a question was answered, or why it was not: exactly one of both is given."""

    value: Mapping[str, Any] | None
    reason: str | None = None

    def get(self, key: str) -> Any:
        """A fact, None when it is not known."""
        return None if self.value is None else self.value.get(key)


def ask(
    questions: Sequence[Question], root: Path = Path("/"), limit: float = LIMIT
) -> dict[Question, Answer]:
    """Answer every question; one that takes longer than `limit` seconds is given up by itself.

    A read that never returns cannot be interrupted from within: the child that hangs is killed,
    or left behind where the kernel does not let it die, and the next one goes on after it.
    """
    answers: dict[Question, Answer] = {}
    left = list(dict.fromkeys(questions))
    while left:
        found = _run(left, root, limit)
        answers.update(found)
        left = [question for question in left if question not in answers]
    return answers


def _run(questions: Sequence[Question], root: Path, limit: float) -> dict[Question, Answer]:
    """Answers up to the first question that hangs or ends the child; at least one."""
    command = [sys.executable, "-I", str(_CHILD), str(root), json.dumps(questions)]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        reason = f"cannot run {sys.executable}: {error.strerror}"
        return {question: Answer(None, reason) for question in questions}
    assert child.stdout is not None
    lines = _Lines(child.stdout.fileno())
    answers: dict[Question, Answer] = {}
    try:
        for question in questions:
            line = lines.next(limit)
            answers[question] = _answer(line, limit)
            if answers[question].value is None and not line:
                break
    finally:
        abandon(child)
    return answers


def _answer(line: bytes | None, limit: float) -> Answer:
    if line is None:
        return Answer(None, f"did not answer within {limit:g} s")
    if not line:
        return Answer(None, "the process that looked ended without an answer")
    try:
        document = json.loads(line)
        return Answer(document.get("value"), document.get("reason"))
    except (ValueError, AttributeError):
        return Answer(None, "gave an answer that cannot be read")


class _Lines:
    """Lines of a pipe, each waited for at most so long."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._data = b""

    def next(self, limit: float) -> bytes | None:
        """The next line, empty at the end, None when the time is up."""
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            while b"\n" not in self._data:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                read = os.read(self._descriptor, 1 << 16)
                if not read:
                    return b""
                self._data += read
        line, _, self._data = self._data.partition(b"\n")
        return line


def abandon(child: subprocess.Popen[bytes]) -> None:
    """Kill without waiting for ever: a process stuck in the kernel does not die."""
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=1)
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
