"""The snippets of docs/containers.md do what they say: they are taken from there, and run."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.catalogue import A, write_environment
from tests.support.command import CHECKOUT, run
from tests.support.disks import read_only
from tests.support.environments import real_environment
from tests.support.place import Place
from tests.support.wheels import PAIRS

DOCUMENT = (CHECKOUT / "docs" / "containers.md").read_text()
SHELL = shutil.which("dash") or "/bin/sh"


def snippet(name: str) -> str:
    found = re.search(rf"<!-- test: {name} -->\n```\w+\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found is not None, name
    return found[1]


@dataclass(frozen=True)
class Done:
    code: int
    text: str


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    """The tool's own environment, as the image has it: this checkout with the small catalogue."""
    return write_tool(tmp_path, tmp_path / "catalogue")


def write_tool(root: Path, catalogue: Path) -> Path:
    wrapper = root / "tool" / "bin" / "sm120patch"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(
        f"#!/bin/sh\ncommand=$1; shift\nPYTHONPATH={CHECKOUT} exec {sys.executable} -m sm120patch"
        f' "$command" --catalogue {catalogue} "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper


def shell(script: str, *, options: str = "-ec", **environ: str | Path) -> Done:
    """Run a script as containers and Slurm do: with nothing but the given variables."""
    done = subprocess.run(
        [SHELL, options, script],
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"],
             **{name: str(value) for name, value in environ.items()}},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout)


def content_of(place: Place, *sets: str) -> str:
    return str(place.done("plan", *sets, "--gpu", "12.0")["content"])


def python_of(place: Place) -> Path:
    return place.prefix / "bin" / "python3"


def damage(place: Place, kind: str) -> None:
    if kind != "unpatched":
        place.stage("one")
    if kind == "drifted":
        place.write(A, place.read(A) + "foreign = 1\n")
    elif kind == "foreign":
        place.write("sglang/b.py", "value = 'mine'\n")
    elif kind == "interrupted":
        (place.state / "journal.json").write_text("{")
    elif kind == "unknown":
        (next(place.site.glob("sglang-*.dist-info")) / "RECORD").unlink()


# --- Dockerfile ---------------------------------------------------------------------------------


def dockerfile() -> list[dict[str, Any]]:
    from dockerfile_parse import DockerfileParser

    parser = DockerfileParser(fileobj=io.BytesIO())
    parser.content = snippet("dockerfile")
    structure: list[dict[str, Any]] = parser.structure
    return structure


def steps() -> list[str]:
    return [line["value"] for line in dockerfile() if line["instruction"] == "RUN"]


def arguments() -> dict[str, str]:
    found = {}
    for line in dockerfile():
        if line["instruction"] == "ARG":
            name, _, value = line["value"].partition("=")
            found[name] = value.strip('"')
    return found


def build(run_steps: list[str], **changes: str | Path) -> Done:
    """Run the steps in order; the first that fails ends the build."""
    values = {**arguments(), **changes}
    done = Done(0, "")
    for step in run_steps:
        done = shell(step, **values)
        if done.code:
            break
    return done


def test_the_dockerfile_is_one_and_uses_every_argument():
    names = [line["instruction"] for line in dockerfile() if line["instruction"] != "COMMENT"]
    assert names[:2] == ["ARG", "FROM"] and set(names) == {"ARG", "FROM", "RUN"}
    text = snippet("dockerfile")
    for name in arguments():
        assert f"${{{name}}}" in text, name


def test_the_build_stages_what_was_expected_and_runs_again(place: Place, tool: Path):
    content = content_of(place, "one")
    values = {"PYTHON": python_of(place), "TOOL": tool.parents[1], "SETS": "one", "COMPILE": "",
              "CONTENT": content}  # fmt: skip
    done = build(steps()[1:], **values)
    assert done.code == 0, done.text
    assert place.states()["one"] == "staged", "nothing counts as applied without a GPU"
    assert build(steps()[1:], **values).code == 0


@pytest.mark.parametrize("wrong", ["content", "version", "hand", "foreign"])
def test_the_build_stops_where_the_base_image_is_not_what_it_was(
    place: Place, tool: Path, wrong: str
):
    content = content_of(place, "one")
    if wrong == "content":
        content = "0" * 64
    elif wrong == "version":
        shutil.rmtree(place.prefix)
        write_environment(place.prefix, "1.5")
    elif wrong == "hand":
        place.write(A, place.read(A).replace("line_9 = 9", "line_9 = 'mine'"))
    else:
        place.write("sglang/b.py", "value = 'mine'\n")
    done = build(steps()[1:], PYTHON=python_of(place), TOOL=tool.parents[1], SETS="one",
                 COMPILE="", CONTENT=content)  # fmt: skip
    assert done.code != 0
    if wrong in ("content", "version"):
        assert "expected content" in done.text and "the plan comes to" in done.text
    assert (A in place.changed()) == (wrong in ("hand", "foreign"))


@pytest.mark.slow
@pytest.mark.network
def test_the_whole_build_on_published_packages(tmp_path: Path):
    """With the step that the quick tests leave out: a real install of the tool."""
    prefix = tmp_path / "env"
    real_environment(prefix, "0.5.9", PAIRS["0.5.9"])
    python, root = prefix / "bin" / "python3", tmp_path / "opt"
    planned = run("plan", "allreduce-fusion", "--gpu", "12.0", "--env", prefix, "--output", "json")
    content = str(planned.result["content"])
    values = {"PYTHON": python, "TOOL": root, "SM120PATCH": CHECKOUT, "COMPILE": ""}
    refused = build(steps(), CONTENT="0" * 64, **values)
    assert refused.code == 5 and content in refused.text, refused.text
    done = build(steps(), CONTENT=content, **values)
    assert done.code == 0, done.text
    status = run("status", "--env", prefix, "--output", "json").result
    states = {s["id"]: s["state"] for s in status["sets"]}
    assert states["allreduce-fusion"] == "staged" and status["content"] == content
    tool = root / "bin" / "sm120patch"
    (script,) = pod()["spec"]["initContainers"][0]["args"]
    assert shell(script, TOOL=tool, PYTHON=python, CONTENT=content).code == 0
    assert shell(script, TOOL=tool, PYTHON=python, CONTENT="1" * 64).code == 1


def test_what_is_verified_keeps_its_evidence_in_a_volume():
    script = snippet("verify")
    assert subprocess.run([SHELL, "-n", "-c", script], check=False).returncode == 0
    words = script.split()
    assert '"sm120patch-${CONTENT}:${PREFIX}/.sm120patch"' in words
    asked = words[words.index("/opt/sm120patch/bin/sm120patch") + 1 :]
    options = [word for word in asked if word.startswith("--")]
    known = run("verify", "--help").out
    assert asked[0] == "verify" and all(option in known for option in options)


# --- Kubernetes ---------------------------------------------------------------------------------


def pod() -> dict[str, Any]:
    import yaml

    (found,) = yaml.safe_load_all(snippet("kubernetes"))
    assert isinstance(found, dict)
    return found


def test_the_pod_is_valid_for_kubernetes():
    import kubernetes_validate

    kubernetes_validate.validate(pod(), kubernetes_validate.latest_version(), strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        broken = pod()
        broken["spec"]["initContainers"][0]["env"][2]["value"] = 0
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


def init_container(place: Place, tool: Path, content: str, **more: str | Path) -> Done:
    found = pod()["spec"]["initContainers"][0]
    assert found["command"] == ["/bin/sh", "-ec"]
    (script,) = found["args"]
    assert {variable["name"] for variable in found["env"]} == {"TOOL", "PYTHON", "CONTENT"}
    return shell(script, TOOL=tool, PYTHON=python_of(place), CONTENT=content, **more)


def test_the_server_starts_where_the_image_holds_what_it_should(place: Place, tool: Path):
    content = content_of(place, "one")
    damage(place, "patched")
    done = init_container(place, tool, content)
    assert done.code == 0, done.text


@pytest.mark.parametrize("kind", ["unpatched", "drifted", "foreign", "interrupted", "unknown"])
def test_the_server_does_not_start_where_it_does_not(place: Place, tool: Path, kind: str):
    content = content_of(place, "one")
    damage(place, kind)
    files = place.contents()
    done = init_container(place, tool, content)
    assert done.code != 0
    assert place.contents() == files, "it only looks"


def test_a_read_only_container_can_look_too(place: Place, tool: Path, tmp_path: Path):
    """Nothing can be written: neither beside the packages nor at home."""
    content = content_of(place, "one")
    damage(place, "patched")
    home = tmp_path / "home"
    home.mkdir()
    with read_only(place.prefix), read_only(home):
        done = init_container(place, tool, content, HOME=home)
    assert done.code == 0, done.text


# --- Slurm --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Health:
    done: Done
    asked: list[str]
    """Arguments of every call of scontrol."""


def health(place: Place, tool: Path, content: str, *, refuse: bool = False, **more: str) -> Health:
    """Run the program with a stand-in for scontrol that writes down what it is asked for."""
    folder, log = place.root / "slurm", place.root / "asked"
    folder.mkdir()
    (folder / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {log}\nexit {int(refuse)}\n')
    (folder / "scontrol").chmod(0o755)
    done = shell(
        snippet("slurm"), options="-c", SM120PATCH=tool, PREFIX=place.prefix, CONTENT=content,
        NODE="gpu-07", PATH=f"{folder}:{os.environ['PATH']}",
        **{"SETTINGS": "/nonexistent", **more},
    )  # fmt: skip
    return Health(done, log.read_text().splitlines() if log.exists() else [])


def test_shellcheck_finds_nothing_in_the_health_check(tmp_path: Path):
    script = tmp_path / "health.sh"
    script.write_text(snippet("slurm"))
    checker = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([checker, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_node_that_holds_what_it_should_is_left_alone(place: Place, tool: Path):
    content = content_of(place, "one")
    damage(place, "patched")
    found = health(place, tool, content)
    assert found.done.code == 0 and found.asked == [], found.done.text


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("unpatched", "other code than it should"),
        ("drifted", "other code than it should"),
        ("foreign", "other code than it should"),
        ("interrupted", "other code than it should"),
        ("unknown", "other code than it should"),
    ],
)
def test_a_node_that_does_not_is_drained(place: Place, tool: Path, kind: str, why: str):
    content = content_of(place, "one")
    damage(place, kind)
    files = place.contents()
    found = health(place, tool, content)
    assert found.asked == [f"update NodeName=gpu-07 State=DRAIN Reason=sm120patch: {why}"]
    assert found.done.code == 0, "or slurmd would not register"
    assert place.contents() == files


def test_a_check_that_hangs_is_given_up_and_the_node_drained(place: Place, tool: Path):
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    found = health(place, tool, "", LIMIT="0.3")
    assert "no answer in 0.3 s" in found.asked[0]


def test_a_node_that_cannot_be_drained_does_not_register(place: Place, tool: Path):
    found = health(place, tool, "0" * 64, refuse=True)
    assert found.done.code == 1


def test_a_missing_tool_drains_the_node(place: Place, tmp_path: Path):
    found = health(place, tmp_path / "nowhere", "")
    assert "exit code 127" in found.asked[0]


def test_settings_of_the_node_are_read(place: Place, tool: Path, tmp_path: Path):
    damage(place, "patched")
    settings = tmp_path / "settings"
    settings.write_text(f"CONTENT={'1' * 64}\nNODE=gpu-08\n")
    found = health(place, tool, content_of(place, "one"), SETTINGS=str(settings))
    why = "other code than it should"
    assert found.asked == [f"update NodeName=gpu-08 State=DRAIN Reason=sm120patch: {why}"]
