"""Role `hooks`: systemd and docker compose with stand-ins of their commands, Slurm for real."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nodes import REGRESSES, Fleet, Node
from tests.support.serving import wait_for
from tests.support.simulated import FLAG, free_port

ROLLOUT = "sm120patch.fleet.rollout"
SYSTEMCTL = """\
#!{python}
import pathlib, sys
words = sys.argv[1:]
units = pathlib.Path(__file__).with_name("active")
unit = words[-1]
active = set(units.read_text().split()) if units.exists() else set()
if words[0] == "show":
    state = "active" if unit in active else "inactive"
    print(f"Id={{unit}}\\nLoadState=loaded\\nActiveState={{state}}")
elif words[0] in ("start", "stop"):
    active = active | {{unit}} if words[0] == "start" else active - {{unit}}
    units.write_text(" ".join(sorted(active)))
    with pathlib.Path(__file__).with_name("log").open("a") as log:
        log.write(f"{{words[0]}} {{unit}}\\n")
"""
DOCKER = '#!/bin/sh\necho "$@" >> "$(dirname "$0")/log"\n'
ONE_HOOK = """\
- name: Run one hook
  hosts: sm120patch
  gather_facts: false
  tasks:
    - name: Run it
      ansible.builtin.include_role:
        name: sm120patch.fleet.hooks
        tasks_from: "{{ hook }}.yml"
"""


def stand_in(node: Node, name: str, text: str) -> Path:
    """Put a command into the PATH of one node; return the log of what it was asked."""
    place = node.root / "bin"
    place.mkdir()
    (place / name).write_text(text)
    (place / name).chmod(0o755)
    return place / "log"


@pytest.fixture
def pair(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path, *(Node.small(tmp_path, name) for name in ("canary", "other")))


def with_path(fleet: Fleet, node: Node, hook: str, **extra: str) -> str:
    """Run one hook with the stand-ins of a node; return what Ansible said."""
    playbook = fleet.root / "hook.yml"
    playbook.write_text(ONE_HOOK)
    fleet.path = f"{node.root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = fleet.play(str(playbook), "--limit", node.name, hook=hook, **extra)
    assert done.code == 0, done.out
    return done.out


def test_systemd_units_stop_backwards_and_start_in_order_and_need_no_second_word(
    pair: Fleet,
) -> None:
    (node, _other) = pair.nodes
    log = stand_in(node, "systemctl", SYSTEMCTL.format(python=sys.executable))
    (log.with_name("active")).write_text("router.service sglang.service")
    node.variables = {"sm120patch_systemd_units": ["sglang.service", "router.service"]}
    with_path(pair, node, "systemd_drain")
    with_path(pair, node, "systemd_resume")
    said = log.read_text().splitlines()
    assert said == ["stop router.service", "stop sglang.service",
                    "start sglang.service", "start router.service"]  # fmt: skip
    with_path(pair, node, "systemd_resume")
    assert log.read_text().splitlines() == said, "what runs is not started again"


def test_docker_compose_stops_and_starts_the_services_of_a_project(pair: Fleet) -> None:
    (node, _other) = pair.nodes
    log = stand_in(node, "docker", DOCKER)
    options = node.root / "options.env"
    node.variables = {
        "sm120patch_compose_project": "/srv/sglang",
        "sm120patch_compose_services": ["server"],
        "sm120patch_options_file": str(options),
    }
    with_path(pair, node, "docker_compose_drain")
    with_path(pair, node, "docker_compose_resume")
    assert log.read_text().splitlines() == [
        "compose --project-directory /srv/sglang stop server",
        "compose --project-directory /srv/sglang up --detach server",
    ]
    assert not options.exists(), "outside a rollout nobody knows what the sets need"


@pytest.mark.slow
def test_the_options_of_the_sets_follow_what_is_on_disk(pair: Fleet) -> None:
    canary, other = pair.nodes
    other.serve(REGRESSES)
    logs = [stand_in(n, "systemctl", SYSTEMCTL.format(python=sys.executable)) for n in pair.nodes]
    for node in pair.nodes:
        node.variables = {
            "sm120patch_systemd_units": ["sglang.service"],
            "sm120patch_options_file": str(node.root / "options.env"),
        }
    (other.root / "options.env").write_text("MINE=1\n")
    pair.variables["sm120patch_hooks"] = ["systemd", "hooks"]
    pair.path = f"{canary.root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    assert pair.play(ROLLOUT, "--limit", "canary").code == 0
    assert f'SM120PATCH_SET_ARGS="{FLAG}"\n' in (canary.root / "options.env").read_text()
    assert logs[0].read_text().splitlines() == ["start sglang.service"], "it was not running"
    assert canary.run("revert", "--all").code == 0
    assert pair.play(ROLLOUT).code == 2
    assert 'SM120PATCH_SET_ARGS=""\n' in (canary.root / "options.env").read_text()
    assert (other.root / "options.env").read_text() == "MINE=1\n", "after a rejection it stays"


# --- Slurm ---------------------------------------------------------------------------------------

SLURM_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={place}/munge.sock
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """A cluster of this machine alone: munged, slurmctld and slurmd."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.node = socket.gethostname().partition(".")[0]
        for name in ("state", "spool"):
            (place / name).mkdir(parents=True)
        (place / "munge.key").write_bytes(os.urandom(1024))
        (place / "munge.key").chmod(0o600)
        conf = place / "slurm.conf"
        ports = (free_port(), free_port())
        conf.write_text(SLURM_CONF.format(host=self.node, user="root", place=place, ports=ports))
        files = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log",
                 "seed-file": "seed"}  # fmt: skip
        munge = [f"--{option}={place}/munge.{end}" for option, end in files.items()]
        self.running = [
            self._start("munged", "--force", "--foreground", "--num-threads=1", *munge),
        ]
        wait_for((place / "munge.sock").exists)
        self.running.append(self._start("slurmctld", "-D", "-f", str(conf)))
        self.running.append(self._start("slurmd", "-D", "-f", str(conf)))
        wait_for(lambda: self.state.startswith("idle"))

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.place / f"{words[0]}.out").open("wb") as out:
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def ask(self, *words: str) -> str:
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.place / "slurm.conf")}

    @property
    def state(self) -> str:
        """State and reason of the node; the mark of one that is yet to answer is left out."""
        return self.ask("sinfo", "--noheader", "--Node", "--format", "%T %E").replace("*", "")

    def stop(self) -> None:
        for process in reversed(self.running):
            process.terminate()
            process.wait(30)


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    missing = [name for name in ("munged", "slurmctld", "slurmd") if not shutil.which(name)]
    if missing or os.geteuid() != 0:
        pytest.skip("needs root, and `apt-get install slurmctld slurmd slurm-client munge`")
    made = Slurm(tmp_path_factory.mktemp("slurm"))
    yield made
    made.stop()


@pytest.mark.slow
def test_a_slurm_node_is_drained_of_its_jobs_and_given_back(
    pair: Fleet, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    (node, _other) = pair.nodes
    stand_in(node, "nothing", "")
    monkeypatch.setenv("SLURM_CONF", str(slurm.place / "slurm.conf"))
    node.variables = {
        "sm120patch_slurm_node": slurm.node,
        "sm120patch_slurm_controller": "localhost",
        "sm120patch_slurm_wait": 120,
    }
    slurm.ask("sbatch", "--output=/dev/null", "--wrap", "sleep 5")
    wait_for(lambda: slurm.ask("squeue", "--noheader", "--states=RUNNING"))
    with_path(pair, node, "slurm_drain")
    assert slurm.state == "drained sm120patch"
    assert slurm.ask("squeue", "--noheader") == "", "its job has ended"
    with_path(pair, node, "slurm_resume")
    assert slurm.state == "idle none"

    slurm.ask("scontrol", "update", f"NodeName={slurm.node}", "State=DRAIN", "Reason=bad fan")
    with_path(pair, node, "slurm_drain")
    with_path(pair, node, "slurm_resume")
    assert slurm.state == "drained bad fan", "what somebody else has drained stays drained"
