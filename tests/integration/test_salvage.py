"""The ledger is gone, damaged, hot or large: nothing is lost, and the next step is said."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from sm120patch.evidence import Event, Evidence
from sm120patch.ledger import open_ledger, read_ledger
from sm120patch.plan import History
from tests.support.audited import FILES, publish
from tests.support.catalogue import A_TEXT, KERNEL, KERNEL_TEXT, A
from tests.support.command import CHECKOUT, run_after
from tests.support.faults.rejecting import STAND_IN, write_profile
from tests.support.place import A_WITH_ONE, KERNEL_OPEN, Checkout, Place, checked, refused

APPLY_ONE = [
    *(sys.executable, "-m", "sm120patch"),
    *("apply", "one", "--no-verify", "--allow-running"),
]


def lose_ledger(place: Place, how: str) -> None:
    ledger = place.state / "ledger.sqlite3"
    if how == "deleted":
        ledger.unlink()
    elif how == "garbage":
        ledger.write_bytes(b"garbage " * 999)
    else:
        ledger.write_bytes(ledger.read_bytes()[: ledger.stat().st_size // 2])


@pytest.mark.parametrize("how", ["deleted", "garbage", "half"])
def test_upstreams_content_comes_back_without_the_ledger(place: Place, how: str) -> None:
    place.stage("bundle")
    place.write("sglang/b.py", "mine = True\n")
    lose_ledger(place, how)
    result = place.done("recover", "--lost-ledger")
    assert set(result["restored"]) == {A, KERNEL}
    assert result["kept_foreign"] == ["sglang/b.py"], "not ours, not touched"
    assert (result["moved"] is None) == (how == "deleted")
    assert place.changed() == {"sglang/b.py"}
    assert place.litter() == []
    assert {s for n, s in place.states().items() if n != "one"} == {"absent"}
    place.write("sglang/b.py", "value = 'upstream'\n")
    place.stage("bundle")


def test_an_intact_ledger_is_not_thrown_away(place: Place) -> None:
    place.stage("one")
    after = place.facts()
    refused(place.run("recover", "--lost-ledger"), 2, "intact", "revert --all")
    assert place.facts() == after and place.states()["one"] == "staged"


def test_where_nothing_was_ever_patched_nothing_can_be_put_back(place: Place) -> None:
    refused(place.run("recover", "--lost-ledger"), 2, "nothing was ever patched")
    place.write(A, "mine = True\n")
    assert place.run("recover", "--lost-ledger").code == 2
    assert place.read(A) == "mine = True\n"


def test_a_damaged_ledger_names_the_command_that_helps(place: Place) -> None:
    place.stage("one")
    lose_ledger(place, "garbage")
    assert "recover --lost-ledger" in refused(place.run("status"), 10, "damaged")["hint"]


def test_revert_all_warns_of_what_is_on_disk_without_a_ledger(place: Place) -> None:
    clean = place.run("revert", "--all")
    assert clean.code == 0 and "warning" not in clean.err
    place.stage("bundle")
    patched = place.facts()
    shutil.rmtree(place.state)
    for words in (("--all",), ("bundle",)):
        ran = place.run("revert", *words)
        assert ran.code == 1 and ran.result["outcome"] == "nothing"
        assert f"warning: no ledger has them, but {KERNEL}, {A} hold what bundle makes" in ran.err
        assert "sm120patch adopt bundle" in ran.err and "sm120patch revert bundle" in ran.err
        assert place.facts() == patched


def test_revert_all_names_the_store_that_is_left_of_a_lost_ledger(place: Place) -> None:
    place.stage("one")
    lose_ledger(place, "deleted")
    ran = place.run("revert", "--all")
    assert f"{A} hold what one makes" in ran.err and "recover --lost-ledger" in ran.err
    assert place.done("recover", "--lost-ledger")["restored"] == [A]
    assert "warning" not in place.run("revert", "--all").err


def test_an_edit_that_no_set_makes_is_no_reason_to_warn(place: Place) -> None:
    place.write(A, "mine = True\n")
    assert "warning" not in place.run("revert", "--all").err


@pytest.mark.parametrize("how", ["garbage", "deleted"])
def test_the_audit_blames_no_hand_for_what_a_lost_ledger_knew(place: Place, how: str) -> None:
    place.stage("bundle")
    lose_ledger(place, how)
    audit = place.run("audit").result
    found = [f for f in audit["findings"] if f["kind"] != "unverified"]
    assert {A, KERNEL, "bundle"} <= {f["path"] for f in found}, found
    assert "applied by hand" not in str(found), found
    (hint,) = {f["hint"] for f in found if f["hint"]}
    assert hint == "sm120patch recover --lost-ledger"
    (entry,) = audit["environments"][0]["sets"]
    assert (entry["id"], entry["label"], entry["counts"]) == ("bundle", "ledger lost", False)


def test_recover_does_not_call_a_damaged_ledger_nothing(place: Place) -> None:
    place.stage("one")
    lose_ledger(place, "garbage")
    after = place.facts()
    assert "recover --lost-ledger" in refused(place.run("recover"), 10, "damaged")["hint"]
    assert place.facts() == after
    assert place.done("recover", "--lost-ledger")["restored"] == [A]
    assert place.done("recover")["outcome"] == "nothing"


def test_recover_does_not_call_a_ledger_that_is_gone_nothing(place: Place) -> None:
    place.stage("one")
    lose_ledger(place, "deleted")
    after = place.facts()
    error = refused(place.run("recover"), 10, "is gone", A, "recover --lost-ledger")
    assert error["code"] == "ledger-lost"
    assert place.facts() == after and not (place.state / "ledger.sqlite3").exists()
    assert place.done("recover", "--lost-ledger")["restored"] == [A]
    assert place.done("recover")["outcome"] == "nothing"


@pytest.mark.parametrize(
    "command",
    [
        ("apply", "kernel", "--no-verify"),
        ("adopt", "kernel"),
        ("bench", "--try", "--disable-x", "--profile"),
    ],
)
def test_no_new_ledger_takes_the_place_of_one_that_is_gone(
    place: Place, command: tuple[str, ...]
) -> None:
    """It would know nothing of what is on disk, and the originals would count as rubbish."""
    place.stage("one")
    if command[0] == "adopt":
        place.write(KERNEL, KERNEL_OPEN)
        for target, files in FILES.items():
            publish(place.root / "wheels", target, "1.0", files)
        words = ("--wheel-dir", str(place.root / "wheels"), "--offline", "--gpu", "12.0")
        command = (*command, *words)
    if command[0] == "bench":
        command = (*command, str(write_profile(place.root / "profile.toml")))
    lose_ledger(place, "deleted")
    after = place.facts()
    refused(place.run(*command), 10, "is gone", A, "recover --lost-ledger")
    assert place.facts() == after and place.litter() == []
    assert set(place.done("recover", "--lost-ledger")["restored"]) >= {A}
    assert place.read(A) == A_TEXT


def test_what_an_interrupted_command_leaves_without_a_ledger_loses_no_original(
    place: Place,
) -> None:
    place.stage("one")
    kill = """
import os
from sm120patch import transaction
transaction.on_checkpoint = lambda label: label.startswith("replace") and os.kill(os.getpid(), 9)
"""
    words = ("apply", "kernel", "--no-verify", "--allow-running")
    assert run_after(kill, *words, *place.options).code == -9
    lose_ledger(place, "deleted")
    assert place.done("recover")["outcome"] == "undone"
    assert place.changed() == {A} and place.litter() == []
    refused(place.run("recover"), 10, "is gone", A, "recover --lost-ledger")
    assert place.done("recover", "--lost-ledger")["restored"] == [A]
    assert place.changed() == set()


def test_a_command_that_was_killed_before_it_began_has_lost_no_ledger(place: Place) -> None:
    """Contents are kept from then on, but nothing is patched: not even what was done by hand."""
    place.write(A, A_WITH_ONE)
    place.write(KERNEL, KERNEL_OPEN)
    for target, files in FILES.items():
        publish(place.root / "wheels", target, "1.0", files)
    kill = """
import os
from sm120patch import transaction
transaction.on_checkpoint = lambda label: label.startswith("store") and os.kill(os.getpid(), 9)
"""
    words = ("adopt", "bundle", "--wheel-dir", place.root / "wheels", "--offline", "--gpu", "12.0")
    assert run_after(kill, *words, *place.options).code == -9
    assert place.done("recover")["outcome"] == "nothing"
    assert A in {path for _kind, path in place.findings()}
    assert "ledger" not in str(place.run("audit").result["findings"])


def test_a_ledger_of_a_newer_version_is_not_taken_for_lost(place: Place) -> None:
    place.stage("one")
    with sqlite3.connect(place.state / "ledger.sqlite3") as ledger:
        ledger.execute("PRAGMA user_version = 99")
    ledger.close()
    after = place.facts()
    refused(place.run("status"), 5, "99")
    refused(place.run("recover", "--lost-ledger"), 5, "99")
    assert place.facts() == after


HOT = """
import sqlite3, sys, os, signal
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size = 1")
db.execute("PRAGMA synchronous = FULL")
db.execute("BEGIN IMMEDIATE")
db.execute("DELETE FROM active_sets")
db.execute("DELETE FROM owned_files")
db.executemany("INSERT INTO event_sets VALUES (?, 1)", [(f"x{n}" * 50,) for n in range(2000)])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_who_may_only_read_sees_the_state_before_a_killed_write(place: Place) -> None:
    """SQLite refuses to read a hot journal that it may not roll back."""
    place.stage("one")
    ledger = place.state / "ledger.sqlite3"
    subprocess.run([sys.executable, "-c", HOT, ledger], check=False)
    assert ledger.with_name("ledger.sqlite3-journal").stat().st_size > 0
    for directory in [place.root, *place.root.parents][:4]:
        if directory != Path("/tmp"):
            directory.chmod(directory.stat().st_mode | 0o055)
    before = ledger.read_bytes()
    reader = (
        "import os, sys, json, sqlite3, shutil, tempfile, random\n"
        "from pathlib import Path\nfrom sm120patch.ledger import read_ledger\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "with read_ledger(Path(sys.argv[1])) as ledger: print(*ledger.history().active)"
    )
    done = subprocess.run(
        [sys.executable, "-c", reader, ledger],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={"PYTHONPATH": str(CHECKOUT), "PATH": os.environ["PATH"]},
    )
    assert done.stdout.split() == ["one"], done.stderr
    assert ledger.read_bytes() == before, "a reader writes nothing"
    assert place.states()["one"] == "staged"


def evidence(number: int, verdict: str, host: str = "here") -> Evidence:
    return Evidence(
        "content", "base", host, "profile", "real", verdict, verdict == "improved",
        ("one",), (), {"n": number, "padding": "x" * 2000},
    )  # fmt: skip


def test_what_decides_is_found_among_any_number_of_measurements(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with open_ledger(path) as ledger:
        for n in range(300):
            verdict = "improved" if n % 2 else "regressed"
            ledger.commit(Event("verified", ("one",), {}), None, evidence(n, verdict))
        ledger.commit(Event("verified", ("one",), {}), None, evidence(999, "improved", "there"))
    with read_ledger(path) as reading:
        assert reading is not None
        found = reading.evidence("content")
        assert [(e.data["n"], e.verdict, e.host) for e in found] == [
            (999, "improved", "there"), (299, "improved", "here"), (298, "regressed", "here"),
        ]  # fmt: skip
        assert len(reading.evidence()) == 301, "history shows all of it"
        assert reading.history() == History()


def test_a_full_standard_output_does_not_make_a_bug_of_a_finished_change(place: Place) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    for form in ("text", "json"):
        words = [*APPLY_ONE, *place.options[:-1], form]
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                words, stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert done.returncode == 10, done.stderr
        assert "could not be printed: No space left" in done.stderr
        assert "sm120patch status" in done.stderr and "Traceback" not in done.stderr
        assert place.states()["one"] == "staged"
        place.done("revert", "one", "--allow-running")


def test_nobody_has_to_listen_to_the_talk(place: Place) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [*APPLY_ONE, *place.options[:-2]]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=writer, text=True, check=False)
    os.close(writer)
    assert done.returncode == 0 and "staged" in done.stdout
    assert place.states()["one"] == "staged"


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_reader_that_has_gone_changes_no_exit_code(place: Place, form: str) -> None:
    """`sm120patch audit | head` under pipefail must not make findings of none, nor none of some."""
    reader, writer = os.pipe()
    os.close(reader)
    where = ["--env", str(place.prefix), "--catalogue", str(place.catalogue), "--output", form]
    for words, code in ((("audit",), 0), (("apply", "one", "--no-verify"), 0), (("audit",), 1)):
        command = [sys.executable, "-m", "sm120patch", *words, *where]
        done = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
        )
        assert done.returncode == code, done.stderr
    os.close(writer)
    assert place.states()["one"] == "staged"


def test_a_linked_state_directory_is_refused(place: Place) -> None:
    elsewhere = place.root / "elsewhere"
    elsewhere.mkdir()
    place.state.symlink_to(elsewhere)
    refused(place.run("apply", "one", "--no-verify"), 10, "symbolic link")
    assert list(elsewhere.iterdir()) == [] and place.facts() == place.before


def test_a_removed_lock_file_lets_nobody_in_beside_its_holder(place: Place) -> None:
    place.stage("one")
    statements = f"""
from sm120patch import transaction
import subprocess, sys, pathlib
def at(label):
    if label == "journal opened":
        pathlib.Path({str(place.state / "lock")!r}).unlink()
        words = [sys.executable, "-m", "sm120patch", "revert", "--all", *{place.options!r}]
        done = subprocess.run(words, capture_output=True, text=True)
        sys.stderr.write(f"second: {{done.returncode}}\\n")
transaction.on_checkpoint = at
"""
    ran = checked(run_after(statements, "apply", "two", "--no-verify", *place.options))
    assert ran.code == 0, ran.err
    assert "second: 9" in ran.err
    assert place.states()["two"] == place.states()["one"] == "staged"


def test_contents_are_kept_as_private_as_the_files_they_come_from(place: Place) -> None:
    old = os.umask(0)
    try:
        (place.site / A).chmod(0o600)
        place.stage("bundle")
    finally:
        os.umask(old)
    modes = {}
    for entry in place.state.rglob("*"):
        mode = entry.stat().st_mode
        assert not mode & 0o022, f"{entry} can be written by others: {mode:o}"
        modes[entry.name] = mode & 0o777
    private = [p for p in (place.state / "objects").rglob("*") if p.is_file()]
    private = [p for p in private if b"line_3" in p.read_bytes()]
    assert len(private) == 2 and {p.stat().st_mode & 0o077 for p in private} == {0}
    assert (place.site / A).stat().st_mode & 0o777 == 0o600


def test_extended_attributes_are_kept(place: Place) -> None:
    try:
        os.setxattr(place.site / A, "user.origin", b"mirror")
    except OSError:
        pytest.skip("this file system has no user attributes")
    place.stage("one")
    assert os.getxattr(place.site / A, "user.origin") == b"mirror"
    place.done("revert", "--all")
    assert os.getxattr(place.site / A, "user.origin") == b"mirror"
    assert place.read(A) == A_TEXT


def test_recover_clears_away_what_killed_commands_left(place: Place) -> None:
    place.stage("one")
    kept = {p for p in (place.state / "objects").rglob("*") if p.is_file()}
    left = [
        place.state / ".sm120patch-w-journal.json.tmp",
        place.state / ".sm120patch-new-1-ledger.sqlite3",
        place.state / "objects" / "ab" / ("c" * 62),
        place.state / "objects" / "ab" / ".sm120patch-w-x.tmp",
    ]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"left")
    assert place.done("recover")["outcome"] == "nothing"
    assert [p for p in left if p.exists()] == []
    assert {p for p in (place.state / "objects").rglob("*") if p.is_file()} == kept
    place.done("revert", "--all")
    assert place.changed() == set()


def test_what_a_kill_left_in_a_checkout_goes_with_the_next_change(checkout: Checkout) -> None:
    left = checkout.source.parent / ".git" / ".sm120patch-w-sm120patch-claim.json.tmp"
    left.write_bytes(b"{")
    checkout.stage("one")
    assert not left.exists() and checkout.claim().exists()


def test_two_revised_sets_on_one_file_are_named_in_one_command(place: Place) -> None:
    place.stage("one", "two")
    for name in ("one", "two"):
        manifest = place.catalogue / "manifests" / f"{name}.toml"
        manifest.write_text(manifest.read_text().replace("revision = 1", "revision = 2"))
    error = refused(place.run("apply", "one", "--no-verify"), 5, "sm120patch apply one two")
    assert "two" in error["message"]
    place.done("apply", "one", "two", "--no-verify")


@pytest.mark.slow
def test_a_measurement_outlives_a_ledger_that_somebody_holds(place: Place) -> None:
    """A reader that stays (a backup, a forgotten sqlite3) keeps every writer from committing."""
    place.stage("two")
    before = place.facts()
    reader = f"""
import sqlite3
from sm120patch.operations import staging
staging.MEASURED_PATIENCE = 0.2
held = sqlite3.connect({str(place.state / "ledger.sqlite3")!r}, isolation_level=None)
held.execute("BEGIN")
held.execute("SELECT count(*) FROM events").fetchone()
"""
    profile = write_profile(place.root / "profile.toml")
    words = ["apply", "kernel", "--allow-running", "--profile", profile, *place.options]
    error = refused(checked(run_after(STAND_IN + reader, *words)), 9, "in use")
    kept = next((place.state / "logs").glob("unrecorded-*.json"))
    assert str(kept) in error["message"]
    assert json.loads(kept.read_text())["verdict"] == "regressed"
    assert place.facts() == before and place.litter() == []
    assert place.states()["kernel"] == "absent"


# --- a ledger that is older than the environment -------------------------------------------------


def put_back_an_older_ledger(place: Place, *sets: str) -> None:
    """Restore the ledger from a copy that was made before `sets` were applied."""
    ledger = place.state / "ledger.sqlite3"
    place.stage("two")
    place.done("revert", "--all")
    older = ledger.read_bytes()
    place.stage(*sets)
    ledger.write_bytes(older)


def test_recover_keeps_the_originals_that_an_older_ledger_does_not_know(place: Place) -> None:
    put_back_an_older_ledger(place, "one", "kernel")
    after = place.facts()
    for _ in range(2):
        ran = place.run("recover")
        assert (ran.code, ran.result["outcome"]) == (0, "nothing")
        assert f"does not speak of {KERNEL}, {A}" in ran.err.replace("\n", " ")
        assert "sm120patch adopt SET" in ran.err and "recover --lost-ledger" in ran.err
    assert place.facts() == after
    place.done("adopt", "one", "kernel", "--offline", "--gpu", "12.0")
    assert "warning" not in place.run("recover").err
    place.done("revert", "--all")
    assert place.changed() == set() and place.read(KERNEL) == KERNEL_TEXT


def test_an_older_ledger_is_set_aside_on_the_way_back_to_upstream(place: Place) -> None:
    put_back_an_older_ledger(place, "one", "kernel")
    result = place.done("recover", "--lost-ledger")
    assert set(result["restored"]) == {A, KERNEL} and Path(result["moved"]).is_file()
    assert place.changed() == set() and place.litter() == []


def test_the_ledger_of_another_environment_is_no_dead_end(tmp_path: Path) -> None:
    """It speaks of the same file and content, and of another version of the package."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    here, there = Place(tmp_path / "here", "1.5"), Place(tmp_path / "there")
    here.stage("kernel")
    there.stage("kernel")
    shutil.copy(there.state / "ledger.sqlite3", here.state / "ledger.sqlite3")
    assert here.run("revert", "--all").code == 5
    here.done("recover")
    assert here.done("recover", "--lost-ledger")["restored"] == [KERNEL]
    assert here.changed() == set() and there.states()["kernel"] == "staged"


def test_the_original_of_an_edit_on_top_of_a_patch_is_no_rubbish(place: Place) -> None:
    put_back_an_older_ledger(place, "kernel")
    place.write(KERNEL, KERNEL_OPEN + "// mine\n")
    place.done("recover")
    shown = place.run("diff", KERNEL, "--offline").result["files"]
    assert "+// mine" in shown[0]["diff"], shown


def test_an_edit_of_what_was_patched_once_makes_no_ledger_old(place: Place) -> None:
    place.stage("kernel")
    place.done("revert", "--all")
    place.write(KERNEL, KERNEL_TEXT + "// mine\n")
    refused(place.run("recover", "--lost-ledger"), 2, "intact")
    assert "warning" not in place.run("recover").err
