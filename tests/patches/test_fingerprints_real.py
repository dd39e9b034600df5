"""On published packages: the index says what the codemods do, and is used in their place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm120patch import catalogue, fingerprints, variants
from sm120patch.model import Changed, Refused
from sm120patch.packages import open_package
from sm120patch.published import Shelf, known
from tests.patches import gates
from tests.support.command import CHECKOUT, run
from tests.support.environments import real_environment
from tests.support.tools import tool
from tests.support.wheels import PAIRS, cache_dir, wheel

pytestmark = pytest.mark.network

HEADER = gates.GATES["FI.A1"][0][0]
FAST = {"sglang": ("0.5.9", "0.5.14"), "flashinfer-python": ("0.6.3",)}


@pytest.mark.parametrize(
    ("target", "version"), [(target, v) for target, listed in FAST.items() for v in listed]
)
def test_known_edits_are_those_of_the_payloads(target: str, version: str) -> None:
    builder, loaded = tool("build_fingerprints"), catalogue.load()
    package = open_package(wheel(target, version))
    chains = builder.chains(loaded, target, version)
    known_edits = 0
    for path, data in package.read(chains).items():
        content = data
        for label, variant in chains[path]:
            for before in {data, content}:
                result = variants.run(variant, before)
                found = fingerprints.edit(variant, before)
                assert found == (None if isinstance(result, Refused) else result), label
                known_edits += found is not None
            if isinstance(result, Changed):
                content = result.data
    assert known_edits >= len(chains) > 0


@pytest.mark.slow
def test_the_whole_index_is_what_the_payloads_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", os.environ["SM120PATCH_TEST_REAL_HOME"])
    builder = tool("build_fingerprints")
    made = builder.build(catalogue.load(), known(), Shelf(cache_dir(), print), lambda _text: None)
    assert made == fingerprints._index(), "run `make fingerprints`"


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("real") / "env"
    real_environment(made, "0.5.9", PAIRS["0.5.9"])
    return made


PROBE = """
import sys
from sm120patch.cli.main import run
code = run(sys.argv[1:])
sys.exit(code or (50 if {"libcst", "sm120patch.codemod", "git"} & set(sys.modules) else 0))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "allreduce-fusion", "--gpu", "12.0"),
        ("plan", "allreduce-fusion", "--with", "auto-enable", "--with", "cluster-clamp"),
        ("status",),
    ],
)
def test_known_files_need_no_parser(prefix: Path, arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments, "--env", str(prefix)],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_status_audit_and_plan_name_what_somebodys_sed_has_made(tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    site = real_environment(prefix, "0.5.9", PAIRS["0.5.9"])
    recipe = "s/ && (__CUDA_ARCH__ < 1200)//"
    subprocess.run(["sed", "-i", recipe, str(site / HEADER)], check=True)
    expected = "this is allreduce-arch-gate/header-gates applied by hand"
    here = ("--env", prefix, "--output", "json")
    states = {s["id"]: s for s in run("status", *here).result["sets"]}
    assert states["allreduce-arch-gate"]["state"] == "edited"
    assert expected in states["allreduce-arch-gate"]["reason"]
    whole, file = run("audit", *here).result["findings"]
    assert file["kind"] == whole["kind"] == "by-hand"
    assert whole["path"] == "allreduce-arch-gate" and file["path"] == HEADER
    assert expected in file["detail"] and "without its" in whole["detail"]
    refused = run("plan", "allreduce-arch-gate", *here)
    assert refused.code == 5 and expected in refused.error["message"]


def test_a_file_of_another_release_is_named(tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    site = real_environment(prefix, "0.5.9", PAIRS["0.5.9"])
    other = open_package(wheel("sglang", "0.5.8")).read([gates.COMMUNICATOR])
    (site / gates.COMMUNICATOR).write_bytes(other[gates.COMMUNICATOR])
    states = {s["id"]: s for s in run("status", "--env", prefix, "--output", "json").result["sets"]}
    assert "this is the file of sglang 0.5.8" in states["sm120-checks"]["reason"]


def test_a_ledgers_file_that_somebody_took_further_is_named(tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    site = real_environment(prefix, "0.5.9", PAIRS["0.5.9"])
    apply = ("apply", "--no-verify", "--gpu", "12.0", "--allow-running", "--env", prefix)
    assert run(*apply, "sm120-checks", "--with", "auto-enable").code == 0
    path = site / gates.SERVER_ARGS
    original = open_package(wheel("sglang", "0.5.8")).read([gates.SERVER_ARGS])
    path.write_bytes(original[gates.SERVER_ARGS])
    (entry,) = [
        s
        for s in run("status", "--env", prefix, "--output", "json").result["sets"]
        if s["id"] == "sm120-checks"
    ]
    assert entry["state"] == "drifted" and "the file of sglang 0.5.8" in entry["reason"]
