"""Doctor looks at recorded and constructed hosts, at a hanging one, and at this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sm120patch import catalogue
from sm120patch.audit.byhand import paths_of
from sm120patch.doctor import topology
from sm120patch.doctor.checks import Check, Status
from sm120patch.doctor.gathering import gather
from sm120patch.doctor.outlook import Outlook, SetOutlook
from sm120patch.host import bounded
from sm120patch.host.machine import probe
from sm120patch.operations import diagnosing
from sm120patch.operations.diagnosing import Diagnosis
from sm120patch.operations.site import open_site
from tests.support import topologies
from tests.support.command import run
from tests.support.environments import create_venv, install_fake
from tests.support.topologies import CONSTRUCTED, Replay, constructed, put, recorded, with_toolkit

PLAIN = {"PATH": "/usr/bin", "HOME": "/root"}


def environment(
    prefix: Path, sglang: str = "0.5.9", flashinfer: str = "0.6.3", generator: bytes = b""
) -> Path:
    """Two packages that only say their versions, and name the variables they know.

    The files that sets of the catalogue change are there, and hold nothing.
    """
    site = create_venv(prefix)
    known = b"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE SGLANG_MOE_CONFIG_DIR SGLANG_KNOWN\n"
    versions = {"sglang": sglang, "flashinfer-python": flashinfer}
    changed = paths_of(catalogue.load(), versions)
    files = {target: dict.fromkeys(changed.get(target, ()), b"") for target in versions}
    files["sglang"]["sglang/__init__.py"] = b"# " + known
    files["flashinfer-python"]["flashinfer/__init__.py"] = b""
    files["flashinfer-python"]["flashinfer/jit/env.py"] = b"# FLASHINFER_KNOWN\n"
    if generator:
        files["flashinfer-python"]["flashinfer/jit/comm.py"] = generator
    for target, version in versions.items():
        install_fake(site, target, version, files[target])
    return site


def diagnose(
    replay: Replay,
    environ: Mapping[str, str] = PLAIN,
    *,
    prefix: Path | None = None,
    profile: Path | None = None,
    gpu: str | None = None,
    limit: float = 10.0,
) -> Diagnosis:
    site = None if prefix is None else open_site(str(prefix), None, environ=dict(os.environ))
    question = diagnosing.Question(site, "no environment", gpu, profile)
    return diagnosing.diagnose(question, replay.source(limit), environ)


def check(found: Diagnosis, name: str) -> Check:
    (one,) = [c for c in found.checks if c.id == name]
    return one


def outlook(found: Diagnosis, name: str) -> SetOutlook:
    return next(s for s in found.sets if s.id == name)


def host(name: str, root: Path) -> Replay:
    replay = constructed(name, root)
    with_toolkit(root)
    return replay


# --- topologies ---------------------------------------------------------------------------------

EXPECTED: Mapping[str, Mapping[str, tuple[Status, str]]] = {
    "2-gpus-one-root-complex": {
        "p2p": (Status.OK, "does not prove correct data"),
        "ancestor": (Status.OK, "1 x PHB (in common: root complex)"),
        "pcie-link": (Status.OK, "2 x PCIe 5 x16"),
        "iommu": (Status.OK, "off"),
        "acs": (Status.OK, "no bridge"),
        "numa": (Status.OK, "all on node 0"),
        "virtualization": (Status.OK, "bare metal"),
    },
    "4-gpus-one-switch": {
        "ancestor": (Status.OK, "6 x PIX (in common: switch)"),
        "message-size": (Status.INFO, "120 KB on 4 GPUs"),
        "acs": (Status.OK, "no bridge"),
    },
    "4-gpus-acs-and-iommu": {
        "iommu": (Status.WARNING, "DMA-FQ"),
        "acs": (Status.WARNING, "6 pairs"),
    },
    "8-gpus-virtual-machine-no-p2p": {
        "p2p": (Status.WARNING, "28 of 28 pairs: chipset-not-supported"),
        "virtualization": (Status.WARNING, "virtual machine"),
        "iommu": (Status.UNKNOWN, "not seen from here"),
        "acs": (Status.UNKNOWN, "not seen from here"),
        "numa": (Status.UNKNOWN, "no NUMA node"),
        "message-size": (Status.INFO, "48 KB on 8 GPUs"),
    },
    "8-gpus-two-sockets": {
        "ancestor": (Status.WARNING, "16 x SYS (in common: nothing)"),
        "numa": (Status.WARNING, "4 GPUs on node 0, 4 GPUs on node 1"),
        "acs": (Status.UNKNOWN, "not readable"),
    },
    "2-gpus-narrow-slots": {
        "pcie-link": (Status.WARNING, "GPU 0 runs at x8, it can x16; GPU 1 sits behind PCIe 4"),
        "p2p": (Status.WARNING, "not-supported"),
    },
    "dgx-spark": {
        "capability": (Status.OK, "12.1: SM121"),
        "topology": (Status.INFO, "one GPU: there is nothing to reduce"),
        "nvcc": (Status.OK, "(>= 12.9)"),
    },
    "12.0-beside-12.1": {
        "capability": (Status.WARNING, "12.0 and 12.1"),
        "nvcc": (Status.OK, "(>= 12.9)"),
    },
}


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_every_topology_is_told(name: str, tmp_path: Path) -> None:
    found = diagnose(host(name, tmp_path))
    for matter, (status, text) in EXPECTED[name].items():
        one = check(found, matter)
        assert (one.status, text in one.summary) == (status, True), one
    assert found.clean, [c for c in found.checks if c.status is Status.PROBLEM]


def test_a_recorded_host_is_told(tmp_path: Path) -> None:
    with_toolkit(tmp_path, "13.0")
    found = diagnose(recorded("h200-x2", tmp_path))
    assert check(found, "capability").summary == "9.0: no SM12x GPU"
    assert check(found, "driver").summary == (
        "driver 580.159.04, open kernel modules, runs CUDA up to 13.0"
    )
    assert check(found, "ancestor").summary == "1 x NVLink"
    assert check(found, "pcie-link").summary == "2 x PCIe 5 x16"
    assert check(found, "virtualization").status is Status.WARNING
    assert check(found, "numa").status is Status.UNKNOWN
    assert found.readings.host.topology == (
        "2-gpus", "virtual-machine", "p2p", "nvlink",
    )  # fmt: skip


def test_every_host_says_what_of_it_is_recorded() -> None:
    for path in topologies.RECORDED.glob("*.json"):
        document = json.loads(path.read_text())
        assert document["origin"] == "recorded" and "recorded on" in document["about"]
    assert all(machine.from_report for machine in CONSTRUCTED.values())


def test_a_link_that_idles_is_not_a_narrow_one(tmp_path: Path) -> None:
    replay = host("2-gpus-one-root-complex", tmp_path)
    for path in tmp_path.rglob("current_link_speed"):
        path.write_text("2.5 GT/s PCIe\n")
    one = check(diagnose(replay), "pcie-link")
    assert (one.status, one.summary) == (Status.OK, "2 x PCIe 5 x16")


def test_nvml_stands_in_for_a_sysfs_that_is_hidden(tmp_path: Path) -> None:
    replay = host("2-gpus-one-root-complex", tmp_path)
    (tmp_path / "sys/bus/pci/devices").rename(tmp_path / "hidden")
    link = {"generation": 1, "max_generation": 5, "width": 16, "max_width": 16}
    replay.answer["devices"] = [link, link]
    found = diagnose(replay)
    assert check(found, "pcie-link").summary == "2 x PCIe 5 x16"
    assert check(found, "acs").status is check(found, "iommu").status is Status.UNKNOWN
    assert "no PCI device" in check(found, "iommu").summary


def test_mig_is_named(tmp_path: Path) -> None:
    replay = host("2-gpus-one-root-complex", tmp_path)
    replay.answer["devices"] = [{"mig": 0}, {"mig": 1}]
    assert check(diagnose(replay), "mig").summary == "MIG is on for GPU 1"


def test_a_pair_meets_at_its_lowest_bridge(tmp_path: Path) -> None:
    replay = constructed("4-gpus-one-switch", tmp_path)
    read = topology.read(gather(replay.source(), PLAIN, {}))
    assert {way.ancestor for way in read.ways} == {"bridge 0000:01:00.0"}


# --- time limits --------------------------------------------------------------------------------


def test_a_hanging_read_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    replay = host("2-gpus-one-root-complex", tmp_path)
    device = next(path for path in tmp_path.rglob("numa_node"))
    device.unlink()
    os.mkfifo(device)  # opened for reading, it waits for a writer for ever
    found = diagnose(replay, limit=1.5)
    sick, healthy = sorted(found.readings.pci, key=lambda answer: answer.value is not None)
    assert sick.reason == "did not answer within 1.5 s"
    assert healthy.get("root") == "pci0000:00"
    assert check(found, "pcie-link").status is Status.UNKNOWN
    assert "did not answer within 1.5 s" in check(found, "pcie-link").summary
    assert check(found, "toolkit").status is Status.OK, "what came before it"


def test_a_compiler_that_hangs_does_not_hang_doctor(tmp_path: Path) -> None:
    replay = host("dgx-spark", tmp_path)
    put(tmp_path, "usr/local/cuda/bin/nvcc", b"#!/bin/sh\nexec sleep 60\n", 0o755)
    one = check(diagnose(replay, limit=1.5), "toolkit")
    assert one.status is Status.UNKNOWN and "did not answer" in one.summary


def test_a_driver_that_hangs_does_not_hang_doctor(tmp_path: Path) -> None:
    from sm120patch.host import nvml

    library = tmp_path / "pynvml.py"
    library.write_text("import time\nclass NVMLError(Exception): pass\nnvmlInit = time.sleep\n")
    put(tmp_path, "python", f'#!/bin/sh\nexec "{sys.executable}" -c "{HANGING}"\n'.encode(), 0o755)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "executable", str(tmp_path / "python"))
        answer = nvml.facts(timeout=0.5)
    assert "did not answer" in answer["reason"]
    empty = Replay(tmp_path, {"devices": [], "cuda": None, **answer})
    one = check(diagnose(empty), "gpus")
    assert one.status is Status.PROBLEM and "NVML did not answer" in one.summary


HANGING = "import ctypes; ctypes.CDLL(None).pause()"


def test_a_child_that_dies_costs_its_own_answer_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(tmp_path, "proc/meminfo", b"MemTotal: 1 kB\n")
    questions: list[tuple[str, ...]] = [("memory",), ("nonsense",), ("disk", "/")]
    answers = bounded.ask(questions, tmp_path)
    assert answers[("memory",)].get("total") == 1024
    assert answers[("nonsense",)].reason == "KeyError: 'nonsense'"
    assert answers[("disk", "/")].get("free") > 0
    put(tmp_path, "python", b"#!/bin/sh\necho no json\nexit 139\n", 0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    answers = bounded.ask(questions, tmp_path)
    assert answers[("memory",)].reason == "gave an answer that cannot be read"
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert "cannot run" in str(bounded.ask(questions, tmp_path)[("memory",)].reason)


# --- sets ---------------------------------------------------------------------------------------


def test_known_harm_is_told_where_it_is_known(tmp_path: Path) -> None:
    environment(tmp_path / "env")
    harmful = {}
    for name in CONSTRUCTED:
        found = diagnose(host(name, tmp_path / name), prefix=tmp_path / "env")
        fusion = outlook(found, "allreduce-fusion")
        harmful[name] = fusion.outlook
        if name == "8-gpus-virtual-machine-no-p2p":
            assert [k.effect for k in fusion.known] == ["1867 -> 236 tokens/s, 250 -> 125 W"]
    # The files of these packages hold no code, so every other set ends in its own answer.
    assert {name for name, o in harmful.items() if o is Outlook.HARMFUL} <= {
        "4-gpus-one-switch", "4-gpus-acs-and-iommu", "8-gpus-virtual-machine-no-p2p",
    }  # fmt: skip
    assert harmful["8-gpus-virtual-machine-no-p2p"] is Outlook.HARMFUL
    assert harmful["4-gpus-one-switch"] is Outlook.HARMFUL
    assert harmful["2-gpus-one-root-complex"] is Outlook.WORKS
    assert harmful["8-gpus-two-sockets"] is Outlook.WORKS
    assert harmful["dgx-spark"] is Outlook.NOT_APPLICABLE
    assert harmful["12.0-beside-12.1"] is Outlook.NOT_APPLICABLE, "one GPU of each is no pair"


def test_sm121_is_not_sm120(tmp_path: Path) -> None:
    environment(tmp_path / "env", "0.5.20", "0.6.8")
    spark = diagnose(host("dgx-spark", tmp_path / "a"), prefix=tmp_path / "env")
    board = diagnose(host("2-gpus-one-root-complex", tmp_path / "b"), prefix=tmp_path / "env")
    of = {
        name: (outlook(spark, name).outlook, outlook(board, name).outlook)
        for name in ("fi-sm12x-family", "inkling-num-stages", "qsa-sm121")
    }
    assert of == {
        "fi-sm12x-family": (Outlook.WORKS, Outlook.NOT_APPLICABLE),
        "inkling-num-stages": (Outlook.NOT_APPLICABLE, Outlook.WORKS),
        "qsa-sm121": (Outlook.REFUSED, Outlook.NOT_APPLICABLE),
    }
    reason = outlook(spark, "inkling-num-stages").reasons
    assert reason == ("is for compute capability 12.0, found 12.1",)


def test_a_set_that_must_be_compiled_is_blocked_without_a_compiler(tmp_path: Path) -> None:
    environment(tmp_path / "env")
    found = diagnose(
        constructed("2-gpus-one-root-complex", tmp_path / "host"), prefix=tmp_path / "env"
    )
    assert check(found, "toolkit").status is Status.PROBLEM and not found.clean
    fusion = outlook(found, "allreduce-fusion")
    assert fusion.outlook is Outlook.BLOCKED and "finds no compiler" in fusion.reasons[0]
    assert outlook(found, "cutlass-autotune").outlook is Outlook.WORKS, "Python only"


def test_a_prebuilt_module_blocks_the_sets_it_would_win_over(tmp_path: Path) -> None:
    generator = b'def gen_trtllm_comm_module():\n    return gen_jit_spec("trtllm_comm", [])\n'
    site = environment(tmp_path / "env", generator=generator)
    put(site, "flashinfer_jit_cache/jit_cache/trtllm_comm/trtllm_comm.so", b"")
    found = diagnose(host("2-gpus-one-root-complex", tmp_path / "host"), prefix=tmp_path / "env")
    gate = outlook(found, "allreduce-arch-gate")
    assert gate.outlook is Outlook.BLOCKED and "trtllm_comm.so is loaded instead" in gate.reasons[0]
    assert outlook(found, "cutlass-autotune").outlook is Outlook.WORKS


def test_a_set_whose_file_somebody_edited_is_blocked_by_the_edit(tmp_path: Path) -> None:
    site = environment(tmp_path / "env")
    (site / "flashinfer/jit/comm.py").write_bytes(b"mine = True\n")
    found = diagnose(host("2-gpus-one-root-complex", tmp_path / "host"), prefix=tmp_path / "env")
    gate = outlook(found, "allreduce-arch-gate")
    assert gate.outlook is Outlook.BLOCKED and "edited by somebody" in gate.reasons[0]
    assert outlook(found, "cutlass-autotune").outlook is Outlook.WORKS


def test_without_a_gpu_nothing_is_said_to_work(tmp_path: Path) -> None:
    environment(tmp_path / "env")
    empty = constructed("2-gpus-one-root-complex", tmp_path / "host")
    empty.answer.update(gpus=[], links=[], devices=[], reason="no NVIDIA driver")
    with_toolkit(tmp_path / "host")
    found = diagnose(empty, prefix=tmp_path / "env")
    assert check(found, "gpus").summary == "no GPU: no NVIDIA driver"
    assert outlook(found, "allreduce-fusion").outlook is Outlook.UNKNOWN
    assert Outlook.WORKS not in {s.outlook for s in found.sets}
    named = diagnose(empty, prefix=tmp_path / "env", gpu="12.0")
    assert outlook(named, "allreduce-fusion").outlook is Outlook.WORKS


# --- toolkit ------------------------------------------------------------------------------------


def test_a_wrapper_on_path_leads_flashinfer_astray(tmp_path: Path) -> None:
    replay = constructed("2-gpus-one-root-complex", tmp_path)
    put(tmp_path, "usr/local/bin/nvcc", b"#!/bin/sh\necho release 13.0, V13\n", 0o755)
    found = diagnose(replay, {**PLAIN, "PATH": "/usr/local/bin:/usr/bin"})
    one = check(found, "toolkit")
    assert one.status is Status.PROBLEM and one.facts["home"] == "/usr/local"
    assert "no libcudart.so" in one.summary
    with_toolkit(tmp_path, "13.0")
    better = diagnose(replay, {"PATH": "/usr/local/bin:/usr/bin", "CUDA_HOME": "/usr/local/cuda"})
    assert check(better, "toolkit").summary == "/usr/local/cuda (CUDA_HOME)"


@pytest.mark.parametrize(
    ("release", "name", "status"),
    [
        ("12.6", "2-gpus-one-root-complex", Status.PROBLEM),
        ("12.8", "2-gpus-one-root-complex", Status.OK),
        ("12.8", "dgx-spark", Status.PROBLEM),
        ("12.9", "dgx-spark", Status.OK),
        ("14.0", "dgx-spark", Status.WARNING),
    ],
)
def test_the_compiler_must_know_the_gpus(
    release: str, name: str, status: Status, tmp_path: Path
) -> None:
    replay = constructed(name, tmp_path)
    with_toolkit(tmp_path, release)
    assert check(diagnose(replay), "nvcc").status is status


def test_memory_and_jobs_are_weighed(tmp_path: Path) -> None:
    replay = host("dgx-spark", tmp_path)
    put(tmp_path, "proc/meminfo", b"MemTotal: 9000000 kB\nMemAvailable: 6000000 kB\n")
    many = check(diagnose(replay, {**PLAIN, "MAX_JOBS": "32"}), "build-memory")
    assert many.status is Status.WARNING and many.hint == "set MAX_JOBS=4 for the server"
    assert check(diagnose(replay, {**PLAIN, "MAX_JOBS": "4"}), "build-memory").status is Status.OK
    put(tmp_path, "proc/self/cgroup", b"0::/app.slice\n")
    put(tmp_path, "sys/fs/cgroup/app.slice/memory.max", b"1073741824\n")
    put(tmp_path, "sys/fs/cgroup/app.slice/memory.current", b"73741824\n")
    little = check(diagnose(replay), "build-memory")
    assert little.status is Status.PROBLEM and little.facts["available_bytes"] == 1_000_000_000


# --- the command --------------------------------------------------------------------------------


def test_the_command_runs_on_this_machine(tmp_path: Path) -> None:
    environment(tmp_path / "env")
    done = run("doctor", "--env", tmp_path / "env", "--output", "json")
    result = done.result
    assert done.code == (0 if done.json["ok"] else 1), done.err
    statuses = {c["id"]: c["status"] for c in result["checks"]}
    gpus = probe().gpus
    assert statuses["gpus"] == ("ok" if gpus else "problem")
    assert {s["id"] for s in result["sets"]} >= {"allreduce-fusion", "pcie-ipc-allreduce"}
    if not gpus:
        assert done.code == 1
        assert {s["outlook"] for s in result["sets"]}.isdisjoint({"works", "harmful"})


def test_without_an_environment_the_host_is_looked_at_all_the_same(tmp_path: Path) -> None:
    done = run("doctor", cwd=tmp_path)
    assert "not judged: no environment was named" in done.out
    assert "gpus" in done.out and "build-memory" in done.out
    words = ", ".join(probe().topology)
    assert done.out.startswith(f"this host: {words}\n"), "what published results are matched by"
    wrong = run("doctor", "--env", tmp_path / "nowhere")
    assert wrong.code == 10 and "looked for" in wrong.err


def test_a_profile_that_does_not_parse_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "sm120patch.toml").write_text("[server\n")
    done = run("doctor", "--output", "json", cwd=tmp_path)
    assert done.code == 2 and done.error["hint"]


def test_names_of_gpus_cannot_steer_the_terminal(tmp_path: Path) -> None:
    from sm120patch.doctor import render

    replay = host("dgx-spark", tmp_path)
    replay.answer["gpus"][0]["name"] = "GB10\x1b[2J\x1b]0;owned\x07"
    found = diagnose(replay)
    assert "\x1b" not in render.text(found.checks, found.sets, found.flags, found.without)


def test_nothing_is_written_by_looking(tmp_path: Path) -> None:
    environment(tmp_path / "env")
    before = {p: p.lstat().st_mtime_ns for p in tmp_path.rglob("*") if "__pycache__" not in p.parts}
    run("doctor", "--env", tmp_path / "env")
    after = {p: p.lstat().st_mtime_ns for p in tmp_path.rglob("*") if "__pycache__" not in p.parts}
    assert after == before


# --- flags without effect -----------------------------------------------------------------------

IPC = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"
FUSION = "--enable-flashinfer-allreduce-fusion"


def flags(found: Diagnosis) -> set[tuple[str, str, str]]:
    return {(f.name, f.place, f.reason) for f in found.flags}


def write_profile(path: Path, *arguments: str, env: str = "") -> Path:
    listed = ", ".join(
        json.dumps(a) for a in ("{python}", "-m", "sglang.launch_server", *arguments)
    )
    path.write_text(f'[server]\ncommand = [{listed}, "{{set_args}}"]\n[server.env]\n{env}\n')
    return path


@pytest.mark.parametrize(
    ("sglang", "flashinfer", "reason"),
    [
        ("0.5.21", "0.6.18", "needs flashinfer-python >=0.7.0, found 0.6.18"),
        ("0.5.22", "0.7.1", None),
        ("0.5.20", "0.6.18", "it is for sglang >=0.5.21,<0.6; found sglang 0.5.20"),
    ],
)
def test_the_pcie_ipc_variable_is_told_apart_by_release(
    sglang: str, flashinfer: str, reason: str | None, tmp_path: Path
) -> None:
    environment(tmp_path / "env", sglang, flashinfer)
    replay = host("2-gpus-one-root-complex", tmp_path / "host")
    found = diagnose(replay, {**PLAIN, IPC: "1"}, prefix=tmp_path / "env")
    assert flags(found) == ({(IPC, "environment", reason)} if reason else set())
    assert found.clean is (reason is None)
    assert not diagnose(replay, {**PLAIN, IPC: "0"}, prefix=tmp_path / "env").flags


def test_a_variable_for_several_gpus_does_nothing_for_one(tmp_path: Path) -> None:
    environment(tmp_path / "env", "0.5.22", "0.7.1")
    one = topologies.changed(
        "2-gpus-one-root-complex", cards=CONSTRUCTED["2-gpus-one-root-complex"].cards[:1]
    )
    found = diagnose(
        constructed(one, tmp_path / "host"), {**PLAIN, IPC: "1"}, prefix=tmp_path / "env"
    )
    ((name, _place, reason),) = flags(found)
    assert (name, reason) == (IPC, "it is about 2 GPUs or more, found 1")


def test_an_option_of_a_set_that_is_not_there_does_nothing(tmp_path: Path) -> None:
    environment(tmp_path / "env")
    profile = write_profile(tmp_path / "p.toml", "--tp", "2", FUSION)
    board = host("2-gpus-one-root-complex", tmp_path / "host")
    found = diagnose(board, prefix=tmp_path / "env", profile=profile)
    ((name, place, reason),) = flags(found)
    assert (name, place) == (FUSION, f"profile {profile}")
    assert reason.startswith("does nothing on these GPUs without allreduce-fusion, which is")
    hopper = recorded("h200-x2", tmp_path / "hopper")
    assert not diagnose(hopper, prefix=tmp_path / "env", profile=profile).flags, "has its own way"


def test_a_misspelt_variable_is_found(tmp_path: Path) -> None:
    environment(tmp_path / "env")
    variables = {"SGLANG_KNOWM": "1", "SGLANG_KNOWN": "1", "FLASHINFER_KNOWN": "1", "OTHER": "1"}
    replay = host("dgx-spark", tmp_path / "host")
    found = diagnose(replay, {**PLAIN, **variables}, prefix=tmp_path / "env")
    assert flags(found) == {("SGLANG_KNOWM", "environment", "sglang 0.5.9 does not know it")}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ((), "there is no such directory"),
        (("readme",), "it has no configs/triton_<version>/"),
        (
            ("configs/triton_3_1_0/E=1,N=2,device_name=NVIDIA_GB10.json",),
            "it has no configs/triton_3_5_1/ for Triton 3.5.1: triton_3_1_0",
        ),
        (
            ("configs/triton_3_5_1/E=1,N=2,device_name=NVIDIA_GB10_Max.json",),
            "no file in it is for device_name=NVIDIA_GB10",
        ),
        (("configs/triton_3_5_1/E=1,N=2,device_name=NVIDIA_GB10,dtype=fp8_w8a8.json",), None),
    ],
)
def test_a_directory_of_tuned_files_must_fit_triton_and_gpu(
    files: tuple[str, ...], reason: str | None, tmp_path: Path
) -> None:
    site = environment(tmp_path / "env")
    install_fake(site, "triton", "3.5.1", {"triton/__init__.py": b""})
    for file in files:
        put(tmp_path / "tuned", file, b"{}")
    variables = {**PLAIN, "SGLANG_MOE_CONFIG_DIR": str(tmp_path / "tuned")}
    found = diagnose(host("dgx-spark", tmp_path / "host"), variables, prefix=tmp_path / "env")
    assert [f.reason for f in found.flags] == ([reason] if reason else [])


def test_running_servers_are_looked_at(tmp_path: Path) -> None:
    site = environment(tmp_path / "env", "0.5.21", "0.6.18")
    put(site, "sglang/launch_server.py", b"import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    command = [str(tmp_path / "env/bin/python3"), "-m", "sglang.launch_server", "--port", "31998"]
    variables = {"PATH": os.environ["PATH"], IPC: "1", "SGLANG_API_KEY": "s3cret"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=variables) as server:
        try:
            assert server.stdout is not None and server.stdout.readline()
            done = run(
                "doctor", "--env", tmp_path / "env", "--output", "json", SGLANG_KNOWN="1",
            )  # fmt: skip
        finally:
            server.kill()
    found = {(f["name"], f["place"]): f["reason"] for f in done.result["flags"]}
    place = f"server {server.pid}"
    assert found[IPC, place] == "needs flashinfer-python >=0.7.0, found 0.6.18"
    assert place in found["SGLANG_KNOWN", "environment"]
    assert found["SGLANG_KNOWN", "environment"].endswith("was started without it")
    assert "s3cret" not in done.out


def test_a_server_of_another_environment_says_nothing_about_this_one(tmp_path: Path) -> None:
    site = environment(tmp_path / "env", "0.5.21", "0.6.18")
    put(site, "sglang/launch_server.py", b"import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    environment(tmp_path / "other")
    variables = {"PATH": f"{tmp_path / 'env/bin'}:{os.environ['PATH']}", "SGLANG_NEWER": "1"}
    command = ["python3", "-m", "sglang.launch_server", "--tp", "4", "--port", "31997"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=variables) as server:
        try:
            assert server.stdout is not None and server.stdout.readline()
            answers = [
                run("doctor", "--env", tmp_path / name, "--output", "json", SGLANG_KNOWN="1")
                for name in ("env", "other")
            ]
        finally:
            server.kill()
    place = f"server {server.pid}"
    own, other = ({(f["name"], f["place"]) for f in a.result["flags"]} for a in answers)
    assert own == {("SGLANG_NEWER", place), ("SGLANG_KNOWN", "environment")}
    assert other == set()
    texts = [c["summary"] for a in answers for c in a.result["checks"] if c["id"] == "servers"]
    assert [f"{server.pid} (port 31997)" in text for text in texts] == [True, False]
    assert f"{server.pid} (port 31997, of another environment)" in texts[1]


# --- the document -------------------------------------------------------------------------------


def test_every_check_and_outlook_is_documented(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    document = (root / "docs/doctor.md").read_text()
    rows = re.findall(r"^\| (`.*?`) \|", document, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row)}
    sources = [(root / f"sm120patch/doctor/{name}.py").read_text() for name in ("checks", "peers")]
    sources.append((root / "sm120patch/operations/diagnosing.py").read_text())
    made = {name for text in sources for name in re.findall(r'Check\(\s*"([a-z0-9-]+)"', text)}
    made |= {"disk-builds", "disk-ledger"}
    assert made <= documented and {o.value for o in Outlook} <= documented
    assert documented == made | {o.value for o in Outlook}
    seen = {c.id for name in CONSTRUCTED for c in diagnose(host(name, tmp_path / name)).checks}
    assert seen <= documented


def test_the_size_of_the_server_decides_which_published_results_count(tmp_path: Path) -> None:
    environment(tmp_path / "env")
    eight = host("8-gpus-two-sockets", tmp_path / "host")
    whole = diagnose(eight, prefix=tmp_path / "env")
    assert outlook(whole, "allreduce-fusion").outlook is Outlook.WORKS
    profile = write_profile(tmp_path / "p.toml", "--tp", "4")
    half = diagnose(eight, prefix=tmp_path / "env", profile=profile)
    assert outlook(half, "allreduce-fusion").outlook is Outlook.HARMFUL
    assert outlook(half, "allreduce-fusion").known[0].topology == "4 GPUs, PCIe only"


def test_the_documented_keys_are_those_of_the_answer(tmp_path: Path) -> None:
    environment(tmp_path / "env", "0.5.21", "0.6.18")
    ran = run("doctor", "--env", tmp_path / "env", "--output", "json", SGLANG_UNHEARD="1")
    prose = (Path(__file__).resolve().parents[2] / "docs/json.md").read_text()
    sentence = re.search(r"In `doctor` a check has (.*?); their words", prose, re.DOTALL)
    assert sentence is not None
    for part, kind in zip(sentence[1].split(", a "), ("checks", "sets", "flags"), strict=True):
        keys = set(re.findall(r"`([a-z_]+)`", part))
        assert {frozenset(item) for item in ran.result[kind]} == {frozenset(keys)}, kind
