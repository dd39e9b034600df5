"""`tune`: a recorded autotuner result becomes FlashInfer's tuning file, bound to what it is for.

The record is of no real GPU: its numbers are made up for the tests and ship nowhere. What reads
the file in the end is FlashInfer's published loader.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sm120patch import catalogue as catalogues
from sm120patch.errors import HostError
from sm120patch.model import PatchSet, Snapshot
from sm120patch.operations import tuning
from sm120patch.tuning import record
from tests.support.command import run
from tests.support.environments import create_venv, install_fake
from tests.support.tuning import DEVICE, RECORD, SHAPE, key, write_record
from tests.support.wheels import wheel


def tune(tmp_path: Path, **changes: object) -> Path:
    kept = write_record(tmp_path / "record.json", **changes)
    done = run("tune", "my-moe", "--record", kept, "--into", tmp_path / "local")
    assert done.code == 0, done.err
    return tmp_path / "local"


def test_a_record_becomes_a_valid_set_that_is_bound_to_what_it_is_for(tmp_path: Path) -> None:
    found = catalogues.load(tune(tmp_path)).get("my-moe")
    (variant,) = found.changes[0].variants
    assert variant.kind.value == "file"
    assert variant.versions == ">=0.5.3rc0,<0.6.5rc0"
    assert variant.path == (
        "flashinfer/tuning_configs/"
        "v0_1_trtllm_fused_moe_NVIDIA_RTX_PRO_6000_Blackwell_Workstation_Edition.py"
    )
    assert variant.requires == {"sglang": "<0.5.12rc0"}
    assert found.devices == (DEVICE,) and found.compute_capability == ("12.0",)
    assert found.launch[0].env == {"FLASHINFER_AUTOTUNER_LOAD_FROM_FILE": "1"}
    assert "experts=128,hidden=2048,intermediate=768,top-k=8" in found.description
    assert not catalogues.lint(catalogues.load(tmp_path / "local"))


def test_the_record_is_kept_and_gives_the_same_set_again(tmp_path: Path) -> None:
    root = tune(tmp_path)
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    again = ("tune", "my-moe", "--record", root / "tuning" / "my-moe.json", "--into", root)
    assert run(*again).code == 2
    assert run(*again, "--force").code == 0
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before


@pytest.mark.network
@pytest.mark.parametrize("version", ["0.5.3", "0.6.3", "0.6.8", "0.6.12"])
def test_flashinfers_own_loader_finds_every_entry(tmp_path: Path, version: str) -> None:
    """Its `load_from_file` and `get_config_path`, cut out of the release, read the file."""
    import zipfile

    root = tune(tmp_path, flashinfer=version)
    (variant,) = catalogues.load(root).get("my-moe").changes[0].variants
    package = tmp_path / variant.path
    package.parent.mkdir(parents=True)
    package.write_bytes(variant.data)
    with zipfile.ZipFile(wheel("flashinfer-python", version)) as archive:
        tree = ast.parse(archive.read("flashinfer/autotuner.py"))
    names = ("get_config_path", "load_from_file")
    cut = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
    cut += [n for n in tree.body if isinstance(n, ast.Assign) and "cutlass_version" in ast.dump(n)]
    assert len(cut) == 3
    cut.sort(key=lambda n: isinstance(n, ast.FunctionDef))
    script = f"""
import importlib, json, logging, os, sys, types
from functools import lru_cache
sys.path.insert(0, {str(tmp_path)!r})
logger = logging.getLogger("x")
device = types.SimpleNamespace(get_device_name=lambda _index: {DEVICE!r})
torch = types.SimpleNamespace(cuda=device)
{ast.unparse(ast.Module(cut, []))}
for key, runner, tactic in json.loads(sys.stdin.read()):
    op, name, profile = eval(key)
    assert load_from_file((op, name, 123, profile, ()))[:3] == (True, runner, tactic), key
assert load_from_file((op, name, 123, ((3, 3),), ()))[0] is False
"""
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(RECORD["entries"]), text=True,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"entries": []}, "nothing was measured"),
        ({"entries": [[key(1, 1), 1, 5]]}, "runner 1"),
        ({"entries": [[key(1, 1), 0, "5"]]}, "no number of a tactic"),
        ({"entries": [[key(1, 1) + " ", 0, 5]]}, "as Python prints it"),
        ({"entries": [["__import__('os').system('x')", 0, 5]]}, "no literal"),
        ({"entries": [[str(("other::op", "MoERunner", ())), 0, 5]]}, "names no operation"),
        ({"entries": [[key(1, 1), 0, 5], [key(1, 1), 0, 6]]}, "twice"),
        ({"device": "../../x"}, "device"),
        ({"device": 'x"\nevil = "1'}, "device"),
        ({"capability": "10.0"}, "capability"),
        ({"flashinfer": "0.6.13"}, "four parts"),
        ({"cache": {}}, "not an object with _metadata"),
        ({"flashinfer": "0.3.1"}, "cannot run its CUTLASS MoE"),
        ({"nvfp4_cutlass_version": "0.2"}, "nvfp4_cutlass_version"),
        ({"shapes": [{**SHAPE, "top_k": 129}]}, "top-k"),
        ({"shapes": []}, "shapes"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"schema": 2}, "schema"),
    ],
)
def test_a_record_with_anything_that_was_not_measured_so_is_refused(
    tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    kept = write_record(tmp_path / "record.json", **changes)
    done = run("tune", "my-moe", "--record", kept, "--into", tmp_path / "local")
    assert done.code == 2 and why in done.err, done.err
    assert not (tmp_path / "local").exists()


def test_the_ranges_follow_one_another_without_a_gap() -> None:
    from sm120patch import versions
    from sm120patch.linting import traps

    assert not list(traps("flashinfer-python", record.RANGES))
    parsed = [versions.parse(text) for text in record.RANGES]
    assert not any(a.overlaps(b) for a in parsed for b in parsed if a is not b)
    assert record.range_for("0.6.10.post1") == record.range_for("0.6.10")
    assert record.range_for("0.6.12") == ">=0.6.11rc0,<0.6.13rc0"


# --- measuring -----------------------------------------------------------------------------------

TORCH = """
import contextlib
__version__ = "2.9.1"
class T:
    def __init__(self, shape=(), dtype=None): self.shape, self.dtype = tuple(shape), dtype
    def view(self, dtype): return T(self.shape, dtype)
    def to(self, dtype): return T(self.shape, dtype)
    def topk(self, k, dim): return self
    @property
    def indices(self): return self
uint8 = "uint8"; long = "long"; int32 = int = "int"; float32 = "f32"; bfloat16 = "bf16"
float8_e4m3fn = "f8"
def randint(low, high, size, dtype, device): return T(size, dtype)
def ones(size, device, dtype=None): return T(size, dtype)
def rand(size, device): return T(size, "f32")
def full(size, value, device): return T(size)
inference_mode = contextlib.nullcontext
class version: cuda = "13.0"
class cuda:
    is_available = staticmethod(lambda: AVAILABLE)
    synchronize = staticmethod(lambda: None)
    get_device_capability = staticmethod(lambda index: CAPABILITY)
    get_device_name = staticmethod(lambda index: DEVICE)
"""
AUTOTUNER = """
import contextlib, os
_nvfp4_cutlass_version = "0.1"
assert "FLASHINFER_AUTOTUNER_LOAD_FROM_FILE" not in os.environ
class AutoTuner:
    _it = None
    profiling_cache = {}
    @classmethod
    def get(cls):
        cls._it = cls._it or cls()
        return cls._it
@contextlib.contextmanager
def autotune(on, cache=None):
    import json
    self = AutoTuner.get()
    self.on, self.cache = on, cache
    yield
    self.on = False
    if cache is None:
        return
    found = {str((k[0], k[1], k[3], self.extras)): ["MoERunner", v[1]]
             for k, v in self.profiling_cache.items()}
    metadata = {"flashinfer_version": VERSION, "gpu": DEVICE, "cuda_version": "13.0"}
    with open(cache, "w") as stream:
        json.dump({"_metadata": metadata, "_generation": "x", **found}, stream)
"""
MOE = """
from flashinfer.autotuner import AutoTuner
def cutlass_fused_moe(*, input, token_selected_experts, token_final_scales,
                      fc1_expert_weights, fc2_expert_weights, output_dtype, quant_scales,
                      tp_size, ep_size, tune_max_num_tokens, input_sf=None,
                      use_fused_finalize=True):
    assert AutoTuner.get().on and len(quant_scales) == 6
    packed = input.dtype == "uint8"
    assert packed == (input_sf is not None) and input.dtype in ("uint8", "bf16")
    if AutoTuner.get().cache:
        AutoTuner.get().extras = (tp_size, ep_size, use_fused_finalize)
    for gemm in (1, 2):
        for tokens in (1, tune_max_num_tokens):
            profile = ((tokens, input.shape[1]), fc1_expert_weights.shape, (0,),
                       fc2_expert_weights.shape, (0,))
            key = (f"trtllm::fused_moe::gemm{gemm}", "MoERunner", 99, profile)
            AutoTuner.get().profiling_cache[key] = (0, gemm, None)
"""


def fake_environment(
    prefix: Path,
    flashinfer: str = "0.6.3",
    sglang: str = "0.5.9",
    *,
    gpu: bool = True,
    capability: tuple[int, int] = (12, 0),
    autotuner: str = AUTOTUNER,
) -> Path:
    """The interfaces that are called, in the shape of the releases; no kernel runs."""
    site = create_venv(prefix)
    told = f"AVAILABLE = {gpu}\nDEVICE = {DEVICE!r}\nCAPABILITY = {capability!r}\n"
    (site / "torch.py").write_text(told + TORCH)
    install_fake(site, "sglang", sglang, {"sglang/__init__.py": b""})
    install_fake(
        site,
        "flashinfer-python",
        flashinfer,
        {
            "flashinfer/__init__.py": f'__version__ = "{flashinfer}"\n'.encode(),
            "flashinfer/autotuner.py": (
                f"VERSION, DEVICE = {flashinfer!r}, {DEVICE!r}\n{autotuner}".encode()
            ),
            "flashinfer/fused_moe.py": MOE.encode(),
            "flashinfer/_build_meta.py": f'__version__ = "{flashinfer}"\n'.encode(),
            "flashinfer/tuning_configs/v0_1_trtllm_fused_moe_NVIDIA_B200.py": b"best_configs = {}",
        },
    )
    return site


LAYER = "experts=128,hidden=2048,intermediate=768,top-k=8"


def test_the_autotuner_is_run_in_the_target_and_its_set_applies_there(tmp_path: Path) -> None:
    site = fake_environment(tmp_path / "env")
    into = tmp_path / "local"
    done = run("tune", "my-moe", "--moe", LAYER, "--moe", LAYER.replace("768", "384"), "--into",
               into, "--env", tmp_path / "env", "--output", "json",
               FLASHINFER_AUTOTUNER_LOAD_FROM_FILE="1")  # fmt: skip
    assert done.code == 0, done.out
    assert done.result["device"] == DEVICE and done.result["entries"] == 8
    here = ("--env", tmp_path / "env", "--extra-catalogue", into, "--allow-running")
    applied = run("apply", "my-moe", "--gpu", "12.0", "--no-verify", *here)
    assert applied.code == 0, applied.err
    assert "FLASHINFER_AUTOTUNER_LOAD_FROM_FILE=1" in applied.out
    (file,) = site.glob("flashinfer/tuning_configs/*Workstation_Edition.py")
    namespace: dict[str, Any] = {}
    exec(file.read_text(), namespace)
    first = "('trtllm::fused_moe::gemm1', 'MoERunner', ((1, 2048), (128, 1536, 1024), (0,), "
    assert any(k.startswith(first) for k in namespace["best_configs"])
    assert run("revert", "--all", *here).code == 0
    assert not file.exists()


@pytest.mark.parametrize(
    ("versions", "code", "why"),
    [
        (("0.6.7", "0.5.12"), 4, "reads none"),
        (("0.7.5", "0.5.23"), 4, "four parts"),
        (("0.3.1", "0.5.9"), 4, "cannot run"),
    ],
)
def test_where_nothing_would_read_the_result_it_is_not_measured(
    tmp_path: Path, versions: tuple[str, str], code: int, why: str
) -> None:
    fake_environment(tmp_path / "env", *versions)
    done = run("tune", "my-moe", "--moe", LAYER, "--into", tmp_path / "l", "--env",
               tmp_path / "env")  # fmt: skip
    assert done.code == code and why in done.err, done.err
    assert not (tmp_path / "l").exists()


def test_without_a_gpu_nothing_is_written(tmp_path: Path) -> None:
    fake_environment(tmp_path / "env", gpu=False)
    done = run("tune", "my-moe", "--moe", LAYER, "--into", tmp_path / "l", "--env",
               tmp_path / "env")  # fmt: skip
    assert done.code == 10 and "no CUDA device" in done.err and not (tmp_path / "l").exists()


@pytest.mark.parametrize("capability", [(9, 0), (10, 0)])
def test_on_another_gpu_nothing_is_compiled_or_measured(
    tmp_path: Path, capability: tuple[int, int]
) -> None:
    """On a Hopper GPU FlashInfer compiled until the time ran out, for values of no use there."""
    site = fake_environment(tmp_path / "env", capability=capability)
    started = tmp_path / "started"
    moe = site / "flashinfer" / "fused_moe.py"
    moe.write_text(f"open({str(started)!r}, 'w').close()\n{moe.read_text()}")
    done = run("tune", "my-moe", "--moe", LAYER, "--into", tmp_path / "l", "--env",
               tmp_path / "env", "--output", "json")  # fmt: skip
    error = done.error
    assert (done.code, error["code"]) == (4, "other-gpu")
    assert f"compute capability {capability[0]}.{capability[1]}" in error["message"]
    assert not started.exists() and not (tmp_path / "l").exists()


def test_a_newer_sglang_or_flashinfer_refuses_the_set(tmp_path: Path) -> None:
    into = tune(tmp_path)
    for number, versions in enumerate((("0.6.8", "0.5.9"), ("0.6.3", "0.5.12"))):
        fake_environment(tmp_path / f"env{number}", *versions)
        done = run("plan", "my-moe", "--gpu", "12.0", "--catalogue", into, "--env",
                   tmp_path / f"env{number}")  # fmt: skip
        assert done.code == 4, done.out


def test_another_device_refuses_the_set(tmp_path: Path) -> None:
    found: PatchSet = catalogues.load(tune(tmp_path)).get("my-moe")
    here = Snapshot("/p", {}, compute_capability="12.0", devices=(DEVICE, DEVICE))
    assert here.unfit(found) is None
    assert Snapshot("/p", {}, compute_capability="12.0").unfit(found) is None
    other = Snapshot("/p", {}, compute_capability="12.0", devices=("NVIDIA GeForce RTX 5090",))
    assert "found NVIDIA GeForce RTX 5090" in (other.unfit(found) or "")
    mixed = Snapshot("/p", {}, devices=(DEVICE, "NVIDIA GeForce RTX 5090"))
    assert mixed.unfit(found)


@pytest.mark.parametrize(
    "layer",
    ["experts=1", f"{LAYER},x=1"]
    + [LAYER.replace(*change) for change in (("768", "7"), ("128", "-1"), ("128", "x"))],
)
def test_a_layer_that_is_none_is_a_usage_error(tmp_path: Path, layer: str) -> None:
    assert run("tune", "my-moe", "--moe", layer, "--into", tmp_path / "l").code == 2


def test_no_tuning_file_ships() -> None:
    kinds = {v.kind.value for s in catalogues.load().sets.values() for c in s.changes
             for v in c.variants}  # fmt: skip
    assert "file" not in kinds


ENDLESS = """#!/bin/sh
sleep 300 &
echo $! > "$0.child"
wait
"""


def test_a_measuring_that_takes_too_long_is_stopped_with_what_it_compiles(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(ENDLESS)
    python.chmod(0o755)
    with pytest.raises(HostError) as caught:
        tuning._run(python, {"shapes": []}, {"PATH": "/usr/bin:/bin"}, 1.0)
    assert caught.value.code == "tune-timeout"
    assert "did not end within 1 s" in caught.value.message
    assert len(caught.value.message) < 300, "the program that was run is no message"
    compiler = int((tmp_path / "python.child").read_text())
    assert (
        not Path(f"/proc/{compiler}").exists()
        or "Z" in Path(f"/proc/{compiler}/stat").read_text().rpartition(")")[2]
    )
