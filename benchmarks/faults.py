"""Kill, lose, fail and interrupt every file-system call of a change; write benchmarks/faults.md.

    python benchmarks/faults.py [--every KILL,POWER,OTHER | --finish] [--jobs N] [--peers DIR]

Needs a C compiler, the development extra, and for the peers `patch`, `git` and what is found on
PATH or in DIR/bin (quilt, p12y, socket-patch). --every 1,1,1, the default, takes every call: some
fifteen thousand trials of a fifth of a second. 2,3,7 takes every second call to kill, every third
to lose power, every seventh for the rest. --finish takes every call of the rows that were sampled,
or whose command makes another number of calls now, and keeps the others. TMPDIR on a tmpfs saves
the time that syncing takes; what a power failure leaves a model works out, whatever the disk.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.catalogue import A_TEXT, B_TEXT, KERNEL, KERNEL_TEXT, A, B
from tests.support.environments import create_venv, install_fake
from tests.support.faults import seam as seams
from tests.support.faults.matrix import Trial, outcomes
from tests.support.faults.trials import FAULTS, TRIALS

DOCUMENT = ROOT / "benchmarks" / "faults.md"


def table(steps: list[int], only: str | None, jobs: int, kept: list[str]) -> list[str]:
    lines = [
        "| command | calls | fault | at every | trials | ended old | ended new | anything else |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    cells = [
        (name, fault, steps[min(at, 2)], kept)
        for name in TRIALS
        if not only or only in name
        for at, fault in enumerate(FAULTS)
    ]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        return lines + list(pool.map(row, *zip(*cells, strict=True)))


def row(name: str, fault: str, step: int, kept: list[str]) -> str:
    """Put one command to one fault; in a process of its own, since its world is its HOME."""
    line: str | None
    with tempfile.TemporaryDirectory() as scratch:
        world, make = TRIALS[name](Path(scratch) / "world")
        with seams.seam(world.prefix, world.workspace) as seam:
            trial = make(seam)
            judged = trial.judge()
            whole = f"| {name} | {len(trial.calls)} | {fault} | 1 |"
            line = next((line for line in kept if line.startswith(whole)), None)
            if line is None:
                line = _row(name, trial, fault, step, outcomes(FAULTS[fault](trial, judged, step)))
    print(line, flush=True)
    return line


def _row(name: str, trial: Trial, fault: str, step: int, counted: Counter[str]) -> str:
    other = sum(n for outcome, n in counted.items() if outcome not in ("old", "new"))
    for outcome, number in counted.items():
        if outcome not in ("old", "new"):
            print(f"  {number} x {outcome}", file=sys.stderr)
    calls, total = len(trial.calls), sum(counted.values())
    cells = [name, calls, fault, step, total, counted["old"], counted["new"], other]
    return "| " + " | ".join(map(str, cells)) + " |"


# --- peers ---------------------------------------------------------------------------------------

CONTENTS = {A: A_TEXT, B: B_TEXT, KERNEL: KERNEL_TEXT}
PATCHED = {
    A: A_TEXT.replace("line_3 = 3\n", "line_3 = 'one'\n"),
    B: B_TEXT.replace("upstream", "extra"),
    KERNEL: KERNEL_TEXT.replace("ARCH < 1200", "ARCH < 9999"),
}


@dataclass(frozen=True)
class Peer:
    name: str
    prepare: Callable[[Path], None]
    """Adds what the peer needs to a project directory with `.venv`."""
    command: Callable[[Path], list[str]]
    where: str = ".venv/site"


def _diff(paths: list[str]) -> str:
    from sm120patch.unified import make_diff

    return "".join(make_diff(p, CONTENTS[p].encode(), PATCHED[p].encode()) for p in paths)


def _patch_file(project: Path) -> None:
    (project / "all.patch").write_text(_diff(sorted(CONTENTS)))


def _quilt(project: Path) -> None:
    (project / ".venv" / "site" / "patches").mkdir()
    (project / ".venv" / "site" / "patches" / "all.patch").write_text(_diff(sorted(CONTENTS)))
    (project / ".venv" / "site" / "patches" / "series").write_text("all.patch\n")


def _p12y(project: Path) -> None:
    (project / "patches").mkdir()
    (project / "patches" / "sglang+1.0.patch").write_text(_diff([A, B]))
    (project / "patches" / "flashinfer-python+1.0.patch").write_text(_diff([KERNEL]))


def _blob(data: bytes) -> str:
    return hashlib.sha256(b"blob %d\0" % len(data) + data).hexdigest()


def _socket(project: Path) -> None:
    (project / ".socket" / "blobs").mkdir(parents=True)
    patches = {}
    for purl, paths in (("sglang", [A, B]), ("flashinfer-python", [KERNEL])):
        files = {}
        for path in paths:
            before, after = CONTENTS[path].encode(), PATCHED[path].encode()
            files[path] = {"beforeHash": _blob(before), "afterHash": _blob(after)}
            for data in (before, after):
                (project / ".socket" / "blobs" / _blob(data)).write_bytes(data)
        patches[f"pkg:pypi/{purl}@1.0"] = {
            "uuid": "5cac955f-eab1-4d29-8f4f-c408a6cc9647", "exportedAt": "2026-01-01T00:00:00Z",
            "files": files, "vulnerabilities": {}, "description": "", "license": "MIT",
            "tier": "free",
        }  # fmt: skip
    (project / ".socket" / "manifest.json").write_text(json.dumps({"patches": patches}))


PEERS = (
    Peer("patch", _patch_file, lambda p: ["patch", "-p1", "-N", "-i", str(p / "all.patch")]),
    Peer("git", _patch_file, lambda p: ["git", "apply", str(p / "all.patch")]),
    Peer("quilt", _quilt, lambda _p: ["quilt", "push", "-a"]),
    Peer("p12y", _p12y, lambda p: ["p12y", "apply", "-e", str(p / ".venv")], "."),
    Peer(
        "socket-patch",
        _socket,
        lambda p: ["socket-patch", "apply", "--offline", "--strict", "--cwd", str(p)],
        ".",
    ),
)
MISSING = "not installed where this was measured"


def peers_table() -> list[str]:
    os.environ.pop("VIRTUAL_ENV", None)  # socket-patch would take that environment
    lines = [
        (
            "| tool | kill points | left old | left new | left mixed | left empty or torn"
            " | again: new | says done, and it is not | litter at the end |"
        ),
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for peer in PEERS:
        if shutil.which(peer.name) is None:
            lines.append(f"| {peer.name} | {MISSING} | | | | | | | |")
        else:
            with tempfile.TemporaryDirectory() as scratch:
                lines.append(_peer(peer, Path(scratch)))
        print(lines[-1], flush=True)
    return lines


def _project(peer: Peer, root: Path) -> Path:
    project = root / "project"
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir()
    site = create_venv(project / ".venv")
    install_fake(site, "sglang", "1.0", {p: CONTENTS[p].encode() for p in (A, B)})
    install_fake(site, "flashinfer-python", "1.0", {KERNEL: KERNEL_TEXT.encode()})
    (project / ".venv" / "site").symlink_to(site.relative_to(project / ".venv"))
    peer.prepare(project)
    return project


def _peer(peer: Peer, root: Path) -> str:
    states: Counter[str] = Counter()
    points = 0
    while True:
        project = _project(peer, root)
        if not _killed(peer, project, points + 1):
            break
        points += 1
        states[_state(project)] += 1
        again = subprocess.run(
            peer.command(project), cwd=project / peer.where, capture_output=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        now = _state(project)
        states["again"] += now == "new"
        states["lie"] += again.returncode == 0 and now != "new"
        states["litter"] += bool(_litter(project))
    if _state(project) != "new":
        return f"| {peer.name} | did not patch this environment | | | | | | | |"
    cells = [points, *(states[k] for k in ("old", "new", "mixed", "torn", "again", "lie"))]
    return f"| {peer.name} | " + " | ".join(map(str, [*cells, states["litter"]])) + " |"


def _killed(peer: Peer, project: Path, at: int) -> bool:
    counter = project.parent / "counter"
    counter.write_bytes(b"\0" * 8)
    site = (project / ".venv" / "site").resolve()
    environ = {
        **os.environ, "LD_PRELOAD": str(seams.library()), "SEAM_COUNTER": str(counter),
        "SEAM_ROOT": str(site), "SEAM_AT": str(at),
    }  # fmt: skip
    done = subprocess.run(
        peer.command(project), cwd=project / peer.where, env=environ, capture_output=True,
        check=False, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    return done.returncode == -signal.SIGKILL


def _state(project: Path) -> str:
    site, seen = project / ".venv" / "site", set()
    for path, old in CONTENTS.items():
        file = site / path
        data = file.read_bytes().decode() if file.exists() else ""
        seen.add("old" if data == old else "new" if data == PATCHED[path] else "torn")
    return "torn" if "torn" in seen else seen.pop() if len(seen) == 1 else "mixed"


def _litter(project: Path) -> list[Path]:
    site = (project / ".venv" / "site").resolve()
    known = {site / path for path in CONTENTS}
    return [
        p for p in site.rglob("*")
        if p.is_file() and p not in known and "dist-info" not in str(p)
        and not {"patches", ".pc", "__pycache__"} & set(p.relative_to(site).parts)
    ]  # fmt: skip


HEAD = """\
# What a fault leaves behind

Made by `python benchmarks/faults.py`. Two packages, two files of them and a FlashInfer build that
depends on one; the real commands in real processes. A library that is loaded before libc numbers
every call that changes something below the environment or the build cache, SQLite's included.
After each fault the next commands are run (`status`, `recover`; what the interpreter says of itself
is asked once for all of these), and the environment counts as old or new only if every file, the
ledger, the live build and the bytecode belong to that side, no temporary file is left, and the
command said nothing else than what is so.

A kill after a sync leaves what the kill before it left, and counts once. "Power lost" replays the
calls over a model of the disk in which nothing survives that was not synced, no name and no byte:
every beginning of the rest, all of it, none, and random selections; equal disks count once. In
what is rejected the servers are a stand-in; the swaps, the evidence and the ledger are real.

`recover` only leads to new: what was interrupted is settled, or upstream's content is back, by the
commands that each answer names. A build that is pruned is whole or gone, or rubbish that the next
`caches --prune` takes away. A set that `tune` writes over an earlier one, and a profile, is the
earlier one or the new one, the catalogue can be read, and the command can be repeated.
"""
PEERS_HEAD = """\
## The same kill, other tools

Three files of two packages, one command; the whole process group is killed before every call that
changes something below site-packages. "Left" is what a reader finds until somebody runs a command.
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", default="1,1,1", help="which calls to take, see above")
    parser.add_argument("--finish", action="store_true", help="only rows that sample, see above")
    parser.add_argument("--only", help="commands whose name holds this text; nothing is written")
    parser.add_argument("--jobs", type=int, default=2, help="trials at once")
    parser.add_argument("--keep-peers", action="store_true", help="leave the other tools' table")
    parser.add_argument("--peers", type=Path, help="directory whose bin/ holds further peers")
    arguments = parser.parse_args()
    if arguments.peers:
        os.environ["PATH"] += os.pathsep + str((arguments.peers / "bin").absolute())
    steps = [int(word) for word in arguments.every.split(",")]
    kept = DOCUMENT.read_text().splitlines() if arguments.finish else []
    own = table(steps, arguments.only, arguments.jobs, kept)
    if not arguments.only:
        kept = DOCUMENT.read_text().partition(PEERS_HEAD)[2].splitlines()[1:]
        peers = kept if arguments.keep_peers else peers_table()
        DOCUMENT.write_text("\n".join([HEAD, *own, "", PEERS_HEAD, *peers, ""]))


if __name__ == "__main__":
    main()
