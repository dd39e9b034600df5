"""Requests that change what the ledger says and no file: nothing is compared with itself."""

from __future__ import annotations

from tests.support.serving import FUSION, GOOD, QUICK, Host, apply, stage


def revise(host: Host, name: str) -> None:
    """A new release of the catalogue: another revision that makes the same content."""
    manifest = host.catalogue / "manifests" / f"{name}.toml"
    text = manifest.read_text()
    assert "revision = 1" in text
    manifest.write_text(text.replace("revision = 1", "revision = 2"))


def applied(host: Host) -> set[str]:
    return {name for name, state in host.states().items() if state == "applied"}


def test_a_revision_that_makes_the_same_content_keeps_its_evidence(host: Host) -> None:
    assert apply(host, GOOD).code == 0
    revise(host, "jit-list")
    assert "revision 1 -> 2" in host.entry("jit-list")["reason"]
    profile = host.profile(GOOD, verify=QUICK)
    dry = host.run("apply", "jit-list", "--profile", profile, "--dry-run")
    assert dry.code == 0 and dry.result["owed"] == [] and not dry.result["files"]
    done = host.run("apply", "jit-list", "--profile", profile)
    assert done.code == 0 and done.result["verification"] is None, "both arms would be alike"
    assert applied(host) == FUSION and host.entry("jit-list")["revision"] == 2
    assert host.entry("jit-list")["reason"] == "verified: improved"


def test_asking_for_what_came_along_keeps_its_evidence(host: Host) -> None:
    assert apply(host, GOOD).code == 0
    done = host.text("apply", "jit-list", "--profile", host.profile(GOOD, verify=QUICK))
    assert done.code == 0
    assert "on disk, not measured again: there is evidence for exactly this content" in done.out
    assert "restart" not in done.out, "no file was changed"
    assert applied(host) == FUSION and host.entry("jit-list")["role"] == "requested"


def test_asking_for_what_came_along_unmeasured_measures_it_against_a_server_without_it(
    host: Host,
) -> None:
    stage(host, "fusion")
    profile = host.profile("null", verify=QUICK)
    done = host.run("apply", "jit-list", "--profile", profile)
    assert done.result["verification"]["blocks_run"]
    events = [event["kind"] for event in host.events()]
    assert events[1:] == ["staged", "staged"], events
    assert set(host.events()[0]["sets"]) >= {"jit-list", "fusion"}, "what needs it goes with it"


def test_a_change_names_the_sets_that_it_leaves_without_evidence(host: Host) -> None:
    assert apply(host, GOOD).code == 0
    said = "not verified together with what is on disk now: fusion, jit-list, runtime-gate; next: "
    staged = host.text("apply", "other", "--no-verify").out.splitlines()[-1]
    assert staged.startswith(f"{said}sm120patch verify fusion --env ")
    assert said not in host.text("revert", "other").out, "that content was measured"
    assert applied(host) == FUSION
