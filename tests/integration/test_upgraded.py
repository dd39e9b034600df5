"""Sets of which an installer took a part: one command brings them back, measured as a whole."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import signal
import sqlite3

import pytest

from sm120patch.ledger import read_ledger
from sm120patch.plan import content_digest
from tests.support.catalogue import A_TEXT, A
from tests.support.environments import install_fake
from tests.support.place import Place, refused, reinstall
from tests.support.serving import BAD, FILES, FUSION, GOOD, QUICK, Host, stage


def upgrade(host: Host, version: str = "0.5.10") -> None:
    """What `pip install sglang==VERSION` does."""
    shutil.rmtree(host.site / "sglang")
    for metadata in host.site.glob("sglang-*.dist-info"):
        shutil.rmtree(metadata)
    texts = {path: text.encode() for path, text in FILES.items() if path.startswith("sglang/")}
    install_fake(host.site, "sglang", version, {"sglang/__init__.py": b"", **texts})
    host.pristine = {**host.facts()}


def states_of(host: Host, *sets: str) -> set[str]:
    return {host.states()[name] for name in sets}


def test_half_a_set_after_an_upgrade_is_measured_whole_by_one_command(host: Host) -> None:
    stage(host, "fusion")
    upgrade(host)
    assert host.states()["fusion"] == "lost" and host.states()["jit-list"] == "staged"
    profile = host.profile(GOOD, verify=QUICK)
    dry = host.run("apply", "fusion", "--profile", profile, "--dry-run")
    assert dry.code == 0 and dry.result["owed"] == ["fusion"]
    done = host.run("apply", "fusion", "--profile", profile)
    assert done.code == 0, done.err
    assert host.patched() == FUSION and states_of(host, *FUSION) == {"applied"}
    (first, second, *_) = host.events()
    assert (first["kind"], second["kind"]) == ("verified", "staged")
    assert set(first["sets"]) == FUSION
    versions = {"sglang": "0.5.10", "flashinfer-python": "0.6.3"}
    with read_ledger(host.prefix / ".sm120patch" / "ledger.sqlite3") as ledger:
        assert ledger is not None
        (evidence,) = ledger.evidence()
    assert evidence.baseline_digest == content_digest({}, versions), "the baseline had none of it"


def test_half_a_set_that_fails_after_an_upgrade_is_taken_off_as_a_whole(host: Host) -> None:
    stage(host, "fusion")
    upgrade(host)
    done = host.run("apply", "fusion", "--profile", host.profile(BAD, verify=QUICK))
    assert done.code == 8, done.err
    assert host.patched() == set() and states_of(host, *FUSION) == {"rejected"}


def test_of_several_lost_sets_the_error_names_commands_that_work(host: Host) -> None:
    stage(host, "fusion")
    stage(host, "other")
    upgrade(host)
    profile = host.profile(GOOD, verify=QUICK)
    for words in (("apply", "fusion"), ("apply", "fusion", "--dry-run"), ("verify", "jit-list")):
        failed = host.run(*words, "--profile", profile)
        error = refused(failed, 5, "the disk and the ledger disagree")
        assert error["message"].count("sglang is now 0.5.10, was 0.5.9") == 1
    again, off = re.findall(r"`sm120patch ([^`]*)`", str(error["hint"]))
    assert again.startswith("apply ") and off.startswith("revert ")
    options = [word for word in shlex.split(off) if word not in ("revert", "fusion", "other")]
    assert shlex.split(off)[:3] == ["revert", "fusion", "other"] and options == host.options
    done = host.run(*[word for word in shlex.split(again) if word not in host.options])
    assert done.code == 0, done.err
    assert host.states()["other"] == host.states()["fusion"] == "applied"


def test_taking_one_lost_set_off_does_not_hide_that_another_is_lost(place: Place) -> None:
    place.stage("bundle")
    place.stage("one", "--with", "extra")
    reinstall(place, "1.5", "flashinfer_python")
    before = place.findings()
    assert ("lost", "flashinfer/data/include/kernel.cuh") in before
    place.stage("two")
    place.done("revert", "two")
    assert place.findings() == before
    assert (place.states()["bundle"], place.states()["kernel"]) == ("lost", "lost")
    place.done("revert", "--all")
    assert place.findings() == set()


@pytest.mark.parametrize("version", ["1.0", "1.5", "3.0"])
def test_taking_a_lost_set_off_does_not_write_another_that_shared_a_file_with_it(
    place: Place, version: str
) -> None:
    place.stage("bundle")
    place.stage("two")
    reinstall(place, version, "sglang")
    place.seal()
    assert place.done("revert", "two", "--dry-run")["files"] == []
    place.done("revert", "two")
    assert place.changed() == set(), "an upgraded file is not patched by a revert"
    assert {place.states()[name] for name in ("one", "bundle")} == {"lost"}
    hints = {(f["kind"], f["path"]): f["hint"] for f in place.run("audit").result["findings"]}
    assert hints["lost", A] == "sm120patch apply bundle"
    place.done("revert", "bundle")
    assert place.findings() == set()


def test_a_set_of_which_the_books_have_no_file_is_lost_and_so_is_its_bundle(place: Place) -> None:
    """So an earlier release left it when it took another set off after an upgrade."""
    place.stage("bundle")
    with contextlib.closing(sqlite3.connect(place.state / "ledger.sqlite3")) as ledger, ledger:
        ledger.execute("DELETE FROM owned_files WHERE path = ?", (A,))
    place.write(A, A_TEXT)
    assert {place.states()[name] for name in ("one", "bundle")} == {"lost"}
    hints = {(f["kind"], f["path"]): f["hint"] for f in place.run("audit").result["findings"]}
    assert hints["lost", "one"] == "sm120patch apply bundle"
    place.done("revert", "bundle")
    assert place.findings() == set()


def test_interrupted_where_half_a_set_was_made_whole_it_says_what_is_on_disk(host: Host) -> None:
    stage(host, "fusion")
    upgrade(host)
    running = host.start("apply", "fusion", "--profile", host.profile(GOOD))
    running.wait_said("baseline: starting the server")
    running.send(signal.SIGINT)
    error = refused(running.finish(), 130, "staged: not verified", "sm120patch verify fusion")
    assert "from before" not in error["message"]
    assert host.patched() == FUSION and states_of(host, *FUSION) == {"staged"}
    assert host.litter() == []
