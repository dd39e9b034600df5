"""Did two servers fail to start in the same way? Then the sets are not to blame. Pure."""

from __future__ import annotations

import re

_ERROR = re.compile(r"\b[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b|\b(error|fatal)\b", re.I)
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+")


def same_failure(one: str, other: str) -> bool:
    """Compare two messages of `ServerError`: how the start ended, and the errors in the log's end.

    All errors have to agree, whatever their order: launchers of several processes end every
    failure with one and the same line. Numbers (times, process ids, addresses) may differ behind
    the first line, in which the exit status stands.
    """
    return _essence(one) == _essence(other)


def _essence(message: str) -> tuple[str, frozenset[str]]:
    first, *rest = message.splitlines() or [""]
    lines = [_VARYING.sub("#", line.strip()) for line in rest if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    return first, frozenset(errors or lines[-1:])
