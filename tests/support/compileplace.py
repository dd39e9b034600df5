"""A FlashInfer of three kernels that the real nvcc compiles in seconds, and sets for it.

Its `jit` package has the shape of the real one: a specification with a name, a directory and
`build`, which writes `build.ninja` where there is none and always runs ninja.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from sm120patch.model import sha256_hex
from sm120patch.unified import make_diff
from tests.support import jit
from tests.support.environments import create_venv, install_fake
from tests.support.jitplace import JitPlace
from tests.support.manifests import head

GATE = "flashinfer/data/include/flashinfer/gate.cuh"
SOURCES: Mapping[str, str] = {
    "flashinfer/__init__.py": "",
    "flashinfer/_build_meta.py": '__version__ = "0.6.3"\n',
    "flashinfer/compilation_context.py": "",
    "flashinfer/jit/__init__.py": "",
    GATE: """\
#pragma once
#include "base.cuh"
__device__ inline void gate() {
#if (defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 900) && (__CUDA_ARCH__ < 1200))
  asm volatile("griddepcontrol.wait;");
#endif
}
""",
    "flashinfer/data/include/flashinfer/base.cuh": "#pragma once\n",
    "flashinfer/data/csrc/gated.cu": """\
#include "flashinfer/gate.cuh"
__global__ void gated(float* p) { gate(); p[0] = 1.0f; }
extern "C" void run_gated(float* p) { gated<<<1, 1>>>(p); }
""",
    "flashinfer/data/csrc/plain.cu": """\
#include "flashinfer/base.cuh"
__global__ void plain(float* p) { p[0] = 2.0f; }
extern "C" void run_plain(float* p) { plain<<<1, 1>>>(p); }
""",
    "flashinfer/jit/core.py": """\
import fcntl, os, subprocess
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"

class Spec:
    def __init__(self, name, sources):
        self.name, self.sources = name, sources
        base = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE", os.environ["HOME"]))
        self.archs = os.environ["FLASHINFER_CUDA_ARCH_LIST"].replace(".", "").split()
        self.jit_dir = base / ".cache/flashinfer/0.6.3" / "_".join(self.archs) / "cached_ops"
        self.build_dir = self.jit_dir / name
        self.is_aot = (DATA / "aot" / name / f"{name}.so").exists()

    def ninja_text(self):
        home = os.environ["CUDA_HOME"]
        codes = " ".join(f"-gencode=arch=compute_{a},code=sm_{a}" for a in self.archs)
        dirs = f"-isystem {DATA / 'include'} -isystem {DATA / 'csrc'}"
        lines = [
            "ninja_required_version = 1.3",
            f"nvcc = {home}/bin/nvcc",
            f"cuda_cflags = {dirs} --compiler-options=-fPIC {codes}",
            f"ldflags = -shared -L{home}/lib64 -L{home}/lib64/stubs -lcudart -lcuda",
            "rule cuda_compile",
            "  command = $nvcc --generate-dependencies-with-compile --dependency-output $out.d"
            " $cuda_cflags -c $in -o $out",
            "  depfile = $out.d",
            "  deps = gcc",
            "rule link",
            "  command = c++ $in $ldflags -o $out",
        ]
        objects = []
        for source in self.sources:
            objects.append(str(self.build_dir / source.replace(".cu", ".cuda.o")))
            lines.append(f"build {objects[-1]}: cuda_compile {DATA / 'csrc' / source}")
        library = self.build_dir / f"{self.name}.so"
        lines += [f"build {library}: link {' '.join(objects)}", f"default {library}", ""]
        return "\\n".join(lines)

    def build(self, verbose):
        self.build_dir.mkdir(parents=True, exist_ok=True)
        (self.jit_dir / "tmp").mkdir(exist_ok=True)
        with open(self.jit_dir / "tmp" / f"{self.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (self.build_dir / "build.ninja").exists():
                (self.build_dir / "build.ninja").write_text(self.ninja_text())
            command = ["ninja", "-v", "-C", self.build_dir, "-f", self.build_dir / "build.ninja"]
            subprocess.run(command, check=True)

def gen_jit_spec(name, sources):
    return Spec(name, sources)
""",
    "flashinfer/jit/comm.py": """\
from .core import gen_jit_spec

def gen_gated_module():
    return gen_jit_spec("gated_comm", ["gated.cu", "plain.cu"])
""",
}
LIFT = (" && (__CUDA_ARCH__ < 1200)", "")
EDITS: Mapping[str, tuple[str, str, str, int]] = {
    # set: path, old text, new text, what it promises for sm_120a
    "lift": (GATE, *LIFT, 1),
    "boast": (GATE, *LIFT, 918),
    "broken": (GATE, "#pragma once", "#pragma once\n#error not like this", 1),
}


class CompilePlace(JitPlace):
    """The environment, with the set `lift`, one that promises too much, and one that is broken."""

    def __init__(self, root: Path) -> None:
        self.prefix = root / "env"
        self.home = root / "home"
        self.workspace = self.home / ".cache" / "flashinfer"
        self.workspace.mkdir(parents=True)
        self.site = create_venv(self.prefix)
        sources = {path: text.encode() for path, text in SOURCES.items()}
        install_fake(self.site, "flashinfer-python", "0.6.3", sources)
        (self.prefix / "bin" / "ninja").symlink_to(jit.ninja())
        self.catalogue = write_catalogue(root / "catalogue")
        self.age(self.site)

    @property
    def module(self) -> Path:
        return self.live("gated_comm")

    def compile(self, *words: str, **env: str) -> dict[str, object]:
        (found,) = self.done(*words, "--compile", "--gpu", "12.0", **env)["compiled"]
        assert isinstance(found, dict)
        return found


def cuda_home() -> str:
    """A toolkit of this machine; the test is skipped where there is none."""
    for home in ("/usr/local/cuda", str(Path(shutil.which("nvcc") or "/x/bin/nvcc").parents[1])):
        if Path(home, "include", "cuda_runtime.h").exists() and Path(home, "bin", "nvcc").exists():
            return home
    pytest.skip("needs nvcc")


def write_catalogue(root: Path) -> Path:
    (root / "manifests").mkdir(parents=True)
    for name, (path, old, new, after) in EDITS.items():
        before = SOURCES[path].encode()
        diff = make_diff(path, before, before.replace(old.encode(), new.encode())).encode()
        (root / "patches" / name).mkdir(parents=True)
        (root / "patches" / name / "edit.patch").write_bytes(diff)
        absent = f'absent = ["{old.strip()}"]' if not new else 'present = { "#error" = 1 }'
        (root / "manifests" / f"{name}.toml").write_text(f"""{head(name)}
[[change]]
id = "edit"
target = "flashinfer-python"
summary = "Change {name}"
description = "For tests."
[[change.variant]]
versions = ">=0.6,<0.7"
kind = "diff"
path = "{path}"
payload = "{name}/edit.patch"
sha256 = "{sha256_hex(diff)}"
{absent}
[[compile]]
target = "flashinfer-python"
versions = ">=0.6,<0.7"
module = "gated_comm"
generator = "flashinfer.jit.comm:gen_gated_module"
[[compile.ptx]]
change = "edit"
source = "gated.cu"
arch = "120a"
text = "griddepcontrol.wait"
before = 0
after = {after}
[[compile.ptx]]
change = "edit"
source = "gated.cu"
arch = "90a"
text = "griddepcontrol.wait"
before = 1
after = 1
same = true
""")
    return root
