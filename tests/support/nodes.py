"""A fleet on this machine: nodes with real environments, an inventory, and Ansible run on it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.command import CHECKOUT, Ran, run
from tests.support.environments import real_environment
from tests.support.serving import Host
from tests.support.simulated import TINY, free_port

COLLECTIONS = CHECKOUT / "sm120patch" / "collections"
COLLECTION = COLLECTIONS / "ansible_collections" / "sm120patch" / "fleet"
TOOL = Path(sys.executable).with_name("sm120patch")
GAINS, REGRESSES = "root-complex-2gpu", "slow-mild-regression"
HOOK = """\
- name: Note that the hook ran
  ansible.builtin.command:
    argv: [sh, -c, 'echo "$1" >> "$2"', sh, "{event}", "{{{{ node_log }}}}"]
  changed_when: true
"""

KILLER = """\
#!{python}
import pathlib, subprocess, sys, time
words = sys.argv[1:]
killed = pathlib.Path(sys.argv[0]).with_name("an-apply-was-killed")
if words[0] in {fails} and killed.exists():
    sys.exit("no such luck")
if words[0] != "apply" or "--dry-run" in words:
    sys.exit(subprocess.run([{tool!r}, *words]).returncode)
tool = subprocess.Popen([{tool!r}, *words])
site = pathlib.Path({prefix!r})
while tool.poll() is None:
    files = [*site.glob("lib/python*/site-packages/sglang/srt/layers/communicator.py")]
    if any("_is_sm120_supported)" in file.read_text() for file in files):
        tool.kill()
        killed.touch()
    time.sleep(0.002)
sys.exit(137)
"""
"""The tool, but killed by the kernel (as where memory runs out) once the files are patched."""


def ansible(command: str = "ansible-playbook") -> str:
    """Path of a command of ansible-core; skips the test where it is not installed."""
    found = Path(sys.executable).with_name(command)
    if not found.exists():
        pytest.skip(f"{command} is not installed beside {sys.executable}: the extra `dev` has it")
    return str(found)


def everything(root: Path) -> dict[str, str]:
    """Every file and link below `root` with content, mode and time; bytecode included."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        data = b""
        if path.is_symlink():
            data = str(path.readlink()).encode()
        elif path.is_file():
            data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        when = "" if path.is_dir() and not path.is_symlink() else status.st_mtime_ns
        found[path.relative_to(root).as_posix()] = f"{digest} {status.st_mode:o} {when}"
    return found


def packages(root: Path) -> dict[str, str]:
    """The same without our state directory and without bytecode."""
    return {
        path: fact
        for path, fact in everything(root).items()
        if not path.startswith(".sm120patch") and "__pycache__" not in path
    }


@dataclass
class Node:
    """One host of the inventory, and the environment that it has."""

    name: str
    root: Path
    prefix: Path
    sets: list[str]
    catalogue: Path | None = None
    port: int = field(default_factory=free_port)
    variables: dict[str, Any] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    """Variables that the inventory does not name."""

    def __post_init__(self) -> None:
        self.before = everything(self.prefix)
        self.serve(GAINS)

    @classmethod
    def small(cls, root: Path, name: str) -> Node:
        """Miniature packages and a catalogue for them: quick to make."""
        host = Host(root / name)
        return cls(name, root / name, host.prefix, ["fusion"], host.catalogue)

    @classmethod
    def real(cls, root: Path, name: str, sglang: str, flashinfer: str) -> Node:
        """Published wheels and the shipped catalogue."""
        real_environment(root / name / "env", sglang, flashinfer)
        return cls(name, root / name, root / name / "env", ["allreduce-fusion"])

    @property
    def profile(self) -> Path:
        return self.root / "profile.toml"

    @property
    def log(self) -> Path:
        return self.root / "hooks.log"

    @property
    def home(self) -> Path:
        return self.root / "tool"

    def serve(self, scenario: str, *options: str, late: int = 0) -> None:
        """Say how the server of this node is started: a simulated host of that scenario.

        It begins `late` seconds after it was started.
        """
        words = ["sh", "-c", f'sleep {late}; exec "$@"', "sh"] if late else []
        words += ["{tool_python}", "-m", "sm120patch.simhost", "--prefix", "{prefix}",
                 "--scenario", scenario, "--port", "{port}", *options, "{set_args}"]  # fmt: skip
        self.profile.write_text(
            f'[server]\nkind = "simulated"\ncommand = {json.dumps(words)}\n'
            f'url = "http://127.0.0.1:{self.port}"\nstop_timeout = 10\n'
            f"[server.env]\nPYTHONPATH = {json.dumps(str(CHECKOUT))}\n{TINY}\n"
            "[verify]\nblocks = 1\n"
        )

    @property
    def described(self) -> dict[str, Any]:
        """What the inventory says of it."""
        catalogue = {} if self.catalogue is None else {"sm120patch_catalogue": str(self.catalogue)}
        described = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "sm120patch_environment": str(self.prefix),
            "sm120patch_sets": self.sets,
            "sm120patch_profile": str(self.profile),
            "sm120patch_home": str(self.home),
            "sm120patch_executable": str(TOOL),
            "node_log": str(self.log),
            **catalogue,
            **self.variables,
        }
        return {name: value for name, value in described.items() if name not in self.left_out}

    @property
    def hooks(self) -> list[str]:
        """Hooks that ran, in order."""
        return self.log.read_text().split() if self.log.exists() else []

    @property
    def journal(self) -> Path:
        """There while a change is under way."""
        return self.prefix / ".sm120patch" / "journal.json"

    def snapshot(self) -> dict[str, str]:
        """Everything below the prefix as it is now."""
        return everything(self.prefix)

    def kill_tools(self) -> None:
        """Kill what a killed playbook left running for this node: the tool, and its servers."""
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if str(self.prefix) in words and "sm120patch" in " ".join(words):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
                    process.wait(10)

    def kill_applies(self, *fails: str) -> None:
        """Let `apply` be killed once files are patched; then `fails` give no answer any more."""
        wrapper = self.root / "killed"
        wrapper.write_text(KILLER.format(
            python=sys.executable, tool=str(TOOL), fails=fails, prefix=str(self.prefix)
        ))  # fmt: skip
        wrapper.chmod(0o755)
        self.variables["sm120patch_executable"] = str(wrapper)

    def run(self, *arguments: str) -> Ran:
        """Run the tool on the environment of this node."""
        catalogue = [] if self.catalogue is None else ["--catalogue", str(self.catalogue)]
        return run(*arguments, "--env", self.prefix, *catalogue, "--output", "json")

    def states(self) -> dict[str, str]:
        return {s["id"]: s["state"] for s in self.run("status").result["sets"]}

    @property
    def state(self) -> str:
        """State of the set that is asked for."""
        return self.states()[self.sets[0]]

    def assert_untouched(self) -> None:
        """Nothing at all was written below the prefix, and no hook ran."""
        assert everything(self.prefix) == self.before
        assert self.hooks == []

    def assert_as_before(self) -> None:
        """Every file of the packages has its content, mode and time from before."""
        now = packages(self.prefix)
        old = {p: f for p, f in self.before.items() if "__pycache__" not in p}
        assert now == old


@dataclass(frozen=True)
class Played:
    """What a run of ansible-playbook came to."""

    code: int
    out: str

    @property
    def recap(self) -> dict[str, dict[str, int]]:
        """Node -> the counters of the last lines."""
        lines = re.findall(r"^(\S+)\s+: (ok=.*)$", self.out, re.MULTILINE)
        return {
            node: {name: int(n) for name, n in re.findall(r"(\w+)=(\d+)", counters)}
            for node, counters in lines
        }

    def count(self, counter: str) -> dict[str, int]:
        """Node -> one counter, where it is not 0."""
        return {node: found[counter] for node, found in self.recap.items() if found[counter]}


class Fleet:
    """Nodes, the directory of their inventory, and playbooks run on them."""

    def __init__(self, root: Path, *nodes: Node) -> None:
        self.root = root
        self.nodes = nodes
        self.facts = root / "facts"
        self.hooks = root / "hooks"
        self.path = os.environ["PATH"]
        self.hooks.mkdir(parents=True)
        for event in ("drain", "resume"):
            (self.hooks / f"{event}.yml").write_text(HOOK.format(event=event))
        self.variables: dict[str, Any] = {
            "sm120patch_hooks": ["hooks"],
            "sm120patch_allow_simulated": True,
            "sm120patch_busy_delay": 1,
        }

    @property
    def environment(self) -> dict[str, str]:
        """Variables for Ansible: nothing outside the temporary directory is read or written."""
        return {
            **os.environ,
            "PATH": self.path,
            "PYTHONPATH": str(CHECKOUT),
            "ANSIBLE_HOME": str(self.root / "ansible"),
            "ANSIBLE_LOCAL_TEMP": str(self.root / "ansible" / "local"),
            "ANSIBLE_REMOTE_TMP": str(self.root / "ansible" / "remote"),
            "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
            "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "0",
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_RETRY_FILES_ENABLED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def command(self, playbook: str, *options: str) -> list[str]:
        """Write the inventory and return the command line."""
        inventory = {
            "sm120patch": {
                "hosts": {node.name: node.described for node in self.nodes},
                "vars": self.variables,
            }
        }
        (self.root / "hosts.json").write_text(json.dumps(inventory, indent=1))
        return [ansible(), "-i", str(self.root / "hosts.json"), playbook, *options]

    def play(self, playbook: str, *options: str, timeout: float = 600, **extra: Any) -> Played:
        """Run a playbook to its end; `extra` are extra variables."""
        words = self.command(playbook, *options, *(["-e", json.dumps(extra)] if extra else []))
        done = subprocess.run(
            words,
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Played(done.returncode, done.stdout)

    def start(self, playbook: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a playbook in a session of its own, so that it can be killed with its workers."""
        with (self.root / "started.log").open("wb") as log:
            return subprocess.Popen(
                self.command(playbook, *options),
                cwd=self.root,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def written_facts(self) -> dict[str, Mapping[str, Any]]:
        """Node -> what was written down of it."""
        return {path.stem: json.loads(path.read_text()) for path in self.facts.glob("*.json")}


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a playbook that `start` started, and its workers, without a word."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
