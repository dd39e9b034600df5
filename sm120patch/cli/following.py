"""Build the commands that are told to be run next, with the options that were given. Pure.

A command that is copied must ask about the same environment, with the same catalogue and profile,
as the one that named it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

Given = tuple[tuple[str, str], ...]
"""Options of the command line that others take too, each with its value, in their order."""

_ENVIRONMENT = ("--env", "--python")
_CATALOGUE = ("--catalogue", "--extra-catalogue")
_BOTH = (*_ENVIRONMENT, *_CATALOGUE)
OPTIONS = (*_BOTH, "--profile", "--gpu")
TAKEN: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("audit", "caches", "diff", "history", "recover", "report", "revert"), _BOTH),
    **dict.fromkeys(("adopt", "plan", "status"), (*_BOTH, "--gpu")),
    **dict.fromkeys(("apply", "doctor", "verify"), OPTIONS),
    **dict.fromkeys(("lint", "list", "show"), _CATALOGUE),
    "bench": (*_BOTH, "--profile"),
    "fleet-path": (),
    "fleet-report": (),
    "init": ("--profile",),
    "matrix": (*_CATALOGUE, "--gpu"),
    "new": (),
    "sign": (),
    "tune": _ENVIRONMENT,
}
"""Command -> which of OPTIONS it takes."""
_IN_PROSE = re.compile(r"`(sm120patch [a-z][^`\n]*)`")


def given(words: Sequence[str]) -> Given:
    """Pick OPTIONS out of a command line, whether written `--name value` or `--name=value`."""
    found: list[tuple[str, str]] = []
    rest = list(words)
    while rest and rest[0] != "--":
        name, equals, value = rest.pop(0).partition("=")
        if name in OPTIONS and (equals or rest):
            found.append((name, value if equals else rest.pop(0)))
    return tuple(found)


def command(text: str, options: Given) -> str:
    """Add to `sm120patch COMMAND ...` what of the options it takes and does not name itself."""
    words = text.split()
    taken = TAKEN.get(words[1], ()) if len(words) > 1 else ()
    if "--help" in words:
        return text
    named = {word.partition("=")[0] for word in words}
    if named & set(_ENVIRONMENT):
        named |= set(_ENVIRONMENT)
    added = [w for name, value in options if name in taken and name not in named
             for w in (name, value)]  # fmt: skip
    if not added:
        return text
    import shlex

    return f"{text} {shlex.join(added)}"


def prose(text: str, options: Given) -> str:
    """Complete every command that stands between backquotes."""
    return _IN_PROSE.sub(lambda found: f"`{command(found[1], options)}`", text)
