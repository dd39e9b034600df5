"""Asks a real ninja what it would do with a build, and names what the build was made from.

Runs `ninja -n` on copies of its logs; nothing below the build is written or removed.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from pathlib import Path

from sm120patch.caches.ninja import read_deps_log
from sm120patch.model import digest_of

TIMEOUT = 60.0
"""Seconds that a `ninja -n` may take: it stats a few thousand files at most."""
_LOGS = (".ninja_log", ".ninja_deps")
_STEP = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")


def ninjas(prefix: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Every ninja that a server of the environment may use, its own one first.

    FlashInfer takes the first on PATH: that of the environment when it was activated.
    """
    beside = prefix / "bin" / "ninja"
    found = [str(beside)] if os.access(beside, os.X_OK) else []
    import shutil  # it loads three kinds of compression

    other = shutil.which("ninja", path=environ.get("PATH", os.defpath))
    return tuple(dict.fromkeys([*found, *([other] if other else [])]))


def work_to_do(directory: Path, ninja: str) -> tuple[str, ...] | None:
    """Outputs that `ninja` would make in the live build `directory`: none when it is up to date.

    Absolute paths, sorted. None when that cannot be told: no build file, an error, a rule whose
    output is not named with `-o`. A ninja removes logs of another version when it reads them, so
    it gets copies: `builddir` says where the logs are, and its last assignment counts.
    """
    build_file = directory / "build.ninja"
    if build_file.is_symlink() or not build_file.is_file():
        return None
    import subprocess
    import tempfile

    try:
        # Where not even these small files fit, nothing can be shown.
        with tempfile.TemporaryDirectory(prefix="sm120patch-ninja-") as scratch:
            outer = _outer_file(directory, build_file, Path(scratch))
            done = subprocess.run(
                [ninja, "-n", "-v", "-C", str(directory), "-f", str(outer)],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=TIMEOUT,
                check=False,
                env={"PATH": os.defpath, "NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C"},
            )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return _outputs(done.stdout.decode("utf-8", "replace"), directory)


def _outer_file(directory: Path, build_file: Path, scratch: Path) -> Path:
    """Write a build file that includes the real one and keeps its logs, copied, in `scratch`."""
    import shutil

    for name in _LOGS:
        if (directory / name).is_file():
            shutil.copy2(directory / name, scratch)
    outer = scratch / "build.ninja"
    text = f"include {_escape(str(build_file))}\nbuilddir = {_escape(str(scratch))}\n"
    outer.write_text(text, encoding="utf-8")
    return outer


def fresh(directory: Path, candidates: Iterable[str]) -> bool:
    """Tell whether one of the ninjas says "no work to do"."""
    return any(work_to_do(directory, ninja) == () for ninja in candidates)


def identity(directory: Path, apart: Collection[str] = ()) -> str:
    """Name the files that a build was made from, `apart` from some: size and time of each.

    A package that is unpacked again with older times leaves ninja content with a build of another
    source; then this differs. Empty when the build has no readable dependency log.
    """
    log = read_deps_log(directory / ".ninja_deps")
    if not log:
        return ""
    left_out = {*apart, *map(os.path.realpath, apart)}
    facts = {}
    for name in sorted({name for inputs in log.values() for name in inputs}):
        path = os.path.normpath(directory / name)
        if path in left_out or os.path.realpath(path) in left_out:
            continue
        try:
            status = os.stat(path)  # noqa: PTH116 - a thousand of them: half the time of Path.stat
            facts[path] = [status.st_size, status.st_mtime_ns]
        except OSError:
            facts[path] = []
    return digest_of(facts)[:32]


def _outputs(text: str, directory: Path) -> tuple[str, ...] | None:
    """Read the outputs out of what `ninja -n -v` printed."""
    if "ninja: no work to do." in text.splitlines():
        return ()
    found, total = set(), None
    for line in text.splitlines():
        step = _STEP.match(line)
        if step is None:
            continue
        total = int(step[2])
        try:
            words = shlex.split(step[3])
        except ValueError:
            return None
        named = [after for word, after in pairwise(words) if word == "-o"]
        if len(named) != 1:
            return None
        found.add(os.path.normpath(directory / named[0]))
    return tuple(sorted(found)) if found and total == len(found) else None


def _escape(path: str) -> str:
    return re.sub(r"([$ :])", r"$\1", path)
