"""How the times grow with files, sets, events of the ledger and environments."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

from benchmarks.speed.measuring import Case, measure, milliseconds
from benchmarks.speed.trees import GPU, SET, Trees
from sm120patch.evidence import Event
from sm120patch.ledger import open_ledger
from sm120patch.model import sha256_hex
from sm120patch.unified import make_diff
from tests.support.environments import create_venv, install_fake

FILES = (1_000, 4_000, 16_000)
SETS = (10, 100, 400)
EVENTS = (0, 1_000, 10_000, 100_000)
ENVIRONMENTS = (1, 4, 16)
TEXT = "".join(f"line_{number} = {number}\n" for number in range(500))


def cases(trees: Trees, say: Callable[[str], None]) -> dict[str, list[list[Case]]]:
    """Heading -> rows of cases; a row is one size, a column one command."""
    say("building what grows")
    return {
        "files of a package": [_files(trees, n) for n in FILES],
        "sets of a catalogue": [_sets(trees, n) for n in SETS],
        "events in the ledger": [_events(trees, n) for n in EVENTS],
        "environments in one place": [_environments(trees, n) for n in ENVIRONMENTS],
    }


def _case(name: str, words: list[str], trees: Trees) -> Case:
    # An audit that finds something exits with 1, and staged sets are something.
    return Case(name, "", words, trees.work, environ=trees.environ, codes=(0, 1))


def _files(trees: Trees, count: int) -> list[Case]:
    name = f"files-{count}"
    site = create_venv(trees.work / name)
    data = TEXT.encode()
    contents = {f"sglang/part{n % 50}/m{n}.py": data for n in range(count)}
    install_fake(site, "sglang", "0.5.9", {"sglang/__init__.py": b"", **contents})
    title = f"{count:,}"
    audit = trees.tool("audit", *trees.env(name))
    return [
        _case(f"{title}|status", trees.tool("status", *trees.env(name)), trees),
        _case(f"{title}|audit", audit, trees),
        _case(f"{title}|audit --quick", [*audit, "--quick"], trees),
    ]


def _sets(trees: Trees, count: int) -> list[Case]:
    name = f"sets-{count}"
    site = create_venv(trees.work / name)
    files = {f"sglang/m{n}.py": TEXT.encode() for n in range(count)}
    install_fake(site, "sglang", "0.5.9", {"sglang/__init__.py": b"", **files})
    place = trees.work / f"catalogue-{count}"
    for number in range(count):
        _write_set(place, number)
    options = ["--catalogue", str(place), *trees.env(name)]
    title = f"{count:,}"
    return [
        _case(f"{title}|status", trees.tool("status", *options), trees),
        _case(f"{title}|plan of one", trees.tool("plan", "set-0", *options), trees),
    ]


def _write_set(place: Path, number: int) -> None:
    after = TEXT.replace("line_3 = 3\n", "line_3 = 'x'\n")
    diff = make_diff(f"sglang/m{number}.py", TEXT.encode(), after.encode()).encode()
    (place / "patches" / f"set-{number}").mkdir(parents=True)
    (place / "manifests").mkdir(exist_ok=True)
    (place / "patches" / f"set-{number}" / "a.patch").write_bytes(diff)
    (place / "manifests" / f"set-{number}.toml").write_text(
        f"""schema = 1
[patch-set]
id = "set-{number}"
revision = 1
title = "Set {number}"
description = "For measuring."
type = "unofficial"
[upstream]
status = "inappropriate"
reason = "made for measuring"
last-checked = "2026-11-29"
[[change]]
id = "a"
target = "sglang"
summary = "Change a line"
description = "For measuring."
[[change.variant]]
versions = ">=0.5,<0.6"
kind = "diff"
path = "sglang/m{number}.py"
payload = "set-{number}/a.patch"
sha256 = "{sha256_hex(diff)}"
present = {{ "line_3 = 'x'" = 1 }}
"""
    )


def _events(trees: Trees, count: int) -> list[Case]:
    """Events as `apply` and `revert` leave them, spread over the sets of the catalogue."""
    name = f"events-{count}"
    trees.copy_environment(name)
    apply = ("apply", SET, "--no-verify", "--allow-running", *GPU, *trees.env(name))
    trees.ask(*apply)
    files = {f"flashinfer-python:{path}": ["0" * 64, "1" * 64] for path in trees.files}
    with open_ledger(trees.work / name / ".sm120patch" / "ledger.sqlite3") as ledger:
        ledger._db.execute("PRAGMA synchronous=OFF")
        ledger._db.execute("PRAGMA journal_mode=MEMORY")
        for number in range(count):
            sets = (SET, trees.catalogue[number % len(trees.catalogue)])
            data = {"command": "sm120patch apply", "files": files, "homes": ["/root"]}
            ledger.commit(Event("staged", sets, data, tx=f"grown-{number}"), None)
        ledger._db.execute("PRAGMA journal_mode=DELETE")
    title = f"{count:,}"
    revert = trees.tool("revert", "--all", "--allow-running", *trees.env(name))
    found = [
        _case(f"{title}|status", trees.tool("status", *trees.env(name)), trees),
        _case(f"{title}|history", trees.tool("history", *trees.env(name)), trees),
        _case(f"{title}|revert", revert, trees),
        _case(f"{title}|apply --no-verify", trees.tool(*apply), trees),
    ]
    return found


def _environments(trees: Trees, count: int) -> list[Case]:
    place = trees.work / f"host-{count}"
    first = place / "opt" / "env-0"
    site = create_venv(first)
    files = {f"sglang/m{n}.py": TEXT.encode() for n in range(500)}
    install_fake(site, "sglang", "0.5.9", {"sglang/__init__.py": b"", **files})
    for number in range(1, count):
        shutil.copytree(first, place / "opt" / f"env-{number}", symlinks=True)
    audit = trees.tool("audit", "--root", str(place))
    title = f"{count:,}"
    return [
        _case(f"{title}|audit --root", audit, trees),
        _case(f"{title}|audit --root --quick", [*audit, "--quick"], trees),
    ]


def run(found: dict[str, list[list[Case]]], rounds: int, say: Callable[[str], None]) -> None:
    """Measure every row; sizes follow each other within a round."""
    for heading, rows in found.items():
        say(heading)
        measure([case for row in rows for case in row], rounds, lambda _text: None)


def document(found: dict[str, list[list[Case]]]) -> list[str]:
    """Markdown lines: a table for each thing that grows, CPU best and wall best of each cell."""
    lines = []
    for heading, rows in found.items():
        titles = [case.name.partition("|")[2] for case in rows[0]]
        lines += ["", f"| {heading} | {' | '.join(f'`{t}`' for t in titles)} |"]
        lines.append("|---" * (len(titles) + 1) + "|")
        for row in rows:
            size = row[0].name.partition("|")[0]
            cells = (
                f"{milliseconds(statistics.median(c.cpu))} CPU, {milliseconds(min(c.wall))} wall,"
                f" {c.peak >> 10} MB"
                for c in row
            )
            lines.append(f"| {size} | {' | '.join(cells)} |")
    return lines
