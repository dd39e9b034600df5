"""What a change of a FlashInfer header costs: builds that follow, beside `rm -rf` and a rebuild.

    python benchmarks/caches.py                  # print the tables
    python benchmarks/caches.py --write          # and put them into docs/caches.md

Everything happens in one run on one machine: published FlashInfer 0.6.3 (downloaded when it is not
in the wheel cache), the real ninja and the real nvcc, in a temporary directory. `page` is a small
module: the real price of a wiped cache is that of all its modules. The scan is over 200 module
directories with the dependency log of a real build; the peer is `ninja -t deps` in each.
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
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("SM120PATCH_TEST_REAL_HOME", str(Path.home()))

from sm120patch.caches import flashinfer as scanning
from sm120patch.caches import freshness, shelf
from sm120patch.caches.builds import PRISTINE
from sm120patch.caches.flashinfer import ChangedFile
from tests.support import jit
from tests.support.real_flashinfer import PAGE, RealFlashInfer, write_catalogue

DOCUMENT = ROOT / "docs" / "caches.md"
BEGIN, END = "<!-- benchmarks/caches.py -->\n", "<!-- end -->\n"
GENERATOR = "flashinfer.jit.page:gen_page_module"
COPIES = 200
ROUNDS = 7


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds of an action, those of its children included."""
    before, start = os.times(), time.perf_counter()
    action()
    wall, after = time.perf_counter() - start, os.times()
    return wall, sum(after[:4]) - sum(before[:4])


class Bench:
    """One release with one built module, and the commands of a change and its revert."""

    def __init__(self, work: Path) -> None:
        self.made = RealFlashInfer(work / "flashinfer", "0.6.3")
        self.workspace = self.made.home / ".cache" / "flashinfer"
        catalogue = write_catalogue(work / "catalogue", self.made.site)
        self.options = ["--env", str(self.made.prefix), "--catalogue", str(catalogue)]
        self.environ = {**os.environ, "HOME": str(self.made.home), "PYTHONPATH": str(ROOT)}

    def command(self, *words: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "sm120patch", *words, *self.options],
            env=self.environ,
            check=True,
            capture_output=True,
        )

    def apply(self) -> None:
        self.command("apply", "mark", "--no-verify", "--gpu", "12.0")

    def revert(self) -> None:
        self.command("revert", "mark")

    def rebuild(self) -> None:
        shutil.rmtree(self.workspace)
        assert self.made.build(GENERATOR).worked

    def swap(self) -> Callable[[], None]:
        """Only the caches: the live build away, the other one back, shown to be up to date."""
        (entry,) = scanning.affected(
            [self.workspace], self.made.site, "0.6.3", [ChangedFile(PAGE)]
        ).entries
        keys = [p.name for p in (self.workspace / ".sm120patch").iterdir() if p.name != PRISTINE]
        (patched,) = keys
        apart = {str(self.made.site / PAGE)}
        checks = shelf.Checks(
            lambda e, _seeded: freshness.fresh(e.live, [jit.ninja()]),
            lambda _e, directory: freshness.identity(directory, apart),
        )

        def there_and_back() -> None:
            for old, new in ((PRISTINE, patched), (patched, PRISTINE)):
                shelf.park(entry, old, checks=checks)
                # The file would change here; the check of the other side would not hold.
                held = checks if new == PRISTINE else shelf.Checks(identity=checks.identity)
                shelf.place(entry, new, checks=held)

        return there_and_back


def changes(bench: Bench) -> list[tuple[str, str, float, float]]:
    """Rows: what, how, wall and CPU seconds."""
    rows = []
    wall, cpu = timed(lambda: bench.made.build(GENERATOR))
    rows.append(("first build of `page`", "nvcc", wall, cpu))
    bench.apply()
    wall, cpu = timed(lambda: bench.made.build(GENERATOR))
    rows.append(("after an apply", "only what includes the header", wall, cpu))
    bench.revert()
    for name, action in (("revert", bench.revert), ("apply again", bench.apply)):
        found = []
        for _ in range(ROUNDS):
            if action == bench.revert:
                bench.apply()
                found.append(timed(action))
            else:
                found.append(timed(action))
                assert not bench.made.build(GENERATOR).worked
                bench.revert()
            assert not bench.made.build(GENERATOR).worked
        best = min(found)
        rows.append((f"`{name}`", "the whole command, nothing compiled", *best))
    swap = bench.swap()
    found = [timed(swap) for _ in range(ROUNDS)]
    wall, cpu = min(found)
    rows.append(("caches alone", "put away, bring back, ninja asked", wall / 2, cpu / 2))
    wall, cpu = timed(bench.rebuild)
    rows.append(("the habit", "`rm -rf ~/.cache/flashinfer`, `page` built again", wall, cpu))
    return rows


def scans(bench: Bench) -> list[tuple[str, str, float, float]]:
    """Rows for finding the modules that depend on a header among COPIES directories."""
    operations = bench.workspace / "0.6.3" / "120a" / "cached_ops"
    for number in range(COPIES - 1):
        shutil.copytree(operations / "page", operations / f"page_{number}", dirs_exist_ok=True)

    def scan() -> None:
        found = scanning.affected([bench.workspace], bench.made.site, "0.6.3", [ChangedFile(PAGE)])
        assert len(found.entries) == COPIES and not found.problems

    def peer() -> None:
        count = 0
        for module in operations.iterdir():
            if (module / ".ninja_deps").exists():
                command = [jit.ninja(), "-C", str(module), "-f", "build.ninja", "-t", "deps"]
                done = subprocess.run(command, capture_output=True, check=True)
                count += str(bench.made.site / PAGE).encode() in done.stdout
        assert count == COPIES

    rows = []
    for name, how, action in (
        ("scan", f"{COPIES} directories, this tool", scan),
        ("`ninja -t deps`", f"in each of {COPIES} directories", peer),
    ):
        found = [timed(action) for _ in range(ROUNDS)]
        wall = statistics.median(w for w, _ in found)
        rows.append((name, how, wall, statistics.median(c for _, c in found)))
    return rows


def table(rows: list[tuple[str, str, float, float]]) -> str:
    lines = ["| what | how | wall s | CPU s |", "|---|---|---|---|"]
    lines += [f"| {what} | {how} | {wall:.3f} | {cpu:.3f} |" for what, how, wall, cpu in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/caches.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sm120patch-bench-") as text:
        bench = Bench(Path(text))
        rows, found = changes(bench), scans(bench)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    note = (
        f"Best of {ROUNDS} for commands and caches, one run for compiles, median of {ROUNDS} for"
        f" scans. Python {platform.python_version()}, {os.cpu_count()} CPUs,\nload {load} (1, 5, 15"
        " minutes) at the end: with more load than CPUs the wall times are those of the queue.\n"
    )
    result = f"\n{table(rows)}\n{table(found)}\n{note}"
    sys.stdout.write(result)
    if arguments.write:
        head, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
        tail = rest.partition(END)[2]
        DOCUMENT.write_text(f"{head}{BEGIN}{result}{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
