"""A miniature SGLang host for whole commands: environment, catalogue, profiles, and its servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sm120patch.model import sha256_hex
from sm120patch.unified import make_diff
from tests.support.command import CHECKOUT, Ran, run
from tests.support.environments import create_venv, install_fake
from tests.support.manifests import head
from tests.support.simulated import (
    COMMUNICATOR,
    FLAG,
    GATE_CLOSED,
    GATE_OPEN,
    JIT,
    JIT_CLOSED,
    JIT_OPEN,
    TINY,
    free_port,
)

GOOD, BAD = "root-complex-2gpu", "slow-mild-regression"
LONG = """
[workload.long]
input_len = 16
output_len = 24
concurrency = 4
prompts = 200
repeats = 1
warmup = 200
"""
SLOWLY = ("--time-scale", "20")
"""With `LONG` every server is busy for some seconds: time to be met half way."""
LONGER = LONG.replace("200", "4000")
"""Half a minute a server: time for other commands, on a busy machine too."""
QUICK = "blocks = 1"
OTHER = "sglang/srt/other.py"
OTHER_TEXT = "value = 'upstream'\n"
FILES = {COMMUNICATOR: GATE_CLOSED, JIT: JIT_CLOSED, OTHER: OTHER_TEXT}
EDITS = {
    "runtime-gate": (COMMUNICATOR, GATE_OPEN),
    "jit-list": (JIT, JIT_OPEN),
    "other": (OTHER, OTHER_TEXT.replace("upstream", "other")),
}
"""Set -> the file it changes, and the content afterwards."""
DEPENDS = {"fusion": ("jit-list", "runtime-gate")}
FUSION = {"fusion", "jit-list", "runtime-gate"}
NEEDS = f"""
[[launch]]
target = "sglang"
versions = ">=0.5.8,<0.6"
args = ["{FLAG}"]
[launch.strip]
"{FLAG}" = 0
[[engagement]]
target = "sglang"
versions = ">=0.5.8,<0.6"
server-info = {{ enable_flashinfer_allreduce_fusion = true }}
log = 'FlashInfer workspace initialized for rank \\d+'
log-absent = 'falling back to standard implementation'
"""


def write_catalogue(root: Path) -> Path:
    """Four sets: `fusion` takes `jit-list` and `runtime-gate` along, `other` stands alone."""
    (root / "manifests").mkdir(parents=True)
    for name in (*EDITS, *DEPENDS):
        listed = ", ".join(f'"{other}"' for other in DEPENDS.get(name, ()))
        text = f"""{head(name)}
[host]
compute-capability = ["12.0"]
[relations]
depends = [{listed}]
[verification]
goal = "no-regression"
margin = 0.03
repeats = 3
blocks = 2
"""
        if name in EDITS:
            path, after = EDITS[name]
            diff = make_diff(path, FILES[path].encode(), after.encode()).encode()
            (root / "patches" / name).mkdir(parents=True)
            (root / "patches" / name / "edit.patch").write_bytes(diff)
            text += f"""
[[change]]
id = "edit"
target = "{"sglang" if path.startswith("sglang/") else "flashinfer-python"}"
summary = "Edit {path}"
description = "For tests."
[[change.variant]]
versions = ">=0.5,<1"
kind = "diff"
path = "{path}"
payload = "{name}/edit.patch"
sha256 = "{sha256_hex(diff)}"
present = {{ "{present(path, after)}" = 1 }}
"""
        text += NEEDS if name == "runtime-gate" else ""
        (root / "manifests" / f"{name}.toml").write_text(text)
    return root


def present(path: str, after: str) -> str:
    """A piece of text that only the patched file has."""
    pieces = {COMMUNICATOR: "or _is_sm120_supported)", JIT: "[9, 10, 12]", OTHER: "'other'"}
    assert pieces[path] in after and pieces[path] not in FILES[path]
    return pieces[path]


class Host:
    """One prepared environment below a temporary directory, and what runs on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.prefix = root / "env"
        self.site = create_venv(self.prefix)
        sources = {name: {f"{name}/__init__.py": b""} for name in ("sglang", "flashinfer")}
        for path, text in FILES.items():
            sources[path.split("/", 1)[0]][path] = text.encode()
        sources["flashinfer"]["flashinfer/_build_meta.py"] = b'__version__ = "0.6.3"\n'
        install_fake(self.site, "sglang", "0.5.9", sources["sglang"])
        install_fake(self.site, "flashinfer-python", "0.6.3", sources["flashinfer"])
        self.catalogue = write_catalogue(root / "catalogue")
        self.port = free_port()
        self.pristine = self.facts()

    # --- what is on disk -----------------------------------------------------------------------

    def facts(self) -> dict[str, tuple[bytes, int, int]]:
        """Every file of site-packages with mode and time; bytecode left out."""
        return {
            path.relative_to(self.site).as_posix(): (
                path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
            for path in sorted(self.site.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        }  # fmt: skip

    def patched(self) -> set[str]:
        """Sets whose content is on disk."""
        found = {n for n, (path, after) in EDITS.items() if self.content(path) == after}
        return found | {n for n, below in DEPENDS.items() if set(below) <= found}

    def content(self, path: str) -> str:
        return (self.site / path).read_text()

    @property
    def journal(self) -> Path:
        return self.prefix / ".sm120patch" / "journal.json"

    def litter(self) -> list[str]:
        found = [str(path) for path in self.prefix.rglob(".sm120patch-*")]
        return found + ([str(self.journal)] if self.journal.exists() else [])

    # --- commands ------------------------------------------------------------------------------

    @property
    def options(self) -> list[str]:
        return ["--env", str(self.prefix), "--catalogue", str(self.catalogue)]

    def run(self, *arguments: str | Path) -> Ran:
        """Run a command on this environment, with `--output json`."""
        done = run(*arguments, *self.options, "--output", "json", cwd=self.root)
        assert done.json["exit_code"] == done.code, "the envelope and the process must agree"
        return done

    def text(self, *arguments: str | Path) -> Ran:
        """Run a command on this environment as people do."""
        return run(*arguments, *self.options, cwd=self.root)

    def start(self, *arguments: str | Path) -> Running:
        """Start a command on this environment without waiting for it."""
        words = [*map(str, arguments), *self.options, "--output", "json"]
        return Running(words, self.root)

    def states(self) -> dict[str, str]:
        done = self.run("status")
        assert done.code == 0, done.out + done.err
        return {s["id"]: s["state"] for s in done.result["sets"]}

    def entry(self, name: str) -> dict[str, Any]:
        """What `status` says of one set."""
        done = self.run("status")
        assert done.code == 0, done.out + done.err
        return next(s for s in done.result["sets"] if s["id"] == name)

    def events(self) -> list[dict[str, Any]]:
        """History, newest first."""
        events: list[dict[str, Any]] = self.run("history").result["events"]
        return events

    # --- servers -------------------------------------------------------------------------------

    def server_command(self, scenario: str, *options: str) -> list[str]:
        return ["{tool_python}", "-m", "sm120patch.simhost", "--prefix", "{prefix}", "--scenario",
                scenario, "--port", "{port}", *options, "{set_args}"]  # fmt: skip

    def profile(
        self,
        scenario: str,
        *options: str,
        command: Sequence[str] | None = None,
        workloads: str = TINY,
        server: str = "",
        verify: str = "",
        name: str = "profile.toml",
        kind: str = "simulated",
    ) -> Path:
        """Write a profile that starts the simulated host; return its path."""
        words = json.dumps(list(command or self.server_command(scenario, *options)))
        path = self.root / name
        key = "restart_command" if 'mode = "external"' in server else "command"
        path.write_text(
            f'[server]\nkind = "{kind}"\n{key} = {words}\n'
            f'url = "http://127.0.0.1:{self.port}"\nstop_timeout = 10\n{server}\n'
            f"[server.env]\nPYTHONPATH = {json.dumps(str(CHECKOUT))}\n{workloads}\n"
            f"[verify]\n{verify}\n"
        )
        return path

    def servers(self) -> list[int]:
        """Living processes that serve this environment (a zombie does not)."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"--scenario" in words and str(self.prefix).encode() in words:
                found.append(int(entry.name))
        return found

    def kill_servers(self) -> None:
        """End the servers of this environment that a killed sm120patch left behind."""
        for pid in self.servers():
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not self.servers())


@dataclass
class Running:
    """A command under way; what it says is read line by line."""

    arguments: list[str]
    cwd: Path
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._grown = threading.Condition()
        self._closed = False
        self._done: Ran | None = None
        # A background job ignores ^C, and so would its children.
        inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sm120patch", *self.arguments],
                cwd=self.cwd,
                env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        finally:
            signal.signal(signal.SIGINT, inherited)
        self._out = ""
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read, self._take)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._grown:
                self.said.append(line.rstrip())
                self._grown.notify_all()
        with self._grown:
            self._closed = True
            self._grown.notify_all()

    def _take(self) -> None:
        """Read what it answers as it comes: a pipe holds only so much."""
        assert self.process.stdout is not None
        self._out = self.process.stdout.read()

    def wait_said(self, text: str, timeout: float = 60) -> None:
        """Wait until it has said a line with `text` in it."""
        with self._grown:
            self._grown.wait_for(
                lambda: self._closed or any(text in line for line in self.said), timeout
            )
        assert any(text in line for line in self.said), self.said

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def finish(self, timeout: float = 60) -> Ran:
        """Wait for its end; an overdue one is killed and the wait fails. May be called again."""
        if self._done is None:
            try:
                self.process.wait(timeout)
            finally:
                self.kill()
            for reader in self._readers:
                reader.join()
            with self.process:
                self._done = Ran(self.process.returncode, self._out, "\n".join(self.said))
        return self._done

    def kill(self) -> None:
        """End it without a word, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()


def wait_for(condition: Callable[[], object], timeout: float = 30) -> None:
    """Wait until `condition` holds; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def apply(host: Host, scenario: str, *options: str, verify: str = QUICK, **profile: Any) -> Ran:
    chosen = host.profile(scenario, verify=verify, **profile)
    return host.run("apply", "fusion", "--profile", chosen, *options)


def stage(host: Host, *sets: str) -> None:
    done = host.run("apply", *sets, "--no-verify")
    assert done.code == 0 and done.result["outcome"] == "staged", done.err


def assert_untouched(host: Host) -> None:
    """Bytes, modes and times of every file are as before, and nothing is under way."""
    assert host.facts() == host.pristine
    assert host.litter() == [] and host.servers() == []


def assert_nothing_written(host: Host) -> None:
    assert_untouched(host)
    assert not (host.prefix / ".sm120patch").exists()


def assert_applied(host: Host, done: Ran, verdict: str, outcome: str = "applied") -> None:
    assert done.code == 0, done.out + done.err
    assert done.result["outcome"] == outcome
    assert done.result["verification"]["verdict"] == verdict
    assert host.patched() == FUSION
    assert host.litter() == [] and host.servers() == []
    for entry in done.result["sets"]:
        assert (entry["state"], entry["label"]) == ("applied", "applied (simulated)")
        assert entry["counts"] is False, "simulated evidence never counts"
        assert (entry["evidence"]["kind"], entry["evidence"]["verdict"]) == ("simulated", verdict)
    assert host.states() == {**dict.fromkeys(FUSION, "applied"), "other": "absent"}


def assert_rejected(host: Host, done: Ran, verdict: str) -> None:
    assert done.code == 8, done.out + done.err
    assert done.result["outcome"] == "rejected" and done.json["ok"] is False
    assert done.result["verification"]["verdict"] == verdict
    assert done.result["launch"] is None, "there is nothing to restart with"
    assert_untouched(host)
    entry = host.entry("fusion")
    assert entry["state"] == "rejected" and entry["reason"].startswith(f"{verdict} (simulated) on ")
    newest = host.events()[0]
    assert (newest["kind"], set(newest["sets"])) == ("rejected", FUSION)
    assert (newest["data"]["verdict"], newest["data"]["kind"]) == (verdict, "simulated")


def assert_no_baseline(host: Host, done: Ran, code: str = "baseline-failed") -> None:
    assert done.code == 10, done.out + done.err
    assert done.error["code"] == code and done.error["hint"]
    assert_untouched(host)
    assert host.states()["fusion"] == "absent"
    assert host.events()[0]["kind"] == "failed"
