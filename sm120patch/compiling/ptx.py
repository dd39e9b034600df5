"""What nvcc must be told to write PTX instead of an object, and how two of them compare. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_WITH_VALUE = {"-o", "--dependency-output", "-MF", "-MT", "-gencode", "-arch", "-code"}
_ALONE = {
    "-c", "--generate-dependencies-with-compile", "-MMD", "-MD", "-lineinfo", "-G",
    "--device-debug",
}  # fmt: skip
_PREFIXES = ("-gencode=", "-arch=", "-code=", "--threads", "-Xfatbin", "--lineinfo")
_HASHED = re.compile(rb"_INTERNAL_[0-9a-f]{8}_")


def ptx_command(
    command: Sequence[str], arch: str, output: str, places: Mapping[str, str]
) -> list[str]:
    """Turn nvcc's command for an object into one that writes PTX for `arch` to `output`.

    `places` replaces directories and files: the tree with another content of a header.
    """
    words = iter(command)
    kept: list[str] = []
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif word not in _ALONE and not word.startswith(_PREFIXES):
            glued = "-I" if word.startswith("-I") else ""
            place = word.removeprefix(glued)
            kept.append(glued + places.get(place, place))
    return [*kept, "--ptx", f"-arch=compute_{arch}", "-o", output]


def count_lines(ptx: bytes, text: str) -> int:
    """Lines that hold the text."""
    wanted = text.encode()
    return sum(wanted in line for line in ptx.splitlines())


def normalised(ptx: bytes) -> bytes:
    """Leave out what differs between two runs over equal code: names made of hashes."""
    return _HASHED.sub(b"_INTERNAL_", ptx)
