"""Reads ninja's dependency log and the build files that FlashInfer generates. Reads disk only."""

import re
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

CXX_SUFFIXES = (".cpp", ".cc", ".cxx")
"""Sources whose dependency log tells too little: to g++ FlashInfer's headers are system headers."""
_SIGNATURE = b"# ninjadeps\n"
_MAX_RECORD = (1 << 19) - 1
_MAX_FILE = 256 << 20
_ENCODING = sys.getfilesystemencoding()


def read_deps_log(path: Path) -> Mapping[str, tuple[str, ...]] | None:
    """Map each output of a `.ninja_deps` log to the files it was built from.

    Format (ninja's deps_log.h): a signature line, a 32-bit version, then records. A record is a
    32-bit size whose high bit tells a dependency list from a path. Paths are numbered by position
    and end with the complement of their number as a checksum. Versions 3 (32-bit time) and 4
    (64-bit time) differ in the time only. As ninja does, a damaged tail is dropped and what stands
    before it is used. None when there is no readable log of a known version.
    """
    try:
        if path.stat().st_size > _MAX_FILE:
            return None
        data = path.read_bytes()
    except OSError:
        return None
    start = len(_SIGNATURE) + 4
    if len(data) < start or not data.startswith(_SIGNATURE):
        return None
    version = int.from_bytes(data[start - 4 : start], "little", signed=True)
    words_before_ids = {3: 2, 4: 3}.get(version)
    if words_before_ids is None:
        return None
    return _records(data, start, words_before_ids)


def _records(data: bytes, offset: int, skip: int) -> Mapping[str, tuple[str, ...]]:
    names: list[str] = []
    found: dict[str, tuple[str, ...]] = {}
    while offset + 4 <= len(data):
        (head,) = struct.unpack_from("<I", data, offset)
        size, offset = head & 0x7FFFFFFF, offset + 4
        body = data[offset : offset + size]
        if size > _MAX_RECORD or size % 4 or size < 4 or len(body) < size:
            break
        offset += size
        if head & 0x80000000:
            if size < 4 * skip:
                break
            words = struct.unpack(f"<{size // 4}i", body)
            ids = (words[0], *words[skip:])
            if min(ids) < 0 or max(ids) >= len(names):
                break
            found[names[ids[0]]] = tuple([names[number] for number in ids[1:]])
        else:
            if int.from_bytes(body[-4:], "little") != ~len(names) & 0xFFFFFFFF:
                break
            # A path is padded with up to three NUL bytes.
            names.append(body[:-4].rstrip(b"\0").decode(_ENCODING, "surrogateescape"))
    return found


class BuildFile(NamedTuple):
    """The part of a generated `build.ninja` that tells sources and include directories."""

    sources: Mapping[str, str]
    """Object file -> the source it is compiled from."""
    include_dirs: tuple[str, ...]
    links: tuple[str, ...] = ()
    """Outputs of every other rule: what is made from the objects."""


def read_build_file(path: Path) -> BuildFile | None:
    """Read a `build.ninja` as FlashInfer generates it; None when there is none or it is no text."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    text = text.replace("$\n", " ")
    variables = dict(re.findall(r"^(\w+) *= *(.*?) *$", text, re.MULTILINE))
    sources = {
        output: source
        for output, rule, source in re.findall(
            r"^build (\S+): (\w+) (\S+)[ \t]*(?:\|.*)?$", text, re.MULTILINE
        )
        if "compile" in rule
    }
    outputs = re.findall(r"^build (\S+): ", text, re.MULTILINE)
    flags = " ".join(value for name, value in variables.items() if name.endswith("flags"))
    directories = re.findall(r"(?:-I|-isystem)\s*(\S+)", flags)
    expanded = (_expand(directory, variables) for directory in directories)
    links = tuple(output for output in outputs if output not in sources)
    return BuildFile(sources, tuple(dict.fromkeys(expanded)), links)


def _expand(text: str, variables: Mapping[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda match: variables.get(match[1], ""), text)
