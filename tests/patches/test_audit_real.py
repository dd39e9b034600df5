"""Audits and adoptions on the published wheels: what hands have made of them has a name."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from sm120patch.packages import open_package
from tests.patches import gates
from tests.support.command import run
from tests.support.environments import real_environment, tree_digest
from tests.support.wheels import wheel

pytestmark = pytest.mark.network

FUSION = ("allreduce-fusion", "--no-verify", "--gpu", "12.0", "--allow-running")
JIT = "flashinfer/jit/comm.py"
PAIR = ("0.5.9", "0.6.3")


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Site-packages with the whole set, and the files that it changed."""
    prefix = tmp_path_factory.mktemp("patched") / "env"
    site = real_environment(prefix, *PAIR)
    before = tree_digest(site)
    assert run("apply", *FUSION, "--env", prefix).code == 0
    after = tree_digest(site)
    return site, sorted(path for path in after if after[path] != before.get(path))


@pytest.fixture
def by_hand(tmp_path: Path, patched: tuple[Path, list[str]]) -> tuple[Path, Path]:
    """A fresh environment in which somebody made the same edits, but forgot one."""
    prefix = tmp_path / "env"
    site = real_environment(prefix, *PAIR)
    copy(patched[0], site, (path for path in patched[1] if path != JIT))
    return prefix, site


def copy(source: Path, site: Path, paths: Iterable[str]) -> None:
    for path in paths:
        shutil.copyfile(source / path, site / path)


def findings(prefix: Path) -> list[dict[str, Any]]:
    ran = run("audit", "--env", prefix, "--output", "json")
    assert ran.code in (0, 1), ran.err
    found: list[dict[str, Any]] = ran.result["findings"]
    return found


def rewrite_record(site: Path, path: str) -> None:
    """What tools do that keep RECORD in step with their edits."""
    data = (site / path).read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    for record in site.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines()
        new = [
            f"{path},sha256={digest},{len(data)}" if line.startswith(f"{path},") else line
            for line in lines
        ]
        record.write_text("\n".join(new) + "\n")


def test_the_set_is_named_with_the_change_that_was_forgotten(by_hand: tuple[Path, Path]) -> None:
    whole = [f for f in findings(by_hand[0]) if f["target"] == "-"]
    assert [f["detail"] for f in whole] == [
        "this is allreduce-fusion applied by hand, without its jit-arch-list change"
    ]
    assert whole[0]["hint"] == "sm120patch adopt allreduce-fusion --complete"


def test_it_is_adopted_completed_and_reverted_to_upstreams_bytes(
    by_hand: tuple[Path, Path],
) -> None:
    prefix, _site = by_hand
    options = ("--gpu", "12.0", "--env", prefix, "--output", "json", "--offline")
    packages = [
        f"--pristine={wheel(name, version)}"
        for name, version in zip(("sglang", "flashinfer-python"), PAIR, strict=True)
    ]
    partial = run("adopt", "allreduce-fusion", *packages, *options)
    assert partial.code == 5 and "jit-arch-list" in partial.error["message"]
    ran = run("adopt", "allreduce-fusion", "--complete", "--allow-running", *packages, *options)
    assert ran.code == 0, ran.out
    assert ran.result["completed"] == [JIT]
    assert {f["kind"] for f in findings(prefix)} == {"unverified"}
    assert run("revert", "--all", "--allow-running", "--env", prefix).code == 0
    assert findings(prefix) == []


def test_a_record_that_was_rewritten_along_with_the_file_is_seen_through(
    by_hand: tuple[Path, Path], patched: tuple[Path, list[str]]
) -> None:
    prefix, site = by_hand
    for path in patched[1]:
        rewrite_record(site, path)
    found = {(f["kind"], f["path"]) for f in findings(prefix)}
    expected = {("record", path) for path in patched[1] if path != JIT}
    assert expected <= found and ("by-hand", "allreduce-fusion") in found
    assert ("foreign", JIT) not in found


def test_a_file_of_another_release_with_its_own_line_in_record_is_seen_through(
    tmp_path: Path,
) -> None:
    prefix = tmp_path / "env"
    site = real_environment(prefix, *PAIR)
    other = open_package(wheel("sglang", "0.5.8")).read([gates.COMMUNICATOR])
    (site / gates.COMMUNICATOR).write_bytes(other[gates.COMMUNICATOR])
    rewrite_record(site, gates.COMMUNICATOR)
    (found,) = findings(prefix)
    assert (found["kind"], found["path"]) == ("record", gates.COMMUNICATOR)
    assert "the file of sglang 0.5.8" in found["detail"]


def test_any_content_with_its_own_line_in_record_is_seen_through(tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    site = real_environment(prefix, *PAIR)
    with (site / gates.COMMUNICATOR).open("a") as stream:
        stream.write("# somebody was here\n")
    rewrite_record(site, gates.COMMUNICATOR)
    (found,) = findings(prefix)
    assert (found["kind"], found["path"]) == ("record", gates.COMMUNICATOR)
    assert found["detail"] == "RECORD agrees, but this is not what was published as 0.5.9"


def test_the_published_recipe_for_the_header_is_told_apart_from_the_whole_set(
    tmp_path: Path,
) -> None:
    prefix = tmp_path / "env"
    site = real_environment(prefix, *PAIR)
    header = site / "flashinfer/data/include/flashinfer/comm/trtllm_allreduce.cuh"
    recipe = "s/ && (__CUDA_ARCH__ < 1200)//"
    subprocess.run(["sed", "-i", recipe, header], check=True)
    whole, file = findings(prefix)
    assert whole["path"] == "allreduce-arch-gate" and "without its" in whole["detail"]
    assert "jit-arch-list" in whole["detail"] and file["sets"] == ["allreduce-arch-gate"]
