"""Runs on a GPU machine: limits that hold, results that are complete, multicast that stays off."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "gpu"
PRINT_ENV = "import json, os; print(json.dumps(dict(os.environ)))"
LEAVE_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print(child.pid, flush=True)
time.sleep(300)
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[ModuleType]:
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield importlib.import_module("machine")
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture
def run(tmp_path: Path, machine: ModuleType) -> Any:
    return machine.Run(tmp_path, 60.0, True)


def living(psutil: ModuleType, pid: int) -> bool:
    return bool(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie")


def noted(run: Any) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = json.loads((run.results / "run.json").read_text())["steps"]
    return steps


def test_multicast_is_off_in_every_step_even_if_asked_for(
    run: Any, machine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    wanted = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "0", "OTHER": "kept"}
    done = run.command("env", [sys.executable, "-c", PRINT_ENV], 30, env=wanted)
    seen = json.loads(done["output"])
    assert {name: seen[name] for name in machine.SAFE} == machine.SAFE
    assert seen["OTHER"] == "kept"


@pytest.mark.parametrize(
    "word", ["--enable-nccl-nvls", "--enable-symm-mem", "--enable-torch-symm-mem", "mnnvl"]
)
def test_options_that_use_multicast_are_refused(run: Any, machine: ModuleType, word: str) -> None:
    with pytest.raises(ValueError, match="stays off"):
        run.command("bad", [sys.executable, "-c", "pass", word], 5)
    with (
        pytest.raises(ValueError, match="stays off"),
        machine.serving(run, "bad", [sys.executable, word], 1, 1),
    ):
        pass


def test_a_limit_ends_a_step_and_what_it_started(run: Any) -> None:
    psutil = importlib.import_module("psutil")
    done = run.command("slow", [sys.executable, "-c", LEAVE_A_CHILD], 2)
    assert done["late"]
    child = int(done["output"])
    until = time.monotonic() + 10
    while (alive := living(psutil, child)) and time.monotonic() < until:
        time.sleep(0.05)  # a signal takes its time on a busy machine
    assert not alive
    assert noted(run)[-1]["late"]


def test_nothing_starts_when_the_time_of_the_run_is_over(
    tmp_path: Path, machine: ModuleType
) -> None:
    run = machine.Run(tmp_path, 0.5, True)
    done = run.command("never", [sys.executable, "-c", "print('ran')"], 30)
    assert (done["rc"], done["output"]) == (None, "")
    assert noted(run)[-1]["skipped"]


def test_a_second_run_in_a_directory_adds_to_the_first(tmp_path: Path, machine: ModuleType) -> None:
    first = machine.Run(tmp_path, 60, True)
    first.note("one", rc=0)
    first.know(torch="2.11")
    second = machine.Run(tmp_path, 60, True)
    second.note("two", rc=0)
    assert [(s["run"], s["step"]) for s in noted(second)] == [(1, "one"), (2, "two")]
    assert second.facts == {"torch": "2.11"}


def test_a_second_run_keeps_the_answers_and_readings_of_the_first(
    tmp_path: Path, machine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho reading\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    csv = tmp_path / "gpu.csv"
    for number, name in enumerate(("null.json", "null-2.json"), 1):
        again = machine.Run(tmp_path, 60, True)
        again.note("one")
        assert again.answer_file("null").name == name
        sampler = machine.Sampler(csv)
        until = time.monotonic() + 10
        while csv.read_text().count("reading") < number and time.monotonic() < until:
            time.sleep(0.02)
        sampler.stop()
    assert csv.read_text() == "reading\nreading\n"


def test_bytecode_is_written_whatever_the_machine_says(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the variable of the machine's image every server start took 25 seconds longer."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    done = run.command("env", [sys.executable, "-c", PRINT_ENV], 30)
    assert "PYTHONDONTWRITEBYTECODE" not in json.loads(done["output"])


def test_logs_of_an_earlier_run_are_not_those_of_this_one(run: Any, tmp_path: Path) -> None:
    fusion = importlib.import_module("fusion")
    logs = tmp_path / "logs"
    logs.mkdir()
    for name, when in (("fusion.1-baseline", 10), ("fusion.2-patched", 1000)):
        (logs / f"{name}.log").write_text("AllReduce Fusion enabled\n")
        os.utime(logs / f"{name}.log", (when, when))
    (tmp_path / "fusion.toml").write_text("")
    os.utime(tmp_path / "fusion.toml", (100, 100))
    fusion.read_logs(SimpleNamespace(run=run), "fusion")
    assert [step["step"] for step in noted(run)] == ["log fusion.2-patched.log"]


def test_a_part_that_fails_is_noted_and_the_run_goes_on(run: Any, machine: ModuleType) -> None:
    def fail() -> None:
        raise KeyError("what was missing")

    assert machine.attempt(run, "part", fail) is None
    assert "what was missing" in noted(run)[-1]["failed"]
    beside = machine.Background(run, "beside", fail)
    assert beside.join(10) is None
    assert len(noted(run)) == 2


def test_a_server_that_ends_by_itself_is_an_answer(run: Any, machine: ModuleType) -> None:
    argv = [sys.executable, "-c", "print('requires SM120'); raise SystemExit(3)"]
    with machine.serving(run, "gated", argv, 1, 30) as found:
        assert (found["ready"], found["rc"]) == (False, 3)
        assert machine.matching(found["log"], ["requires SM"]) == ["requires SM120"]


def test_a_server_is_gone_after_its_block(run: Any, machine: ModuleType) -> None:
    code = (
        "import http.server as h, sys\n"
        "class A(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "    def log_message(self, *a): pass\n"
        "h.HTTPServer(('127.0.0.1', int(sys.argv[1])), A).serve_forever()\n"
    )
    from tests.support.simulated import free_port

    port = free_port()
    with machine.serving(run, "up", [sys.executable, "-c", code, str(port)], port, 30) as found:
        assert found["ready"]
        assert machine.answers(port)
    until = time.monotonic() + 10
    while machine.answers(port) and time.monotonic() < until:
        time.sleep(0.1)
    assert not machine.answers(port)


def test_torch_that_would_use_multicast_stops_everything(
    run: Any, machine: ModuleType, tmp_path: Path
) -> None:
    for answer, refused in (([False, False], False), ([False, True], True), ([], True)):
        stub = tmp_path / "python"
        stub.write_text(f"#!/bin/sh\necho '{json.dumps({'multicast': answer})}'\n")
        stub.chmod(0o755)
        if refused:
            with pytest.raises(RuntimeError, match="multicast"):
                machine.require_no_multicast(run, str(stub))
        else:
            assert machine.require_no_multicast(run, str(stub))["multicast"] == answer


def test_the_tool_of_the_machine_has_what_it_needs() -> None:
    tomllib = pytest.importorskip("tomllib")
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    root = SCRIPTS.parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    lines = (SCRIPTS / "tool-packages.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    names = {canonicalize_name(name): version for name, version in pinned.items()}
    for text in project["dependencies"]:
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"python_version": "3.12"}):
            assert names[canonicalize_name(wanted.name)] in wanted.specifier
