"""Playbook `install`: one pinned release in an environment of its own, the same when repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sm120patch import __version__
from tests.support.command import CHECKOUT
from tests.support.nodes import COLLECTION, Fleet, Node

INSTALL = "sm120patch.fleet.install"


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    made = Fleet(tmp_path, Node.small(tmp_path, "node"))
    made.variables["sm120patch_base_python"] = sys.executable
    return made


def pip(*words: str | Path) -> None:
    """Run pip with the settings of the user: it may need them to find an index."""
    home = os.environ["SM120PATCH_TEST_REAL_HOME"]
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    subprocess.run(command, check=True, env={**os.environ, "HOME": home})


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheelhouse with sm120patch of this checkout and all that it needs."""
    house = tmp_path_factory.mktemp("wheelhouse")
    pip("wheel", "--wheel-dir", house, CHECKOUT)
    return house


def version_of(node: Node) -> str:
    tool = node.home / "venv" / "bin" / "sm120patch"
    return subprocess.check_output([tool, "--version"], text=True).split()[-1]


def test_the_release_that_is_pinned_by_default_is_that_of_the_collection() -> None:
    defaults = (COLLECTION / "roles" / "install" / "defaults" / "main.yml").read_text()
    assert f"sm120patch_version | default('{__version__}')" in defaults
    assert f"\nversion: {__version__}\n" in (COLLECTION / "galaxy.yml").read_text()


def test_check_mode_writes_nothing(fleet: Fleet) -> None:
    (node,) = fleet.nodes
    done = fleet.play(INSTALL, "--check", "--diff")
    assert done.code == 0, done.out
    assert done.count("changed") == {"node": 3}, "directory, environment, what is pinned"
    assert not node.home.exists()
    node.assert_untouched()


def test_it_is_refused_inside_the_environment_that_is_to_be_patched(fleet: Fleet) -> None:
    (node,) = fleet.nodes
    done = fleet.play(INSTALL, sm120patch_home=str(node.prefix / "tool"))
    assert done.code == 2 and "choose another sm120patch_home" in done.out
    node.assert_untouched()


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("source", ["wheel", "wheelhouse", "copied-wheelhouse"])
def test_it_is_installed_from_what_the_controller_or_the_node_has(
    fleet: Fleet, wheels: Path, source: str
) -> None:
    (node,) = fleet.nodes
    (own,) = wheels.glob("sm120patch-*.whl")
    given: dict[str, dict[str, Any]] = {
        "wheel": {"sm120patch_wheel": str(own), "sm120patch_wheelhouse": str(wheels)},
        "wheelhouse": {"sm120patch_wheelhouse": str(wheels)},
        "copied-wheelhouse": {"sm120patch_wheelhouse_src": str(wheels)},
    }
    done = fleet.play(INSTALL, **given[source])
    assert done.code == 0, done.out
    assert version_of(node) == __version__
    node.assert_untouched()
    again = fleet.play(INSTALL, **given[source])
    assert again.code == 0 and again.count("changed") == {}, again.out


def test_paths_of_the_controller_are_relative_to_the_working_directory(fleet: Fleet) -> None:
    (node,) = fleet.nodes
    wheel, house = fleet.root / "some.whl", fleet.root / "house"
    wheel.write_bytes(b"a wheel")
    house.mkdir()
    (house / "other.whl").write_bytes(b"another")
    given = ["-e", "sm120patch_wheel=some.whl", "-e", "sm120patch_wheelhouse_src=house"]
    done = fleet.play(INSTALL, *given)
    assert done.code == 2 and "Install the pinned release" in done.out, done.out
    assert (node.home / "some.whl").read_bytes() == b"a wheel"
    assert (node.home / "wheelhouse" / "other.whl").read_bytes() == b"another"


@pytest.mark.slow
@pytest.mark.network
def test_another_wheel_replaces_the_one_that_is_there_and_a_broken_one_is_repaired(
    fleet: Fleet, wheels: Path, tmp_path: Path
) -> None:
    (node,) = fleet.nodes
    (own,) = wheels.glob("sm120patch-*.whl")
    given = {"sm120patch_wheelhouse": str(wheels)}
    assert fleet.play(INSTALL, **given).code == 0
    missing = fleet.play(INSTALL, sm120patch_version="9.9", **given)
    assert missing.code == 2 and "sm120patch==9.9" in missing.out
    assert version_of(node) == __version__, "a release that is not there replaces nothing"
    (node.home / "venv" / "bin" / "sm120patch").unlink()
    repaired = fleet.play(INSTALL, sm120patch_wheel=str(own), **given)
    assert repaired.code == 0, repaired.out
    assert version_of(node) == __version__
    checked = fleet.play(INSTALL, "--check", sm120patch_wheel=str(own), **given)
    assert checked.code == 0 and checked.count("changed") == {}, checked.out
