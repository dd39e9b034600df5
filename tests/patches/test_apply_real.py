"""Whole commands on the published packages, judged from outside: by AST, text and RECORD."""

from __future__ import annotations

import ast
import base64
import csv
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.patches import gates
from tests.patches.lines import (
    AUTO_ENABLE,
    JIT_ARCH_LIST,
    LINES,
    MULTICAST,
    PREFLIGHT,
    RUNTIME_GATE,
    line_edits,
)
from tests.support.command import Ran, run
from tests.support.environments import real_environment
from tests.support.wheels import PAIRS, shipped

pytestmark = pytest.mark.network

HEADER = f"{gates.INCLUDE}/trtllm_allreduce.cuh"
FUSED_HEADER = f"{gates.INCLUDE}/trtllm_allreduce_fusion.cuh"
SERVER_ARGS = gates.SERVER_ARGS

NEEDED = {
    "0.5.8": {"SG.A1", "SG.H1", "FI.A1", "FI.A2", "FI.A4-M1"},
    "0.5.9": {"SG.A1", "SG.H1", "FI.A1", "FI.A2", "FI.A4-M1"},
    "0.5.10.post1": {"SG.A1", "SG.H1", "FI.A1", "FI.A2", "FI.A4-M1"},
    "0.5.12.post1": {"SG.A1", "SG.A4", "SG.H1", "FI.A1", "FI.A2"},
}
"""Gates of the pair that are not optional. SG.A3 does not exist before 0.5.14, SG.A4 not before
0.5.11; FlashInfer 0.6.11.post1 allocates the workspace through torch, around FI.A4-M1."""
PAYLOADS = {
    gates.COMMUNICATOR: RUNTIME_GATE,
    gates.COMM_FUSION: PREFLIGHT,
    gates.JIT_COMM: JIT_ARCH_LIST,
    gates.MNNVL: MULTICAST,
    SERVER_ARGS: AUTO_ENABLE,
}
MODE, MTIME_NS = 0o640, 1_600_000_000_123_456_789
LITTER = re.compile(r"\.(orig|rej|tmp|bak|new)$|^\.sm120patch-|~$")
APPLY = ("apply", "allreduce-fusion", "--no-verify", "--gpu", "12.0")
OPTIONAL = (*APPLY, "--with", "auto-enable", "--with", "cluster-clamp")


def pairs(*fast: str) -> list[Any]:
    marks = {sglang: () if sglang in fast else pytest.mark.slow for sglang in PAIRS}
    return [pytest.param(sglang, id=sglang, marks=marks[sglang]) for sglang in PAIRS]


@dataclass(frozen=True)
class Fact:
    """One file as the file system shows it."""

    sha256: str
    mode: int
    mtime_ns: int


class Real:
    """An environment that holds one pair of published packages."""

    def __init__(self, prefix: Path, sglang: str) -> None:
        self.prefix = prefix
        self.versions = {"sglang": sglang, "flashinfer-python": PAIRS[sglang]}
        self.site = real_environment(prefix, sglang, PAIRS[sglang])
        for path in (*PAYLOADS, HEADER, FUSED_HEADER):
            if (self.site / path).exists():
                (self.site / path).chmod(MODE)
                os.utime(self.site / path, ns=(MTIME_NS, MTIME_NS))

    def run(self, *arguments: str) -> Ran:
        done = run(*arguments, "--env", self.prefix, "--output", "json")
        assert done.code == 0, done.out + done.err
        return done

    def facts(self) -> dict[str, Fact]:
        """Every file of site-packages but bytecode, which Python writes when it likes."""
        found = {}
        for path in sorted(self.site.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                status = path.lstat()
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                name = path.relative_to(self.site).as_posix()
                found[name] = Fact(digest, stat.S_IMODE(status.st_mode), status.st_mtime_ns)
        return found

    def differing(self) -> set[str]:
        """Files that do not hold what RECORD says; RECORD is parsed and hashed anew here."""
        lines = {}
        for record in self.site.glob("*.dist-info/RECORD"):
            with record.open(newline="") as rows:
                lines.update({path: digest for path, digest, _size in csv.reader(rows) if digest})
        assert len(lines) > 3000
        return {path for path, digest in lines.items() if digest != encoded(self.site / path)}

    def gates(self) -> dict[str, str]:
        """Gate -> what the independent judge says of it."""
        return {gate: self.gate(gate)[1] for gate in gates.GATES}

    def gate(self, gate: str) -> tuple[str, str]:
        """File in which a gate stands, and its state."""

        def read(path: str) -> bytes | None:
            file = self.site / path
            return file.read_bytes() if file.exists() else None

        return gates.find(gate, read) or ("", gates.ABSENT)

    def before(self, path: str) -> bytes:
        """What upstream published under that path."""
        package = "sglang" if path.startswith("sglang/") else "flashinfer-python"
        return shipped(path, self.versions[package])

    def litter(self) -> list[str]:
        return [str(path) for path in self.prefix.rglob("*") if LITTER.search(path.name)]

    def ledger(self) -> bytes:
        return (self.prefix / ".sm120patch" / "ledger.sqlite3").read_bytes()


def encoded(path: Path) -> str:
    digest = hashlib.sha256(path.read_bytes()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def assert_only_intended_lines(real: Real, path: str) -> None:
    before, after = real.before(path), (real.site / path).read_bytes()
    edits = line_edits(before, after)
    if path == HEADER:
        assert after == before.replace(b" && (__CUDA_ARCH__ < 1200)", b"")
        assert len(edits) == 26, "13 conditions, nothing else"
    elif path == FUSED_HEADER:
        assert [e for e in edits if e.startswith("-")] == ["-    cluster_size = 8;"]
        assert {e for e in edits if "max_cluster_size" in e}
    else:
        assert sorted(edits) in [sorted(lines) for lines in LINES[PAYLOADS[path]]]


def assert_parses(path: str, data: bytes, upstream: bytes) -> None:
    if path.endswith(".py"):
        compile(ast.parse(data), path, "exec", dont_inherit=True)
        return
    text, before = data.decode(), upstream.decode()
    opened = re.findall(r"^\s*#\s*(?:if|ifdef|ifndef)\b", text, re.MULTILINE)
    assert len(opened) == len(re.findall(r"^\s*#\s*endif\b", text, re.MULTILINE))
    for left, right in ("()", "{}"):
        # Comments and branches of the preprocessor leave some open in upstream's file too.
        assert text.count(left) - text.count(right) == before.count(left) - before.count(right)


def expected_files(real: Real, sglang: str) -> set[str]:
    return {real.gate(gate)[0] for gate in NEEDED[sglang] - {"SG.H1"}}


@pytest.mark.parametrize("sglang", pairs("0.5.9", "0.5.12.post1"))
def test_apply_opens_every_needed_gate_and_touches_nothing_else(
    tmp_path: Path, sglang: str
) -> None:
    real = Real(tmp_path / "env", sglang)
    pristine, closed = real.facts(), real.gates()
    for gate in NEEDED[sglang] - {"SG.H1"}:
        assert closed[gate] == gates.CLOSED, "otherwise this test shows nothing"
    done = real.run(*APPLY)
    opened = {gate for gate, state in real.gates().items() if state == gates.OPEN}
    assert opened == NEEDED[sglang], real.gates()
    assert real.gates()["SG.A2"] == gates.CLOSED and real.gates()["FI.A3"] == gates.CLOSED
    files = expected_files(real, sglang)
    assert real.differing() == files
    assert {f["path"] for f in done.result["plan"]["files"]} == files
    after = real.facts()
    assert {p for p in after if after[p] != pristine.get(p)} == files
    assert after.keys() == pristine.keys(), "no file was added or lost"
    for path in files:
        assert after[path].mode == MODE
        assert_parses(path, (real.site / path).read_bytes(), real.before(path))
        assert_only_intended_lines(real, path)
    assert real.litter() == []
    assert {s["id"]: (s["state"], s["counts"]) for s in done.result["sets"]} == dict.fromkeys(
        ("allreduce-fusion", "allreduce-arch-gate", "sm120-checks"), ("staged", False)
    )
    assert done.result["launch"]["args"] == ["--enable-flashinfer-allreduce-fusion"]


@pytest.mark.parametrize("sglang", pairs("0.5.9"))
def test_apply_twice_is_once_and_revert_is_record(tmp_path: Path, sglang: str) -> None:
    real = Real(tmp_path / "env", sglang)
    pristine = real.facts()
    real.run(*APPLY)
    once, ledger = real.facts(), real.ledger()
    again = real.run(*APPLY)
    assert again.result["outcome"] == "nothing"
    assert again.result["plan"]["noop"] is True
    assert real.facts() == once and real.ledger() == ledger
    reverted = real.run("revert", "--all")
    assert reverted.result["outcome"] == "reverted"
    assert real.differing() == set()
    assert real.facts() == pristine, "bytes, modes and times"
    assert real.litter() == []
    assert real.run("audit").result["findings"] == []
    assert real.run(*APPLY).result["outcome"] == "staged", "and it can be applied again"
    assert {p: f.sha256 for p, f in real.facts().items()} == {p: f.sha256 for p, f in once.items()}


@pytest.mark.parametrize("sglang", pairs("0.5.9"))
def test_optional_changes_come_only_when_selected_and_go_with_the_rest(
    tmp_path: Path, sglang: str
) -> None:
    real = Real(tmp_path / "env", sglang)
    pristine = real.facts()
    done = real.run(*OPTIONAL)
    opened = {gate for gate, state in real.gates().items() if state == gates.OPEN}
    assert opened == NEEDED[sglang] | {"SG.A2", "FI.A3"}, real.gates()
    files = expected_files(real, sglang) | {SERVER_ARGS, FUSED_HEADER}
    assert real.differing() == files
    for path in files:
        assert_parses(path, (real.site / path).read_bytes(), real.before(path))
        assert_only_intended_lines(real, path)
    selected = {s["id"]: s["with"] for s in done.result["sets"]}
    assert selected["sm120-checks"] == ["auto-enable"]
    assert selected["allreduce-arch-gate"] == ["cluster-clamp"]
    real.run("revert", "--all")
    assert real.facts() == pristine


def test_an_optional_change_alone_leaves_the_other_optional_gate_closed(tmp_path: Path) -> None:
    real = Real(tmp_path / "env", "0.5.9")
    real.run(*APPLY, "--with", "sm120-checks/auto-enable")
    assert real.gates()["SG.A2"] == gates.OPEN
    assert real.gates()["FI.A3"] == gates.CLOSED
    real.run("apply", "sm120-checks", "--no-verify", "--gpu", "12.0")
    assert real.gates()["SG.A2"] == gates.CLOSED, "naming the set restates the selection"
    assert real.gates()["SG.A1"] == gates.OPEN


def test_the_gate_that_one_pair_leaves_closed_is_off_its_path() -> None:
    """0.6.11.post1 still has FI.A4-M1 in its source, but its workspace does not come through it."""
    assert gates.judge("FI.A4-M1", shipped(gates.MNNVL, PAIRS["0.5.12.post1"])) == gates.CLOSED
    built = {}
    for sglang in ("0.5.10.post1", "0.5.12.post1"):
        tree = ast.parse(shipped("flashinfer/comm/trtllm_ar.py", PAIRS[sglang]))
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
        built[sglang] = [n for n in calls if ast.unparse(n.func) == "SymmDeviceMemory"]
    assert built["0.5.10.post1"] and not built["0.5.12.post1"]
