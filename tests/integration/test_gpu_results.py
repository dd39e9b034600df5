"""What is kept of the runs on GPUs, and the document that is made from it."""

from __future__ import annotations

import importlib
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "gpu"
GPU = {"index": 1, "power_w": {"mean": 188.6, "min": 128.2, "max": 218.4}, "throttled": {},
       "sm_mhz": {"min": 1900, "max": 1980}, "mem_mhz": {"mean": 3201.0}, "util": {"mean": 35.1},
       "temp_c": {"max": 38}}  # fmt: skip
REPEAT = {"output_throughput": 1234.5678, "mean_tpot_ms": 2.5, "p99_tpot_ms": 3.0,
          "mean_ttft_ms": 20.0, "completed": 8, "failed": 0, "not_kept": 1}  # fmt: skip
SECRET = "0123456789abcdef"


@pytest.fixture(scope="module")
def results() -> Iterator[ModuleType]:
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield importlib.import_module("results")
    finally:
        sys.path.remove(str(SCRIPTS))


def answer(kind: str) -> dict[str, Any]:
    blocks = [{"ready_seconds": 60.0, "workloads": {"c64": [REPEAT, REPEAT]},
               "telemetry": {"gpus": [GPU], "series": {"power_w": [[1.0]]}}}]  # fmt: skip
    return {
        "result": {
            "outcome": "staged",
            "verification": {
                "verdict": "inconclusive", "kind": kind, "goal": "no-regression", "margin": 0.03,
                "reasons": ["c64: +1.0 %"], "advice": "quiet the host", "duration": 300.0,
                "blocks_run": ["baseline", "patched"], "intervals": {}, "workloads": [],
                "arms": {"baseline": {"blocks": blocks}, "patched": {"blocks": blocks}},
                "correctness": {"comparable": [], "faults": [], "answers": {}},
            },
        }
    }  # fmt: skip


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    steps = [
        {"step": "fusion-stage", "at": 70.0, "rc": 0, "outcome": "staged", "errors": "talk",
         "sets": {"rehearsal-allreduce-fusion": "staged"}, "others": {"absent": 3}},
        {"step": "control-with-option", "at": 99.0, "ready": False, "rc": -9, "engaged": False,
         "lines": ["ValueError: FlashInfer allreduce fusion requires SM120 or SM10X"]},
        {"step": "kernel-1-published", "at": 100.0, "sha256": "a" * 64, "seconds": 20.123456789,
         "compiled": ["x.o"], "output": "b" * 64, "scale": 1.0, "milliseconds": [0.1, 0.2, 0.3]},
        {"step": "bench-awake-0", "at": 110.0, "figures": {
            "completed": 256, "output_throughput": 9000.0, "mean_ttft_ms": 1.0,
            "mean_tpot_ms": 2.0, "p99_tpot_ms": 3.0}},
    ]  # fmt: skip
    run = {"dry": False, "facts": {"kernel": "Linux 6.18 (gcc)"}, "steps": steps}
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "fusion-verify.json").write_text(json.dumps(answer("rehearsal")))
    host = {
        "machine_id": SECRET, "fingerprint": SECRET, "machine_id_source": "gpus",
        "topology": ["2-gpus", "nvlink"], "gpus": [{"name": "NVIDIA H200", "uuid": SECRET}],
    }  # fmt: skip
    report = {"result": {"evidence": {"data": {"host": host}}}}
    (folder / "fusion-report.json").write_text(json.dumps(report))
    (folder / "gpu.csv").write_text(
        "t, 0, 345, 3201, 75.1, 30, 0, 100\nt, 0, 1980, 3201, 400.5, 55, 97, 9000\nbroken\n"
    )
    target = tmp_path / "results.tar.xz"
    with tarfile.open(target, "w:xz") as tar:
        tar.add(folder, arcname="results")
    return target


def test_every_repeat_is_kept_and_no_identifier(archive: Path, results: ModuleType) -> None:
    kept = results.keep(archive)
    found = kept["verifications"]["fusion-verify"]
    assert (found["verdict"], found["kind"], found["outcome"]) == (
        "inconclusive",
        "rehearsal",
        "staged",
    )
    assert [start["arm"] for start in found["starts"]] == ["baseline", "patched"]
    repeats = found["starts"][0]["repeats"]["c64"]
    assert [r["output_throughput"] for r in repeats] == [1234.57, 1234.57]
    assert "not_kept" not in repeats[0]
    assert kept["gpus"]["0"]["watts"] == [75.1, 400.5]
    assert kept["gpus"]["0"]["busy_median"]["sm_mhz"] == 1980
    assert SECRET not in json.dumps(kept)
    assert "not about SM120" in kept["note"] or "Nothing here is about SM120" in kept["note"]


def test_the_document_says_in_every_result_that_it_is_not_sm120(
    archive: Path, results: ModuleType
) -> None:
    text = results.write({"A run": results.keep(archive)})
    headings = [line for line in text.splitlines() if line.startswith("### ")]
    assert len(headings) == 4
    assert all("not SM120" in line for line in headings)
    assert "| 1 baseline | 60 | c64 | 1 | 1234.6 |" in text
    assert "| 2 patched | 1 | 189 (128 to 218) | 1900 to 1980 | 3201 | 35 | 38 | no |" in text
    assert "requires SM120 or SM10X" in text
    assert "2-gpus, nvlink; named by gpus" in text
    assert "| kernel-1-published | 20.12 | x.o |" in text


def test_the_committed_document_is_made_from_the_committed_numbers(results: ModuleType) -> None:
    if not results.KEPT.exists():
        pytest.skip("no run is on record")
    assert results.DOCUMENT.read_text() == results.write(results.kept(), results.summary())
    for run in results.kept().values():
        assert not run["dry"]
        kinds = {found["kind"] for found in run["verifications"].values()}
        assert kinds <= {"rehearsal"}, "evidence from a copy is never real"


def test_answers_of_later_runs_come_after_those_of_the_first(results: ModuleType) -> None:
    names = ("trap-3", "fusion-verify-2", "null-one", "null", "fusion-verify", "fusion-report-2",
             "null-status")  # fmt: skip
    found = results._measured({f"results/{name}.json": b"" for name in names})
    assert found == ["fusion-verify", "null", "null-one", "fusion-verify-2", "trap-3"]


def test_the_document_tells_how_far_apart_the_answers_were(results: ModuleType) -> None:
    probe = {"tokens": 8, "agreed": 6, "settled": 8, "worst_logprob_difference": 0.0293}
    told = results._agreed({"agreement": {"count": probe, "copy": {**probe, "agreed": 8}}})
    assert "14 of 16 tokens of 2 questions" in told and "at most 0.029 apart" in told
    assert results._agreed({"agreement": {}}) == "", "runs of before have kept none of it"


def test_no_place_on_the_machine_is_kept(results: ModuleType) -> None:
    text = "/opt/t/bin/python3 -m x /opt/t/lib/python3.12/site-packages /tmp/g/run"
    assert results._scrubbed(text) == "python3 -m x $PYTHON/site-packages $RUN"
