"""Commands at the same time: one after the other, or refused; never interleaved."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys

import pytest

from tests.property.test_schedules import CONTENT, TEXTS, expected
from tests.support import catalogue as small
from tests.support.catalogue import KERNEL, A
from tests.support.command import CHECKOUT, Ran, run_after
from tests.support.place import Place, checked, refused, reinstall


def start(place: Place, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sm120patch", *words, *place.options]
    environ = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str]) -> Ran:
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err, err
    return Ran(process.returncode, out, err)


APPLY_ONE = ("apply", "one", "--no-verify", "--allow-running")
APPLY_TWO = ("apply", "two", "--no-verify", "--allow-running")
PAIRS = {
    "two applies": (APPLY_ONE, APPLY_TWO),
    "apply and revert": (APPLY_TWO, ("revert", "one", "--allow-running")),
    "apply and audit": (APPLY_TWO, ("audit",)),
}


@pytest.mark.parametrize("pair", sorted(PAIRS))
def test_commands_at_once_are_one_after_the_other_or_refused(place: Place, pair: str) -> None:
    """Both files of both orders are known; anything else is interleaved."""
    first, second = PAIRS[pair]
    if pair != "two applies":
        place.stage("one")
    for _ in range(3):
        runs = [start(place, *first), start(place, *second)]
        codes = [ended(process).code for process in runs]
        # stale: the other was quicker between look and lock; busy: it was at it
        assert all(code in (0, 1, 5, 9) for code in codes), codes
        staged = {n for n, s in place.states().items() if s == "staged"}
        assert place.read(A) == expected(staged & set(CONTENT))[A]
        if second[0] == "audit":
            assert codes[1] == 1, "it names what is not verified"
        if pair == "two applies":
            assert staged == {n for n, c in zip(("one", "two"), codes, strict=True) if c == 0}
            assert staged, "one of them gets through"
        assert place.litter() == []
        place.run("revert", "--all")
        if pair != "two applies":
            place.run("apply", "one", "--no-verify")


def test_pip_install_during_an_apply_loses_nothing_of_upstreams(place: Place) -> None:
    """The package is installed anew at a random step of the apply; the end is never a mixture."""
    chance = random.Random(3)
    moments = ["store sglang/a.py", "journal opened", f"stage {A}", f"replace {KERNEL}",
               f"replace {A}", "purge bytecode", "ledger commit"]  # fmt: skip
    for moment in chance.sample(moments, 4):
        fresh = place.root / "fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        small.install(fresh, "1.0")
        statements = f"""
import shutil
from sm120patch import transaction
def at(label):
    if label == {moment!r}:
        shutil.copytree({str(fresh)!r}, {str(place.site)!r}, dirs_exist_ok=True)
transaction.on_checkpoint = at
"""
        ran = run_after(statements, "apply", "bundle", "--no-verify", *place.options)
        assert "Traceback" not in ran.err
        if ran.code == 7:
            assert place.run("recover").code == 0
        states = place.states()
        for path in (A, KERNEL):
            assert place.read(path) in (TEXTS[path], expected({"one", "kernel"})[path])
        mixed = place.changed() not in (set(), {A, KERNEL})
        if mixed or (place.changed() == set()) != (states["bundle"] == "absent"):
            assert states["bundle"] in ("drifted", "lost"), (moment, states, place.changed())
        assert place.litter() == []
        reinstall(place, "1.0")
        place.run("revert", "--all")
        assert place.changed() == set()


UPGRADE = """
import pathlib, shutil
from sm120patch import transaction
site, fresh = pathlib.Path({site!r}), pathlib.Path({fresh!r})
def at(label):
    if label == {moment!r} and not (site / "sglang-2.0.dist-info").exists():
        for old in [*site.glob("*-1.0.dist-info"), site / "sglang", site / "flashinfer"]:
            shutil.rmtree(old)
        shutil.copytree(fresh, site, dirs_exist_ok=True)
transaction.on_checkpoint = at
"""


def upgraded_at(place: Place, moment: str) -> None:
    """Another version is installed at that step; the end is told as it is, and nothing is lost."""
    fresh = place.root / "fresh-2"
    shutil.rmtree(fresh, ignore_errors=True)
    small.install(fresh, "2.0")
    statements = UPGRADE.format(site=str(place.site), fresh=str(fresh), moment=moment)
    ran = run_after(statements, "apply", "bundle", "--no-verify", *place.options)
    assert "Traceback" not in ran.err and ran.code != 70, (moment, ran.out)
    if place.run("status").code == 7:
        assert place.run("recover", "--keep-foreign").code == 0, moment
    for path in (A, KERNEL):
        assert place.read(path) in (TEXTS[path], expected({"one", "kernel"})[path]), moment
    state = place.states()["bundle"]
    if (place.site / "sglang-2.0.dist-info").exists():
        assert state in ("upstream", "lost", "drifted"), (moment, state)
        assert place.litter() == [], moment
    place.run("revert", "--all")
    reinstall(place, "1.0")
    place.run("revert", "--all")
    assert place.litter() == [] and place.states()["bundle"] == "absent", moment


def moments(place: Place) -> list[str]:
    """Every step of an apply, by its label."""
    statements = """
import sys
from sm120patch import transaction
transaction.on_checkpoint = lambda label: sys.stderr.write(f"step {label}\\n")
"""
    ran = run_after(statements, "apply", "bundle", "--no-verify", *place.options)
    assert ran.code == 0
    place.done("revert", "--all")
    found = [x.removeprefix("step ") for x in ran.err.splitlines() if x.startswith("step ")]
    return list(dict.fromkeys(found))


def test_a_package_that_is_upgraded_during_an_apply(place: Place) -> None:
    for moment in ("journal opened", f"replace {KERNEL}"):
        upgraded_at(place, moment)


@pytest.mark.slow
def test_a_package_that_is_upgraded_at_any_step_of_an_apply(place: Place) -> None:
    steps = moments(place)
    assert len(steps) > 8
    for moment in steps:
        upgraded_at(place, moment)


def test_an_audit_during_a_change_takes_nothing_of_it_for_foreign(place: Place) -> None:
    """The files that a measured change keeps beside those it replaced are no findings."""
    words = [sys.executable, "-m", "sm120patch", "audit", *place.options]
    statements = f"""
import subprocess, sys
from sm120patch import transaction
def at(label):
    if label == "purge bytecode":
        done = subprocess.run({words!r}, capture_output=True, text=True)
        sys.stderr.write("audit: " + done.stdout.replace("\\n", " ") + "\\n")
transaction.on_checkpoint = at
"""
    ran = run_after(statements, "apply", "bundle", "--no-verify", *place.options)
    assert ran.code == 0
    (said,) = [line for line in ran.err.splitlines() if line.startswith("audit: ")]
    found = json.loads(said.removeprefix("audit: "))["result"]["findings"]
    assert any(f["kind"] == "interrupted" for f in found), found
    assert not [f for f in found if ".sm120patch-" in f["path"]], found


READER = """
import json, pathlib, sys
paths = [pathlib.Path(p) for p in sys.argv[2:]]
seen = {str(p): set() for p in paths}
print("reading", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    for path in paths:
        try:
            seen[str(path)].add(path.read_text())
        except FileNotFoundError:
            seen[str(path)].add("nothing")
print(json.dumps({path: sorted(texts) for path, texts in seen.items()}))
"""


def test_who_reads_during_a_change_gets_one_whole_content_or_the_other(place: Place) -> None:
    """No file is ever missing, empty or torn, however often it is exchanged."""
    stop, files = place.root / "stop", [place.site / A, place.site / KERNEL]
    words = [sys.executable, "-c", READER, str(stop), *map(str, files)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None and reader.stdout.readline() == "reading\n"
        for _ in range(3):
            place.done("apply", "bundle", "--no-verify", "--allow-running")
            place.done("revert", "--all", "--allow-running")
        stop.touch()
        seen = json.loads(reader.stdout.read())
    both = expected({"one", "kernel"})
    assert {p: set(texts) for p, texts in seen.items()} == {
        str(place.site / path): {TEXTS[path], both[path]} for path in (A, KERNEL)
    }


def test_a_reader_that_holds_the_ledger_is_named_and_the_change_is_undone(place: Place) -> None:
    """A backup or a forgotten sqlite3 lets nobody commit: then nothing has happened."""
    place.stage("two")
    before = place.facts()
    hold = f"""
import sqlite3
from sm120patch.operations import staging
staging.PATIENCE = 0.2
held = sqlite3.connect({str(place.state / "ledger.sqlite3")!r}, isolation_level=None)
held.execute("BEGIN")
held.execute("SELECT count(*) FROM events").fetchone()
"""
    for command in (("apply", "kernel", "--no-verify"), ("revert", "two")):
        ran = checked(run_after(hold, *command, "--allow-running", *place.options))
        refused(ran, 9, "in use by another process")
        assert place.facts() == before and place.litter() == []
        assert place.states()["two"] == "staged" and place.states()["kernel"] == "absent"
