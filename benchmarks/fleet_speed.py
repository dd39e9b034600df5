"""How long a fleet takes: one Ansible run that audits many nodes, and the report about many more.

    python benchmarks/fleet_speed.py                 # print the tables
    python benchmarks/fleet_speed.py --write         # and put them into docs/fleet-performance.md

Needs ansible-core beside this interpreter or on PATH. The nodes are environments of their own on
this machine with local connections, so that all of them share its processors; what is seen is the
work of the controller and of the commands, not of a network. The peer runs the same commands on the
same nodes without Ansible, as many at a time. The report is measured on the facts that the run
wrote for a node with a verification in its history, under as many names as there are nodes; its
peer only parses the same files.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.facts import GATHERED
from tests.support.serving import GOOD, Host, apply

DOCUMENT = ROOT / "docs" / "fleet-performance.md"
NODES = (1, 5, 10, 25, 50)
REPORTED = (50, 1000)
FORKS = 5
"""Ansible's default."""
PLAYBOOK = "sm120patch.fleet.audit"
COLLECTIONS = ROOT / "sm120patch" / "collections"
PARSE = """
import json, sys
from pathlib import Path
assert all(json.loads(p.read_bytes())["node"] for p in Path(sys.argv[1]).iterdir())
"""


@dataclass(frozen=True)
class Took:
    """One command."""

    wall: float
    cpu: float
    """Of the process and all children it waited for, in seconds."""
    peak: int
    """Resident bytes of the largest single process."""


def timed(words: list[str], environ: dict[str, str], codes: tuple[int, ...] = (0,)) -> Took:
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            words, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - begun
        if child.returncode not in codes:
            log.seek(0)
            tail = log.read().decode("utf-8", "replace")[-3000:]
            raise SystemExit(f"{words[:4]}: exit status {child.returncode}\n{tail}")
    return Took(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def ansible() -> Path:
    beside = Path(sys.executable).with_name("ansible-playbook")
    found = beside if beside.exists() else shutil.which("ansible-playbook")
    if found is None:
        raise SystemExit("ansible-playbook is not there: pip install ansible-core")
    return Path(found)


def prepare(work: Path) -> Host:
    """One node whose set was verified on a simulated host; the others are copies of it."""
    (work / "first").mkdir()
    host = Host(work / "first")
    done = apply(host, GOOD)
    if done.code != 0:
        raise SystemExit(done.err)
    return host


def environment(work: Path) -> dict[str, str]:
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {
        **environ,
        "HOME": str(work),
        "XDG_CACHE_HOME": str(work / "cache"),
        "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": str(work / "bytecode"),
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
        "ANSIBLE_LOCALHOST_WARNING": "False",
        "ANSIBLE_RETRY_FILES_ENABLED": "False",
        "LC_ALL": "C.UTF-8",
    }


def write_tool(work: Path) -> Path:
    tool = work / "sm120patch"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m sm120patch "$@"\n')
    tool.chmod(0o755)
    return tool


def write_inventory(work: Path, host: Host, count: int) -> None:
    tool = work / "sm120patch"
    hosts = {
        f"node-{n:02}": {
            "sm120patch_environment": str(work / "nodes" / f"{n:02}"),
            "sm120patch_groups": [f"server-{n // 8}"],
        }
        for n in range(count)
    }
    shared = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "sm120patch_executable": str(tool),
        "sm120patch_catalogue": str(host.catalogue),
        "sm120patch_facts_dir": str(work / "facts"),
    }
    inventory = {"sm120patch": {"hosts": hosts, "vars": shared}}
    (work / "inventory.json").write_text(json.dumps(inventory))  # YAML is a superset of it


def direct(work: Path, host: Host, count: int) -> list[str]:
    """The same commands on the same nodes, as many at a time, without Ansible."""
    tool = work / "sm120patch"
    words = [f"{tool} --version"]
    place = f"--env {work}/nodes/$0 --catalogue {host.catalogue} --output json"
    words += [f"{tool} {name} {' '.join(more)} {place}" for name, more in GATHERED.items()]
    script = "; ".join(f"{line} >/dev/null 2>&1" for line in words) + "; true"
    names = " ".join(f"{n:02}" for n in range(count))
    return ["sh", "-c", f"printf '%s\\n' {names} | xargs -P {FORKS} -n 1 sh -c '{script}'"]


def audits(work: Path, host: Host, environ: dict[str, str]) -> list[str]:
    lines = [
        "| nodes | playbook | a node | CPU a node | largest process | alone | CPU a node | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    words = [str(ansible()), "-i", str(work / "inventory.json"), "-f", str(FORKS), PLAYBOOK]
    write_inventory(work, host, 1)
    timed(words, environ)  # the first compiles the bytecode
    for count in NODES:
        write_inventory(work, host, count)
        shutil.rmtree(work / "facts", ignore_errors=True)
        with_ansible = timed(words, environ)
        alone = timed(direct(work, host, count), environ)
        written = len(list((work / "facts").glob("*.json")))
        if written != count:
            raise SystemExit(f"{written} files of facts, expected {count}")
        lines.append(
            f"| {count} | {with_ansible.wall:.1f} s | {with_ansible.wall / count:.2f} s"
            f" | {with_ansible.cpu / count:.2f} s | {with_ansible.peak / 2**20:.0f} MiB"
            f" | {alone.wall:.1f} s | {alone.cpu / count:.2f} s"
            f" | {with_ansible.cpu / alone.cpu:.2f} |"
        )
        sys.stderr.write(lines[-1] + "\n")
    return lines


def spread(work: Path, count: int) -> Path:
    """Facts of as many nodes, from those of the first."""
    facts = json.loads((work / "facts" / "node-00.json").read_text())
    directory = work / f"facts-{count}"
    directory.mkdir()
    for n in range(count):
        named = {**facts, "node": f"node-{n:04}", "groups": [f"server-{n // 8}"]}
        (directory / f"node-{n:04}.json").write_text(json.dumps(named))
    return directory


def reports(work: Path, environ: dict[str, str]) -> list[str]:
    lines = [
        "| nodes | facts | form | wall | CPU | peak memory | parsing alone | CPU / parsing |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for count in REPORTED:
        directory = spread(work, count)
        size = sum(path.stat().st_size for path in directory.iterdir())
        parsing = timed([sys.executable, "-c", PARSE, str(directory)], environ)
        base = [sys.executable, "-m", "sm120patch", "fleet-report", str(directory)]
        for form, more in (
            ("table", []), ("`--output json`", ["--output", "json"]),
            ("table and `--html`", ["--html", str(work / "fleet.html")]),
            ("`--compare`", ["--compare", "node-0000", "node-0001"]),
        ):  # fmt: skip
            timed([*base, *more], environ, (0, 1))  # the first compiles
            took = timed([*base, *more], environ, (0, 1))
            lines.append(
                f"| {count} | {size / 2**20:.1f} MiB | {form} | {took.wall:.1f} s"
                f" | {took.cpu:.1f} s | {took.peak / 2**20:.0f} MiB | {parsing.cpu:.1f} s"
                f" | {took.cpu / parsing.cpu:.1f} |"
            )
            sys.stderr.write(lines[-1] + "\n")
    return lines


def document(audited: list[str], reported: list[str]) -> str:
    version = subprocess.run(
        [ansible(), "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]  # fmt: skip
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    cpus = len(os.sched_getaffinity(0))
    machine = (
        f"{version}, Python {platform.python_version()}, {cpus} CPUs of {platform.machine()},"
        f" load {load} (1, 5, 15 minutes) at the end."
    )
    return f"""# How long a fleet takes

<!-- written by `python benchmarks/fleet_speed.py --write` -->

## The nodes are asked

One run of the collection's audit playbook, {FORKS} nodes at a time (Ansible's default, see `-f`):
`environment_info` with doctor, history and caches, `audit_info`, and one file of facts a node. All
nodes are environments on one machine with local connections, and share its processors: real nodes
work at the same time, each for itself, so there only the controller's share grows. The peer runs
the same commands alone on the same environments, {FORKS} at a time, from a shell; the ratio is that
of the CPU times.

{chr(10).join(audited)}

## The report is made

`sm120patch fleet-report` on the facts of a node with one verification in its history, under as
many names. The peer parses the same files, one at a time, and does nothing else; its start-up of
Python is in both.

{chr(10).join(reported)}

{machine}
On a machine with a load above its number of CPUs the wall times are those of the queue; CPU times
and ratios hold.
"""


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sm120patch-fleet-") as scratch:
        work = Path(scratch).resolve()
        environ = environment(work)
        host = prepare(work)
        write_tool(work)
        for n in range(max(NODES)):
            shutil.copytree(host.prefix, work / "nodes" / f"{n:02}", symlinks=True)
        text = document(audits(work, host, environ), reports(work, environ))
    if options.write:
        DOCUMENT.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
