"""How long an audit takes, beside `sha256sum` of the same files and `git status` of the same tree.

    python benchmarks/audit_speed.py                 # print the tables
    python benchmarks/audit_speed.py --write         # and put them into docs/audit-performance.md

One environment holds the published wheels of SGLang 0.5.23 and FlashInfer 0.7.2 (downloaded when
they are not in the wheel cache), committed to a git repository around it. The commands of one round
follow each other, and the rounds are repeated, so that a machine that slows down does so for all.
CPU time counts the children too. The second table audits many environments in one go and measures
the peak memory of the largest process.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("SM120PATCH_TEST_REAL_HOME", str(Path.home()))

from benchmarks.speed.measuring import conditions
from tests.support.environments import install_fake, install_wheel

DOCUMENT = ROOT / "docs" / "audit-performance.md"
PAIR = (("sglang", "0.5.23"), ("flashinfer-python", "0.7.2"))
SHA256, STATUS = "sha256sum", "git status"
INSIDE = """
import sys, time
from pathlib import Path
from sm120patch.catalogue import load
from sm120patch.operations.auditing import Scope, audit
known = load(None)
begun, cpu = time.perf_counter(), time.process_time()
report = audit(Scope(env=sys.argv[1], quick=True), known)
assert sum(p.compared for e in report.environments for p in e.packages) > 10000
print(time.perf_counter() - begun, time.process_time() - cpu)
"""


@dataclass
class Case:
    """One command and its times."""

    name: str
    does: str
    peer: str
    command: list[str]
    prints: bool = False
    """It prints its own wall and CPU time."""
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def measure(self, cwd: Path, environ: dict[str, str]) -> None:
        start = time.perf_counter()
        child = subprocess.Popen(
            self.command, cwd=cwd, env=environ, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert child.stdout is not None
        output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        wall, cpu = time.perf_counter() - start, usage.ru_utime + usage.ru_stime
        child.returncode = os.waitstatus_to_exitcode(status)
        child.stdout.close()
        if child.returncode != 0:
            raise SystemExit(f"{self.name}: exit status {child.returncode}: {output!r}")
        if self.prints:
            wall, cpu = map(float, output.split())
        self.wall.append(wall)
        self.cpu.append(cpu)


def tool(*words: str) -> list[str]:
    return [sys.executable, "-m", "sm120patch", *words]


def cases(prefix: Path) -> list[Case]:
    here = str(prefix)
    audit = tool("audit", "--env", here)
    count = str(len(os.sched_getaffinity(0)))
    find = f"find lib -type f -print0 | xargs -0 -P {count} -n 400 sha256sum"
    return [
        Case(SHA256, f"digests by coreutils, {count} processes", SHA256, ["sh", "-c", find]),
        Case("audit", "every file hashed and compared", SHA256, audit),
        Case(STATUS, "index of the same tree", STATUS, ["git", "status", "--porcelain"]),
        Case("audit --quick", "with the stat cache, start-up of Python included", STATUS,
             [*audit, "--quick"]),
        Case("audit --quick, inside", "the same without start-up and catalogue", STATUS,
             [sys.executable, "-c", INSIDE, here], prints=True),
    ]  # fmt: skip


def prepare(work: Path) -> Path:
    prefix = work / "env"
    site = prefix / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
    for name, version in PAIR:
        install_wheel(site, name, version)
    who = ["-c", "user.name=bench", "-c", "user.email=bench@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "tree"]):
        subprocess.run(["git", *words], cwd=prefix, check=True)
    return prefix


def environment(work: Path) -> dict[str, str]:
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    places = {"PYTHONPYCACHEPREFIX": work / "bytecode", "HOME": work, "XDG_CACHE_HOME": work / "c"}
    return {**environ, **{k: str(v) for k, v in places.items()}, "PYTHONPATH": str(ROOT)}


def run(work: Path, rounds: int) -> tuple[list[Case], int]:
    prefix = prepare(work)
    listed = cases(prefix)
    environ = environment(work)
    size = sum(p.stat().st_size for p in (prefix / "lib").rglob("*") if p.is_file())
    time.sleep(2.5)  # files that are younger would be hashed again by --quick
    for number in range(rounds + 1):
        for case in listed:
            case.measure(prefix, environ)
        sys.stderr.write(f"round {number} of {rounds}\n")
    for case in listed:
        del case.wall[0], case.cpu[0]
    return listed, size


def speed_table(listed: list[Case]) -> str:
    lines = [
        "| command | does | wall best | wall median | CPU median | wall / peer | CPU / peer |",
        "|---|---|---|---|---|---|---|",
    ]
    peers = {case.name: case for case in listed}
    for case in listed:
        peer = peers[case.peer]
        # Paired by round: both ran within a second of each other.
        wall = statistics.median(a / b for a, b in zip(case.wall, peer.wall, strict=True))
        cpu = statistics.median(a / b for a, b in zip(case.cpu, peer.cpu, strict=True))
        figures = (min(case.wall), statistics.median(case.wall), statistics.median(case.cpu))
        cells = " | ".join(f"{1000 * f:.0f} ms" for f in figures)
        lines.append(f"| `{case.name}` | {case.does} | {cells} | {wall:.2f} | {cpu:.2f} |")
    return "\n".join(lines)


def memory(work: Path, counts: tuple[int, ...]) -> str:
    files = {f"sglang/m{n}.py": b"x = 1\n" * n for n in range(40)} | {"sglang/__init__.py": b""}
    lines = ["| environments | files | wall | peak memory |", "|---|---|---|---|"]
    for count in counts:
        root = work / f"many-{count}"
        for number in range(count):
            prefix = root / "opt" / f"e{number:04}"
            install_fake(prefix / "lib/python3.11/site-packages", "sglang", "1.0", files)
            (prefix / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
        start = time.perf_counter()
        child = subprocess.Popen(
            tool("audit", "--root", str(root)), env=environment(work), stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - start
        peak = f"{usage.ru_maxrss / 1024:.0f} MiB"
        lines.append(f"| {count} | {count * (len(files) + 3)} | {wall:.1f} s | {peak} |")
        shutil.rmtree(root)
    return "\n".join(lines)


HEAD = """\
# How long an audit takes

<!-- written by `python benchmarks/audit_speed.py --write` -->

The peers do less: `sha256sum` compares with nothing, and `git status` knows neither RECORD nor
sets, servers, start-up code and installers' caches. A ratio is the median of the ratios of each
round.

"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true", help=f"write docs/{DOCUMENT.name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sm120patch-bench-") as work:
        listed, size = run(Path(work), options.rounds)
        many = memory(Path(work), (10, 100, 1000))
    machine = (
        f"{options.rounds} rounds over {size / 1e6:.0f} MB; Python {platform.python_version()},"
        f" {os.cpu_count()} CPUs of {platform.machine()};\n{conditions()}.\n"
        "On a machine with a load above its number of CPUs the wall times are those of the queue;"
        " CPU times and ratios hold."
    )
    text = f"{speed_table(listed)}\n\n{machine}\n\n## Many environments in one audit\n\n{many}\n"
    sys.stdout.write(text)
    if options.write:
        DOCUMENT.write_text(HEAD + text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
