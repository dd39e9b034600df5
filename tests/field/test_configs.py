"""Cases 48 to 53: tuned files, companions, flags, and GPUs that are not the ones meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120patch.catalogue import Catalogue
from sm120patch.doctor import flags
from sm120patch.doctor.flags import Setting
from sm120patch.host.machine import Host
from sm120patch.operations import diagnosing
from sm120patch.operations.diagnosing import Diagnosis
from sm120patch.operations.site import open_site
from tests.integration.test_doctor import PLAIN, environment, write_profile
from tests.support.command import run
from tests.support.environments import install_fake
from tests.support.place import refused
from tests.support.serving import Host as SimulatedHost
from tests.support.serving import apply, assert_rejected
from tests.support.topologies import constructed, put, with_toolkit

VARIABLE = "SGLANG_MOE_CONFIG_DIR"
SERVER_EDITION = "E=256,N=512,device_name=NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition.json"


def look(root: Path, environ: dict[str, str], host: str, profile: Path | None = None) -> Diagnosis:
    replay = constructed(host, root / "host")
    with_toolkit(root / "host")
    site = open_site(str(root / "env"), None)
    question = diagnosing.Question(site, profile=profile)
    return diagnosing.diagnose(question, replay.source(), {**PLAIN, **environ})


@pytest.mark.parametrize(
    ("file", "host", "reason"),
    [
        (f"configs/triton_3_5_1/{SERVER_EDITION}", "2-gpus-one-root-complex", None),
        (f"configs/triton_3_5_1/{SERVER_EDITION}", "dgx-spark", "device_name=NVIDIA_GB10"),
        (f"configs/triton_3_1_0/{SERVER_EDITION}", "2-gpus-one-root-complex", "triton_3_5_1"),
        (SERVER_EDITION, "2-gpus-one-root-complex", "configs/triton_"),
        (
            f"configs/triton_3_5_1/{SERVER_EDITION.replace('Server', 'Workstation')}",
            "2-gpus-one-root-complex",
            "Blackwell_Server_Edition",
        ),
    ],
)
def test_case_48_tuned_files_under_the_wrong_key_directory_or_device(
    file: str, host: str, reason: str | None, tmp_path: Path
) -> None:
    site = environment(tmp_path / "env")
    install_fake(site, "triton", "3.5.1", {"triton/__init__.py": b""})
    put(tmp_path / "tuned", file, b"{}")
    found = look(tmp_path, {VARIABLE: str(tmp_path / "tuned")}, host).flags
    if reason is None:
        assert found == ()
    else:
        assert [f.name for f in found] == [VARIABLE] and reason in found[0].reason


def test_case_49_the_variable_is_set_for_the_shell_and_not_for_the_server() -> None:
    shell = Setting("environment", (), {VARIABLE: "/tuned"})
    without = Setting("server 41", (), {"PATH": "/bin"})
    hidden = Setting("server 42", (), {}, readable=False)
    nothing = Host("m", "machine-id", (), (), None, "no driver", False)
    known = flags.Known(Catalogue({}), {}, {}, nothing, None, {})
    (found,) = flags.idle([shell, without, hidden], known)
    assert found.reason == "server 41 was started without it"
    passed = Setting("server 43", (), {VARIABLE: "/tuned"})
    assert flags.idle([shell, passed, hidden], known) == ()


def test_case_51_the_companion_has_the_wrong_version(tmp_path: Path) -> None:
    environment(tmp_path / "env", "0.5.20", "0.6.17")
    words = ("--gpu", "12.0", "--env", tmp_path / "env", "--output", "json")
    for command in ("plan", "apply"):
        extra = ("--no-verify",) if command == "apply" else ()
        done = run(command, "b12x-fp4-gemm", *extra, *words)
        refused(done, 4, "needs flashinfer-python >=0.6.18, found 0.6.17")
    assert not (tmp_path / "env/.sm120patch").exists()


def test_case_52_the_flag_is_on_and_the_feature_falls_back(host: SimulatedHost) -> None:
    done = apply(host, "flag-ignored")
    assert_rejected(host, done, "not-engaged")
    assert "falling back" in " ".join(done.result["verification"]["reasons"])


def test_case_52_the_flag_is_on_and_the_gate_is_closed(tmp_path: Path) -> None:
    environment(tmp_path / "env")
    flag = "--enable-flashinfer-allreduce-fusion"
    profile = write_profile(tmp_path / "p.toml", "--tp", "2", flag)
    (found,) = look(tmp_path, {}, "2-gpus-one-root-complex", profile).flags
    assert found.name == flag and "without allreduce-fusion" in found.reason


@pytest.mark.parametrize("name", ["allreduce-fusion", "inkling-num-stages", "b12x-fp4-gemm"])
def test_case_53_a_member_for_sm120_on_an_sm121_host(name: str, tmp_path: Path) -> None:
    environment(tmp_path / "env", "0.5.20", "0.6.18")
    words = ("--gpu", "12.1", "--env", tmp_path / "env", "--output", "json")
    refused(run("apply", name, "--no-verify", *words), 4, "12.0", "12.1")
    assert not (tmp_path / "env/.sm120patch").exists()
    spark = look(tmp_path, {}, "dgx-spark")
    (found,) = [s for s in spark.sets if s.id == name]
    assert found.outlook.value == "not-applicable" and "found 12.1" in found.reasons[0]
