"""Several catalogues: the shipped one, what the host adds, what a command names; their change."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120patch import catalogue as catalogues
from sm120patch.catalogue import SHIPPED, Places
from sm120patch.errors import CatalogueError
from sm120patch.operations.places import find_places
from tests.support.catalogue import write_catalogue, write_environment
from tests.support.command import run

SHIPPED_IDS = set(catalogues.load().ids)


def test_an_extra_catalogue_is_added_to_the_shipped_one(tmp_path: Path) -> None:
    extra = write_catalogue(tmp_path)
    found = catalogues.load(Places(None, (extra,)))
    assert set(found.ids) == SHIPPED_IDS | {"one", "two", "clash", "kernel", "bundle"}
    assert found.origins["one"] == str(extra)
    assert found.origins["allreduce-fusion"] == SHIPPED


def test_a_set_of_another_catalogue_may_be_depended_on(tmp_path: Path) -> None:
    extra = write_catalogue(tmp_path)
    manifest = extra / "manifests" / "two.toml"
    manifest.write_text(manifest.read_text().replace("depends = []", 'depends = ["sm120-checks"]'))
    assert catalogues.load(Places(None, (extra,))).closure(["two"]) == ("sm120-checks", "two")
    with pytest.raises(CatalogueError, match="no set is named 'sm120-checks'"):
        catalogues.load(extra)


def test_a_name_that_is_used_twice_is_an_error_that_names_both(tmp_path: Path) -> None:
    one, two = write_catalogue(tmp_path / "1"), write_catalogue(tmp_path / "2")
    with pytest.raises(CatalogueError) as caught:
        catalogues.load(Places(one, (two,)))
    faults = caught.value.details["faults"]
    assert isinstance(faults, list) and len(faults) == 5
    for root in (one, two):
        assert str(root / "manifests" / "kernel.toml") in "\n".join(faults)


def test_the_host_adds_by_variable_and_by_site_directory(tmp_path: Path) -> None:
    configured = tmp_path / "config" / "sm120patch" / "catalogue"
    environ = {
        "SM120PATCH_CATALOGUE_PATH": f"{tmp_path / 'a'}:{tmp_path / 'b'}",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    named = (tmp_path / "a", tmp_path / "b")
    assert find_places(None, (), environ).extra == named
    write_catalogue(configured)
    assert find_places(None, (tmp_path / "c",), environ).extra == (
        configured, *named, tmp_path / "c",
    )  # fmt: skip
    # With a catalogue of its own a command means the same on every host.
    assert find_places(tmp_path, (), environ) == Places(tmp_path, ())


def test_a_relative_site_directory_counts_as_unset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_catalogue(tmp_path / "config" / "sm120patch" / "catalogue")
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": "config"}
    assert find_places(None, (), environ).extra == ()


def test_a_user_whom_nobody_knows_has_no_site_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_catalogue(tmp_path / "~" / ".config" / "sm120patch" / "catalogue")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert find_places(None, (), {}).extra == ()


def test_list_and_show_say_where_a_set_comes_from(tmp_path: Path) -> None:
    extra = write_catalogue(tmp_path)
    listed = run("list", "--output", "json", SM120PATCH_CATALOGUE_PATH=str(extra)).result["sets"]
    assert {s["origin"] for s in listed} == {SHIPPED, str(extra)}
    shown = run("show", "one", "--extra-catalogue", extra)
    assert f"comes from              {extra}" in shown.out
    assert run("list", SM120PATCH_CATALOGUE_PATH=str(tmp_path / "none")).code == 3
    alone = run("list", "--catalogue", extra, "--output", "json", SM120PATCH_CATALOGUE_PATH="/none")
    assert len(alone.result["sets"]) == 5


def test_lint_reports_the_extra_catalogue_and_exits_3_on_faults(tmp_path: Path) -> None:
    extra = write_catalogue(tmp_path)
    fine = run("lint", "one", "bundle", "--extra-catalogue", extra, "--output", "json")
    assert fine.code == 0 and fine.result["sets"] == ["one", "bundle"]
    (extra / "patches" / "one" / "spare.patch").write_text("x")
    (extra / "patches" / "one" / "first.patch").write_text("x")
    broken = run("lint", "--extra-catalogue", extra, "--output", "json")
    assert broken.code == 3 and {f["set"] for f in broken.result["faults"]} == {"one"}
    assert run("lint", "nope", "--extra-catalogue", extra).code == 2
    (extra / "patches" / "one" / "first.patch").unlink()
    assert run("lint", "two", "--extra-catalogue", extra).code == 0


@pytest.mark.parametrize("what", ["payload", "revision"])
def test_a_payload_changed_since_it_was_applied_is_reported(tmp_path: Path, what: str) -> None:
    prefix, catalogue = tmp_path / "env", write_catalogue(tmp_path / "c")
    write_environment(prefix)
    here = ("--env", prefix, "--catalogue", catalogue)
    assert run("apply", "kernel", "--no-verify", "--allow-running", *here).code == 0
    kinds = {f["kind"] for f in run("audit", *here, "--output", "json").result["findings"]}
    assert kinds == {"unverified"}
    manifest = catalogue / "manifests" / "kernel.toml"
    manifest.write_text(
        manifest.read_text().replace("revision = 1", "revision = 2")
        if what == "revision"
        else manifest.read_text() + "# another\n"
    )
    audit = run("audit", *here, "--output", "json")
    (finding,) = [f for f in audit.result["findings"] if f["kind"] == "changed-payload"]
    assert audit.code == 1 and finding["sets"] == ["kernel"]
    status = run("status", *here, "--output", "json")
    (entry,) = [s for s in status.result["sets"] if s["id"] == "kernel"]
    expected = "revision 1 -> 2" if what == "revision" else "still revision 1"
    assert entry["state"] == "staged" and expected in entry["reason"]
