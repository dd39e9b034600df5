"""`apply` and what is known: it is said, asked about where it is harmful, and never decided by."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import CHECKOUT
from tests.support.serving import BAD, GOOD, QUICK, Host, assert_nothing_written, assert_rejected

KNOWN = """
[[known-result]]
topology = "2 GPUs on one switch"
where = ["one-switch"]
tp = [2]
effect = "{effect}"
source = "a test"
harmful = {harmful}
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def note(host: Host, effect: str, harmful: bool) -> None:
    path = host.catalogue / "manifests" / "runtime-gate.toml"
    text = KNOWN.format(effect=effect, harmful=str(harmful).lower())
    path.write_text(path.read_text() + text)


def test_a_known_harm_stops_a_script_before_anything_is_written(host: Host) -> None:
    note(host, "-40 % in a test", harmful=True)
    profile = host.profile(BAD, verify=QUICK)
    dry = host.run("apply", "fusion", "--profile", profile, "--dry-run")
    assert dry.code == 0 and dry.result["doubt"]["code"] == "known-harmful"
    assert "-40 % in a test" in dry.result["doubt"]["message"]
    done = host.run("apply", "fusion", "--profile", profile)
    assert done.code == 5 and done.error["code"] == "known-harmful"
    assert "-40 % in a test (a test)" in done.error["message"] and "--yes" in done.error["hint"]
    (told,) = done.error["details"]["known_results"]
    assert (told["set"], told["harmful"]) == ("fusion", True)
    assert_nothing_written(host)


def test_with_yes_it_is_measured_and_the_measurement_decides(host: Host) -> None:
    note(host, "-40 % in a test", harmful=True)
    done = host.run("apply", "fusion", "--yes", "--profile", host.profile(BAD))
    assert_rejected(host, done, "regressed")
    assert "known to be harmful: fusion on 2 GPUs on one switch" in done.err
    done = host.run("apply", "fusion", "--yes", "--profile", host.profile(GOOD, verify=QUICK))
    assert done.code == 0 and done.result["outcome"] == "applied", done.err


def test_a_harmless_result_is_told_and_nobody_is_asked(host: Host) -> None:
    note(host, "+3 % in a test", harmful=False)
    shown = host.text("apply", "fusion", "--dry-run", "--profile", host.profile(GOOD))
    assert shown.code == 0 and "known: fusion on 2 GPUs on one switch: +3 %" in shown.err
    done = host.run("apply", "fusion", "--profile", host.profile(GOOD, verify=QUICK))
    assert done.code == 0 and "known: fusion" in done.err


def test_another_tp_size_is_another_matter(host: Host) -> None:
    note(host, "-40 % in a test", harmful=True)
    profile = host.profile(GOOD, "--tp", "1", verify=QUICK)
    done = host.run("apply", "fusion", "--profile", profile)
    assert done.code == 0 and "known" not in done.err


@pytest.mark.parametrize("answer", ["n", "y"])
def test_a_person_at_the_terminal_is_asked(host: Host, answer: str) -> None:
    note(host, "-40 % in a test", harmful=True)
    words = ["apply", "fusion", "--profile", str(host.profile(GOOD, verify=QUICK)), *host.options]
    main, side = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "sm120patch", *words], cwd=host.root, stdin=side, stderr=side,
        stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    ) as process:  # fmt: skip
        os.close(side)
        said = b""
        while b"all the same?" not in said:
            assert select.select([main], [], [], 60)[0], said
            said += os.read(main, 4096)
        os.write(main, f"{answer}\n".encode())
        try:
            while chunk := os.read(main, 4096):
                said += chunk
        except OSError:
            pass  # the other side was closed
        os.close(main)
        code = process.wait(timeout=60)
    assert code == (0 if answer == "y" else 5), said.decode()
    assert ("verdict: improved" in said.decode()) is (answer == "y")
