"""What a command loads before it answers: looking at an environment must stay light."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.catalogue import write_catalogue, write_environment
from tests.support.command import run, run_after
from tests.support.serving import Host
from tests.support.simulated import TINY

HEAVY = {"libcst", "git", "aiohttp", "psutil", "pynvml", "unidiff", "hypothesis", "jinja2"}
REPORT = """
import atexit, os, pathlib, sys

before = set(sys.modules)  # start-up files of the interpreter's site load things of their own

def report():
    loaded = {name: sys.modules[name] for name in set(sys.modules) - before}
    third_party = {
        name.split(".")[0]
        for name, module in loaded.items()
        if "site-packages" in str(getattr(module, "__file__", None))
    }
    pathlib.Path(os.environ["LOADED"]).write_text("\\n".join(loaded))
    pathlib.Path(os.environ["FOREIGN"]).write_text("\\n".join(third_party))

atexit.register(report)
"""


class Loaded:
    """Runs commands and tells which top-level modules they loaded."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.options = ["--env", root / "env", "--catalogue", root / "catalogue"]
        write_catalogue(root / "catalogue")
        write_environment(root / "env")

    def by(self, *arguments: str | Path, code: int = 0) -> set[str]:
        files = {name: str(self.root / name) for name in ("LOADED", "FOREIGN")}
        ran = run_after(REPORT, *arguments, **files)
        assert ran.code == code, ran.out + ran.err
        return {name.split(".")[0] for name in (self.root / "LOADED").read_text().split()}

    def third_party(self) -> set[str]:
        """Third-party packages that the last command loaded."""
        return set((self.root / "FOREIGN").read_text().split())


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    return Loaded(tmp_path)


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("apply", "--help")])
def test_help_loads_click_and_nothing_else(loaded: Loaded, arguments: tuple[str, ...]) -> None:
    modules = loaded.by(*arguments)
    assert "click" in modules and not modules & HEAVY
    assert loaded.third_party() == {"click"}
    assert not modules & {"sqlite3", "subprocess", "asyncio", "ssl"}


def test_list_and_show_read_the_catalogue_only(loaded: Loaded) -> None:
    for arguments in (("list",), ("show", "allreduce-fusion")):
        assert not loaded.by(*arguments) & (HEAVY | {"sqlite3", "asyncio", "ssl"})


def test_looking_at_wheels_loads_no_engine(loaded: Loaded) -> None:
    for command in ("status", "history"):
        assert not loaded.by(command, *loaded.options) & HEAVY, command
    done = run("apply", "bundle", "--no-verify", *loaded.options)
    assert done.code == 0, done.err
    for command, code in (("status", 0), ("history", 0), ("audit", 1)):
        modules = loaded.by(command, *loaded.options, code=code)
        assert "sqlite3" in modules, "otherwise this test shows nothing"
        assert not modules & HEAVY, command


def test_the_shipped_catalogue_is_looked_up_without_an_engine(loaded: Loaded) -> None:
    modules = loaded.by("status", "--env", loaded.root / "env")
    assert not modules & (HEAVY | {"click", "tomllib", "subprocess", "dataclasses", "inspect"})


def test_status_of_a_verified_set_starts_no_load_generator(tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    profile = host.profile("root-complex-2gpu", workloads=TINY, verify="blocks = 1")
    assert host.run("apply", "fusion", "--profile", profile).code == 0
    modules = Loaded(tmp_path / "other").by("status", *host.options)
    assert not modules & {"libcst", "git", "aiohttp", "unidiff", "hypothesis", "jinja2"}


def test_the_report_would_show_a_heavy_module(loaded: Loaded) -> None:
    files = {name: str(loaded.root / name) for name in ("LOADED", "FOREIGN")}
    run_after(f"{REPORT}\nimport libcst", "--version", **files)
    assert "libcst" in loaded.third_party()


def test_formats_that_are_not_asked_for_are_not_loaded(loaded: Loaded) -> None:
    modules = loaded.by("audit", *loaded.options)
    assert not modules & {"cyclonedx", "prometheus_client", "jsonschema", "packageurl"}
