"""Whole commands on catalogues, ledgers and journals that are broken or forged."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sm120patch.model import sha256_hex
from tests.support.catalogue import A_TEXT, KERNEL, A
from tests.support.command import run, run_killed_at
from tests.support.place import (
    A_WITH_ONE,
    Place,
    checked,
    refused,
    reinstall,
    slow,
)

# --- catalogues --------------------------------------------------------------------------------


def broken_catalogue(place: Place) -> Path:
    """A catalogue with four faults in two manifests."""
    root = place.root / "broken"
    shutil.copytree(place.catalogue, root)
    one = root / "manifests" / "one.toml"
    one.write_text(one.read_text().replace("revision = 1", 'revision = "x"\ncolour = "red"'))
    two = root / "manifests" / "two.toml"
    two.write_text(two.read_text().replace('type = "unofficial"', "").replace(A, f"../{A}"))
    return root


@pytest.mark.parametrize(
    "command",
    [
        ("list",),
        ("show", "one"),
        ("plan", "kernel"),
        ("apply", "kernel", "--no-verify"),
        ("revert", "one"),
        ("verify", "one"),
    ],
)
def test_a_broken_catalogue_is_refused_with_every_fault(
    place: Place, command: tuple[str, ...]
) -> None:
    place.stage("one")
    after = place.facts()
    options = ["--catalogue", str(broken_catalogue(place)), "--output", "json"]
    if command[0] not in ("list", "show"):
        options += ["--env", str(place.prefix)]
    error = refused(checked(run(*command, *options)), 3)
    faults = error["details"]["faults"]
    assert len(faults) >= 4, faults
    for text in ("patch-set.revision", "colour", "type", "path"):
        assert any(text in fault for fault in faults), faults
    assert {fault.split(":")[0] for fault in faults} == {"one.toml", "two.toml"}
    assert place.facts() == after


def test_what_is_on_disk_is_looked_at_and_taken_off_without_a_catalogue(place: Place) -> None:
    place.stage("bundle")
    place.catalogue = broken_catalogue(place)
    status = place.run("status")
    assert status.code == 0 and "going by the ledger alone" in status.err
    assert {s["id"]: s["state"] for s in status.result["sets"]} == dict.fromkeys(
        ("bundle", "kernel", "one"), "staged"
    )
    assert place.done("history")["events"][0]["kind"] == "staged"
    assert place.done("recover")["outcome"] == "nothing"
    assert {kind for kind, _path in place.findings()} == {"unverified"}
    assert place.done("revert", "--all")["outcome"] == "reverted"
    assert place.changed() == set()


@pytest.mark.parametrize("what", ["missing", "empty", "a file"])
def test_a_directory_that_is_no_catalogue_is_refused(place: Place, what: str) -> None:
    place.catalogue = place.root / "other"
    if what == "empty":
        place.catalogue.mkdir()
    elif what == "a file":
        place.catalogue.write_text("manifest")
    ran = place.run("apply", "one", "--no-verify")
    assert ran.code in (2, 3)
    place.assert_nothing_written()


@pytest.mark.parametrize("path", ["../../../etc/passwd", "/etc/passwd", "sglang/../../x.py"])
def test_a_diff_that_leaves_the_package_is_refused(place: Place, path: str) -> None:
    patch = place.catalogue / "patches" / "one" / "first.patch"
    manifest = place.catalogue / "manifests" / "one.toml"
    old = sha256_hex(patch.read_bytes())
    patch.write_bytes(patch.read_bytes().replace(A.encode(), path.encode()))
    text = manifest.read_text().replace(old, sha256_hex(patch.read_bytes()))
    manifest.write_text(text)
    ran = place.run("apply", "one", "--no-verify")
    assert ran.code in (3, 5) and path in ran.error["message"]
    manifest.write_text(text.replace(f'path = "{A}"', f'path = "{path}"'))
    refused(place.run("apply", "one", "--no-verify"), 3)
    place.assert_nothing_written()


def test_a_diff_that_no_tool_could_use_is_a_fault_of_the_catalogue(place: Place) -> None:
    patch = place.catalogue / "patches" / "one" / "first.patch"
    manifest = place.catalogue / "manifests" / "one.toml"
    old = sha256_hex(patch.read_bytes())
    patch.write_bytes(b"not a diff\n")
    manifest.write_text(manifest.read_text().replace(old, sha256_hex(patch.read_bytes())))
    refused(place.run("plan", "one"), 3, "one/first.patch")


def test_a_payload_that_is_not_the_one_the_manifest_names_is_refused(place: Place) -> None:
    patch = place.catalogue / "patches" / "one" / "first.patch"
    patch.write_bytes(patch.read_bytes().replace(b"'one'", b"'evil'"))
    refused(place.run("apply", "one", "--no-verify"), 3, "one/first.patch")
    place.assert_nothing_written()


# --- ledger and journal ------------------------------------------------------------------------


def test_a_deleted_ledger_is_noticed_and_nothing_is_taken_for_upstream(place: Place) -> None:
    place.stage("bundle")
    shutil.rmtree(place.state)
    place.seal()
    assert {("foreign", A), ("foreign", KERNEL)} <= place.findings()
    assert {place.states()[name] for name in ("one", "kernel", "bundle")} == {"edited"}
    refused(place.run("apply", "bundle", "--no-verify"), 5, A, KERNEL)
    nothing = place.run("revert", "--all")
    assert (nothing.code, nothing.json["result"]["outcome"]) == (1, "nothing"), "patched files stay"
    assert place.facts() == place.before
    reinstall(place, "1.0")
    place.stage("bundle")


@pytest.mark.parametrize("damage", ["garbage", "empty", slow("half"), slow("directory")])
def test_a_damaged_ledger_is_named_and_nothing_is_touched(place: Place, damage: str) -> None:
    place.stage("bundle")
    ledger = place.state / "ledger.sqlite3"
    data = ledger.read_bytes()
    ledger.unlink()
    if damage == "directory":
        ledger.mkdir()
    else:
        kept = {"garbage": b"garbage " * 999, "empty": b"", "half": data[: len(data) // 2]}
        ledger.write_bytes(kept[damage])
    after = place.facts()
    for command in (
        ("status",),
        ("history",),
        ("apply", "two", "--no-verify"),
        ("revert", "--all"),
    ):
        refused(place.run(*command), 10, str(ledger))
    audit = place.run("audit")
    (unknown,) = [f for f in audit.result["findings"] if f["kind"] == "unknown"]
    assert audit.code == 1 and str(ledger) in unknown["detail"]
    assert place.facts() == after
    if damage == "directory":
        ledger.rmdir()
    ledger.write_bytes(data)
    place.done("revert", "--all")
    assert place.changed() == set()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE owned_files SET changes = 'not json'",
        slow("UPDATE owned_files SET changes = '7'"),
        slow("UPDATE owned_files SET pristine_mode = 'x'"),
        "UPDATE active_sets SET role = 'king'",
        slow("UPDATE active_sets SET selected = '{'"),
        slow("DROP TABLE active_sets"),
        slow("DROP TRIGGER events_no_update; UPDATE events SET data = '7'"),
        "UPDATE owned_files SET root = '/etc', path = 'passwd'",
        "UPDATE owned_files SET path = '../../../../../etc/passwd' WHERE target = 'sglang'",
    ],
)
def test_a_forged_ledger_is_no_way_out_of_the_environment(place: Place, statement: str) -> None:
    place.stage("bundle")
    passwd = Path("/etc/passwd").read_bytes()
    with sqlite3.connect(place.state / "ledger.sqlite3") as ledger:
        ledger.executescript(statement)
    ledger.close()
    after = place.facts()
    for command in (("status",), ("history",), ("audit",), ("revert", "--all")):
        ran = place.run(*command)
        assert ran.code in (0, 1, 5, 10), ran.out
    assert Path("/etc/passwd").read_bytes() == passwd
    assert place.facts() == after or place.changed() == set()


@pytest.mark.parametrize(
    "content", ["", slow("{"), slow("[]"), '{"schema": 99}', slow('{"schema": 1}'), slow("\0" * 9)]
)
def test_a_journal_that_cannot_be_read_stops_every_change(place: Place, content: str) -> None:
    place.stage("one")
    after = place.facts()
    journal = place.state / "journal.json"
    journal.write_text(content)
    for command in (
        ("apply", "two", "--no-verify"),
        ("revert", "--all"),
        ("recover",),
        ("status",),
        ("audit",),
    ):
        ran = place.run(*command)
        assert ran.code in (1, 7), ran.out
        if command[0] not in ("status", "audit"):
            assert ran.code == 7
        way_out = "newer one" if "99" in content else "--lost-ledger"
        assert not ran.json["errors"] or way_out in ran.error["hint"]
    assert place.facts() == after
    if "99" in content:
        refused(place.run("recover", "--lost-ledger"), 7, "format 99", "newer")
        journal.unlink()
    else:
        assert place.done("recover", "--lost-ledger")["restored"] == []
    assert place.facts() == after and place.states()["one"] == "staged"
    place.done("revert", "--all")


@pytest.mark.parametrize("step", [6, slow(4), slow(7), 8, slow(9), slow(10), slow(11), slow(12)])
def test_a_journal_that_rots_between_the_steps_is_no_dead_end(place: Place, step: int) -> None:
    assert run_killed_at(step, "apply", "bundle", "--no-verify", *place.options).code == -9
    (place.state / "journal.json").write_text("rotten")
    assert "--lost-ledger" in refused(place.run("recover"), 7, "cannot be read")["hint"]
    place.done("recover", "--lost-ledger")
    assert place.litter() == [] and place.run("recover").code == 0
    place.done("revert", "--all")
    assert place.changed() == set()


def of_files(key: str, value: object) -> Callable[[Any], None]:
    def change(journal: Any) -> None:
        for entry in journal["files"]:
            entry[key] = value

    return change


def of_journal(*keys: str, value: object) -> Callable[[Any], None]:
    def change(journal: Any) -> None:
        place = journal
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


FORGERIES = {
    "time": of_files("a_mtime_ns", 10**400),
    "no time": of_files("a_mtime_ns", 1.5),
    "mode": of_files("a_mode", 1 << 63),
    "no mode": of_files("a_mode", None),
    "path": of_files("path", "\ud800"),
    "NUL": of_files("a_sha256", "\0"),
    "transaction": of_journal("tx", value="../../x"),
    "sets": of_journal("sets", value=[[]]),
    "trees": of_journal("pycache_prefix", value=[1]),
    "homes": of_journal("caches", "homes", value=[1]),
    "patched": of_journal("caches", "a_patched", value=None),
    "places": of_journal("caches", "places", value=[]),
    "tactics": of_journal("caches", "tactics", value=[1]),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_journal_of_odd_values_is_one_that_cannot_be_read(place: Place, name: str) -> None:
    assert run_killed_at(9, "apply", "bundle", "--no-verify", *place.options).code == -9
    file = place.state / "journal.json"
    journal = json.loads(file.read_text())
    FORGERIES[name](journal)
    file.write_text(json.dumps(journal))
    after = place.facts()
    refused(place.run("recover"), 7, "cannot be read")
    assert place.run("status").code == 7 and place.facts() == after


def test_a_forged_journal_leads_nowhere(place: Place) -> None:
    place.stage("one")
    after = place.facts()
    outside = place.root / "outside.py"
    outside.write_text(A_TEXT)
    old, new = sha256_hex(A_TEXT.encode()), sha256_hex(A_WITH_ONE.encode())
    entry = {"target": "sglang", "root": str(place.site), "path": "../../../../outside.py",
             "a_sha256": new, "a_mtime_ns": 1, "b_sha256": old, "b_mtime_ns": 2}  # fmt: skip
    journal = {"schema": 1, "tx": "x", "command": "forged", "sets": ["one"], "plan_digest": "",
               "python": "python", "restore": "a", "at": "b", "moving_to": None, "files": [entry],
               "pycache_prefix": None, "caches": None, "pid": 1, "started": "now"}  # fmt: skip
    (place.state / "journal.json").write_text(json.dumps(journal))
    refused(place.run("recover"), 7)
    assert outside.read_text() == A_TEXT and place.facts() == after


@pytest.mark.parametrize("name", ["journal.json", "lock"])
def test_nobody_waits_for_what_is_no_file_in_the_state_directory(place: Place, name: str) -> None:
    place.stage("one")
    (place.state / name).unlink(missing_ok=True)
    os.mkfifo(place.state / name)
    for command in (("status",), ("apply", "two", "--no-verify"), ("recover",), ("audit",)):
        assert place.run(*command).code in (0, 1, 10), command
    (place.state / name).unlink()
    place.done("revert", "--all")
