"""`report` as a command: which measurement it shows, the page it writes, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import Page, check_harmless
from tests.support.serving import BAD, GOOD, QUICK, Host, apply, stage


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def page(path: Path) -> Page:
    found = Page(path.read_text("utf-8"))
    check_harmless(found)
    return found


def test_a_rejection_and_a_pass_can_be_read_on_their_pages(host: Host) -> None:
    assert apply(host, BAD).code == 8
    assert apply(host, GOOD).code == 0
    done = host.run("report", "--html", "good.html")
    assert done.code == 0, done.err
    assert set(done.result) == {"event", "evidence", "changed", "html"}
    assert done.result["html"] == str(host.root / "good.html")
    found = page(host.root / "good.html").text
    assert found.startswith("fusion: improved") and "Simulated evidence." in found
    for words in ("or _is_sm120_supported)", "0.6.3", "root-complex-2gpu", "Watts of all GPUs"):
        assert words in found, words

    first = host.events()[-1]["id"]
    assert host.run("report", str(first), "--html", "bad.html").result["event"]["id"] == first
    found = page(host.root / "bad.html").text
    assert "fusion: regressed" in found and "every file holds its content from before" in found
    assert "slower than allowed at tiny" in host.text("report", str(first)).out


def test_the_diff_leads_from_the_baseline_whichever_way_it_was_planned(host: Host) -> None:
    stage(host, "fusion")
    verified = host.run("verify", "fusion", "--profile", host.profile(GOOD, verify=QUICK))
    assert verified.code == 0, verified.err
    for changed in host.run("report", "fusion").result["changed"]:
        added = [x for x in changed["diff"].splitlines() if x.startswith("+") and "++" not in x]
        assert any("12" in line for line in added), changed["diff"]


@pytest.mark.parametrize("wanted", [(), ("1",), ("99",), ("fusion",), ("nonsense",)])
def test_what_was_never_measured_cannot_be_reported(host: Host, wanted: tuple[str, ...]) -> None:
    stage(host, "fusion")
    done = host.run("report", *wanted, "--html", "x.html")
    assert done.code == 2 and done.error["code"] == "no-evidence"
    assert done.error["hint"] and not (host.root / "x.html").exists()


def test_a_page_replaces_a_file_and_nothing_else(host: Host) -> None:
    assert apply(host, GOOD).code == 0
    (host.root / "page.html").write_text("older")
    (host.root / "link.html").symlink_to("page.html")
    assert host.run("report", "--html", "link.html").code == 2
    assert (host.root / "page.html").read_text() == "older"
    done = host.run("report", "--html", "missing/page.html")
    assert done.code == 10 and "missing/page.html" in done.error["message"]
    assert host.run("report", "--html", "page.html").code == 0
    assert (host.root / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_contents_that_left_the_store_are_missing_from_the_page_only(host: Host) -> None:
    assert apply(host, GOOD).code == 0
    for path in (host.prefix / ".sm120patch" / "objects").rglob("*"):
        if path.is_file():
            path.write_text("damaged")
    assert host.run("report", "--html", "page.html").code == 0
    assert "no longer kept" in page(host.root / "page.html").text
