"""`tune` where FlashInfer keeps a JSON cache: the set adds one, and its published loader reads it.

The records are of no real GPU: their numbers are made up for the tests and ship nowhere.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sm120patch import catalogue as catalogues
from sm120patch.model import Changed, PayloadKind, sha256_hex
from tests.integration.test_tune import LAYER, fake_environment
from tests.support.command import run
from tests.support.tuning import DEVICE, METADATA, cache, json_record
from tests.support.wheels import wheel


def tuned(tmp_path: Path, flashinfer: str = "0.6.12", **changes: Any) -> Path:
    kept = tmp_path / "record.json"
    kept.write_text(json.dumps(json_record(flashinfer, **changes)))
    done = run("tune", "my-moe", "--record", kept, "--into", tmp_path / "local")
    assert done.code == 0, done.err
    return tmp_path / "local"


def test_the_set_is_for_this_release_and_device_only_and_names_the_proof(tmp_path: Path) -> None:
    root = tuned(tmp_path)
    found = catalogues.load(root).get("my-moe")
    assert [c.id for c in found.changes] == ["tactics", "load"]
    assert {v.versions for c in found.changes for v in c.variants} == {">=0.6.12,<0.6.12.post0"}
    assert found.devices == (DEVICE,)
    assert not found.launch and "variable" not in found.description
    (probe,) = found.engagement
    assert probe.log is not None and probe.log.startswith("Loaded 28 configs from")
    assert not catalogues.lint(catalogues.load(root))


LOADER = """
import importlib.abc, importlib.machinery, importlib.util, logging, sys, types
from pathlib import Path
METADATA, ROOT = {metadata!r}, Path({root!r})
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")

class Anything(types.ModuleType):
    __path__ = ()
    __version__ = "x"
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return logging.getLogger("flashinfer") if name == "logger" else type(name, (), {{}})

class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    # The autotuner is the release's own; what it imports from elsewhere is nobody's.
    def find_spec(self, name, path=None, target=None):
        file = ROOT / name.replace(".", "/")
        if name.startswith("flashinfer.autotuner"):
            for found in (file / "__init__.py", file.with_suffix(".py")):
                if found.exists():
                    return importlib.util.spec_from_file_location(name, found)
        if name.partition(".")[0] in ("flashinfer", "torch", "numpy", "tqdm"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return Anything(spec.name)
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, StandIn())
found = importlib.import_module({name!r})
found._collect_metadata = lambda: dict(METADATA)
tuner = found.AutoTuner.get()
print("entries", len(tuner._file_configs))
for key, value in tuner._file_configs.items():
    print(repr((key, value)))
"""


def load(tmp_path: Path, flashinfer: str, metadata: dict[str, str]) -> list[str]:
    """Patch the release's autotuner with the set, import it with torch stood in for, and ask it."""
    found = catalogues.load(tuned(tmp_path, flashinfer)).get("my-moe")
    root = tmp_path / "root"
    with zipfile.ZipFile(wheel("flashinfer-python", flashinfer)) as archive:
        for member in archive.namelist():
            if member.startswith(("flashinfer/autotuner.py", "flashinfer/autotuner/")):
                archive.extract(member, root)
    for variant in (v for c in found.changes for v in c.variants):
        file = root / variant.path
        file.parent.mkdir(parents=True, exist_ok=True)
        if variant.kind is PayloadKind.FILE:
            file.write_bytes(variant.data)
        else:
            result = catalogues.edit(variant, file.read_bytes())
            assert isinstance(result, Changed), result
            file.write_bytes(result.data)
            name = variant.path[:-3].replace("/", ".")
    script = LOADER.format(metadata=metadata, root=str(root), name=name)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


PUBLISHED_GET = """
import os
class AutoTuner:
    _instance = None
    @classmethod
    def get(cls):
        if cls._instance is None:
            cls._instance = AutoTuner()
        return cls._instance
"""
RELEASES = ["0.6.8", "0.6.11.post1", "0.6.12", "0.6.14", "0.6.15.post1", "0.6.18", "0.7.2", "0.7.4"]


@pytest.mark.network
@pytest.mark.parametrize("version", RELEASES)
def test_the_published_autotuner_loads_every_entry_when_it_comes_into_being(
    tmp_path: Path, version: str
) -> None:
    lines = load(tmp_path, version, {**METADATA, "flashinfer_version": version})
    assert "entries 28" in lines
    assert any("Loaded 28 configs from" in line for line in lines)
    expected = {k: v for k, v in cache(version).items() if k != "_metadata"}
    for key, value in expected.items():
        assert repr((key, (value[0], value[1]))) in lines


@pytest.mark.network
@pytest.mark.parametrize("version", ["0.6.12", "0.7.2"])
@pytest.mark.parametrize("name", ["gpu", "cuda_version", "flashinfer_version"])
def test_on_another_gpu_or_version_the_published_autotuner_ignores_it(
    tmp_path: Path, version: str, name: str
) -> None:
    other = {**METADATA, "flashinfer_version": version, name: "other"}
    lines = load(tmp_path, version, other)
    assert "entries 0" in lines and any("different" in line for line in lines)


def test_the_hosts_own_cache_is_put_aside_while_the_set_is_on(tmp_path: Path) -> None:
    """It would win over the set, and what the set holds would be written into it."""
    into = tuned(tmp_path)
    fake_environment(tmp_path / "env", "0.6.12", "0.5.15.post1", autotuner=PUBLISHED_GET)
    ranks = tmp_path / "home" / ".cache/sglang/flashinfer/autotune/0.6.12/sm120/key/rank_tp0.json"
    ranks.parent.mkdir(parents=True)
    ranks.write_text("{}")
    here = ("--env", tmp_path / "env", "--extra-catalogue", into, "--allow-running")
    home = {"HOME": str(tmp_path / "home")}
    done = run("apply", "my-moe", "--gpu", "12.0", "--no-verify", *here, **home)
    assert done.code == 0, done.err
    assert not ranks.exists()
    assert run("revert", "--all", *here, **home).code == 0
    assert ranks.read_text() == "{}"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"_metadata": {**METADATA, "gpu": "NVIDIA B200"}}, "_metadata.gpu is 'NVIDIA B200'"),
        ({"_metadata": {**METADATA, "gpu": "*"}}, "no value of one environment"),
        ({"_metadata": {**METADATA, "flashinfer_version": "0.6.11"}}, "flashinfer_version"),
        ({"__import__('os').system('x')": ["MoERunner", 1]}, "no tuple"),
        ({"('trtllm::fused_moe::gemm1', 'MoERunner', f())": ["MoERunner", 1]}, "more than names"),
        ({"('other', 'MoERunner', ())": ["MoERunner", 1]}, "names no operation"),
        ({"('trtllm::fused_moe::gemm1', 'MoERunner', ())": ["Other", 1]}, "is not [MoERunner"),
        ({"('trtllm::fused_moe::gemm1', 'MoERunner', ())": ["MoERunner", "1"]}, "no number"),
        ({"('trtllm::fused_moe::gemm1', 'MoERunner',\x1b ())": ["MoERunner", 1]}, "line of ASCII"),
    ],
)
def test_a_cache_that_was_not_measured_so_is_refused(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    kept = tmp_path / "record.json"
    kept.write_text(json.dumps(json_record(cache={**cache("0.6.12"), **change})))
    done = run("tune", "my-moe", "--record", kept, "--into", tmp_path / "local")
    assert done.code == 2 and why in done.err, done.err
    assert not (tmp_path / "local").exists()


def test_every_fault_of_a_cache_is_named_at_once(tmp_path: Path) -> None:
    kept = tmp_path / "record.json"
    bad = {"('x', 'MoERunner', ())": ["MoERunner", 1], "(": ["MoERunner", 1]}
    kept.write_text(json.dumps(json_record("0.6.5", cache={**cache("0.6.5"), **bad})))
    done = run("tune", "my-moe", "--record", kept, "--into", tmp_path / "local")
    assert done.code == 2
    for why in ("names no operation", "no tuple", "0.6.5 is not known to read a JSON cache"):
        assert why in done.err


@pytest.mark.parametrize(
    ("versions", "finalize"), [(("0.6.12", "0.5.15.post1"), None), (("0.7.2", "0.5.23"), False)]
)
def test_sglang_that_keeps_a_json_cache_gets_one(
    tmp_path: Path, versions: tuple[str, str], finalize: bool | None
) -> None:
    site = fake_environment(tmp_path / "env", *versions)
    if finalize is not None:
        (site / "sglang/srt").mkdir()
        (site / "sglang/srt/environ.py").write_text(
            "class envs:\n    class SGLANG_FLASHINFER_MOE_FUSED_FINALIZE:\n"
            f"        get = staticmethod(lambda: {finalize})\n"
        )
    into = tmp_path / "local"
    done = run("tune", "my-moe", "--moe", f"{LAYER},tp=4", "--into", into, "--env",
               tmp_path / "env", "--output", "json")  # fmt: skip
    assert done.code == 0, done.out
    assert done.result["entries"] == 4
    kept = json.loads((into / "tuning" / "my-moe.json").read_text())
    assert "_generation" not in kept["cache"]
    last = (4, 1, True if finalize is None else finalize)
    assert all(key.endswith(f", {last})") for key in kept["cache"] if key != "_metadata")
    again = run("tune", "my-moe", "--record", into / "tuning" / "my-moe.json", "--into",
                tmp_path / "again")  # fmt: skip
    assert again.code == 0
    payloads = {p.name: sha256_hex(p.read_bytes()) for p in (into / "patches").rglob("*.*")}
    repeated = {p.name: sha256_hex(p.read_bytes())
                for p in (tmp_path / "again" / "patches").rglob("*.*")}  # fmt: skip
    assert payloads == repeated and len(payloads) == 2
