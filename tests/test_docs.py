"""What the documents say about commands, exit codes and JSON is true."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import click
import pytest

from sm120patch.cli.group import cli
from sm120patch.cli.main import COMMANDS
from sm120patch.errors import ExitCode
from sm120patch.model import State
from sm120patch.verify.profile import parse
from tests.support.catalogue import write_catalogue, write_environment
from tests.support.command import run
from tests.support.facts import GATHERED, small, write_facts
from tests.support.tuning import write_record

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PROFILE = (ROOT / "docs" / "profile.md").read_text()
JSON = (ROOT / "docs" / "json.md").read_text()


CONTEXT = click.Context(cli)


@pytest.mark.parametrize("command", cli.list_commands(CONTEXT))
def test_every_command_is_in_the_readme_and_has_help(command: str) -> None:
    assert re.search(rf"^\| .*`{command}[ `]", README, re.MULTILINE)
    found = cli.get_command(CONTEXT, command)
    assert found is not None and found.help
    for parameter in found.params:
        if parameter.param_type_name == "option" and not getattr(parameter, "hidden", False):
            assert getattr(parameter, "help", None), f"{command} {parameter.name}"


def test_every_module_of_commands_is_reachable_and_whole() -> None:
    """A command that is not named in `COMMANDS` could not be called."""
    folder = ROOT / "sm120patch" / "cli"
    holders = {
        p.stem for p in folder.glob("*.py") if re.search(r"^COMMANDS: ", p.read_text(), re.M)
    }
    assert holders == set(COMMANDS)
    for holder, names in COMMANDS.items():
        module = importlib.import_module(f"sm120patch.cli.{holder}")
        assert sorted(found.name for found in module.COMMANDS) == list(names)


def test_every_exit_code_is_documented_and_no_other() -> None:
    documented = set(re.findall(r"^\| (\d+) \|", README, re.MULTILINE))
    assert documented == {str(int(code)) for code in ExitCode}


def test_every_state_is_documented() -> None:
    documented = set(re.findall(r"^\| `([a-z-]+)` \| [^|]+ \|$", README, re.MULTILINE))
    assert {state.value for state in State} <= documented


def test_every_shipped_set_is_in_the_readme() -> None:
    from sm120patch import catalogue

    for name in catalogue.load().ids:
        assert f"| `{name}` |" in README


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", PROFILE, re.DOTALL))
def test_every_profile_in_the_documents_is_valid(block: str) -> None:
    text = block if "[server]" in block else f'[server]\ncommand = ["x"]\n{block}'
    assert parse(text, origin="docs", python="/p/bin/python", prefix="/p").workloads


def test_json_results_have_the_documented_keys(tmp_path: Path) -> None:
    table = {
        name: set(re.findall(r"`([a-z_]+)`", keys))
        for names, keys in re.findall(r"^\| (`.*?`) \| (`.*`) \|$", JSON, re.MULTILINE)
        for name in re.findall(r"`([a-z-]+)`", names)
    }
    prefix, catalogue = tmp_path / "env", write_catalogue(tmp_path / "catalogue")
    write_environment(prefix)
    record = write_record(tmp_path / "record.json")
    here = ("--env", prefix, "--catalogue", catalogue, "--output", "json")
    commands: dict[str, tuple[str | Path, ...]] = {
        "list": ("--catalogue", catalogue, "--output", "json"),
        "show": ("one", "--catalogue", catalogue, "--output", "json"),
        "plan": ("one", *here),
        "apply": ("one", "--no-verify", "--allow-running", *here),
        "status": here,
        "history": here,
        "matrix": (
            "one", "--releases", "0.0", "--offline", "--catalogue", catalogue, "--output", "json",
        ),
        "audit": here,
        "fleet-report": (write_facts(tmp_path / "facts", small()), "--output", "json"),
        "doctor": here,
        "caches": here,
        "revert": ("--all", "--allow-running", *here),
        "recover": here,
        "lint": ("--catalogue", catalogue, "--output", "json"),
        "tune": ("moe", "--record", record, "--into", tmp_path / "t", "--output", "json"),
        "new": ("mine", "--target", "sglang", "--from-env", prefix, "--scratch", tmp_path / "s",
                "--output", "json"),
    }  # fmt: skip
    for command, arguments in commands.items():
        done = run(command, *arguments)
        envelope = done.json
        assert set(envelope) == {"schema", "command", "ok", "exit_code", "result", "errors"}
        assert envelope["command"] == command
        assert envelope["exit_code"] == done.code and envelope["ok"] == (done.code == 0)
        assert set(envelope["result"]) == table[command], command


def test_errors_have_the_documented_form(tmp_path: Path) -> None:
    write_environment(tmp_path / "env")
    done = run("apply", "nope", "--env", tmp_path / "env", "--output", "json")
    assert done.code == 2 and done.json["result"] is None
    assert set(done.error) == {"code", "message", "hint", "details"}


def test_every_kind_of_finding_is_documented_and_can_be_chosen() -> None:
    from sm120patch.audit.findings import Kind
    from sm120patch.cli.auditing import KINDS

    text = (ROOT / "docs" / "audit.md").read_text()
    kinds = [kind.value for kind in Kind]
    assert re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE) == kinds == list(KINDS)


def test_every_kind_of_finding_in_a_fleet_is_documented_and_can_be_chosen() -> None:
    from sm120patch.cli.fleetreport import KINDS
    from sm120patch.fleet.overview import Kind

    table = (
        (ROOT / "docs" / "fleet.md").read_text().partition("## Findings")[2].partition("\n## ")[0]
    )
    kinds = [kind.value for kind in Kind]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == kinds == list(KINDS)


def test_the_facts_in_the_documents_are_read_and_answers_have_the_documented_keys(
    tmp_path: Path,
) -> None:
    text = (ROOT / "docs" / "fleet.md").read_text()
    facts = small()
    example = json.loads(text.partition("```json\n")[2].partition("```")[0])
    assert set(example) == set(facts) and set(example["commands"]) == set(GATHERED)
    table = text.partition("## The facts of a node")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z_]+)` \| [^`]", table, re.MULTILINE)[:2] == ["schema", "node"]
    documented = set(re.findall(r"`([a-z_]+)`", text.partition("## `--output json`")[2]))
    ran = run("fleet-report", write_facts(tmp_path / "facts", facts, small("other")),
              "--compare", facts["node"], "other", "--output", "json")  # fmt: skip
    result = ran.result
    keys = {*result, *result["nodes"][0], *result["nodes"][0]["sets"][0], *result["compare"]}
    assert keys <= documented, keys - documented


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_to_files_that_are_there(document: Path) -> None:
    prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose)
    relative = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in relative if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("name", ["fleet.md", "rollout.md"])
def test_facts_are_reported_from_where_the_playbook_of_the_example_writes_them(name: str) -> None:
    defaults = next((ROOT / "sm120patch").rglob("roles/audit/defaults/main.yml")).read_text()
    usual = re.findall(r"sm120patch_facts_dir \| default\('([^']+)'\)", defaults)
    block = (ROOT / "docs" / name).read_text().partition("```console\n")[2].partition("```")[0]
    (playbook,) = re.findall(r"^.*ansible-playbook .*sm120patch\.fleet\.audit.*$", block, re.M)
    written = re.findall(r"sm120patch_facts_dir=(\S+)", playbook) or usual
    assert written == re.findall(r"fleet-report (\S+)", block)
    assert re.findall(r"writes (\S+)/NODE\.json", block) in ([], written)
