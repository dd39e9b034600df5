"""Shows from PTX that a change is in the compiled code, and that other architectures are as before.

Writes below a scratch directory only; the packages are read.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sm120patch.compiling.ptx import count_lines, normalised, ptx_command
from sm120patch.compiling.running import Job, Limit, Say, run_all
from sm120patch.errors import HostError
from sm120patch.model import PtxCount

_TREES = ("flashinfer/data/include", "flashinfer/data/csrc")
"""Directories of sources; one that holds a patched file is copied for the side without it."""


@dataclass(frozen=True)
class Proof:
    """What one expectation came to."""

    expected: PtxCount
    before: int
    after: int
    same: bool

    @property
    def holds(self) -> bool:
        """The counts are those declared, and what must be the same is."""
        counts = (self.before, self.after) == (self.expected.before, self.expected.after)
        return counts and (self.same or not self.expected.same)

    def __str__(self) -> str:
        wanted = self.expected
        text = f"{wanted.source} for sm_{wanted.arch}: {wanted.text} {self.before} -> {self.after}"
        if (self.before, self.after) != (wanted.before, wanted.after):
            text += f", expected {wanted.before} -> {wanted.after}"
        return text + (", the same code" if self.same else "")


def prove(
    expected: Iterable[PtxCount],
    directory: Path,
    ninja: str,
    root: Path,
    upstream: Mapping[str, bytes],
    environ: Mapping[str, str],
    scratch: Path,
    limit: Limit,
    say: Say,
) -> tuple[Proof, ...]:
    """Compile each source to PTX with and without the patch, by the module's own build file.

    `directory` is the module's; `upstream` maps the patched files (below `root`) to upstream's
    bytes. Raises HostError when a compile fails or the limit is reached.
    """
    wanted = tuple(expected)
    commands = compile_commands(directory, ninja)
    places = without_patch(root, upstream, scratch)
    jobs = {}
    for count in wanted:
        command = commands.get(count.source)
        if command is None:
            raise HostError(f"{directory} compiles no {count.source}, expected one")
        for side, swapped in (("without", places), ("with", {})):
            name = f"PTX of {count.source} for sm_{count.arch}, {side} the patch"
            output = str(_file(scratch, count, side))
            jobs[name] = Job(name, ptx_command(command, count.arch, output, swapped))
    run_all(tuple(jobs.values()), environ, scratch, limit, say)
    return tuple(_compare(count, scratch) for count in wanted)


def compile_commands(directory: Path, ninja: str) -> dict[str, list[str]]:
    """File name of each source -> nvcc's command for it, as ninja would run it."""
    build_file = directory / "build.ninja"
    command = [ninja, "-C", str(directory), "-f", str(build_file), "-t", "commands"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError(f"cannot read the commands in {build_file}: {error}") from error
    found = {}
    for line in done.stdout.splitlines():
        words = shlex.split(line)
        if "-c" in words:
            source = words[words.index("-c") + 1]
            found[Path(source).name] = words
    return found


def without_patch(root: Path, upstream: Mapping[str, bytes], scratch: Path) -> dict[str, str]:
    """Copy the source trees with upstream's contents; return directory -> its stand-in.

    Whole trees, since headers include each other by relative paths.
    """
    places: dict[str, str] = {}
    for tree in _TREES:
        inside = {path: data for path, data in upstream.items() if path.startswith(f"{tree}/")}
        if not inside:
            continue
        copy = scratch / "upstream" / tree
        shutil.copytree(root / tree, copy)
        for path, data in inside.items():
            file = scratch / "upstream" / path
            file.unlink(missing_ok=True)
            file.write_bytes(data)
        for spelling in (root / tree, Path(os.path.realpath(root / tree))):
            places[str(spelling)] = str(copy)
            for path in inside:
                original = spelling / path.removeprefix(f"{tree}/")
                places[str(original)] = str(scratch / "upstream" / path)
    return places


def _file(scratch: Path, count: PtxCount, side: str) -> Path:
    return scratch / f"{count.source}.{count.arch}.{side}.ptx"


def _compare(count: PtxCount, scratch: Path) -> Proof:
    before, after = (_file(scratch, count, side).read_bytes() for side in ("without", "with"))
    return Proof(
        count,
        count_lines(before, count.text),
        count_lines(after, count.text),
        normalised(before) == normalised(after),
    )
