"""`diff`: what no ledger explains, line by line; upstream's bytes from where they are known."""

from __future__ import annotations

import base64
import hashlib
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.catalogue import A_TEXT, KERNEL, A, B
from tests.support.command import Ran, run
from tests.support.place import A_WITH_ONE, Checkout, Place, checked, refused

MINE = A_TEXT.replace("line_5 = 5\n", "line_5 = 'mine'\n")
NOWHERE = ("--offline", "--wheel-dir", "/nonexistent")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def upstream(place: Place) -> Path:
    """What was installed, before anything happens to it."""
    return shutil.copytree(place.site, place.root / "upstream")


def diff(place: Place, *words: str | Path) -> Ran:
    return checked(run("diff", *words, *NOWHERE, *place.options))


def text(place: Place, *words: str | Path) -> Ran:
    return run("diff", *words, *NOWHERE, *place.options[:-2])


def only(ran: Ran) -> dict[str, object]:
    (file,) = ran.result["files"]
    assert isinstance(file, dict)
    return file


def test_untouched_packages_have_nothing_to_show(place: Place) -> None:
    assert diff(place).code == 0 and diff(place).result["files"] == []
    place.assert_nothing_written()


def test_the_diff_of_an_edit_takes_it_back_with_other_tools(place: Place, upstream: Path) -> None:
    place.write(A, MINE)
    ran = text(place, "--pristine", upstream)
    assert ran.code == 1 and "-line_5 = 5\n+line_5 = 'mine'\n" in ran.out
    assert ran.out.startswith(f"# {A}: edited by somebody, and no ledger has it")
    subprocess.run(["git", "apply", "-R"], input=ran.out, text=True, cwd=place.site, check=True)
    assert place.read(A) == A_TEXT


WILD = b"line = 1\r\nname = 'caf\xe9'\r\n\xe2\x80\xae\x1b[2J = 2\rodd\nlast"
EDITED = WILD.replace(b"1", b"one").replace(b"= 2", b"= two\xff")
TAKE_BACK = {
    "git": ["git", "apply", "-R"],
    "patch": ["patch", "-R", "-p1", "--binary", "-s"],
}


def ship(place: Place, path: str, data: bytes) -> None:
    """Add a file to what upstream shipped."""
    file = place.site / path
    file.write_bytes(data)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    with (place.site / "sglang-1.0.dist-info" / "RECORD").open("a") as record:
        record.write(f"{path},sha256={digest},{len(data)}\n")


def piped(place: Place, *words: str | Path) -> bytes:
    line = [sys.executable, "-m", "sm120patch", "diff", *words, *NOWHERE, *place.options[:-2]]
    done = subprocess.run(line, stdout=subprocess.PIPE, check=False, env={**os.environ})
    assert done.returncode == 1
    return done.stdout


@pytest.mark.parametrize("tool", TAKE_BACK)
def test_any_bytes_go_back_through_a_pipe(place: Place, tool: str) -> None:
    ship(place, "sglang/wild.py", WILD)
    upstream = shutil.copytree(place.site, place.root / "upstream")
    (place.site / "sglang" / "wild.py").write_bytes(EDITED)
    (place.site / "sglang" / "new.py").write_bytes(b"new\r\n")
    place.write(A, MINE)
    subprocess.run(
        TAKE_BACK[tool], input=piped(place, "--pristine", upstream), cwd=place.site, check=True
    )
    assert (place.site / "sglang" / "wild.py").read_bytes() == WILD
    assert place.read(A) == A_TEXT and not (place.site / "sglang" / "new.py").exists()
    assert diff(place).code == 0


def test_on_a_terminal_bytes_are_shown_and_not_obeyed(place: Place) -> None:
    ship(place, "sglang/wild.py", WILD)
    upstream = shutil.copytree(place.site, place.root / "upstream")
    (place.site / "sglang" / "wild.py").write_bytes(EDITED)
    words = ("diff", "--pristine", upstream, *NOWHERE, *place.options[:-2])
    line = [sys.executable, "-m", "sm120patch", *words]
    ours, theirs = pty.openpty()
    done = subprocess.run(line, stdout=theirs, stderr=subprocess.PIPE, check=False)
    os.close(theirs)
    out = os.read(ours, 1 << 16)
    os.close(ours)
    assert done.returncode == 1 and b"some bytes are shown escaped here" in done.stderr
    assert rb"\x0d" in out and rb"\u202e\x1b[2J = two\xff\x0dodd" in out
    assert out.replace(b"\r\n", b"\n").decode().replace("\n", "").isprintable()


@pytest.mark.parametrize("tool", TAKE_BACK)
def test_a_name_forges_no_lines(place: Place, tool: str) -> None:
    forged = 'x\n--- a\n+++ b\n@@ -1 +1 @@\n-\u202e\t"\\'
    name = os.fsencode(f"sglang/{forged}") + b"\xff.py"
    (place.site / os.fsdecode(name)).write_text("new = 1\n")
    (place.site / "sglang" / "\x1b\n# data").write_bytes(b"\0")
    out = piped(place)
    shown = rb'sglang/x\n--- a\n+++ b\n@@ -1 +1 @@\n-\342\200\256\t\"\\\377.py"'
    assert out.splitlines() == [
        b'# "sglang/\\033\\n# data": upstream did not ship it',
        b"# no diff: it is no text",
        b'# "' + shown + b": upstream did not ship it",
        b"--- /dev/null",
        b'+++ "b/' + shown,
        b"@@ -0,0 +1 @@",
        b"+new = 1",
    ]
    subprocess.run(TAKE_BACK[tool], input=out, cwd=place.site, check=True)
    assert not (place.site / os.fsdecode(name)).exists()


def test_bytes_that_record_does_not_name_are_not_taken_for_upstreams(
    place: Place, upstream: Path
) -> None:
    place.write(A, MINE)
    (upstream / A).write_text("another content\n")
    ran = diff(place, "--pristine", upstream)
    assert ran.code == 1 and only(ran)["diff"] == ""
    assert "cannot be had" in str(only(ran)["problem"])


def test_without_upstreams_bytes_it_says_so_and_how_to_give_them(place: Place) -> None:
    place.write(A, MINE)
    ran = text(place)
    assert ran.code == 1 and "upstream's content cannot be had" in ran.out
    assert "sm120patch diff --pristine WHEEL" in ran.err and str(place.prefix) in ran.err


def test_bytes_that_were_kept_once_serve_again(place: Place) -> None:
    place.stage("one")
    place.done("revert", "--all")
    place.write(A, MINE)
    assert only(diff(place))["source"] == "the store of the ledger"
    assert "+line_5 = 'mine'" in str(only(diff(place))["diff"])


def test_a_patched_file_is_compared_with_what_the_ledger_wrote(place: Place) -> None:
    place.stage("one")
    assert diff(place).code == 0
    place.write(A, A_WITH_ONE.replace("line_5 = 5\n", "line_5 = 'mine'\n"))
    found = only(diff(place))
    assert found["base"] == "ledger" and "line_3 = 'one'" in str(found["diff"])
    assert "-line_3" not in str(found["diff"]) and "+line_5 = 'mine'" in str(found["diff"])


def test_our_own_changes_are_shown_when_asked_for_and_are_no_finding(place: Place) -> None:
    place.stage("one")
    ran = diff(place, "--all")
    assert ran.code == 0 and only(ran)["ours"] is True
    assert "-line_3 = 3" in str(only(ran)["diff"]) and "one/" in str(only(ran)["detail"])


def test_a_checkout_is_compared_with_its_head(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    checkout.a.write_text(MINE)
    ran = diff(checkout)
    assert ran.code == 1 and str(only(ran)["source"]).startswith("git commit")
    assert "+line_5 = 'mine'" in str(only(ran)["diff"])


def test_what_another_environment_patched_is_no_edit_of_somebody(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    second = checkout.second()
    checkout.stage("one")
    (one,) = [s for s in run("status", *second).result["sets"] if s["id"] == "one"]
    assert one["state"] == "edited"
    assert f"patched from {checkout.prefix}, whose ledger has it" in one["reason"]
    assert checked(run("diff", *second)).code == 0
    ran = checked(run("diff", "--all", *second))
    assert ran.code == 0 and only(ran)["detail"] == f"patched from {checkout.prefix}"
    checkout.a.write_text(A_WITH_ONE + "mine = 1\n")
    assert checked(run("diff", A, *second)).code == 1


def test_what_cannot_be_told_is_not_a_clean_answer(place: Place) -> None:
    (place.site / "sglang-1.0.dist-info" / "RECORD").unlink()
    ran = diff(place)
    assert (ran.code, ran.result["files"]) == (1, [])
    assert any("holds no RECORD" in said for said in ran.result["unknown"])
    shown = text(place)
    assert shown.out == "" and "warning: not known:" in shown.err


def test_a_file_whose_digest_record_lacks_is_not_blamed_on_record(place: Place) -> None:
    record = place.site / "sglang-1.0.dist-info" / "RECORD"
    record.write_text(re.sub(rf"^{A},.*$", f"{A},,", record.read_text(), flags=re.MULTILINE))
    place.write(A, MINE)
    assert only(diff(place, A))["problem"] == (
        "nobody knows what upstream shipped: neither RECORD nor git knows the file"
    )


def test_what_a_lost_ledger_wrote_is_not_called_made_by_hand(place: Place) -> None:
    place.stage("one")
    (place.state / "ledger.sqlite3").unlink()
    said = "the ledger that would tell of it is gone"
    ran = diff(place)
    assert ran.code == 1 and only(ran)["detail"] == said and "line_3" in str(only(ran)["diff"])
    status = place.run("status")
    (one,) = [s for s in status.result["sets"] if s["id"] == "one"]
    assert (one["state"], one["reason"]) == ("edited", f"{A}: {said}")
    assert status.result["ledger_lost"] is True
    text = run("status", *place.options[:-2]).out
    assert "sm120patch recover --lost-ledger" in text and "adopt" not in text
    place.done("recover", "--lost-ledger")
    assert place.done("status")["ledger_lost"] is False and place.read(A) == A_TEXT


def test_files_that_came_or_went_and_those_without_lines_are_named(place: Place) -> None:
    place.write("sglang/new.py", "new = 1\n")
    (place.site / "sglang" / "data.bin").write_bytes(b"\0\1")
    (place.site / B).unlink()
    (place.site / A).unlink()
    (place.site / A).mkdir()
    found = {f["path"]: f for f in diff(place).result["files"]}
    assert found["sglang/new.py"]["diff"].endswith("@@ -0,0 +1 @@\n+new = 1\n")
    assert found["sglang/data.bin"]["problem"] == "it is no text"
    assert found[B]["detail"] == "is missing" and "no regular file" in found[A]["detail"]


def test_one_file_or_folder_is_looked_at_when_it_is_named(place: Place, upstream: Path) -> None:
    place.write(A, MINE)
    place.write(KERNEL, "// mine\n")
    given = ("--pristine", upstream)
    for name in (A, place.site / A, place.site / "sglang", "sglang"):
        assert only(diff(place, name, *given))["path"] == A
    assert diff(place, B).code == 0
    refused(diff(place, "/etc/passwd"), 2, "no file of a package")


def test_a_name_that_nothing_knows_is_an_error(place: Place) -> None:
    for name in ("sglang/nonexist.py", "sglang/no/such.py", place.site / "sglang" / "x"):
        error = refused(diff(place, A, name), 2, "is not there", "neither upstream's files nor")
        assert "spelling" in error["hint"]
    (place.site / "sglang-1.0.dist-info" / "RECORD").unlink()
    ran = diff(place, "sglang/nonexist.py")
    assert ran.code == 1 and "whether it should be cannot be told" in ran.result["unknown"][-1]


def test_what_record_or_the_ledger_know_and_is_gone_is_a_finding(place: Place) -> None:
    (place.site / B).unlink()
    ran = diff(place, B)
    assert ran.code == 1 and (only(ran)["path"], only(ran)["detail"]) == (B, "is missing")
    place.stage("two")
    (place.site / A).unlink()
    assert diff(place, A).code == 1 and only(diff(place, A))["path"] == A
    shutil.rmtree(place.site / "flashinfer" / "data")
    ran = diff(place, "flashinfer/data")
    assert ran.code == 1 and KERNEL in {f["path"] for f in ran.result["files"]}


def test_a_head_that_has_the_file_knows_it(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    checkout.a.unlink()
    assert diff(checkout, A).code == 1 and only(diff(checkout, A))["detail"] == "is missing"
    refused(diff(checkout, "sglang/nonexist.py"), 2, "is not there")


def test_diff_says_of_a_linked_directory_what_the_audit_says(place: Place) -> None:
    shutil.move(place.site / "flashinfer" / "data", place.root / "elsewhere")
    (place.site / "flashinfer" / "data").symlink_to(place.root / "elsewhere")
    (place.root / "elsewhere" / "new.py").write_text("")
    (finding,) = place.run("audit").result["findings"]
    for names in ((), ("flashinfer",), ("flashinfer/data",)):
        found = only(diff(place, *names))
        assert (found["path"], found["detail"]) == (finding["path"], finding["detail"])
    assert diff(place, KERNEL).code == 0, "it is what upstream shipped"
    (place.root / "elsewhere" / "include" / "kernel.cuh").write_text("// mine\n")
    for path in (KERNEL, "flashinfer/data/new.py"):
        detail = str(only(diff(place, path))["detail"])
        assert detail.startswith("it lies behind the link flashinfer/data, which leads to ")


def test_what_refuses_an_edit_names_the_command_that_shows_it(place: Place) -> None:
    place.write(A, MINE)
    options = " ".join(place.options[:-2])
    error = refused(place.run("apply", "one", "--no-verify"), 5, "foreign edit")
    assert f"`sm120patch diff {options}`" in error["hint"] and "adopt SET" in error["hint"]
    assert f"`sm120patch diff {options}`" in run("status", *place.options[:-2]).out
    audit = run("audit", *place.options[:-2]).out
    assert f"next: sm120patch diff --env {place.prefix}" in audit


def test_a_checkout_without_an_interpreter_is_told_no_command(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    checkout.a.write_text(MINE)
    alone = run("audit", "--env", checkout.source.parent)
    assert alone.code == 1 and A in alone.out and "next:" not in alone.out
    installed = run("audit", "--env", checkout.prefix)
    assert f"next: sm120patch diff --env {checkout.prefix}" in installed.out


def test_an_open_change_is_settled_before_anything_is_called_an_edit(place: Place) -> None:
    from tests.support.command import run_killed_at

    words = ("apply", "one", "--no-verify", *place.options)
    step = next(n for n in range(1, 400) if not _settled_after(place, n, words, run_killed_at))
    assert step and diff(place).code == 7


def _settled_after(place: Place, step: int, words: tuple[str, ...], kill: object) -> bool:
    assert callable(kill)
    kill(step, *words)
    return not (place.state / "journal.json").exists()
