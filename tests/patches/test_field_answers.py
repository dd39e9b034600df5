"""Answers without a patch, and refusals: the packages bear them out, the commands give them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import run
from tests.support.environments import create_venv, install_fake, tree_digest
from tests.support.wheels import shipped, wheel

# --- what the packages say -----------------------------------------------------------------------


def names(distribution: str, version: str) -> set[str]:
    with zipfile.ZipFile(wheel(distribution, version)) as archive:
        return set(archive.namelist())


def moe_config(version: str, directory: str) -> str:
    path = f"sglang/srt/layers/moe/{directory}/fused_moe_triton_config.py"
    return shipped(path, version).decode()


@pytest.mark.network
@pytest.mark.slow
def test_the_pcie_all_reduce_is_in_sglang_before_flashinfer_has_its_kernels() -> None:
    switch = b"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE = EnvBool(False)"
    environ = "sglang/srt/environ.py"
    assert switch not in shipped(environ, "0.5.20")
    assert switch in shipped(environ, "0.5.21")
    adapter = shipped(
        "sglang/srt/distributed/device_communicators/pcie_ipc_ar.py", "0.5.21"
    ).decode()
    assert "from flashinfer.comm import PcieIpcAllReduceWorkspace" in adapter
    assert "no pcie_ipc_comm; falling back to NCCL" in adapter
    kernels = "flashinfer/comm/pcie_ipc_ar.py"
    assert kernels not in names("flashinfer-python", "0.6.18")
    assert kernels in names("flashinfer-python", "0.7.1")
    for sglang, pin in (("0.5.21", "0.6.18"), ("0.5.22", "0.7.1")):
        with zipfile.ZipFile(wheel("sglang", sglang)) as archive:
            metadata = archive.read(f"sglang-{sglang}.dist-info/METADATA")
        assert f"flashinfer_python[cu13]=={pin}".encode() in metadata


@pytest.mark.network
def test_the_directory_of_moe_configurations_is_read() -> None:
    text = moe_config("0.5.9", "fused_moe_triton")
    assert '"SGLANG_MOE_CONFIG_DIR"' in text
    assert "os.listdir(configs_root)" not in text
    assert 'f"triton_{triton_version.replace' in text
    assert 'device_name = get_device_name().replace(" ", "_")' in text
    assert "os.listdir(configs_root)" in moe_config("0.5.12.post1", "moe_runner/triton_utils")


@pytest.mark.network
@pytest.mark.slow
def test_the_directory_of_moe_configurations_is_read_since_0_5_3rc2() -> None:
    assert "SGLANG_MOE_CONFIG_DIR" not in moe_config("0.5.3rc0", "fused_moe_triton")
    assert "SGLANG_MOE_CONFIG_DIR" in moe_config("0.5.3rc2", "fused_moe_triton")


QSA = "sglang/srt/layers/attention/qwen_sparse_attn_backend.py"


@pytest.mark.network
@pytest.mark.parametrize("version", [pytest.param("0.5.20", marks=pytest.mark.slow), "0.5.23"])
def test_sglang_keeps_sm121_out_of_sparse_decode_and_has_a_kernel_for_it(version: str) -> None:
    text = shipped(QSA, version).decode()
    assert "if not (is_sm100_supported() or is_sm120()):" in text
    assert "Do not widen it" in text
    assert "return qwen38_qsa_sm121_varlen" in text


@pytest.mark.network
@pytest.mark.slow
def test_qsa_came_with_0_5_20() -> None:
    assert QSA not in names("sglang", "0.5.19")


LAUNCHER = "flashinfer/data/csrc/trtllm_fused_moe_kernel_launcher.cu"


@pytest.mark.network
@pytest.mark.slow
def test_flashinfer_opened_its_moe_gates_and_has_no_kernels_behind_them() -> None:
    check = b"TVM_FFI_ICHECK_EQ(major, 10)"
    assert check in shipped(LAUNCHER, "0.6.6")
    assert b"major == 10 || major == 12" in shipped(LAUNCHER, "0.6.7")
    assert check not in shipped(LAUNCHER, "0.6.17")
    elsewhere = shipped(LAUNCHER, "0.6.18")
    assert elsewhere.count(check) == 1
    assert check + b' << "fused multi-tile routing' in elsewhere
    runner = shipped("flashinfer/data/csrc/trtllm_batched_gemm_runner.cu", "0.7.2")
    assert b"currently ships cubins for sm100, sm103 and sm107" in runner
    api = shipped("flashinfer/fused_moe/api.py", "0.7.2").decode()
    assert "_TRTLLM_ROUTED_ARCHS = (100, 103, 107)" in api
    assert "those cubins fail at runtime on SM120/121" in api


# --- what the commands say -----------------------------------------------------------------------


class Installed:
    """An environment that pretends to have two versions installed."""

    def __init__(self, prefix: Path, sglang: str, flashinfer: str, **files: bytes) -> None:
        self.site = create_venv(prefix)
        contents = {f"sglang/{name.replace('__', '/')}.py": data for name, data in files.items()}
        install_fake(self.site, "sglang", sglang, {"sglang/__init__.py": b"", **contents})
        install_fake(self.site, "flashinfer-python", flashinfer, {"flashinfer/__init__.py": b""})
        self.prefix = prefix

    def run(self, *words: str, gpu: str = "12.0") -> Any:
        here = ("--gpu", gpu, "--env", str(self.prefix), "--output", "json")
        return run(words[0], *words[1:], *here)


@pytest.mark.parametrize(
    ("request_", "versions", "gpu", "reason", "hint"),
    [
        (
            "pcie-ipc-allreduce", ("0.5.22", "0.7.1"), "12.0", "has it since 0.5.21",
            "no patch needed: set SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1",
        ),
        (
            "pcie-ipc-allreduce", ("0.5.21", "0.6.18"), "12.0",
            "needs flashinfer-python >=0.7.0, found 0.6.18", "`sm120patch show pcie-ipc-allreduce`",
        ),
        (
            "pcie-ipc-allreduce", ("0.5.20", "0.6.18"), "12.0",
            "it is for sglang >=0.5.21,<0.6; found sglang 0.5.20", "`sm120patch show",
        ),
        (
            "moe-config-dir", ("0.5.9", "0.6.3"), "12.1", "DIRECTORY/configs/triton_<version>/",
            "no patch needed: set SGLANG_MOE_CONFIG_DIR=DIRECTORY",
        ),
        (
            "qsa-sm121", ("0.5.23", "0.7.2"), "12.1",
            "refused: long answers turn into one token repeated for ever", "`sm120patch show qsa",
        ),
        (
            "qsa-sm121", ("0.5.23", "0.7.2"), "12.0", "is for compute capability 12.1, found 12.0",
            "`sm120patch show",
        ),
        (
            "fi-trtllm-moe-gates", ("0.5.10rc0", "0.6.6"), "12.0",
            "refused: the kernels behind these gates are published for SM10x only",
            "`sm120patch show",
        ),
        (
            "fi-trtllm-moe-gates", ("0.5.23", "0.7.2"), "12.0", "opened these gates in 0.6.7",
            "`sm120patch show",
        ),
        (
            "ue8m0-off", ("0.5.20", "0.6.18"), "12.0", "upstream decided the other way round",
            "`sm120patch show ue8m0-off`",
        ),
        (
            "b12x-fp4-gemm", ("0.5.23", "0.7.2"), "12.1",
            "is for compute capability 12.0, found 12.1", "`sm120patch show",
        ),
    ],
)  # fmt: skip
def test_apply_refuses_with_the_reason_and_what_to_do_instead(
    tmp_path: Path, request_: str, versions: tuple[str, str], gpu: str, reason: str, hint: str
) -> None:
    installed = Installed(tmp_path / "env", *versions)
    before = tree_digest(tmp_path / "env")
    done = installed.run("apply", request_, "--no-verify", gpu=gpu)
    assert done.code == 4
    assert reason in done.error["message"]
    assert done.error["hint"].startswith(hint)
    assert tree_digest(tmp_path / "env") == before


def test_show_says_what_to_set_and_why_not() -> None:
    text = " ".join(run("show", "pcie-ipc-allreduce").out.split())
    assert "set SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1" in text
    assert "sglang >=0.5.21,<0.6, flashinfer-python >=0.7.0" in text
    text = " ".join(run("show", "qsa-sm121").out.split())
    assert "sglang >=0.5.20: refused: long answers turn into one token" in text
    text = " ".join(run("show", "ue8m0-off").out.split())
    assert "set SGLANG_ENABLE_JIT_DEEPGEMM=0" in text
    assert "sglang >=0.5.20: refused: upstream decided the other way round" in text
    advice = run("show", "moe-config-dir", "--output", "json").result["advice"]
    assert [(a["outcome"], a["env"]) for a in advice] == [
        ("set", {"SGLANG_MOE_CONFIG_DIR": "DIRECTORY"})
    ]


def test_status_tells_answers_refusals_and_sets_apart(tmp_path: Path) -> None:
    done = Installed(tmp_path / "env", "0.5.23", "0.7.2").run("status")
    states = {s["id"]: (s["state"], s["reason"]) for s in done.result["sets"]}
    assert states["pcie-ipc-allreduce"][0] == "not-applicable"
    assert states["pcie-ipc-allreduce"][1].startswith("no patch needed: set SGLANG_ENABLE_PCIE")
    assert states["fi-trtllm-moe-gates"][1].startswith("refused: ")
    assert states["ue8m0-off"][0] == "not-applicable"
    assert states["qsa-sm121"] == ("not-applicable", "for compute capability 12.1")
    assert states["fp8-moe-smem"][0] == states["jit-arch-suffix"][0] == "upstream"


CONFIGURER = "srt__layers__deep_gemm_wrapper__configurer"


@pytest.mark.network
def test_a_field_set_goes_on_and_comes_off_again(tmp_path: Path) -> None:
    path = "sglang/srt/layers/deep_gemm_wrapper/configurer.py"
    stock = shipped(path, "0.5.12.post1")
    installed = Installed(tmp_path / "env", "0.5.12.post1", "0.6.11.post1", **{CONFIGURER: stock})
    done = installed.run("apply", "ue8m0-off", "--no-verify", "--allow-running")
    assert done.code == 0, done.err
    assert done.result["outcome"] == "staged"
    patched = (installed.site / path).read_bytes()
    assert b"DEEPGEMM_SCALE_UE8M0 = DEEPGEMM_BLACKWELL and not is_sm120_supported()" in patched
    here = ("--env", str(installed.prefix), "--output", "json")
    assert run("revert", "ue8m0-off", "--allow-running", *here).code == 0
    assert (installed.site / path).read_bytes() == stock
