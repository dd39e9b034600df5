"""What nvcc makes of the CUDA headers before and after the diffs. No GPU is needed."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from sm120patch import catalogue
from sm120patch.model import Changed, Variant
from tests.support.wheels import sdist, wheel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc"),
]

INCLUDE = "flashinfer/data/include"
SPDLOG = "flashinfer/data/spdlog/include"
NORM_KERNEL = """\
#include <array>
#include <flashinfer/comm/trtllm_allreduce.cuh>
namespace flashinfer::trtllm_allreduce::reduce_fusion {
template __global__ void lamport_style_one_shot_all_reduce_norm_kernel<1, __nv_bfloat16, 2>(
    AllReduceParams<__nv_bfloat16>);
}
"""
FUSED_LAUNCHER = """\
#include <array>
#include <flashinfer/comm/trtllm_allreduce_fusion.cuh>
namespace flashinfer::trtllm_allreduce_fusion {
template cudaError_t allreduce_fusion_kernel_launcher<
    AllReduceFusionPattern::kARResidualRMSNorm, __nv_bfloat16, 2, true>(
    AllReduceFusionParams<__nv_bfloat16> const&, bool);
}
"""


FUSED_OPERATION = """\
#include <array>
#include <flashinfer/comm/trtllm_allreduce_fusion.cuh>
namespace flashinfer::trtllm_allreduce_fusion {
template cudaError_t allreduce_fusion_kernel_launcher<
    AllReduceFusionPattern::kARResidualRMSNormFP4Quant, __nv_bfloat16, 2, true>(
    AllReduceFusionParams<__nv_bfloat16> const&, bool);
}
"""
"""The pattern that converts to FP4; the module holds it although SGLang does not use it."""


def unpack(version: str, root: Path) -> Path:
    """Lay out the include directories of a release, as published; spdlog of 0.6.3 for old ones."""
    spdlog = version
    if version < "0.4":
        spdlog = "0.6.3"
        with tarfile.open(sdist("flashinfer-python", version)) as archive:
            for member in archive:
                name = member.name.partition("/")[2]
                if name.startswith("include/") and (file := archive.extractfile(member)):
                    path = root / "flashinfer/data" / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(file.read())
    with zipfile.ZipFile(wheel("flashinfer-python", spdlog)) as archive:
        wanted = (SPDLOG,) if spdlog != version else (INCLUDE, SPDLOG)
        archive.extractall(root, [n for n in archive.namelist() if n.startswith(wanted)])
    return root


@pytest.fixture(scope="module", params=["0.2.10", "0.6.3", "0.6.12"])
def headers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The include directories of a release."""
    return unpack(request.param, tmp_path_factory.mktemp(f"flashinfer-{request.param}"))


def patch(headers: Path, change_id: str) -> None:
    change = catalogue.load().get("allreduce-arch-gate").change(change_id)
    assert change is not None
    chosen, reason = catalogue.choose(change, {"flashinfer-python": "0.6.3"})
    assert isinstance(chosen, Variant), reason
    file = headers / chosen.path
    result = catalogue.edit(chosen, file.read_bytes())
    assert isinstance(result, Changed)
    file.write_bytes(result.data)


def compiled(source: str, headers: Path, directory: Path, *options: str) -> str:
    """Return the file that nvcc makes of `source`, as text."""
    (directory / "unit.cu").write_text(source, encoding="utf-8")
    subprocess.run(
        ["nvcc", "-std=c++17", "--expt-relaxed-constexpr", *options, "-I", headers / INCLUDE,
         "-isystem", headers / SPDLOG, "unit.cu", "-o", "unit.out"],
        cwd=directory,
        check=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    return (directory / "unit.out").read_text(encoding="latin-1")


def test_the_gated_kernel_is_empty_on_sm120_and_whole_once_lifted(
    headers: Path, tmp_path: Path
) -> None:
    ptx = ("--ptx", "-arch=compute_120a")
    gated = compiled(NORM_KERNEL, headers, tmp_path, *ptx)
    patch(headers, "header-gates")
    lifted = compiled(NORM_KERNEL, headers, tmp_path, *ptx)
    assert "griddepcontrol" not in gated
    assert "griddepcontrol.wait" in lifted
    assert "griddepcontrol.launch_dependents" in lifted
    assert len(lifted.splitlines()) > 10 * len(gated.splitlines())


def test_the_clamped_launcher_compiles_for_sm120_and_sm90(headers: Path, tmp_path: Path) -> None:
    patch(headers, "cluster-clamp")
    codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ("120a", "90a")]
    code = compiled(FUSED_LAUNCHER, headers, tmp_path, "-c", *codes)
    assert "cudaOccupancyMaxPotentialClusterSize" in code


def test_plain_sm120_cannot_build_the_module_before_it_had_a_list(tmp_path: Path) -> None:
    # FI.A2-J3a: why `jit_sm120a` names the architecture with its suffix
    headers = unpack("0.2.10", tmp_path)
    code = compiled(
        FUSED_OPERATION, headers, tmp_path, "-c", "-gencode=arch=compute_120a,code=sm_120a"
    )
    assert "allreduce_fusion_kernel_oneshot_lamport" in code
    with pytest.raises(subprocess.CalledProcessError) as failed:
        compiled(FUSED_OPERATION, headers, tmp_path, "-c", "-gencode=arch=compute_120,code=sm_120")
    assert b"'cvt with .e2m1x2' not supported on .target 'sm_120'" in failed.value.stderr
