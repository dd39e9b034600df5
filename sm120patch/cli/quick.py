"""Answers plain `status` without the parser of all other command lines.

Monitoring and prompts ask for it again and again, and loading click takes a quarter of it. Whatever
is not simply one of the options below, each once and with a value, is left to click.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from sm120patch.cli.output import Output

OPTIONS = ("--gpu", "--env", "--python", "--output")
_COMPLETION = "_SM120PATCH_COMPLETE"


def run(words: Sequence[str], output: Output) -> int | None:
    """Do what the command line asks for and return its exit code; None when click has to look."""
    if list(words[:1]) != ["status"] or _COMPLETION in os.environ:
        return None
    given = options(words[1:])
    form = None if given is None else given.get("--output", "text")
    if given is None or form not in ("text", "json"):
        return None
    output.command, output.as_json = "status", form == "json"
    from sm120patch.cli.showing import show_status
    from sm120patch.operations.places import find_places

    places = find_places(None, (), os.environ)
    return show_status(
        output, given.get("--gpu"), given.get("--env"), given.get("--python"), places
    )


def options(words: Sequence[str]) -> dict[str, str] | None:
    """Read `--name value` and `--name=value`; None for anything else."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name not in OPTIONS or name in found or not (equals or rest):
            return None
        found[name] = value if equals else rest.pop(0)
        if found[name].startswith("-"):
            return None
    return found
