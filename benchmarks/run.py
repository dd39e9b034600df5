"""Measure everything that is fast or ought to be, beside the peers, in one run.

    python benchmarks/run.py                  # print the tables
    python benchmarks/run.py --write          # and put them into docs/performance.md

Everything works on the published wheels of SGLang 0.5.9 and FlashInfer 0.6.3 (downloaded when they
are not in the wheel cache) in a temporary directory. Peers are installed once, below the user's
cache directory; one that cannot be had is named with the reason. The commands of one round follow
each other, and the rounds are repeated, so that a machine that slows down does so for all. CPU time
counts the children too: an interpreter that is asked, processes that hash.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.speed import growth, peers
from benchmarks.speed.measuring import Case, conditions, floor, measure, table
from benchmarks.speed.trees import GPU, PAIR, SET, Trees

DOCUMENT = ROOT / "docs" / "performance.md"
UNKNOWN = "apply, unknown file"


@dataclass(frozen=True)
class Target:
    """What ought to hold: a case of ours against a peer's, or against a number."""

    ours: str
    limit: float
    peer: str = ""
    """Empty: `limit` is in milliseconds of wall time (best), else it is a ratio."""
    wall: bool = False
    """Compare the best wall times; CPU medians otherwise."""


TARGETS = (
    Target("--version", 0.8, "p12y --version"),
    Target("apply --no-verify", 0.75, "p12y apply"),
    Target("apply --no-verify", 0.55, "makepatch apply"),
    Target("status, patched", 0.7, "makepatch status"),
    Target("revert", 0.6, "makepatch revert"),
    Target(UNKNOWN, 0.15, "libcst.tool codemod"),
    Target(UNKNOWN, 10.0, "ast-grep scan"),
    Target("audit", 1.3, "sha256 of the same files", wall=True),
    Target("audit --quick", 2.0, "git status", wall=True),
    Target("status of the catalogue", 150.0),
    Target("plan of the catalogue, known files", 150.0),
    Target("plan of the catalogue, unknown files", 1000.0),
    Target("100,000|status", 150.0),
)


def ours(trees: Trees) -> list[Case]:
    """The commands of this program; those that change something come in an order that fits."""
    many, known, unknown = trees.catalogue, trees.env("known"), trees.env("unknown")
    staged = ("--no-verify", "--allow-running", *GPU)

    def case(name: str, does: str, *words: str) -> Case:
        tool = trees.tool(*words)
        return Case(name, does, tool, trees.work, environ=trees.environ, ours=True)

    count, files, touched = len(many), len(trees.whole), len(trees.files)
    found = [
        case("--version", "", "--version"),
        case("--help", "", "--help"),
        case("list", "the catalogue, read and checked", "list"),
        case("status of the catalogue", "nothing patched; files hashed", "status", *GPU, *known),
        case(
            "plan of the catalogue, known files", f"{count} sets over {files} files",
            "plan", *many, *GPU, *known,
        ),
        case(
            "plan of the catalogue, unknown files", "the same; files parsed, codemods run",
            "plan", *many, *GPU, *unknown,
        ),
        case(
            "apply --no-verify", f"`{SET}`, {touched} files: journalled, synced, read back",
            "apply", SET, *staged, *known,
        ),
        case("status, patched", "patched files hashed again", "status", *GPU, *known),
        case("revert", "upstream's bytes again, synced, read back",
             "revert", "--all", "--allow-running", *known),
        case(UNKNOWN, "`sm120-checks`, one file: parsed, edited, checked, synced, read back",
             "apply", "sm120-checks", *staged, *unknown),
        case("audit", "every file of both packages hashed", "audit", *known),
        case("audit --quick", "size and times of every file", "audit", "--quick", *known),
    ]  # fmt: skip
    for entry in found:
        if entry.name == UNKNOWN:
            entry.after = trees.revert("unknown")
        elif entry.name.startswith("audit"):
            entry.codes = (0, 1)
    return found


def limit_case(trees: Trees) -> Case:
    """What every full audit has to do at least."""
    files = [p for p in trees.known.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    listed = trees.work / "files.txt"
    listed.write_text("\n".join(map(str, files)))
    megabytes = sum(p.stat().st_size for p in files) / 1e6
    words = [sys.executable, "-I", "-S", str(ROOT / "benchmarks/speed/hashing.py"), str(listed)]
    does = f"{len(files):,} files, {megabytes:.0f} MB, {os.cpu_count()} processes; only hashed"
    return Case("sha256 of the same files", does, words, trees.work, environ=trees.environ)


def verdicts(cases: Sequence[Case]) -> list[str]:
    """Markdown lines: every target with what was measured.

    A wall time that is mostly waiting tells of the machine: then CPU medians are compared instead.
    """
    known = {case.name: case for case in cases}
    lines = ["| target | measured | holds |", "|---|---|---|"]
    for target in TARGETS:
        mine, peer = known.get(target.ours), known.get(target.peer)
        what = target.ours.replace("|", " events: ")
        by_wall = target.wall or not target.peer
        limit = f"{target.limit:g} x `{target.peer}`" if target.peer else f"{target.limit:.0f} ms"
        goal = f"`{what}` <= {limit} ({'wall, best' if by_wall else 'CPU, median'})"
        pair = [case for case in (mine, peer) if case is not None]
        if len(pair) < (2 if target.peer else 1):
            lines.append(f"| {goal} | not measured | - |")
            continue
        queued = by_wall and any(case.queued for case in pair)
        times = [min(c.wall) if by_wall and not queued else c.typical for c in pair]
        value = times[0] / times[1] if target.peer else 1000 * times[0]
        shown = f"{value:.2f} x" if target.peer else f"{value:.0f} ms"
        shown += " in CPU time; wall times are those of a queue" if queued else ""
        lines.append(f"| {goal} | {shown} | {'yes' if value <= target.limit else '**no**'} |")
    return lines


def document(
    cases: Sequence[Case],
    grown: dict[str, list[list[Case]]],
    found: peers.Peers,
    smallest: int,
    rounds: int,
) -> str:
    """The whole document as Markdown."""
    own = [c for c in cases if c.ours]
    others = [c for c in cases if not c.ours]
    flat = [case for rows in grown.values() for row in rows for case in row]
    missing = "; ".join(f"{name}: {reason}" for name, reason in found.missing.items())
    versions = ", ".join(r for r, _ in peers.REQUIREMENTS.values())
    head = HEAD.format(
        rounds=rounds,
        machine=f"Python {platform.python_version()}, {os.cpu_count()} CPUs {platform.machine()}",
        conditions=conditions(),
        pair=" and ".join(f"{n} {v}" for n, v in PAIR.items()),
        versions=versions,
        missing=missing,
    )
    parts = [
        head, "## Targets\n", *verdicts([*cases, *flat]), WHY, "\n## This program (ms)\n",
        *table(own, smallest), "\n## Others on copies of the same files (ms)\n",
        *table(others, smallest), GROWTH, *growth.document(grown),
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


HEAD = """\
# How long it takes

<!-- written by `python benchmarks/run.py --write` -->

`status` and `plan` recognise published files and their patched forms by digest
(`fingerprints.txt`), so that they neither parse them nor import a parser. Files that nobody knows
go through the codemods. Every figure of `apply` and `revert` includes what makes them safe: the
journal, `fsync` of each file and directory, the ledger, a look for processes and builds that depend
on the files, and the answer of the environment's interpreter to the question what it imports.

{rounds} rounds in turns, on {pair}; {machine}; {conditions}.
On a machine with a load above its number of CPUs the wall times are those of the queue; CPU times
hold. Bytecode of all Python programs is there. makepatch is told the target's interpreter, as ours
is. The other tools do less: no ranges of versions, no check of what must be there and gone, nothing
asked about what is imported; of them only socket-patch syncs what it writes.

Peers: git, GNU patch and libcst of this machine, {versions}.
Not measured: {missing}.
"""
WHY = """
Where one does not hold, this is why. `apply` and `revert` run three interpreters, where p12y runs
one: their own, with click, and the environment's before and, fresh, after the change; these three
alone take about as long as `p12y apply` may. The rest is divided among loading 80 modules of ours,
syncing every file and directory, the journal, the ledger, and the memory maps of every process of
the host, which the kernel writes out on each look: the more processes, the longer it takes.
`status` hashes what is there and asks one interpreter; `makepatch status` compares a marker. A file
that nobody knows needs libcst, and loading that takes more than ten times as long as all of
ast-grep, which is a compiled program. `audit --quick` has to start Python and to read the
catalogue, and looks at servers, caches and start-up code too; `git status` does none of it. A wall
time that is several times the CPU time of its command is that of a queue."""
GROWTH = """
## Growth (ms, CPU median and wall best)

Environments and catalogues made for it, but for the events: those are added to the ledger of the
real one, where `allreduce-fusion` is staged."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-growth", action="store_true", help="leave the growth tables out")
    parser.add_argument("--write", action="store_true", help="write docs/performance.md")
    options = parser.parse_args()
    begun = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - begun:4.0f} s  {text}\n")

    with tempfile.TemporaryDirectory(prefix="sm120patch-bench-") as work:
        cases, grown, found, smallest = measured(Path(work), options, say)
    text = document(cases, grown, found, smallest, options.rounds)
    sys.stdout.write(text)
    if options.write:
        DOCUMENT.write_text(text, encoding="utf-8")
    return 0


def measured(
    work: Path, options: argparse.Namespace, say: Callable[[str], None]
) -> tuple[list[Case], dict[str, list[list[Case]]], peers.Peers, int]:
    """Build everything, measure it, and return what was measured."""
    found = peers.Peers(Path.home() / ".cache" / "sm120patch" / "peers", say)
    say("building environments")
    trees = Trees(work)
    cases = [
        *ours(trees), limit_case(trees), *peers.git_status_case(found, trees),
        *peers.version_cases(found, trees), *peers.change_cases(found, trees),
        *peers.rewriter_cases(found, trees),
    ]  # fmt: skip
    measure(cases, options.rounds, say)
    grown = {} if options.no_growth else growth.cases(trees, say)
    growth.run(grown, max(3, options.rounds // 3), say)
    return cases, grown, found, floor(trees.environ, work)


if __name__ == "__main__":
    raise SystemExit(main())
