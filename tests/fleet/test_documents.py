"""What docs/rollout.md and the collection say of roles, variables, hooks and states is true."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import CHECKOUT
from tests.support.nodes import COLLECTION, Fleet, Node, ansible

DOCUMENT = (CHECKOUT / "docs" / "rollout.md").read_text()
ROLES = sorted(path.name for path in (COLLECTION / "roles").iterdir())
PLAYBOOKS = sorted(path.stem for path in (COLLECTION / "playbooks").glob("*.yml"))


def loaded(path: Path) -> Any:
    yaml = pytest.importorskip("yaml", reason="comes with ansible-core, of the extra `dev`")
    return yaml.safe_load(path.read_text())


def section(title: str) -> str:
    return DOCUMENT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_variable_is_documented_and_no_other() -> None:
    used: set[str] = set()
    for path in COLLECTION.glob("roles/*/*/*.yml"):
        used |= set(re.findall(r"\bsm120patch_[a-z_]+", path.read_text()))
    for path in COLLECTION.glob("playbooks/*.yml"):
        used |= set(re.findall(r"\bsm120patch_[a-z_]+", path.read_text()))
    assert set(re.findall(r"\bsm120patch_[a-z_]+", DOCUMENT)) == used


@pytest.mark.parametrize("role", ROLES)
def test_every_option_of_a_role_has_a_default_or_is_required_and_is_described(role: str) -> None:
    root = COLLECTION / "roles" / role
    specs = loaded(root / "meta" / "argument_specs.yml")["argument_specs"]
    described = {name for spec in specs.values() for name in spec["options"]}
    assert described == set(loaded(root / "defaults" / "main.yml"))
    for entry, spec in specs.items():
        assert (root / "tasks" / f"{entry}.yml").exists()
        assert spec["short_description"] and spec["description"]
        assert all(option["description"] for option in spec["options"].values())


@pytest.mark.parametrize("role", ROLES)
def test_defaults_of_the_description_are_those_of_the_role(role: str) -> None:
    root = COLLECTION / "roles" / role
    defaults = loaded(root / "defaults" / "main.yml")
    for spec in loaded(root / "meta" / "argument_specs.yml")["argument_specs"].values():
        for name, option in spec["options"].items():
            if "default" in option and isinstance(defaults[name], str):
                value = option["default"]
                words = str(value).lower() if isinstance(value, bool | int) else repr(value)
                assert f"default({words})" in defaults[name], name


def test_every_end_of_a_node_that_is_documented_can_happen() -> None:
    role = COLLECTION / "roles" / "rollout"
    text = "\n".join(path.read_text() for path in role.glob("*/*.yml"))
    ends = re.findall(r"^\| `([a-z-]+)` \| ", section("What a rollout does"), re.MULTILINE)
    assert len(ends) == 10
    assert all(f"'{end}'" in text or f"state: {end}\n" in text for end in ends)
    good = loaded(role / "vars" / "main.yml")["rollout_good"]
    assert ends[:3] == good, "each but the first three fails the run"


def test_every_hook_is_documented_and_has_both_halves() -> None:
    halves = {path.stem for path in (COLLECTION / "roles" / "hooks" / "tasks").glob("*_*.yml")}
    names = {half.rpartition("_")[0] for half in halves}
    assert halves == {f"{name}_{event}" for name in names for event in ("drain", "resume")}
    assert set(re.findall(r"^\| `([a-z_]+)` \| ", section("Hooks"), re.MULTILINE)) == names
    hook = (COLLECTION / "roles" / "rollout" / "tasks" / "hook.yml").read_text()
    assert all(f"'{name}'" in hook for name in names)


def test_every_playbook_and_role_that_is_named_exists() -> None:
    for text in (DOCUMENT, (COLLECTION / "README.md").read_text()):
        named = set(re.findall(r"ansible-playbook .*sm120patch\.fleet\.([a-z_]+)", text))
        assert named and named <= set(PLAYBOOKS)


def test_the_example_of_an_inventory_can_be_read_and_uses_documented_variables() -> None:
    example = COLLECTION / "examples" / "inventory"
    words = [ansible("ansible-inventory"), "-i", str(example), "--list"]
    listed = json.loads(subprocess.check_output(words, text=True))
    assert listed["sm120patch"]["hosts"][0] == "gpu-01"
    for variables in listed["_meta"]["hostvars"].values():
        ours = {name for name in variables if name.startswith("sm120patch_")}
        assert ours and all(f"`{name}`" in DOCUMENT for name in ours)


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_playbooks_are_well_formed(playbook: str, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, Node.small(tmp_path, "node"))
    done = fleet.play(f"sm120patch.fleet.{playbook}", "--syntax-check")
    assert done.code == 0, done.out
