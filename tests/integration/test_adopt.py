"""Sets that were applied by hand are taken into the ledger, verified bytes and all."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import audited
from tests.support.audited import FILES, SED_A, SED_KERNEL, publish, sh, write_pair
from tests.support.catalogue import A_TEXT, B_TEXT, KERNEL, A, B
from tests.support.command import Ran, run, run_killed_at
from tests.support.environments import tree_digest
from tests.support.place import Checkout, Place, refused

HALF = "s/^line_5 = 5$/line_5 = 'left'/"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    write_pair(made.catalogue)
    return made


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    directory = tmp_path / "wheels"
    for target, files in FILES.items():
        publish(directory, target, "1.0", files)
    return directory


def adopt(place: Place, wheels: Path, *arguments: str | Path) -> Ran:
    return place.run("adopt", *arguments, "--wheel-dir", wheels, "--offline", "--gpu", "12.0")


def test_a_set_that_sed_made_is_taken_over_and_can_be_reverted(place: Place, wheels: Path) -> None:
    sh(f'sed -i "{SED_A}" {A} && sed -i "{SED_KERNEL}" {KERNEL}', place.site)
    place.seal()
    ran = adopt(place, wheels, "bundle")
    assert ran.code == 0, ran.out
    assert set(ran.result) == {"outcome", "plan", "completed", "sources"}
    assert ran.result["outcome"] == "adopted" and ran.result["completed"] == []
    assert place.facts() == place.before, "no file, mode or time is touched"
    assert place.states()["bundle"] == "staged"
    assert place.findings() == {("unverified", n) for n in ("bundle", "one", "kernel")}
    assert place.litter() == []
    place.done("revert", "bundle", "--allow-running")
    assert place.read(A) == A_TEXT and "ARCH < 1200" in place.read(KERNEL)
    assert place.findings() == set()


def test_the_event_and_the_originals_are_kept(place: Place, wheels: Path) -> None:
    sh(f'sed -i "{SED_A}" {A}', place.site)
    adopt(place, wheels, "one")
    (event, *_) = place.done("history")["events"]
    assert event["kind"] == "adopted" and event["sets"] == ["one"]
    shutil.rmtree(wheels)
    place.done("revert", "--all", "--allow-running")
    assert place.read(A) == A_TEXT


def test_a_dry_run_writes_nothing(place: Place, wheels: Path) -> None:
    sh(f'sed -i "{SED_A}" {A}', place.site)
    place.seal()
    ran = adopt(place, wheels, "one", "--dry-run")
    assert ran.code == 0 and ran.result["outcome"] == "planned"
    place.assert_nothing_written()


def test_what_is_lacking_is_refused_or_completed(place: Place, wheels: Path) -> None:
    sh(f'sed -i "{HALF}" {A}', place.site)
    place.seal()
    refused(adopt(place, wheels, "pair"), 5, "pair/right", "--complete")
    place.assert_nothing_written()
    ran = adopt(place, wheels, "pair", "--complete", "--allow-running")
    assert ran.code == 0 and ran.result["completed"] == [B]
    assert "'right'" in place.read(B) and "'left'" in place.read(A)
    place.done("revert", "pair", "--allow-running")
    assert (place.read(A), place.read(B)) == (A_TEXT, B_TEXT)


def test_processes_that_keep_the_old_code_are_named_where_files_are_completed(
    place: Place, wheels: Path
) -> None:
    sh(f'sed -i "{HALF}" {A}', place.site)
    words = [place.prefix / "bin" / "python3", "-c", "import time; time.sleep(600)", "sglang"]
    with subprocess.Popen(words) as serving:
        try:
            refused(adopt(place, wheels, "pair", "--complete"), 9, f"pid {serving.pid}")
            ran = adopt(place, wheels, "pair", "--complete", "--allow-running")
            assert ran.code == 0
            assert f"keeps the old code until it is restarted: pid {serving.pid}" in ran.err
        finally:
            serving.kill()


def test_an_optional_change_that_is_there_is_taken_along(place: Place, wheels: Path) -> None:
    sh(f"sed -i \"{SED_A}\" {A} && sed -i \"s/'upstream'/'extra'/\" {B}", place.site)
    assert adopt(place, wheels, "one").code == 0
    (entry,) = [s for s in place.done("status")["sets"] if s["id"] == "one"]
    assert entry["with"] == ["extra"]
    place.done("revert", "one", "--allow-running")
    assert (place.read(A), place.read(B)) == (A_TEXT, B_TEXT)


@pytest.mark.parametrize(
    ("script", "code", "text"),
    [
        (f'sed -i "{SED_A}" {A} && echo mine >> {A}', 5, "is not what the set makes"),
        ("true", 2, "nothing of one is on disk by hand"),
        (f'sed -i "{SED_A}" {A} && rm sglang-1.0.dist-info/RECORD', 5, "nobody knows"),
    ],
)
def test_what_cannot_be_taken_over_is_refused(
    place: Place, wheels: Path, script: str, code: int, text: str
) -> None:
    sh(script, place.site)
    place.seal()
    refused(adopt(place, wheels, "one"), code, text)
    place.assert_nothing_written()


def test_a_change_of_another_set_in_the_file_is_named(place: Place, wheels: Path) -> None:
    sh(f'sed -i "{SED_A}" {A} && sed -i "s/^line_30 = 30$/line_30 = \'two\'/" {A}', place.site)
    refused(adopt(place, wheels, "one"), 5, "two/far", "as well")
    assert adopt(place, wheels, "one", "two").code == 0
    place.done("revert", "one", "--allow-running")
    assert "'two'" in place.read(A) and "'one'" not in place.read(A)


def test_bytes_that_record_does_not_know_are_no_pristine_bytes(place: Place, wheels: Path) -> None:
    sh(f'sed -i "{SED_A}" {A}', place.site)
    files = {**FILES["sglang"], A: b"another content\n"}
    publish(wheels, "sglang", "1.0", files)
    place.seal()
    refused(adopt(place, wheels, "one"), 10, "RECORD says", "--pristine")
    place.assert_nothing_written()
    given = place.root / "given"
    (given / "sglang").mkdir(parents=True)
    (given / A).write_text(A_TEXT)
    ran = adopt(place, wheels, "one", "--pristine", given)
    assert ran.code == 0 and ran.result["sources"] == {f"sglang:{A}": str(given / A)}


def test_a_ledger_that_was_lost_is_made_again(place: Place, wheels: Path) -> None:
    place.stage("bundle")
    shutil.rmtree(place.state)
    assert {kind for kind, _path in place.findings()} == {"foreign"}
    assert adopt(place, wheels, "bundle").code == 0
    place.done("revert", "--all", "--allow-running")
    assert place.changed() == set() and place.findings() == set()


def test_a_checkout_has_its_pristine_bytes_in_git(tmp_path: Path) -> None:
    place = Checkout(tmp_path)
    sh(f'sed -i "{SED_A}" {A}', place.source)
    assert place.run("adopt", "one", "--offline", "--gpu", "12.0").code == 0
    assert place.claim().exists(), "another environment that imports it is told"
    place.done("revert", "one", "--allow-running")
    assert place.git_status() == "" and not place.claim().exists()


def test_a_set_in_the_ledger_is_not_adopted_again(place: Place, wheels: Path) -> None:
    place.stage("one")
    refused(adopt(place, wheels, "one"), 2, "in the ledger")


def test_hard_links_keep_what_they_hold_when_an_adopted_set_is_reverted(
    place: Place, wheels: Path
) -> None:
    sh(f'sed -i "{SED_A}" {A} && cp -al sglang "{place.root}/link"', place.site)
    assert adopt(place, wheels, "one").code == 0
    assert (place.site / A).stat().st_nlink == 2
    place.done("revert", "one", "--allow-running")
    assert "'one'" in (place.root / "link" / "a.py").read_text()


def test_it_is_all_or_nothing_wherever_it_is_killed(place: Place, wheels: Path) -> None:
    sh(f'sed -i "{HALF}" {A}', place.site)
    before = tree_digest(place.site)
    arguments = ("adopt", "pair", "--complete", "--allow-running", "--gpu", "12.0", "--offline",
                 "--wheel-dir", wheels, *place.options)  # fmt: skip
    after = None
    for step in (1, 4, 7, 10):
        ran = run_killed_at(step, *arguments)
        if ran.code == 0:
            break
        assert run("recover", *place.options).code == 0
        now = tree_digest(place.site)
        state = place.states()["pair"]
        assert (now == before and state != "staged") or (now != before and state == "staged")
        after = now if now != before else after
    assert place.litter() == []


def test_the_audit_names_the_command_that_works(tmp_path: Path) -> None:
    host = audited.AuditedHost(tmp_path)
    audited.edited_with_sed(host)
    options = host.options("/opt/sed")
    found = run("audit", *options, "--output", "json", **host.environment()).result["findings"]
    (hint,) = {f["hint"] for f in found if f["path"] == "one"}
    words = hint.split()[1:]
    done = run(*words, *options, "--offline", "--gpu", "12.0", **host.environment())
    assert done.code == 0, done.err
    assert run("status", *options).out.count("staged") == 1
