"""What people are told where nothing was wrong with the tool: streams, hints, refusals."""

from __future__ import annotations

import fcntl
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from array import array
from pathlib import Path

import pytest

from sm120patch.plaintext import counted
from tests.support.catalogue import A
from tests.support.command import run
from tests.support.environments import create_venv
from tests.support.place import A_WITH_ONE, Place, refused, reinstall
from tests.support.serving import BAD, GOOD, QUICK, Host, stage
from tests.support.simulated import FLAG


def shell(redirection: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `sm120patch WORDS` with a redirection of its standard streams."""
    line = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "sm120patch"]
    return subprocess.run(
        [*line, *words], stderr=subprocess.PIPE, text=True, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_closed_standard_output_is_no_bug(place: Place, form: str) -> None:
    done = shell(">&-", "status", *place.options[:-1], form)
    assert done.returncode == 10 and "could not be printed: it is closed" in done.stderr
    assert f"`sm120patch status --env {place.prefix}" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [("--help",), ("status", "--help"), ("--version",)])
def test_help_that_finds_no_room_is_no_bug(words: tuple[str, ...]) -> None:
    done = shell(">/dev/full", *words)
    assert done.returncode == 10, done.stderr
    assert done.stderr.startswith("error: the command has ended, but its result could not be")
    assert len(done.stderr.splitlines()) == 2


def test_an_interrupt_while_the_answer_is_printed_adds_no_second_one() -> None:
    words = [sys.executable, "-m", "sm120patch", "list", "--output", "json"]
    whole = subprocess.run(words, capture_output=True, check=True).stdout
    command = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    with command:
        assert command.stdout is not None
        room = fcntl.fcntl(command.stdout, fcntl.F_SETPIPE_SZ, 4096)
        assert room < len(whole) // 2
        queued = array("i", [0])
        while queued[0] < room:  # it waits for a reader by then
            time.sleep(0.01)
            fcntl.ioctl(command.stdout, termios.FIONREAD, queued)
        command.send_signal(signal.SIGINT)
        printed, said = command.communicate(timeout=60)
    assert b"error: interrupted" in said and command.returncode == 130
    assert whole.startswith(printed) and printed != whole


def test_closed_streams_are_not_given_to_files_that_are_opened_later(place: Place) -> None:
    done = shell(">&- 2>&-", "apply", "one", "--no-verify", "--allow-running", *place.options)
    assert done.returncode == 10 and place.states()["one"] == "staged"
    assert place.changed() == {A} and place.litter() == []


def test_a_report_says_whether_the_event_or_its_measurement_is_missing(place: Place) -> None:
    place.stage("one")
    refused(place.run("report", "99"), 2, "there is no event 99 in the history")
    refused(place.run("report", "1"), 2, "event 1 in the history", "measured nothing")
    refused(place.run("report", "one"), 2, "nothing was measured for one")


def test_a_drifted_set_cannot_be_verified_and_is_told_so(place: Place, tmp_path: Path) -> None:
    place.stage("one")
    place.write(A, A_WITH_ONE + "mine = True\n")
    profile = tmp_path / "profile.toml"
    profile.write_text('[server]\ncommand = ["{python}", "{set_args}"]\n')
    error = refused(place.run("verify", "one", "--profile", profile), 5, "cannot be verified here")
    assert "reverted" not in error["message"]
    assert f"`sm120patch diff --env {place.prefix} --catalogue {place.catalogue}`" in error["hint"]


def test_status_says_what_to_do_about_an_edit_by_hand(place: Place) -> None:
    options = place.options[:-2]
    assert "hint:" not in run("status", *options).out
    place.write(A, "line_1 = 'mine'\n")
    done = run("status", *options)
    assert done.code == 0 and "edited" in done.out and "drifted" not in done.out
    for command in ("diff", "adopt SET"):
        assert f"hint: `sm120patch {command} {' '.join(options)}`" in done.out


def test_status_of_an_environment_without_packages_says_so(tmp_path: Path) -> None:
    create_venv(tmp_path / "env")
    done = run("status", "--env", tmp_path / "env")
    assert done.code == 0
    first, second, *rest = done.out.splitlines()
    assert first == f"{tmp_path / 'env'}: has neither flashinfer-python nor sglang"
    assert "wrong environment" in second and rest == []


@pytest.mark.parametrize(("number", "words"), [(0, "0 sets"), (1, "1 set"), (2, "2 sets")])
def test_one_thing_is_not_told_in_the_plural(number: int, words: str) -> None:
    assert counted(number, "set") == words


def test_after_a_revert_the_options_that_go_and_those_that_stay_are_named(host: Host) -> None:
    stage(host, "fusion", "other")
    dry = host.text("revert", "fusion", "--dry-run")
    assert "takes off    fusion, runtime-gate, jit-list" in dry.out
    assert host.text("revert", "other").out.splitlines()[-3:-1] == [
        "restart your server: running processes keep the old code",
        f"the sets that stay need: {FLAG}",
    ]
    done = host.text("revert", "fusion")
    assert done.out.splitlines()[-1] == f"restart your server without: {FLAG}"


def test_a_dry_verify_shows_no_diff_that_would_not_stay(host: Host) -> None:
    stage(host, "fusion")
    profile = host.profile(GOOD, verify=QUICK)
    dry = host.text("verify", "fusion", "--profile", profile, "--dry-run")
    assert dry.out == "to be measured: fusion\n" and FLAG in dry.err
    assert host.run("verify", "fusion", "--profile", profile, "--dry-run").result["files"]


def test_a_rejection_says_where_the_measurement_is_kept(host: Host) -> None:
    done = host.text("apply", "fusion", "--profile", host.profile(BAD, verify=QUICK))
    (said,) = [line for line in done.out.splitlines() if line.startswith("what was measured: ")]
    words = said.removeprefix("what was measured: sm120patch ").split()
    assert run(*words).out.startswith("fusion: regressed (simulated)")


def test_a_mistyped_command_is_told_the_closest_one() -> None:
    assert "Did you mean apply" in run("aply").err
    error = refused(run("stats", "--output", "json"), 2, "No such command 'stats'")
    assert "Did you mean status" in error["message"]
    assert "Did you mean" not in run("zzz").err


def test_a_set_that_only_the_ledger_knows_has_a_history_and_a_way_on(
    place: Place, tmp_path: Path
) -> None:
    place.stage("one")
    shutil.copytree(place.catalogue, tmp_path / "other")
    for name in ("one", "bundle"):
        (tmp_path / "other" / "manifests" / f"{name}.toml").unlink()
    other = ["--env", str(place.prefix), "--catalogue", str(tmp_path / "other")]
    json = [*other, "--output", "json"]
    profile = tmp_path / "profile.toml"
    profile.write_text('[server]\ncommand = ["{python}", "{set_args}"]\n')
    words = ("verify", "one", "--profile", profile)
    refused(run(*words, *json), 2, "is on disk, but this catalogue does not know it", "--extra-")
    assert "verify one --extra-catalogue DIRECTORY_OF_THE_SET" in run("audit", *other).out
    place.done("revert", "one")
    assert [e["kind"] for e in run("history", "one", *json).result["events"]] == [
        "reverted", "staged",
    ]  # fmt: skip
    refused(run("history", "nobody", *json), 2, "no patch set is named", "--extra-catalogue")


def test_status_and_audit_name_one_command_for_all_that_is_lost(tmp_path: Path) -> None:
    place = Place(tmp_path / "a b")
    place.stage("bundle")
    place.stage("two")
    reinstall(place, "1.5", "sglang")
    options = place.options[:-2]
    where = shlex.join(options)
    (hint,) = [line for line in run("status", *options).out.splitlines() if "hint:" in line]
    assert f"`sm120patch apply bundle two {where}`" in hint
    told = [line for line in run("audit", *options).out.splitlines() if "next:" in line]
    (said,) = [line for line in told if " apply " in line]
    again = shlex.split(said.partition("sm120patch ")[2])
    assert again[:3] == ["apply", "bundle", "two"]
    assert run(*again, "--no-verify").code == 0
    assert {place.states()[name] for name in ("bundle", "two", "one", "kernel")} == {"staged"}


def test_an_optional_change_that_is_not_there_is_answered_with_those_that_are(
    place: Place,
) -> None:
    words = ("apply", "bundle", "--with", "nonsense", "--no-verify")
    refused(place.run(*words), 2, "no optional change 'nonsense': there are one/extra")
    words = ("apply", "kernel", "--with", "nonsense", "--no-verify")
    refused(place.run(*words), 2, "no optional change 'nonsense': there is none")


def test_history_says_why_a_command_failed(host: Host) -> None:
    profile = host.profile(GOOD, command=["{python}", "-c", "raise SystemExit(3)", "{set_args}"])
    assert host.run("apply", "fusion", "--profile", profile).code == 10
    (line,) = host.text("history").out.splitlines()
    assert "failed" in line and "the baseline does not run" in line


def test_init_names_the_next_command_so_that_it_can_be_pasted(tmp_path: Path) -> None:
    done = run("init", "--profile", "my profile.toml", cwd=tmp_path)
    assert shlex.split(done.out.splitlines()[-1])[-2:] == ["--profile", "my profile.toml"]


def test_an_unusable_profile_leads_to_an_example_beside_it(host: Host) -> None:
    broken = host.root / "broken.toml"
    broken.write_text("garbage [")
    error = host.run("apply", "fusion", "--profile", broken).error
    assert "`sm120patch init --profile example.toml`" in error["hint"]


def test_what_does_not_run_is_told_with_the_set_that_asks_for_it(host: Host) -> None:
    manifest = host.catalogue / "manifests" / "other.toml"
    probe = '[[engagement]]\ntarget = "sglang"\nversions = ">=0.5"\nlog = "other runs"\n'
    manifest.write_text(manifest.read_text() + probe)
    profile = host.profile(GOOD, verify=QUICK)
    done = host.run("apply", "fusion", "other", "--profile", profile)
    assert done.code == 8 and done.result["verification"]["reasons"] == [
        "the log never says /other runs/, which other asks for"
    ]


def test_list_and_status_have_one_order(place: Place) -> None:
    listed = run("list", *place.options[2:]).result["sets"]
    assert [s["id"] for s in listed] == [s["id"] for s in place.done("status")["sets"]]


def test_an_environment_that_was_named_and_holds_nothing_is_no_clean_audit(tmp_path: Path) -> None:
    create_venv(tmp_path / "empty")
    done = run("audit", "--env", tmp_path / "empty", "--fail-on", "lost", "--output", "json")
    (finding,) = done.result["findings"]
    assert done.code == 1 and finding["kind"] == "unknown"
    assert finding["detail"] == "it has neither sglang nor flashinfer-python: nothing was compared"


def test_commands_in_warnings_name_the_environment_too(host: Host) -> None:
    stage(host, "fusion")
    shutil.rmtree(host.prefix / ".sm120patch")
    where = shlex.join(host.options)
    assert f"`sm120patch adopt fusion {where}` makes a ledger" in host.text("revert", "--all").err


def test_history_does_not_call_staged_what_upstream_has_by_now(place: Place) -> None:
    place.stage("bundle")
    reinstall(place, "2.0", "sglang")
    place.done("apply", "bundle", "--no-verify")
    first = run("history", *place.options[:-2]).out.splitlines()[0]
    assert "bundle; no longer needed: one" in first
