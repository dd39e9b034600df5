"""Cached bytecode that Python would trust: whole commands and real interpreters."""

from __future__ import annotations

import os
import py_compile
import subprocess
from pathlib import Path

import pytest

from tests.support.catalogue import A
from tests.support.command import run
from tests.support.place import Place


def imports(place: Place, *options: str, **env: str) -> str:
    """What a server would see: the value of line 3."""
    python = place.prefix / "bin" / "python"
    command = [str(python), *options, "-c", "import sglang.a as a; print(a.line_3)"]
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        command, env={**environ, **env}, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_bytecode_with_an_unchecked_hash_does_not_survive(place: Place) -> None:
    source = place.site / A
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    cached = py_compile.compile(str(source), invalidation_mode=mode, doraise=True)
    assert imports(place) == "3"
    place.stage("one")
    assert imports(place) == "one"
    py_compile.compile(str(source), invalidation_mode=mode, doraise=True)
    place.done("revert", "one")
    assert imports(place) == "3" and Path(cached).suffix == ".pyc"


@pytest.mark.parametrize("optimized", [(), ("-O",), ("-OO",)])
def test_every_level_of_optimization_is_purged(place: Place, optimized: tuple[str, ...]) -> None:
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    level = len("".join(optimized).replace("-", ""))
    py_compile.compile(str(place.site / A), optimize=level, invalidation_mode=mode, doraise=True)
    place.stage("one")
    assert imports(place, *optimized) == "one"


def test_an_edit_in_the_second_of_the_installation_is_seen(place: Place) -> None:
    """A RUN line of a Dockerfile installs, imports and patches within one second."""
    source = place.site / A
    assert imports(place) == "3"
    size, second = source.stat().st_size, int(source.stat().st_mtime)
    place.stage("one")
    assert int(source.stat().st_mtime) != second
    assert imports(place) == "one"
    place.done("revert", "one")
    assert imports(place) == "3"
    assert (source.stat().st_size, int(source.stat().st_mtime)) == (size, second)


def test_the_tree_of_our_own_prefix_is_purged(place: Place, tmp_path: Path) -> None:
    tree = {"PYTHONPYCACHEPREFIX": str(tmp_path / "tree")}
    unchecked(place, tmp_path / "tree")
    assert imports(place, **tree) == "3"
    ran = run("apply", "one", "--no-verify", *place.options, **tree)
    assert ran.code == 0, ran.out
    assert imports(place, **tree) == "one"


def test_the_tree_of_the_profiles_server_is_purged(place: Place, tmp_path: Path) -> None:
    from sm120patch.operations import planning, staging
    from sm120patch.operations.site import open_site
    from sm120patch.planner import Request

    site = open_site(str(place.prefix), None, catalogue=place.catalogue)
    plan = planning.plan_request(site, Request("apply", ("one",)), "12.0")
    settings = staging.settings_for(
        site,
        plan,
        "test",
        restore="a",
        start="a",
        history=site.history(),
        environ={"PYTHONPYCACHEPREFIX": str(tmp_path / "servers")},
    )
    assert settings.pycache_prefix == str(tmp_path / "servers")


def unchecked(place: Place, tree: Path) -> None:
    """Cache the source below another tree, as an interpreter with that prefix would."""
    python = place.prefix / "bin" / "python"
    code = (
        "import py_compile, sys; mode = py_compile.PycInvalidationMode.UNCHECKED_HASH;"
        "py_compile.compile(sys.argv[1], invalidation_mode=mode, doraise=True)"
    )
    command = [str(python), "-X", f"pycache_prefix={tree}", "-c", code, str(place.site / A)]
    subprocess.run(command, check=True)
    assert list(tree.rglob("*.pyc"))
