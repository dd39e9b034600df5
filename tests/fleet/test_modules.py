"""Modules of the collection: what they pass is what the command takes, what they return is told."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from sm120patch import __version__
from sm120patch.cli import auditing
from sm120patch.cli.group import cli
from sm120patch.errors import ExitCode
from tests.support.adhoc import patch_set, task
from tests.support.command import run_killed_at
from tests.support.nodes import COLLECTION, COLLECTIONS
from tests.support.place import A_WITH_ONE, Place
from tests.support.serving import BAD, GOOD, LONGER, QUICK, SLOWLY, Host
from tests.support.simulated import FLAG

pytest.importorskip("ansible", reason="ansible-core needs Python 3.11")
yaml = pytest.importorskip("yaml")

MODULES = ("audit_info", "environment_info", "patch_set")
SOURCES = sorted((COLLECTION / "plugins").rglob("*.py"))


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import a plugin of the collection as Ansible names it."""
    monkeypatch.syspath_prepend(str(COLLECTIONS))

    def plugin(kind: str, name: str) -> ModuleType:
        return importlib.import_module(
            f"ansible_collections.sm120patch.fleet.plugins.{kind}.{name}"
        )

    yield plugin


def documented(name: str, constant: str) -> dict[str, Any]:
    tree = ast.parse((COLLECTION / "plugins" / "modules" / f"{name}.py").read_text())
    (text,) = [
        node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == constant
        and isinstance(node.value, ast.Constant)
    ]
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


# --- what the modules are made of --------------------------------------------------------------


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_plugin_needs_ansible_and_the_standard_library_only(path: Path) -> None:
    # ansible-core 2.18 asks for Python 3.8 on a node.
    tree = ast.parse(path.read_bytes(), feature_version=(3, 8))
    loaded = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = "ansible_collections.sm120patch.fleet.plugins.module_utils."
    foreign = {
        name
        for name in loaded
        if not name.startswith(("ansible.module_utils.", own))
        and name.split(".")[0] not in sys.stdlib_module_names
    }
    assert foreign == set(), "the package sm120patch is not there on a node's own Python"
    assert ast.get_docstring(tree)
    assert len(path.read_text().splitlines()) <= 500


def test_the_collection_has_the_version_of_the_tool() -> None:
    assert yaml.safe_load((COLLECTION / "galaxy.yml").read_text())["version"] == __version__


@pytest.mark.parametrize("minor", ["2.18", "2.19", "2.20", "2.21"])
def test_the_same_sanity_findings_are_ignored_for_every_ansible(minor: str) -> None:
    sanity = COLLECTION / "tests" / "sanity"
    assert (sanity / f"ignore-{minor}.txt").read_text() == (sanity / "ignore-2.19.txt").read_text()


# --- what they pass ----------------------------------------------------------------------------


def parsed(command: str, words: list[str]) -> Mapping[str, Any]:
    """Let the command line take the words, without running it."""
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    context = found.make_context(command, list(words), parent=click.Context(cli))
    return context.params


EVERYTHING: dict[str, Any] = {
    "sets": ["allreduce-fusion"], "all": True, "verify": False, "profile": "/etc/p.toml",
    "goal": "speed", "max_time": 60.0, "optional_changes": ["extra"], "expected_digest": None,
    "gpu": "12.0", "cascade": True, "allow_running": True, "allow_known_harm": True,
    "compile": True, "compile_timeout": 30.0, "recover": True, "not_applicable": "ok",
}  # fmt: skip
ELSEWHERE = {"env", "python", "catalogue"}
"""Options that `Tool` adds to every command."""
LEFT_OUT = {
    "present": {"expect_content"},  # compared by the module, for all three states alike
    "verified": set[str](),
    "absent": {"dry_run"},
}


@pytest.mark.parametrize("state", ["present", "verified", "absent"])
def test_every_option_reaches_the_command_and_none_of_it_is_forgotten(
    load: Any, state: str
) -> None:
    patching = load("module_utils", "patching")
    given = {**EVERYTHING, "state": state}
    assert given.keys() == load("modules", "patch_set").ARGUMENTS.keys() - {
        "executable", "environment", "python", "catalogue", "extra_catalogues",
    }  # fmt: skip
    command = patching.COMMANDS[state]
    dry = parsed(command, patching.asked(given, given["sets"]))
    assert dry["dry_run"] is True
    real = parsed(command, patching.asked(given, given["sets"], "digest-of-a-plan"))
    assert real["dry_run"] is False and real.get("expect", "digest-of-a-plan") is not None
    unused = {name for name, value in real.items() if not value} - ELSEWHERE - {"dry_run"}
    assert unused == LEFT_OUT[state] - {"dry_run"}


def test_the_options_of_an_audit_are_those_of_the_command_that_change_nothing(load: Any) -> None:
    audit = load("modules", "audit_info")
    assert audit.KINDS == auditing.KINDS
    found = {p.name for p in auditing.audit.params}
    passed = {"root", "fail_on", "max_directories", "network", "quick", *ELSEWHERE, "env"}
    writes = {"fix", "yes", "cyclonedx", "prometheus", "sarif"}
    assert found - writes - {"output", "extra_catalogue"} == passed


def test_every_exit_code_has_a_word(load: Any) -> None:
    cli_module = load("module_utils", "cli")
    assert set(cli_module.KINDS) == {int(code) for code in ExitCode} - {0}
    failures = documented("patch_set", "RETURN")["failure"]["choices"]
    assert set(failures) - {"no-tool", "no-answer", "unknown"} == set(cli_module.KINDS.values()) - {
        "findings"
    }


# --- what they return --------------------------------------------------------------------------

TYPES = {"str": str, "bool": bool, "int": int, "float": float, "dict": dict, "list": list}
ANSIBLES = {
    "changed", "failed", "msg", "diff", "invocation", "warnings", "deprecations", "exception",
}  # fmt: skip


def assert_as_documented(result: Mapping[str, Any], spec: Mapping[str, Any], place: str) -> None:
    """Nothing is returned that the documentation does not name, and all has its type."""
    assert result.keys() <= spec.keys(), f"{place}: {result.keys() - spec.keys()}"
    for key, value in result.items():
        told = spec[key]
        if value is None:
            continue
        assert isinstance(value, TYPES[told["type"]]), f"{place}.{key}"
        if told.get("choices"):
            assert value in told["choices"], f"{place}.{key}: {value}"
        always = {
            name for name, one in told.get("contains", {}).items() if one["returned"] == "always"
        }
        for one in value if isinstance(value, list) else [value]:
            assert not always or always <= one.keys(), f"{place}.{key}: {always - one.keys()}"


def documented_result(module: str, result: dict[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in result.items() if key not in ANSIBLES}
    assert_as_documented(own, documented(module, "RETURN"), module)
    return result


def test_staging_returns_what_is_documented_and_what_was_done(place: Place, tmp_path: Path) -> None:
    given: dict[str, Any] = {"sets": ["one"], "verify": False}
    look = {"check_mode": True, "diff": True}
    ahead = patch_set(tmp_path, place.options[:4], look, **given)
    assert documented_result("patch_set", ahead)["changed"]
    assert "+line_3 = 'one'" in ahead["diff"]["prepared"]
    place.assert_nothing_written()
    done = documented_result("patch_set", patch_set(tmp_path, place.options[:4], **given))
    assert done["changed"] and done["states"] == {"one": "staged"}
    assert place.read("sglang/a.py") == A_WITH_ONE
    assert done["digest_after"] == ahead["digest"] == place.done("status")["content"]
    again = documented_result("patch_set", patch_set(tmp_path, place.options[:4], **given))
    assert not again["changed"] and again["outcome"] == "nothing"


def test_looking_returns_what_is_documented(place: Place, tmp_path: Path) -> None:
    place.stage("one")
    where = {"environment": str(place.prefix), "catalogue": str(place.catalogue)}
    found = task(tmp_path, "environment_info", **where, gather=["doctor", "history", "caches"])
    documented_result("environment_info", found)
    assert found["tool"] == __version__ and found["digest"] == place.done("status")["content"]
    assert found["commands"]["status"] == place.run("status").json, "the whole envelope"
    audit = documented_result("audit_info", task(tmp_path, "audit_info", **where))
    assert audit["counts"] == {"unverified": 1} and not audit["changed"]
    failing = task(tmp_path, "audit_info", **where, fail_on=["unverified"])
    assert documented_result("audit_info", failing)["failed"] and failing["failure"] == "findings"


@pytest.mark.slow
def test_measuring_returns_what_is_documented(host: Host, tmp_path: Path) -> None:
    profile = host.profile(GOOD, verify=QUICK)
    passed = patch_set(tmp_path, host.options, sets=["fusion"], profile=str(profile))
    assert documented_result("patch_set", passed)["outcome"] == "applied"
    assert passed["verification"]["passed"] and passed["launch"]["args"] == [FLAG]
    assert host.run("revert", "--all").code == 0
    profile = host.profile(BAD, verify=QUICK)
    rejected = patch_set(tmp_path, host.options, sets=["fusion"], profile=str(profile))
    assert documented_result("patch_set", rejected)["failed"] and not rejected["changed"]
    assert rejected["outcome"] == "rejected" and rejected["verdict"] == "regressed"
    assert host.patched() == set()


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13", "3.14"])
def test_the_python_of_a_node_may_be_another(place: Place, tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    place.stage("one")
    keywords = {"vars": {"ansible_python_interpreter": python}}
    where = {"environment": str(place.prefix), "catalogue": str(place.catalogue)}
    found = task(tmp_path, "environment_info", keywords, **where, gather=[])
    assert documented_result("environment_info", found)["states"]["one"] == "staged"
    done = patch_set(tmp_path, place.options[:4], keywords, state="absent", all=True)
    assert documented_result("patch_set", done)["outcome"] == "reverted"


def interpreter(version: str) -> str | None:
    """Path of an interpreter of that version; a name that cannot be started does not count."""
    found = shutil.which(f"python{version}")
    if found is None:
        return None
    asked = [found, "-c", "import sys; print(sys.executable)"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    return told.stdout.strip() if told.returncode == 0 else None


# --- nodes in trouble --------------------------------------------------------------------------


def test_an_interrupted_node_fails_until_it_may_be_settled(place: Place, tmp_path: Path) -> None:
    killed = run_killed_at(3, "apply", "one", "--no-verify", *place.options)
    assert killed.code == -9
    given: dict[str, Any] = {"sets": ["one"], "verify": False}
    stuck = documented_result("patch_set", patch_set(tmp_path, place.options[:4], **given))
    assert stuck["failed"] and stuck["failure"] == "recovery-needed"
    assert "recover" in stuck["error"]["hint"] and stuck["states"] == {"one": "interrupted"}
    settled = patch_set(tmp_path, place.options[:4], **given, recover=True)
    assert documented_result("patch_set", settled)["recovered"] in ("undone", "finished")
    assert settled["states"] == {"one": "staged"} and place.litter() == []


def test_a_busy_node_fails_and_says_who_is_at_work(host: Host, tmp_path: Path) -> None:
    other = host.start("apply", "fusion", "--profile", host.profile(GOOD))
    try:
        other.wait_said("warming up")
        busy = patch_set(tmp_path, host.options, sets=["other"], verify=False)
        assert documented_result("patch_set", busy)["failure"] == "busy"
        assert "apply fusion" in busy["msg"] and "hint: " in busy["msg"]
    finally:
        other.send(signal.SIGINT)
        other.finish(300)  # it puts the other content back first


@pytest.mark.slow
def test_a_task_whose_time_is_up_leaves_a_node_that_the_next_one_settles(
    host: Host, tmp_path: Path
) -> None:
    before = host.facts()
    slow = host.profile(GOOD, *SLOWLY, workloads=LONGER)
    short = {"async": 8, "poll": 1}
    late = patch_set(tmp_path, host.options, short, sets=["fusion"], profile=str(slow))
    assert late["failed"] and "failure" not in late, "Ansible ended it"
    host.kill_servers()
    given: dict[str, Any] = {"sets": ["fusion"], "state": "absent", "recover": True}
    done = patch_set(tmp_path, host.options, **given)
    assert not done.get("failed"), done
    assert host.facts() == before and host.litter() == []


# --- what users read ---------------------------------------------------------------------------


def test_readme_names_every_module_and_role() -> None:
    text = (COLLECTION / "README.md").read_text()
    for name in (*MODULES, *(p.name for p in (COLLECTION / "roles").iterdir())):
        assert re.search(rf"`{name}`", text), name


@pytest.mark.parametrize("name", MODULES)
def test_every_example_can_be_parsed_and_uses_options_that_there_are(name: str, load: Any) -> None:
    spec = load("modules", name).ARGUMENTS
    for example in documented(name, "EXAMPLES"):
        for module, options in example.items():
            if module.startswith("sm120patch.fleet."):
                assert (options or {}).keys() <= spec.keys() | {"prefix", "name"}
