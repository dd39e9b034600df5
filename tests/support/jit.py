"""A small FlashInfer with its JIT: real ninja, real locks and logs, a stub for nvcc and g++.

The stub's objects hold the contents they were compiled from, so that a test can read from a
library which sources it was really built from.
"""

from __future__ import annotations

import fcntl
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ALLREDUCE = "flashinfer/data/include/flashinfer/comm/trtllm_allreduce.cuh"
FUSION = "flashinfer/data/include/flashinfer/comm/trtllm_allreduce_fusion.cuh"
COMM = "flashinfer/jit/comm.py"

SOURCES: Mapping[str, str] = {
    "flashinfer/__init__.py": "",
    "flashinfer/_build_meta.py": '__version__ = "0.6.3"\n',
    "flashinfer/data/csrc/trtllm_allreduce.cu": "#include <flashinfer/comm/trtllm_allreduce.cuh>\n",
    "flashinfer/data/csrc/trtllm_allreduce_fusion.cu": (
        '#include "tvm_utils.h"\n#include "flashinfer/comm/trtllm_allreduce_fusion.cuh"\n'
    ),
    "flashinfer/data/csrc/page.cu": '#include "flashinfer/page.cuh"\n',
    "flashinfer/data/csrc/binding.cpp": "#include <flashinfer/comm/trtllm_allreduce.cuh>\n",
    "flashinfer/data/csrc/tvm_utils.h": "#pragma once\n",
    ALLREDUCE: "#pragma once\n#if __CUDA_ARCH__ < 1200\n#endif\n",
    FUSION: '#pragma once\n#include "../page.cuh"\n',
    "flashinfer/data/include/flashinfer/page.cuh": "// page\n",
    COMM: """\
from .core import gen_jit_spec
from . import env as jit_env

def gen_trtllm_comm_module():
    flags = flags_for(supported_major_versions=[9, 10])
    return gen_jit_spec("trtllm_comm", [
        jit_env.FLASHINFER_CSRC_DIR / "trtllm_allreduce.cu",
        jit_env.FLASHINFER_CSRC_DIR / "trtllm_allreduce_fusion.cu",
    ], extra_cuda_cflags=flags)

def gen_vllm_comm_module():
    return gen_jit_spec("vllm_comm", [jit_env.FLASHINFER_CSRC_DIR / "vllm.cu"])
""",
    "flashinfer/jit/page.py": """\
from .core import gen_jit_spec
def gen_page_module():
    return gen_jit_spec(name="page", sources=["csrc/page.cu"])
""",
}

MODULES: Mapping[str, Sequence[str]] = {
    "trtllm_comm": ("trtllm_allreduce.cu", "trtllm_allreduce_fusion.cu"),
    "page": ("page.cu",),
    "binding": ("binding.cpp",),
}

_STUB = """\
import re, sys
from pathlib import Path
args = sys.argv[1:]
out = Path(args[args.index("-o") + 1])
if "-c" not in args:
    inputs = args[: next(i for i, a in enumerate(args) if a.startswith("-"))]
    out.write_bytes(b"".join(Path(i).read_bytes() for i in inputs))
    sys.exit()
dirs = [Path(args[i + 1]) for i, a in enumerate(args) if a == "-isystem"]
seen, pending = [], [Path(args[args.index("-c") + 1])]
while pending:
    path = pending.pop(0)
    if path in seen:
        continue
    seen.append(path)
    for name in re.findall(r'#include ["<]([^">]+)', path.read_text()):
        places = [path.parent, *dirs]
        pending.append(next((p / name).resolve() for p in places if (p / name).exists()))
out.write_text("".join(path.read_text() for path in seen))
if "-MMD" in args:  # leaves out what comes from system directories, as g++ does
    dep, seen = Path(args[args.index("-MF") + 1]), seen[:1]
else:
    dep = Path(args[args.index("--dependency-output") + 1])
dep.write_text(f"{out}: " + " ".join(map(str, seen)) + "\\n")
"""

_RULES = """\
rule compile
  command = $cxx -MMD -MF $out.d $cflags -c $in -o $out $post_cflags
  depfile = $out.d
  deps = gcc

rule cuda_compile
  command = $nvcc --generate-dependencies-with-compile --dependency-output $out.d $cuda_cflags $
    -c $in -o $out $cuda_post_cflags
  depfile = $out.d
  deps = gcc

rule link
  command = $cxx $in $ldflags -o $out
"""


def ninja() -> str:
    """Path of a real ninja: the one beside this interpreter, or on PATH."""
    beside = Path(sys.executable).with_name("ninja")
    found = str(beside) if beside.exists() else shutil.which("ninja")
    if found is None:
        pytest.skip("ninja is not installed (pip install ninja)")
    return found


def install_sources(root: Path) -> Path:
    """Lay the small FlashInfer down below the import root `root`."""
    for path, text in SOURCES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    install_stub(root)
    return root


def install_stub(root: Path) -> Path:
    """Lay down the stand-in for both compilers."""
    stub = root / "stub.py"
    stub.write_text(f"#!{sys.executable}\n{_STUB}")
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    return stub


def build(workspace: Path, root: Path, module: str, arch: str = "120a") -> tuple[Path, bool]:
    """Load a module as FlashInfer up to 0.6.10 does; return its library and whether ninja worked.

    `build.ninja` is written only when missing, and ninja always runs, under the module's lock.
    """
    operations = workspace / "0.6.3" / arch / "cached_ops"
    directory = operations / module
    (operations / "tmp").mkdir(parents=True, exist_ok=True)
    with (operations / "tmp" / f"{module}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory.mkdir(exist_ok=True)
        if not (directory / "build.ninja").exists():
            (directory / "build.ninja").write_text(_build_file(directory, root, module))
        command = [ninja(), "-v", "-C", str(directory), "-f", str(directory / "build.ninja")]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return directory / f"{module}.so", "no work to do" not in done.stdout


def _build_file(directory: Path, root: Path, module: str) -> str:
    data = root.resolve() / "flashinfer" / "data"
    lines = [
        "ninja_required_version = 1.3",
        f"name = {module}",
        f"data = {data}",
        f"cxx = {root / 'stub.py'}",
        f"nvcc = {root / 'stub.py'}",
        "common_cflags = -isystem $data/include $\n    -isystem $data/csrc",
        "cflags = $common_cflags $\n    -fPIC",
        "post_cflags =",
        "cuda_cflags = $common_cflags $\n    -gencode=arch=compute_120a,code=sm_120a",
        "cuda_post_cflags =",
        "ldflags = -shared -lcuda",
        _RULES,
    ]
    objects = []
    for source in MODULES[module]:
        rule, suffix = ("cuda_compile", ".cuda.o") if source.endswith(".cu") else ("compile", ".o")
        objects.append(str(directory / Path(source).with_suffix(suffix).name))
        lines.append(f"build {objects[-1]}: {rule} {data / 'csrc' / source}")
    library = directory / f"{module}.so"
    lines += ["", f"build {library}: link {' '.join(objects)}", f"default {library}", ""]
    return "\n".join(lines)
