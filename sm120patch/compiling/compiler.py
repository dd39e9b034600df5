"""Finds the CUDA compiler that a server would use, or puts one together from PyPI's wheels.

Reads disk; writes links into a scratch directory only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sm120patch.errors import HostError
from sm120patch.host import toolkit

DEFAULT = Path(toolkit.DEFAULT_HOME)
WHEELS = "nvidia/cu13"
"""Where the wheels of the `nvcc` extra unpack, below site-packages."""


@dataclass(frozen=True)
class Compiler:
    """A CUDA home with a working nvcc."""

    home: Path
    version: str
    """Release, such as 13.0."""
    origin: str
    """`server` (what FlashInfer finds by itself), `named` (found by us, so the server needs
    CUDA_HOME), or `wheels` (it would not be there for a server)."""

    def environment(self, environ: Mapping[str, str], scratch: Path) -> dict[str, str]:
        """Variables for a compile: CUDA_HOME where needed, and a place to find libcuda.

        FlashInfer links against libcuda, which comes with the driver. Where there is none, an empty
        library of that name is enough: LIBRARY_PATH adds it without a change of the command line,
        which a server would take for a reason to build anew.
        """
        found = dict(environ)
        if self.origin != "server":
            found["CUDA_HOME"] = str(self.home)
        stub = driver_stub(scratch)
        parts = [environ.get("LIBRARY_PATH", ""), str(stub) if stub else ""]
        found["LIBRARY_PATH"] = os.pathsep.join(part for part in parts if part)
        return found


def find_compiler(environ: Mapping[str, str], site: Iterable[Path], scratch: Path) -> Compiler:
    """Find nvcc as FlashInfer does, then where else it may be; HostError when there is none.

    `site` are directories of packages that may hold the wheels, besides our own.
    """
    home = _flashinfers_choice(environ)
    if version := _release(home):
        return Compiler(home, version, "server")
    tried = [str(home)]
    if home != DEFAULT and (version := _release(DEFAULT)):
        return Compiler(DEFAULT, version, "named")
    for place in dict.fromkeys([*site, *map(Path, sys.path)]):
        if (place / WHEELS / "bin" / "nvcc").is_file():
            made = _assemble(place / WHEELS, scratch / "cuda")
            if version := _release(made):
                return Compiler(made, version, "wheels")
            tried.append(str(place / WHEELS))
    raise HostError(
        f"there is no CUDA compiler to build with: nothing usable in {', '.join(tried)}",
        code="no-compiler",
        hint="set CUDA_HOME, or install one beside sm120patch: pip install 'sm120patch[nvcc]'",
        details={"tried": tried},
    )


def driver_stub(scratch: Path) -> Path | None:
    """Directory with an empty libcuda.so made in `scratch`; None where no C compiler is found."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    directory = scratch / "driver-stub"
    if compiler is None:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-x", "c"]
    command += ["-o", str(directory / "libcuda.so"), os.devnull]
    done = subprocess.run(command, capture_output=True, check=False)
    return directory if done.returncode == 0 else None


def _flashinfers_choice(environ: Mapping[str, str]) -> Path:
    home, path = (environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH"))
    nvcc = shutil.which("nvcc", path=environ.get("PATH"))
    return Path(toolkit.cuda_home(home, path, nvcc, default_exists=False).path or DEFAULT)


def _release(home: Path) -> str | None:
    """Release of a complete toolkit, None for anything else (a lone wrapper of nvcc, say)."""
    if not (home / "include" / "cuda_runtime.h").is_file():
        return None
    try:
        done = subprocess.run(
            [toolkit.nvcc_of(str(home)), "--version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return toolkit.release(done.stdout)


def _assemble(wheels: Path, home: Path) -> Path:
    """Lay out what the wheels lack to link: `lib64`, `libcudart.so` without a version, a stub."""
    library = home / "lib64"
    library.mkdir(parents=True)
    for name in ("bin", "include", "nvvm"):
        (home / name).symlink_to(wheels / name)
    for file in (wheels / "lib").iterdir():
        (library / file.name).symlink_to(file)
    for versioned in sorted(library.glob("libcudart.so.*"))[:1]:
        (library / "libcudart.so").symlink_to(versioned.name)
    (home / "lib").symlink_to("lib64")
    return home
