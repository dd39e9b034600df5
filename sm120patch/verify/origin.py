"""Which copy of the packages a running server imports, found by asking its own interpreter again.

Reads /proc and starts the server's Python once, with its options, variables and directory, as the
user it runs as; imports nothing of the packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT = 30
_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}
_ASK = """
import importlib.util, json, sys
start, *names = sys.argv[1:]
if start:
    sys.path[:1] = [start]
found = {}
for name in names:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    places = list(spec.submodule_search_locations or []) if spec else []
    found[name] = places[0] if places else None
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Origin:
    """What one process would import."""

    pid: int | None
    places: Mapping[str, str]
    """Package -> directory; packages that it does not find are left out."""
    unknown: str | None = None
    """Why nothing is known; None when a process could be asked."""


def origin_of(pids: Iterable[int], packages: Sequence[str]) -> Origin:
    """Ask for the first of the processes that is a Python and finds one of the packages."""
    reasons: list[str] = []
    for pid in pids:
        found = _ask(pid, packages)
        if isinstance(found, str):
            reasons.append(f"PID {pid}: {found}")
        elif found:
            return Origin(pid, found)
        else:
            reasons.append(f"PID {pid} imports none of them")
    return Origin(None, {}, "; ".join(reasons[:4]) or "no process to ask")


def foreign(origin: Origin, copies: Mapping[str, str]) -> list[str]:
    """Packages that the server takes from elsewhere than `copies` (package -> directory)."""
    return [
        f"the server (PID {origin.pid}) imports {name} from {origin.places[name]}, "
        f"not from {directory}"
        for name, directory in sorted(copies.items())
        if name in origin.places
        and os.path.realpath(origin.places[name]) != os.path.realpath(directory)
    ]


def _ask(pid: int, packages: Sequence[str]) -> dict[str, str] | str:
    """Package -> directory, or why it cannot be asked."""
    process = Path("/proc", str(pid))
    try:
        words = _split(process / "cmdline")
        environ = dict(entry.split("=", 1) for entry in _split(process / "environ") if "=" in entry)
        directory, binary = (process / "cwd").readlink(), (process / "exe").readlink()
        if (process / "ns" / "mnt").readlink() != Path("/proc/self/ns/mnt").readlink():
            return "it has a file system of its own (a container, or a unit with private mounts)"
        owner = process.stat()
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    python = _interpreter(words, environ, directory, binary)
    if python is None:
        return f"is no Python whose start can be repeated ({binary.name})"
    options, start = _start(words, directory)
    command = [python, *options, "-c", _ASK, start, *packages]
    return _run(command, environ, directory, owner)


def _split(path: Path) -> list[str]:
    return [os.fsdecode(part) for part in path.read_bytes().split(b"\0") if part]


def _interpreter(
    words: Sequence[str], environ: Mapping[str, str], directory: Path, binary: Path
) -> str | None:
    """The interpreter as it was named: a virtual environment is known by that name only."""
    if not words or not binary.name.startswith(("python", "pypy")):
        return None
    named = str(directory / words[0]) if "/" in words[0] else shutil.which(
        words[0], path=environ.get("PATH"))  # fmt: skip
    same = named is not None and os.path.realpath(named) == os.path.realpath(binary)
    return named if same else None


def _start(words: Sequence[str], directory: Path) -> tuple[list[str], str]:
    """Options of the interpreter, and the directory of the script when one was started."""
    options: list[str] = []
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        word = rest.pop(0)
        options.append(word)
        if word in _WITH_VALUE and rest:
            options.append(rest.pop(0))
        elif word[-1] in "mc" and not word.startswith(("--", "-W", "-X")):
            return [*options[:-1], word[:-1]], ""  # `-Im module`
    isolated = any("I" in o or "P" in o for o in options if not o.startswith(("--", "-W", "-X")))
    if not rest or rest[0] in ("-m", "-c", "-") or isolated:
        return options, ""
    return options, str(Path(os.path.realpath(directory / rest[0])).parent)


def _run(
    command: Sequence[str], environ: Mapping[str, str], directory: Path, owner: os.stat_result
) -> dict[str, str] | str:
    # What a server's variables have its Python run must not run with our rights.
    other = os.geteuid() == 0 and owner.st_uid != 0
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**environ, "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=directory,
            timeout=_TIMEOUT,
            check=False,
            user=owner.st_uid if other else None,
            group=owner.st_gid if other else None,
            extra_groups=[] if other else None,
        )
        said = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError) as error:
        return f"its interpreter cannot be started again: {error}"
    except (ValueError, IndexError):
        return "its interpreter gives no answer"
    return {name: place for name, place in said.items() if isinstance(place, str)}
