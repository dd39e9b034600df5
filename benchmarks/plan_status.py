"""How long `status`, `plan` and `apply --no-verify` take, beside tools that edit and check nothing.

    python benchmarks/plan_status.py                 # print the table
    python benchmarks/plan_status.py --write         # and put it into docs/performance.md

Everything works on the published wheels of SGLang 0.5.9 and FlashInfer 0.6.3 (downloaded when they
are not in the wheel cache) in a temporary environment. The commands of one round follow each other,
and the rounds are repeated, so that a machine that slows down does so for all. CPU time counts the
children too. ast-grep is taken from PATH or `--ast-grep` (PyPI: ast-grep-cli), and left out when
there is none.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("SM120PATCH_TEST_REAL_HOME", str(Path.home()))

from tests.support.environments import real_environment  # noqa: E402

DOCUMENT = ROOT / "docs" / "performance.md"
PAIR = ("0.5.9", "0.6.3")
COMMUNICATOR = "sglang/srt/layers/communicator.py"
OLD = "(_is_sm90_supported or _is_sm100_supported)"
NEW = "(_is_sm90_supported or _is_sm100_supported or _is_sm120_supported)"
BASE = "git apply"


@dataclass
class Case:
    """One command, with what has to be done before and after it, unmeasured."""

    name: str
    command: list[str]
    cwd: Path
    after: Callable[[], None] = lambda: None
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def measure(self, environ: dict[str, str]) -> None:
        with Path(os.devnull).open("r+b") as null:
            start = time.perf_counter()
            child = subprocess.Popen(
                self.command, cwd=self.cwd, env=environ, stdin=null, stdout=null, stderr=null
            )
            _, status, usage = os.wait4(child.pid, 0)
            self.wall.append(time.perf_counter() - start)
            child.returncode = os.waitstatus_to_exitcode(status)
        self.cpu.append(usage.ru_utime + usage.ru_stime)
        if child.returncode != 0:
            raise SystemExit(f"{self.name}: exit status {child.returncode}: {self.command}")
        self.after()


class Bench:
    """A temporary directory with two environments (known files, unknown files) and the cases."""

    def __init__(self, work: Path, ast_grep: str | None) -> None:
        self.work = work
        cache = work / "bytecode"
        self.environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self.environ |= {"PYTHONPYCACHEPREFIX": str(cache), "HOME": str(work)}
        self.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'benchmarks'}"
        self.known = real_environment(work / "known", *PAIR)
        self.unknown = real_environment(work / "unknown", *PAIR)
        self.sets = self._sets()
        plan = self._json("plan", *self.sets, "--gpu", "12.0", "--env", str(work / "known"))
        self.files = [f["path"] for f in plan["files"]]
        self._make_unknown()
        self._copy(plan)
        self.cases = self._cases(ast_grep)

    def _tool(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "sm120patch", *arguments]

    def _json(self, *arguments: str) -> dict[str, list[dict[str, str]]]:
        done = subprocess.run(
            [*self._tool(*arguments), "--output", "json"],
            env=self.environ,
            cwd=self.work,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ValueError(done.stdout)
        result: dict[str, list[dict[str, str]]] = json.loads(done.stdout)["result"]
        return result

    def _sets(self) -> list[str]:
        """Every set of the catalogue that is for this pair and goes together with the others."""
        listed = self._json("status", "--gpu", "12.0", "--env", str(self.work / "known"))["sets"]
        chosen: list[str] = []
        for entry in listed:
            if entry["state"] != "absent":
                continue
            try:
                trial = [*chosen, entry["id"]]
                self._json("plan", *trial, "--gpu", "12.0", "--env", str(self.work / "known"))
                chosen = trial
            except ValueError:
                continue
        return chosen

    def _make_unknown(self) -> None:
        """Let another build be installed: each file ends in one more line, and RECORD says so."""
        for record in self.unknown.glob("*.dist-info/RECORD"):
            lines = record.read_text().splitlines()
            for number, line in enumerate(lines):
                path = line.split(",")[0]
                if path in self.files:
                    mark = b"# another build\n" if path.endswith(".py") else b"// another build\n"
                    data = (self.unknown / path).read_bytes() + mark
                    (self.unknown / path).write_bytes(data)
                    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
                    value = digest.rstrip(b"=").decode()
                    lines[number] = f"{path},sha256={value},{len(data)}"
            record.write_text("\n".join(lines) + "\n")

    def _copy(self, plan: dict[str, list[dict[str, str]]]) -> None:
        """Lay out plain copies of the same files, and the plan's diff, for the other tools."""
        for name in ("git", "grep", "libcst"):
            for path in self.files:
                target = self.work / name / path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.known / path, target)
        (self.work / "plan.diff").write_text("".join(f["diff"] for f in plan["files"]))

    def _put_back(self, name: str) -> Callable[[], None]:
        def restore() -> None:
            changed = [
                path
                for path in self.files
                if (self.work / name / path).read_bytes() != (self.known / path).read_bytes()
            ]
            if not changed:
                raise SystemExit(f"{name} changed nothing")
            for path in changed:
                shutil.copyfile(self.known / path, self.work / name / path)

        return restore

    def _revert(self) -> None:
        self._json("revert", "--all", "--allow-running", "--env", str(self.work / "known"))

    def _cases(self, ast_grep: str | None) -> list[Case]:
        work, sets = self.work, [*self.sets, "--gpu", "12.0"]
        known, unknown = ["--env", str(work / "known")], ["--env", str(work / "unknown")]
        diff = str(work / "plan.diff")
        gate = str(work / "grep" / COMMUNICATOR)
        cst = [sys.executable, "-m", "libcst.tool", "codemod", "-x", "libcst_gate.GateCommand"]
        cst += ["--no-format", "--hide-progress", "-j", "1", str(work / "libcst" / COMMUNICATOR)]
        apply = ["apply", *sets, "--no-verify", "--allow-running", *known]
        cases = [
            Case(BASE, ["git", "apply", diff], work / "git", self._put_back("git")),
            Case("status", self._tool("status", *known), work),
            Case("plan, known files", self._tool("plan", *sets, *known), work),
            Case("plan, unknown files", self._tool("plan", *sets, *unknown), work),
            Case("apply --no-verify", self._tool(*apply), work, self._revert),
            Case("libcst.tool codemod", cst, work / "libcst", self._put_back("libcst")),
        ]
        if ast_grep:
            words = [ast_grep, "run", "--lang", "python", "--pattern", OLD, "--rewrite", NEW]
            command = [*words, "--update-all", gate]
            cases.append(Case("ast-grep", command, work / "grep", self._put_back("grep")))
        return cases

    def run(self, rounds: int) -> None:
        """Measure; the first round warms up and is thrown away."""
        for number in range(rounds + 1):
            for case in self.cases:
                case.measure(self.environ)
            sys.stderr.write(f"round {number} of {rounds}\n")
        for case in self.cases:
            del case.wall[0], case.cpu[0]


DOES = {
    BASE: "the plan's diff of {n} files; checks context only",
    "status": "state of the whole catalogue, files hashed again",
    "plan, known files": "{sets} sets over {n} files",
    "plan, unknown files": "the same, every file parsed and every codemod run",
    "apply --no-verify": "the same plan, journalled, synced and read back",
    "libcst.tool codemod": "one condition of one file",
    "ast-grep": "one condition of one file",
}


def table(bench: Bench, rounds: int) -> str:
    base = bench.cases[0]
    lines = [
        "| command | does | wall best | wall median | CPU best | CPU median | CPU / git apply |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in bench.cases:
        does = DOES[case.name].format(n=len(bench.files), sets=len(bench.sets))
        figures = (min(case.wall), statistics.median(case.wall))
        figures += (min(case.cpu), statistics.median(case.cpu))
        ratio = statistics.median(case.cpu) / statistics.median(base.cpu)
        cells = " | ".join(f"{1000 * f:.0f} ms" for f in figures)
        lines.append(f"| `{case.name}` | {does} | {cells} | {ratio:.1f} |")
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    machine = (
        f"{rounds} rounds; Python {platform.python_version()}, {os.cpu_count()} CPUs of"
        f" {platform.machine()}, load {load} (1, 5, 15 minutes) at the end. On a machine with a\n"
        "load above its number of CPUs the wall times are those of the queue; CPU times hold."
    )
    return "\n".join([*lines, "", machine]) + "\n"


HEAD = """\
# How long it takes

<!-- written by `python benchmarks/plan_status.py --write` -->

`status` and `plan` recognise published files and their patched forms by digest
(`fingerprints.txt`), so that they neither parse them nor import a parser. Files that nobody knows
go through the codemods.
`apply --no-verify` also looks for builds that depend on the files, syncs them, and asks a fresh
interpreter what it imports. The other tools do less: no check of versions, of what must be there
and gone, of what is imported.

"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ast-grep", default=shutil.which("ast-grep"), metavar="EXE")
    parser.add_argument("--write", action="store_true", help="write docs/performance.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sm120patch-bench-") as work:
        bench = Bench(Path(work), options.ast_grep)
        bench.run(options.rounds)
        text = table(bench, options.rounds)
    sys.stdout.write(text)
    if options.write:
        DOCUMENT.write_text(HEAD + text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
