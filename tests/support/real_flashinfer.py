"""Published FlashInfer that compiles: its wheel, what it imports, the real ninja and nvcc.

What FlashInfer imports comes from the parts of `real_sglang` (torch for the CPU among it).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sm120patch.compiling import compiler
from sm120patch.compiling.module import ARCH_LIST, Built, arch_list, build
from sm120patch.compiling.running import Limit, Owner
from sm120patch.model import sha256_hex
from sm120patch.unified import make_diff
from tests.support import jit, real_sglang
from tests.support.compileplace import cuda_home
from tests.support.environments import create_venv, install_wheel
from tests.support.manifests import head

PAGE = "flashinfer/data/include/flashinfer/page.cuh"
EXCEPTION = "flashinfer/data/include/flashinfer/exception.h"
MARK = "// a line that changes nothing\n"


class RealFlashInfer:
    """A virtual environment with one release, a home, and the variables to compile with."""

    def __init__(self, root: Path, version: str) -> None:
        self.version = version
        self.prefix, self.home = root / "env", root / "home"
        self.home.mkdir(parents=True)
        self.site = create_venv(self.prefix)
        install_wheel(self.site, "flashinfer-python", version)
        lines = [str(real_sglang.parts().imports), "import import_stubs; import_stubs.install()"]
        (self.site / "real_host.pth").write_text("\n".join(lines) + "\n")
        import pynvml

        shutil.copy2(pynvml.__file__, self.site / "pynvml.py")
        (self.prefix / "bin" / "ninja").symlink_to(jit.ninja())
        self.scratch = root / "scratch"
        self.scratch.mkdir()
        for path in self.site.rglob("*"):  # installed a while ago
            if path.is_file() and not path.is_symlink():
                os.utime(path, (path.stat().st_mtime, 1_700_000_000))

    @property
    def environ(self) -> dict[str, str]:
        stub = compiler.driver_stub(self.scratch)
        return {
            **os.environ,
            "HOME": str(self.home),
            "PATH": f"{self.prefix / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "CUDA_HOME": cuda_home(),
            "LIBRARY_PATH": str(stub),
            "MAX_JOBS": "2",
            ARCH_LIST: arch_list(self.site, "12.0"),
        }

    def build(self, generator: str) -> Built:
        """Have FlashInfer itself build a module, as a server does at its first use."""
        python, limit = self.prefix / "bin" / "python", Limit.of(1200)
        return build(python, generator, self.environ, self.home, Owner(), limit, print)

    def build_kernel(self, header: str) -> Path:
        """Build a kernel through tvm-ffi, as SGLang does with its own; its library."""
        code = (
            "import sys; from tvm_ffi.cpp import build_inline; header, place = sys.argv[1:];"
            'source = f"#include <{header}>\\nvoid run(int64_t n) {{ (void)n; }}\\n";'
            'print(build_inline("sgl_kernel_jit_probe", cuda_sources=source, functions=["run"],'
            " extra_include_paths=[place]))"
        )
        include = self.site / "flashinfer" / "data" / "include"
        name = Path(header).relative_to("flashinfer/data/include")
        command = [str(self.prefix / "bin" / "python"), "-c", code, str(name), str(include)]
        environ = {**self.environ, "TVM_FFI_CUDA_ARCH_LIST": "12.0a"}
        done = subprocess.run(
            command, env=environ, cwd=self.home, capture_output=True, text=True, check=True
        )
        return Path(done.stdout.split()[-1])

    def write_build_file(self, generator: str) -> Path:
        """Have FlashInfer write the build file of a module and build nothing; its directory."""
        holder, _, function = generator.partition(":")
        code = f"import {holder} as m; s = m.{function}(); s.write_ninja(); print(s.build_dir)"
        command = [str(self.prefix / "bin" / "python"), "-c", code]
        done = subprocess.run(
            command, env=self.environ, cwd=self.home, capture_output=True, text=True, check=True
        )
        return Path(done.stdout.split()[-1])


def write_catalogue(root: Path, site: Path, header: str = PAGE) -> Path:
    """A catalogue with the set `mark`, which adds a comment to a header."""
    before = (site / header).read_bytes()
    diff = make_diff(header, before, before + MARK.encode()).encode()
    (root / "patches" / "mark").mkdir(parents=True)
    (root / "manifests").mkdir()
    (root / "patches" / "mark" / "page.patch").write_bytes(diff)
    (root / "manifests" / "mark.toml").write_text(f"""{head("mark")}[[change]]
id = "page"
target = "flashinfer-python"
summary = "A comment"
description = "For tests."
[[change.variant]]
versions = ">=0.6,<0.8"
kind = "diff"
path = "{header}"
payload = "mark/page.patch"
sha256 = "{sha256_hex(diff)}"
present = {{ "{MARK.strip()}" = 1 }}
""")
    return root


def dependents(directory: Path, header: Path, environ: Mapping[str, str]) -> set[str]:
    """Objects that ninja itself says were compiled from a header."""
    command = [jit.ninja(), "-C", str(directory), "-f", "build.ninja", "-t", "deps"]
    text = subprocess.run(
        command, env=dict(environ), capture_output=True, text=True, check=True
    ).stdout
    found, current = set(), ""
    for line in text.splitlines():
        if line and not line.startswith(" "):
            current = line.partition(": #deps")[0]
        elif line.strip() == str(header):
            found.add(current)
    return found
