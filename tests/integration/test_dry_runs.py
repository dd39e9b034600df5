"""What a dry run foretells, for programs that must know it beforehand: what would be measured."""

from __future__ import annotations

from pathlib import Path

from sm120patch.operations.fleet import COLLECTION
from tests.support.command import run
from tests.support.place import Place, refused, reinstall
from tests.support.serving import GOOD, QUICK, Host


def test_apply_tells_which_sets_it_would_measure(place: Place) -> None:
    assert place.done("apply", "one", "two", "--dry-run")["owed"] == ["one", "two"]
    assert place.done("apply", "one", "--dry-run", "--no-verify")["owed"] == []
    place.stage("one")
    again = place.done("apply", "one", "--dry-run")
    assert again["noop"] and again["owed"] == ["one"], "on disk, and not measured"


def test_verify_tells_which_sets_lack_a_verification_and_measures_nothing(host: Host) -> None:
    profile = host.profile(GOOD, verify=QUICK)
    assert host.run("apply", "fusion", "--no-verify").code == 0
    dry = host.run("verify", "fusion", "--profile", profile, "--dry-run")
    assert dry.code == 0 and dry.result["owed"] == ["fusion"]
    assert "--enable-flashinfer-allreduce-fusion" in dry.result["commands"]["patched"]
    assert not (host.prefix / "logs").exists(), "no server was started"
    assert host.run("verify", "fusion", "--profile", profile).code == 0
    assert host.run("verify", "fusion", "--profile", profile, "--dry-run").result["owed"] == []
    speed = host.run("verify", "fusion", "--profile", profile, "--dry-run", "--goal", "speed")
    evidence = host.entry("fusion")["evidence"]
    assert (speed.result["owed"] == []) is (evidence["verdict"] == "improved")


def test_a_dry_verify_of_what_is_not_on_disk_is_refused(place: Place) -> None:
    refused(place.run("verify", "one", "--dry-run"), 2, "not on disk")


def test_what_cannot_be_measured_is_refused_by_the_dry_run_already(place: Place) -> None:
    place.stage("one")
    refused(place.run("apply", "bundle", "--dry-run"), 5, "in both arms", "verify one")
    assert place.done("apply", "bundle", "--dry-run", "--no-verify")["owed"] == []
    reinstall(place, "1.0", "sglang")
    refused(place.run("verify", "one", "--dry-run"), 5, "the disk and the ledger disagree")
    assert place.done("apply", "one", "--dry-run")["owed"] == ["one"], "lost: it is put there again"


def test_revert_refuses_another_plan_than_the_expected(place: Place) -> None:
    place.stage("one")
    digest = place.done("revert", "one", "--dry-run")["digest"]
    place.stage("two")
    refused(place.run("revert", "one", "--expect", digest), 5, "stale")
    assert place.states()["one"] == "staged"
    digest = place.done("revert", "one", "--dry-run")["digest"]
    assert place.done("revert", "one", "--expect", digest)["outcome"] == "reverted"


def test_fleet_path_is_where_ansible_finds_the_collection() -> None:
    printed = run("fleet-path").out.strip()
    assert run("fleet-path", "--output", "json").result["path"] == printed
    assert (Path(printed) / COLLECTION / "plugins" / "modules" / "patch_set.py").is_file()
