"""Packages that are reinstalled, upgraded, removed, doubled, or live in a git checkout."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from sm120patch import claims
from tests.support import catalogue as small
from tests.support.catalogue import A_TEXT, KERNEL, KERNEL_TEXT, A, B
from tests.support.command import run
from tests.support.environments import commit_all
from tests.support.place import (
    A_WITH_ONE,
    KERNEL_OPEN,
    Checkout,
    Place,
    checked,
    refused,
    reinstall,
    slow,
    uninstall,
)

# --- packages that move under us ---------------------------------------------------------------


@pytest.mark.parametrize("version", [slow("1.0"), "1.5"])
def test_a_package_installed_over_a_patch_loses_it_and_can_be_patched_again(
    place: Place, version: str
) -> None:
    place.stage("bundle")
    reinstall(place, version)
    place.seal()
    assert {place.states()[name] for name in ("one", "kernel", "bundle")} == {"lost"}
    assert {("lost", A), ("lost", KERNEL)} <= place.findings()
    place.stage("bundle")
    assert (place.read(A), place.read(KERNEL)) == (A_WITH_ONE, KERNEL_OPEN)
    assert place.states()["bundle"] == "staged"
    place.done("revert", "--all")
    assert place.changed() == set()
    assert place.findings() == set()


@pytest.mark.parametrize("version", ["1.0", slow("1.5"), slow("2.0"), "3.0"])
def test_a_lost_patch_is_taken_off_the_books(place: Place, version: str) -> None:
    place.stage("bundle")
    reinstall(place, version)
    place.seal()
    assert {place.states()[name] for name in ("one", "kernel", "bundle")} == {"lost"}
    place.done("revert", "--all")
    assert place.facts() == place.before
    assert place.findings() == set()
    assert place.states()["one"] not in ("lost", "staged", "drifted")


def test_the_history_of_a_set_tells_of_the_patching_after_an_upgrade(place: Place) -> None:
    place.stage("bundle")
    reinstall(place, "1.5", "flashinfer_python")
    place.stage("bundle")
    first = place.done("history")["events"][0]
    assert first["sets"] == ["kernel", "bundle"], (
        "those whose files were written, and the asked one"
    )
    for name, count in (("kernel", 2), ("bundle", 2), ("one", 1)):
        events = place.done("history", name)["events"]
        assert [e["kind"] for e in events] == ["staged"] * count, name
    assert place.done("history", "bundle")["events"][0]["data"]["versions"] == {
        "sglang": "1.0", "flashinfer-python": "1.5",
    }  # fmt: skip


def test_a_release_that_has_the_change_ends_the_patch(place: Place) -> None:
    place.stage("bundle")
    reinstall(place, "2.0")
    place.seal()
    result = place.done("apply", "bundle", "--no-verify")
    assert {s["state"] for s in result["sets"]} == {"upstream"}
    assert place.facts() == place.before
    assert place.findings() == set()


def test_of_two_packages_one_upgraded_the_other_is_still_ours(place: Place) -> None:
    place.stage("bundle")
    reinstall(place, "1.5", "sglang")
    states = place.states()
    assert (states["one"], states["kernel"]) == ("lost", "staged")
    assert states["bundle"] == "lost", "half a set is no set"
    place.done("revert", "--all")
    assert (place.read(A), place.read(KERNEL)) == (A_TEXT, KERNEL_TEXT)


def test_the_next_step_after_a_reinstall_is_to_apply_what_was_asked_for(place: Place) -> None:
    place.stage("bundle")
    hints = {f["hint"] for f in place.run("audit").result["findings"]}
    assert hints == {"sm120patch verify bundle"}
    reinstall(place, "1.0", "sglang")
    assert place.states()["bundle"] == "lost"
    hints = {f["hint"] for f in place.run("audit").result["findings"]}
    assert hints == {"sm120patch apply bundle"}
    place.stage("bundle")
    assert {place.states()[name] for name in ("bundle", "one", "kernel")} == {"staged"}


def test_an_uninstalled_package_is_lost_and_does_not_stop_the_others(place: Place) -> None:
    place.stage("bundle")
    uninstall(place, "sglang")
    states = place.states()
    assert (states["one"], states["kernel"]) == ("lost", "staged")
    assert ("lost", "-") in place.findings()
    refused(place.run("apply", "bundle", "--no-verify"), 4, "sglang")
    place.done("revert", "--all")
    assert place.read(KERNEL) == KERNEL_TEXT
    assert place.findings() == set()


def test_new_code_is_what_python_runs_whatever_bytecode_was_cached(place: Place) -> None:
    python = place.prefix / "bin" / "python3"

    def value() -> str:
        code = "from sglang.a import line_3; print(line_3)"
        return subprocess.check_output([python, "-c", code], text=True).strip()

    assert value() == "3"
    place.stage("one")
    assert value() == "one"
    place.done("revert", "--all")
    assert value() == "3"


def test_a_second_copy_is_a_finding_and_only_the_imported_one_is_patched(place: Place) -> None:
    shadow = place.root / "shadow"
    small.install(shadow)
    (place.site / "first.pth").write_text(f"import sys; sys.path.insert(0, {str(shadow)!r})\n")
    place.seal()
    result = place.stage("one")
    (step,) = result["plan"]["files"]
    assert step["root"] == str(shadow), "the copy that Python imports"
    assert (shadow / A).read_text() == A_WITH_ONE and place.changed() == set()
    assert ("copies", str(place.site / "sglang")) in place.findings()
    place.done("revert", "--all")
    assert (shadow / A).read_text() == A_TEXT


# --- editable checkouts ------------------------------------------------------------------------


def test_an_editable_checkout_is_patched_and_comes_back_clean(checkout: Checkout) -> None:
    old = checkout.a.stat()
    checkout.stage("bundle")
    assert checkout.a.read_text() == A_WITH_ONE
    assert checkout.git_status().split() == ["M", f"python/{A}"], "and no file beside it"
    assert {kind for kind, _ in checkout.findings()} == {"unverified"}
    assert checkout.states()["bundle"] == "staged"
    checkout.done("revert", "--all")
    assert checkout.git_status() == "" and checkout.facts().keys() == checkout.before.keys()
    assert checkout.a.stat().st_mtime_ns == old.st_mtime_ns
    assert not checkout.claim().exists()


def test_a_dirty_file_of_a_checkout_is_a_foreign_edit(checkout: Checkout) -> None:
    checkout.a.write_text(A_TEXT + "mine = True\n")
    refused(checkout.run("apply", "one", "--no-verify"), 5, A, "foreign edit")
    assert checkout.a.read_text() == A_TEXT + "mine = True\n"
    assert not checkout.state.exists() and not checkout.claim().exists()
    assert ("foreign", A) in checkout.findings()


def test_a_dirty_file_that_is_not_concerned_is_left_alone(checkout: Checkout) -> None:
    (checkout.source / B).write_text("value = 'mine'\n")
    checkout.stage("one")
    checkout.done("revert", "--all")
    assert (checkout.source / B).read_text() == "value = 'mine'\n"
    assert checkout.a.read_text() == A_TEXT


def test_a_checkout_patched_from_one_environment_is_refused_to_another(
    checkout: Checkout,
) -> None:
    second = checkout.second()
    checkout.stage("one")
    for command in (("apply", "one", "--no-verify"), ("apply", "two", "--no-verify")):
        error = refused(checked(run(*command, *second)), 5, str(checkout.prefix))
        assert error["code"] == "claimed"
    assert checkout.a.read_text() == A_WITH_ONE
    assert not (checkout.root / "second" / ".sm120patch").exists()
    reverted = checked(run("revert", "--all", *second))
    assert reverted.code == 0 and "warning" not in reverted.err, "another ledger has them"
    assert checkout.a.read_text() == A_WITH_ONE, "it is not theirs to take off"
    checkout.done("revert", "--all")
    assert checked(run("apply", "one", "--no-verify", *second)).code == 0


def test_two_environments_never_change_one_checkout_at_a_time(checkout: Checkout) -> None:
    with checkout.claim().with_name("sm120patch-claim.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused(checkout.run("apply", "one", "--no-verify"), 9, "another environment")
    checkout.stage("one")
    with checkout.claim().with_name("sm120patch-claim.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused(checkout.run("revert", "--all"), 9, "another environment")


def test_a_claim_of_a_deleted_environment_does_not_block_for_ever(checkout: Checkout) -> None:
    second = checkout.second()
    checkout.stage("one")
    shutil.rmtree(checkout.prefix)
    refused(checked(run("apply", "one", "--no-verify", *second)), 5, A, "foreign edit")
    subprocess.check_call(["git", "-C", checkout.source, "checkout", "--quiet", "."])
    assert checked(run("apply", "one", "--no-verify", *second)).code == 0


@pytest.mark.parametrize(
    "content",
    ['{"prefix": "\\u0000"}', '{"prefix": "\\ud800"}', '{"prefix": "' + "x" * 5000 + '"}', None],
    ids=["NUL", "half a character", "endless", "FIFO"],
)
def test_a_claim_that_is_none_stops_nobody(checkout: Checkout, content: str | None) -> None:
    """Whoever may write the git directory of a shared checkout may put anything there."""
    claim = checkout.claim()
    os.mkfifo(claim) if content is None else claim.write_text(content)
    assert set(checkout.states().values()) == {"absent"}
    checkout.stage("one")
    checkout.done("revert", "--all")
    assert checkout.a.read_text() == A_TEXT


def test_an_owner_whose_ledger_another_release_wrote_is_still_named(checkout: Checkout) -> None:
    second = checkout.second()
    checkout.stage("one")
    with contextlib.closing(sqlite3.connect(checkout.state / "ledger.sqlite3")) as ledger:
        ledger.execute("PRAGMA user_version=99")
    assert checked(run("status", *second)).code == 0
    refused(checked(run("apply", "one", "--no-verify", *second)), 5, str(checkout.prefix))


def test_an_owner_that_may_not_be_looked_at_is_taken_to_be_there(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "exists", denied)
    assert claims._is_there("/home/somebody/env")


def test_an_owner_that_comes_through_a_link_keeps_its_claim(checkout: Checkout) -> None:
    checkout.stage("one")
    link = checkout.root / "link"
    link.symlink_to(checkout.prefix)
    ran = checked(run("apply", "two", "--no-verify", "--env", link, *checkout.options[2:]))
    assert ran.code == 0, ran.out


def test_a_checkout_moved_to_another_commit_is_lost_or_drifted(checkout: Checkout) -> None:
    checkout.stage("one")
    checkout.a.write_text(A_TEXT + "newer = True\n")
    commit_all(checkout.source.parent)
    assert checkout.states()["one"] in ("lost", "drifted")
    checkout.run("revert", "--all")
    assert checkout.a.read_text() == A_TEXT + "newer = True\n", "upstream's newer content stays"


def test_a_checkout_without_git_is_refused(checkout: Checkout) -> None:
    shutil.rmtree(checkout.source.parent / ".git")
    refused(checkout.run("apply", "one", "--no-verify"), 5, "unknown")
    assert checkout.a.read_text() == A_TEXT
