"""Has FlashInfer compile a module into the server's own cache, with progress and a time limit."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sm120patch.caches import freshness
from sm120patch.compiling import child
from sm120patch.compiling.running import Limit, Owner, Say, lines_of, worst
from sm120patch.errors import HostError, NotVerifiedError
from sm120patch.host.toolkit import arch_rules

ARCH_LIST = "FLASHINFER_CUDA_ARCH_LIST"
_STEP = re.compile(r"^\[(\d+)/(\d+)\] .*? -o (\S+)")


@dataclass(frozen=True)
class Built:
    """A module that was compiled, or found up to date."""

    module: str
    arch: str
    """Directory of the architectures, such as `120a`."""
    directory: Path
    seconds: float
    worked: bool
    """False when ninja had nothing to do."""


def arch_list(root: Path, capability: str) -> str:
    """Value of FLASHINFER_CUDA_ARCH_LIST that means what FlashInfer finds on such a GPU."""
    try:
        text = (root / "flashinfer" / "compilation_context.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    return capability if arch_rules(text).normalises else f"{capability}a"


def build(
    python: Path,
    generator: str,
    environ: Mapping[str, str],
    cwd: Path,
    owner: Owner,
    limit: Limit,
    say: Say,
) -> Built:
    """Compile the module of `generator`; FlashInfer takes its lock, writes and runs ninja.

    Raises NotVerifiedError when the sources do not compile, HostError when FlashInfer cannot be
    asked at all, loads a prebuilt module instead, or the limit is reached.
    """
    code = Path(child.__file__).read_text(encoding="utf-8")
    variables = {**environ, "NINJA_STATUS": "[%f/%t] ", "PYTHONSAFEPATH": "1"}
    started = limit.left
    lines: list[str] = []
    described: dict[str, object] = {}
    worked = False
    command = [str(python), "-c", code, generator]
    for line in lines_of(command, variables, cwd, owner, limit, say):
        lines.append(line)
        if line.startswith(child.BEGIN):
            described = json.loads(line.removeprefix(child.BEGIN).removesuffix(child.END))
            if described["aot"]:
                raise _prebuilt(str(described["name"]))
        elif step := _STEP.match(line):
            worked = True
            spent = started - limit.left
            say(f"      {step[1]} of {step[2]}: {Path(step[3]).name} ({spent:.0f} s)")
    if lines[-1] != "exit status 0":
        raise _failure(generator, described, lines)
    directory = Path(str(described["directory"]))
    if not (directory / f"{described['name']}.so").is_file():
        raise HostError(f"{directory} holds no library, although the compile ended well")
    arch = directory.parents[1].name
    return Built(str(described["name"]), arch, directory, started - limit.left, worked)


def up_to_date(built: Built, prefix: Path, environ: Mapping[str, str]) -> bool:
    """Ask ninja whether a server would have anything left to compile."""
    return freshness.fresh(built.directory, freshness.ninjas(prefix, environ))


def _prebuilt(name: str) -> HostError:
    return HostError(
        f"FlashInfer would load a prebuilt {name} and compile nothing",
        code="no-effect",
        hint="remove the prebuilt module (flashinfer-jit-cache, data/aot), then repeat",
    )


def _failure(generator: str, described: Mapping[str, object], lines: list[str]) -> Exception:
    text = worst(lines[:-1])
    if described:
        return NotVerifiedError(
            f"{described['name']} does not compile:\n{text}",
            code="does-not-compile",
            hint=f"the whole output: run ninja in {described['directory']}",
        )
    return HostError(
        f"FlashInfer cannot be asked for {generator}:{os.linesep}{text}",
        code="compile-failed",
        hint="the module is compiled by the environment's own Python, which needs torch and ninja",
    )
