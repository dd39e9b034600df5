"""Entries that change nothing, and versions for which a change is refused: read, planned, shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sm120patch import catalogue as catalogues
from sm120patch import manifest
from sm120patch.catalogue import Catalogue
from sm120patch.cli.describe import describe_set
from sm120patch.errors import CatalogueError
from sm120patch.model import PatchSet, State
from sm120patch.plan import Outcome
from sm120patch.planner import Request
from sm120patch.variants import advice_for, advice_hint
from tests.support.catalogue import write_catalogue, write_environment
from tests.support.command import run
from tests.support.planning import plan, refusal, snapshot

ANSWER = """
schema = 1
[patch-set]
id = "answer"
revision = 1
title = "A variable does it"
description = "No patch."
type = "advice"
[host]
compute-capability = ["12.0"]
[upstream]
status = "inappropriate"
reason = "nothing to forward"
last-checked = "2026-11-29"
[[advice]]
target = "sglang"
versions = ">=1.0,<2.0"
requires = { flashinfer-python = ">=1.0" }
outcome = "set"
env = { SGLANG_SWITCH = "1" }
args = ["--with-it"]
reason = "the release has it"
[[advice]]
target = "sglang"
versions = ">=2.0,<3.0"
outcome = "refused"
reason = "it corrupts long answers"
"""


SET_IT = "no patch needed: set SGLANG_SWITCH=1 and start the server with --with-it"


def parse(text: str) -> PatchSet:
    return manifest.parse(text.encode(), "answer.toml", lambda path: b"")


def faults(text: str) -> list[str]:
    with pytest.raises(CatalogueError) as caught:
        parse(text)
    listed = caught.value.details["faults"]
    assert isinstance(listed, list)
    return listed


def changed(old: str, new: str) -> str:
    assert ANSWER.count(old) == 1
    return ANSWER.replace(old, new)


def test_an_entry_of_nothing_but_advice_is_read() -> None:
    answer = parse(ANSWER)
    assert answer.only_advice and not answer.changes
    first, second = answer.advice
    assert (first.outcome, first.env, first.args) == ("set", {"SGLANG_SWITCH": "1"}, ("--with-it",))
    assert first.requires == {"flashinfer-python": ">=1.0"}
    assert (second.outcome, second.reason) == ("refused", "it corrupts long answers")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('versions = ">=2.0,<3.0"', 'versions = ">=1.5,<3.0"', "advice[1].versions: '>=1.5,<3.0'"),
        ('outcome = "refused"', 'outcome = "set"', "advice[1].outcome: 'set', but the"),
        ('outcome = "set"', 'outcome = "refused"', "advice[0].outcome: 'refused', but"),
        ('outcome = "set"', 'outcome = "maybe"', "advice[0].outcome: 'maybe' is none of set, ref"),
        ('">=1.0" }', '"==1.0" }', "advice[0].requires.flashinfer-python: '==1.0' is not allowed"),
        ("SGLANG_SWITCH", '"A B"', "advice[0].env: the key 'A B' does not match"),
        ('reason = "the release has it"', "", "advice[0].reason: is missing"),
        ('reason = "the release has it"', 'reason = "x"\nwhy = 1', "advice[0].why: unknown key"),
        ('type = "advice"', 'type = "unofficial"', "change: a set needs changes, or dependencies"),
        ("[upstream]", "[relations]\ndepends = ['x']\n[upstream]", "change: an entry of type 'ad"),
    ],
)  # fmt: skip
def test_faults_of_an_advice_are_named(old: str, new: str, fault: str) -> None:
    assert any(f.startswith(fault) for f in faults(changed(old, new)))


def test_an_entry_of_type_advice_must_advise() -> None:
    text = ANSWER[: ANSWER.index("[[advice]]")]
    assert faults(text) == ["advice: an entry of type 'advice' needs one"]


@pytest.mark.parametrize(
    ("installed", "text"),
    [
        ({"sglang": "1.4.post1", "flashinfer-python": "1.0"}, f"{SET_IT}: the release has it"),
        ({"sglang": "1.4", "flashinfer-python": "0.9"}, "needs flashinfer-python >=1.0, found 0.9"),
        ({"sglang": "2.1"}, "refused: it corrupts long answers"),
        ({"sglang": "0.9"}, "it is for sglang >=1.0,<2.0 or sglang >=2.0,<3.0; found sglang 0.9"),
        ({}, "it is for sglang >=1.0,<2.0 or sglang >=2.0,<3.0; found none"),
    ],
)
def test_the_advice_depends_on_what_is_installed(installed: dict[str, str], text: str) -> None:
    assert advice_for(parse(ANSWER), installed)[1] == text


def test_advice_may_name_options_alone() -> None:
    answer = parse(changed('env = { SGLANG_SWITCH = "1" }\n', ""))
    assert advice_hint(answer.advice[0]) == "no patch needed: start the server with --with-it"


# --- planning ----------------------------------------------------------------------------------

NEVER = ANSWER.replace('id = "answer"', 'id = "never"').replace('">=1.0,<2.0"', '">=0.1,<0.2"')
NEVER = NEVER.replace('">=2.0,<3.0"', '">=1.0"')


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small catalogue, an answer, a refusal, and `one` refused from 3.0 on."""
    root = write_catalogue(tmp_path_factory.mktemp("catalogue"))
    (root / "manifests" / "answer.toml").write_text(ANSWER)
    (root / "manifests" / "never.toml").write_text(NEVER)
    one = root / "manifests" / "one.toml"
    window = '[[change.window]]\nversions = ">=3.0"\noutcome = "refused"\nreason = "turned round"\n'
    text = one.read_text()
    first, second = text.index("[[change]]"), text.rindex("[[change]]")
    assert first < second
    one.write_text(f"{text[:second]}{window}{text[second:]}{window}")
    return root


@pytest.fixture(scope="module")
def known(root: Path) -> Catalogue:
    return catalogues.load(root)


def test_an_answer_is_refused_with_what_to_set_instead(known: Catalogue) -> None:
    refused = refusal(known, Request("apply", ("answer",)), snapshot())
    assert refused.kind == "not-applicable"
    assert refused.hint == SET_IT
    assert [d.outcome for d in refused.decisions] == [Outcome.NOT_APPLICABLE]
    refused = refusal(known, Request("apply", ("answer",)), snapshot(capability="9.0"))
    assert refused.reasons == ("answer/*: answer is for compute capability 12.0, found 9.0",)


def test_a_harmful_request_is_refused_with_the_reason_and_no_hint_to_set(known: Catalogue) -> None:
    refused = refusal(known, Request("apply", ("never",)), snapshot())
    assert refused.reasons == ("never/*: refused: it corrupts long answers",)
    assert refused.hint is None


def test_asking_for_an_answer_and_a_set_refuses_both(known: Catalogue) -> None:
    refused = refusal(known, Request("apply", ("one", "answer")), snapshot())
    assert refused.hint is not None and "SGLANG_SWITCH=1" in refused.hint


def test_versions_for_which_upstream_decided_otherwise_are_refused(known: Catalogue) -> None:
    assert plan(known, Request("apply", ("one",)), snapshot()).files
    upstream = plan(known, Request("apply", ("one",)), snapshot(version="2.5"))
    assert upstream.states["one"] is State.UPSTREAM
    refused = refusal(known, Request("apply", ("one",)), snapshot(version="3.0"))
    assert refused.kind == "not-applicable"
    assert refused.reasons == ("one/first: turned round",)


def test_nothing_can_depend_on_an_advice(tmp_path: Path) -> None:
    root = write_catalogue(tmp_path)
    (root / "manifests" / "answer.toml").write_text(ANSWER)
    bundle = root / "manifests" / "bundle.toml"
    bundle.write_text(bundle.read_text().replace('depends = ["one"', 'depends = ["answer", "one"'))
    with pytest.raises(CatalogueError, match="'answer' is an advice, which nothing can apply"):
        catalogues.load(root)


# --- the command line --------------------------------------------------------------------------


def test_show_tells_what_to_set_and_for_which_versions(known: Catalogue) -> None:
    text = describe_set(known.get("answer"), "shipped")
    assert "there is nothing to patch\n  sglang >=1.0,<2.0, flashinfer-python >=1.0:\n" in text
    assert f"    {SET_IT}: the release has it" in text
    assert "  sglang >=2.0,<3.0:\n    refused: it corrupts long answers" in text
    assert "must show" not in text


def test_commands_answer_without_touching_the_environment(tmp_path: Path, root: Path) -> None:
    site = write_environment(tmp_path / "env")
    before = {p: p.read_bytes() for p in site.rglob("*") if p.is_file()}
    here: tuple[Any, ...] = ("--env", tmp_path / "env", "--catalogue", root, "--output", "json")
    done = run("apply", "answer", "--gpu", "12.0", *here)
    assert done.code == 4
    assert str(done.error["hint"]).startswith("no patch needed: set SGLANG_SWITCH=1")
    assert "the release has it" in str(done.error["message"])
    done = run("apply", "never", "--no-verify", "--gpu", "12.0", *here)
    assert (done.code, "corrupts" in done.error["message"]) == (4, True)
    states = {s["id"]: s for s in run("status", "--gpu", "12.0", *here).result["sets"]}
    assert states["answer"]["state"] == "not-applicable"
    assert states["answer"]["reason"].startswith("no patch needed: set SGLANG_SWITCH=1")
    assert states["never"]["reason"] == "refused: it corrupts long answers"
    listed = run("list", "--catalogue", root).out
    assert re.search(r"^answer +r1 +advice +.*A variable", listed, re.MULTILINE)
    assert {p: p.read_bytes() for p in site.rglob("*") if p.is_file()} == before
    assert not (tmp_path / "env" / ".sm120patch").exists()
