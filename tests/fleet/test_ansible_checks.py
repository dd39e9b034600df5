"""Ansible's own checks of the collection, and the tool that runs them."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nodes import COLLECTION
from tests.support.tools import tool

pytest.importorskip("ansible", reason="ansible-core needs Python 3.11")
fleet_checks = tool("fleet_checks")
REAL_HOME = Path(os.environ["SM120PATCH_TEST_REAL_HOME"])


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("check", fleet_checks.CHECKS)
def test_the_collection_passes(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(REAL_HOME))  # the environments of ansible-test are kept there
    words = [sys.executable, fleet_checks.__file__, check]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:]


def test_what_is_checked_is_a_copy_without_the_output_of_earlier_checks(tmp_path: Path) -> None:
    bench = fleet_checks.Bench(tmp_path / "work", tmp_path / "home")
    copied = {path.relative_to(bench.fleet) for path in bench.fleet.rglob("*") if path.is_file()}
    there = {path.relative_to(COLLECTION) for path in COLLECTION.rglob("*") if path.is_file()}
    left = {path for path in there if "__pycache__" in path.parts or "output" in path.parts}
    assert copied == there - left
    assert bench.environment["HOME"] == str(tmp_path / "home")


def test_a_check_that_fails_fails_the_tool(tmp_path: Path) -> None:
    bench = fleet_checks.Bench(tmp_path / "work", tmp_path / "home")
    (bench.fleet / "plugins" / "modules" / "patch_set.py").unlink()
    with pytest.raises(SystemExit, match=r"shows nothing of sm120patch\.fleet\.patch_set"):
        fleet_checks.docs(bench)


def test_ansible_test_gets_the_settings_of_this_pip_and_our_bootstrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://someone:secret@index.example/simple")
    with fleet_checks.prepared_home(tmp_path):
        path = tmp_path / ".config" / "pip" / "pip.conf"
        settings = configparser.ConfigParser(interpolation=None)
        settings.read(path)
        assert settings["global"]["index-url"] == "https://someone:secret@index.example/simple"
        assert path.stat().st_mode & 0o077 == 0
        (script,) = (tmp_path / ".ansible" / "test" / "cache").iterdir()
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    asked = [python, script, "--no-setuptools", "--no-wheel", "pip"]
    subprocess.run(asked, check=True, capture_output=True)
    pip = [python, "-m", "pip", "--version"]
    assert b"pip" in subprocess.run(pip, check=True, capture_output=True).stdout
