"""The published packages keep their builds and tactics where `sm120patch.caches` looks for them."""

from __future__ import annotations

import pytest

from sm120patch.caches import sglang
from tests.support.wheels import published

pytestmark = pytest.mark.network

RUNNERS = {
    "0.5.12": "sglang/srt/model_executor/model_runner.py",
    "0.5.13": "sglang/srt/model_executor/model_runner.py",
    "0.5.14": "sglang/srt/model_executor/runner/base_runner.py",
    "0.5.15": "sglang/srt/model_executor/runner/flashinfer_autotune.py",
    "0.5.18": "sglang/srt/model_executor/runner/flashinfer_autotune.py",
    "0.5.23": "sglang/srt/model_executor/runner/flashinfer_autotune.py",
}
KERNELS = {
    # release: file, whether its name tells the architecture and a library is loaded as it is
    "0.5.8": ("sglang/jit_kernel/utils.py", False),
    "0.5.12": ("sglang/jit_kernel/utils.py", False),
    "0.5.13": ("sglang/jit_kernel/utils.py", False),
    "0.5.14": ("sglang/jit_kernel/utils.py", True),
    "0.5.15": ("sglang/jit_kernel/utils.py", True),
    "0.5.16": ("sglang/jit_kernel/utils/compile.py", True),
    "0.5.17": ("sglang/kernels/jit/utils/compile.py", True),
}


def read(distribution: str, version: str, path: str) -> str:
    data = published(distribution, version, path)
    assert data is not None, f"{distribution} {version} has no {path}"
    return data.decode()


@pytest.mark.parametrize("version", KERNELS)
def test_sglangs_kernels_are_built_where_they_are_looked_for(version: str) -> None:
    path, by_name = KERNELS[version]
    text = read("sglang", version, path)
    assert f'"{sglang.PREFIX}"' in text
    assert path.startswith(sglang._SHAPING), "the file that chooses the flags"
    assert (f"{sglang.ARCH_IN_NAME}{{arch}}" in text) is by_name
    assert ("prebuilt.is_file()" in text) is by_name
    assert ('os.environ.get("TVM_FFI_CACHE_DIR", "~/.cache/tvm-ffi")' in text) is by_name


@pytest.mark.parametrize("version", ["0.5.18", "0.5.23"])
def test_from_0_5_18_on_kernels_have_a_cache_of_their_own(version: str) -> None:
    text = read("sglang", version, "sglang/kernels/jit/utils/compile/cache.py")
    assert "SGLANG_JIT_CACHE_DIR" in text and "~/.cache/sglang/jit" in text
    assert published("sglang", version, "sglang/kernels/jit/utils/compile/__init__.py") is not None


@pytest.mark.parametrize("version", RUNNERS)
def test_tactics_are_kept_where_they_are_looked_for(version: str) -> None:
    text = "".join(read("sglang", version, RUNNERS[version]).split())
    assert 'Path(envs.SGLANG_CACHE_DIR.get())/"flashinfer"/"autotune"/flashinfer_version' in text
    environ = read("sglang", version, "sglang/srt/environ.py")
    assert '~/.cache/sglang"' in environ


@pytest.mark.parametrize("version", ["0.6.3", "0.6.10", "0.6.13", "0.7.2"])
def test_flashinfers_modules_are_built_and_locked_where_they_are_looked_for(version: str) -> None:
    environment = read("flashinfer-python", version, "flashinfer/jit/env.py")
    assert '"cached_ops"' in environment and "FLASHINFER_WORKSPACE_BASE" in environment
    core = read("flashinfer-python", version, "flashinfer/jit/core.py")
    assert 'f"{self.name}.lock"' in core and "FileLock(self.lock_path" in core
    written_once = "if not self.is_ninja_generated:\n                self.write_ninja()" in core
    assert written_once is (version in ("0.6.3", "0.6.10"))
