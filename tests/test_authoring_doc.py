"""docs/authoring.md is a transcript: its edits are made and its commands run, in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import CHECKOUT
from tests.support.wheels import cache_dir, wheel

DOCUMENT = (CHECKOUT / "docs" / "authoring.md").read_text()
STEP = re.compile(r"^```(console|diff)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


@pytest.mark.network
def test_the_transcript_is_true(tmp_path: Path, real_env: Callable[[str, str], Path]) -> None:
    for version in ("0.6.3", "0.6.4", "0.6.17"):
        wheel("flashinfer-python", version)
    prefix = real_env("0.5.9", "0.6.3")
    work = tmp_path / "work"
    work.mkdir()
    environ = _environ(tmp_path / "bin")
    ran = 0
    for kind, text in STEP.findall(DOCUMENT):
        if kind == "diff":
            _edit(work, text)
            continue
        for command, expected in COMMAND.findall(text):
            found = _run(command.replace("/opt/sglang-venv", str(prefix)), work, environ)
            found = found.replace(str(prefix), "/opt/sglang-venv")
            _compare(command, expected, found)
            ran += 1
    assert ran == DOCUMENT.count("\n$ ") == 10


def _environ(directory: Path) -> dict[str, str]:
    """Environment in which `sm120patch` and `python` are those of the tests."""
    directory.mkdir()
    for name, words in (("sm120patch", "-m sm120patch "), ("python", "")):
        script = directory / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        script.chmod(0o755)
    path = os.pathsep.join([str(directory), os.environ["PATH"]])
    return {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(CHECKOUT),
        "SM120PATCH_WHEEL_CACHE": str(cache_dir()),
    }


def _edit(work: Path, diff: str) -> None:
    """Make the edit that a diff block shows; a digest in its context is as the file has it."""
    for digest in re.findall(r'^sha256 = "(.*)"$', _read(work, diff), re.MULTILINE):
        diff = diff.replace('sha256 = "..."', f'sha256 = "{digest}"')
    subprocess.run(["git", "apply", "--recount", "-"], cwd=work, input=diff, text=True, check=True)


def _read(work: Path, diff: str) -> str:
    name = re.search(r"^\+\+\+ b/(.*)$", diff, re.MULTILINE)
    assert name is not None
    return (work / name[1]).read_text()


def _run(command: str, work: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", command], cwd=work, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def _compare(command: str, expected: str, found: str) -> None:
    pattern = ".*".join(map(re.escape, _lines(expected).split("...")))
    same = re.fullmatch(pattern, _lines(found), re.DOTALL)
    assert same, f"$ {command}\n--- the document\n{expected}\n--- today\n{found}"


def _lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines())
