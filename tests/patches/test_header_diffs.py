"""The CUDA header diffs on the published FlashInfer wheels, judged by text and by other tools."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sm120patch import catalogue, unified
from sm120patch.model import Changed, Unchanged, Variant
from tests.support.wheels import PAIRS, published

pytestmark = pytest.mark.network

HEADERS = "flashinfer/data/include/flashinfer/comm"
GATE = b" && (__CUDA_ARCH__ < 1200)"
RELEASES = [
    *(pytest.param(version) for version in ("0.2.10", *sorted(set(PAIRS.values())))),
    *(
        pytest.param(version, marks=pytest.mark.slow)
        for version in (
            "0.2.9", "0.2.11.post3", "0.2.13", "0.2.14.post1", "0.3.0", "0.3.1", "0.4.0rc3",
            "0.4.0", "0.4.1", "0.5.0", "0.5.2", "0.5.3", "0.6.6", "0.6.7.post2", "0.6.8.post1",
            "0.6.12", "0.6.14", "0.6.15.post1", "0.6.16.post4",
        )
    ),
]  # fmt: skip
"""Releases that need the diffs: those of the fast run, and the rest of what SGLang pinned."""


def read(version: str, path: str) -> bytes:
    data = published("flashinfer-python", version, path)
    assert data is not None
    return data


def variant(change_id: str, version: str) -> Variant:
    change = catalogue.load().get("allreduce-arch-gate").change(change_id)
    assert change is not None
    found, reason = catalogue.choose(change, {"flashinfer-python": version})
    assert isinstance(found, Variant), reason
    return found


@pytest.mark.parametrize("version", RELEASES)
def test_the_gates_are_lifted_and_nothing_else_changes(version: str) -> None:
    chosen = variant("header-gates", version)
    before = read(version, chosen.path)
    assert before.count(GATE) == 13
    assert catalogue.edit(chosen, before) == Changed(before.replace(GATE, b""), 13)


@pytest.mark.parametrize("version", RELEASES)
def test_the_clamp_adds_one_function_and_its_call(version: str) -> None:
    chosen = variant("cluster-clamp", version)
    before = read(version, chosen.path)
    result = catalogue.edit(chosen, before)
    assert isinstance(result, Changed)
    kept = [line for line in before.split(b"\n") if line != b"    cluster_size = 8;"]
    added = iter(result.data.split(b"\n"))
    assert all(line in added for line in kept), "the other lines stand there in their order"
    assert result.data.count(b"get_max_cluster_size") == 2
    assert result.data.count(b"{") == result.data.count(b"}")


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("change_id", ["header-gates", "cluster-clamp"])
def test_twice_is_once_and_the_reverse_is_the_published_header(
    version: str, change_id: str
) -> None:
    chosen = variant(change_id, version)
    before = read(version, chosen.path)
    result = catalogue.edit(chosen, before)
    assert isinstance(result, Changed)
    assert isinstance(catalogue.edit(chosen, result.data), Unchanged)
    back = unified.apply(chosen.data, chosen.path, result.data, reverse=True)
    assert back == Changed(before, result.sites)


@pytest.mark.parametrize("change_id", ["header-gates", "cluster-clamp"])
def test_crlf_headers_stay_crlf(change_id: str) -> None:
    chosen = variant(change_id, "0.6.3")
    before = read("0.6.3", chosen.path)
    plain, dos = (catalogue.edit(chosen, data) for data in (before, before.replace(b"\n", b"\r\n")))
    assert isinstance(plain, Changed)
    assert dos == Changed(plain.data.replace(b"\n", b"\r\n"), plain.sites)


@pytest.mark.skipif(not shutil.which("patch"), reason="GNU patch is the referee")
@pytest.mark.parametrize("change_id", ["header-gates", "cluster-clamp"])
def test_gnu_patch_without_fuzz_makes_the_same_of_it(tmp_path: Path, change_id: str) -> None:
    chosen = variant(change_id, "0.6.3")
    before = read("0.6.3", chosen.path)
    (tmp_path / "header").write_bytes(before)
    (tmp_path / "diff").write_bytes(chosen.data)
    command = ["patch", "--fuzz=0", "--silent", "header", "diff"]
    subprocess.run(command, cwd=tmp_path, check=True)
    result = catalogue.edit(chosen, before)
    assert isinstance(result, Changed)
    assert (tmp_path / "header").read_bytes() == result.data


@pytest.mark.slow
def test_the_release_that_has_the_gates_lifted_counts_as_upstream() -> None:
    chosen = variant("header-gates", "0.6.16.post4")
    assert catalogue.satisfied(chosen, read("0.6.17", chosen.path))
