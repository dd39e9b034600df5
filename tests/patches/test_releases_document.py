"""docs/releases.md is what the planner says today."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from sm120patch import catalogue
from sm120patch.cli.releasetext import matrix_markdown
from sm120patch.operations.releases import catalogue_digest, matrix
from sm120patch.plan import Outcome
from sm120patch.published import Shelf, known
from tests.support.wheels import cache_dir

DOCUMENT = (Path(__file__).parents[2] / "docs" / "releases.md").read_text(encoding="utf-8")
RELEASES = ("0.5.8", "0.5.14", "0.5.18")


def test_the_document_is_of_this_catalogue() -> None:
    found = re.search(r"catalogue ([0-9a-f]{64}) -->", DOCUMENT)
    assert found and found[1] == catalogue_digest(catalogue.load()), "run `make releases`"


def test_the_document_has_every_known_release_and_refuses_none() -> None:
    table = DOCUMENT.partition("\n## Sets\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| ([0-9][^ ]*) \|", table, re.MULTILINE) == list(known()["sglang"])
    assert "refused**" not in DOCUMENT and "| error |" not in DOCUMENT


def planned(releases: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("HOME", os.environ["SM120PATCH_TEST_REAL_HOME"])
    loaded = catalogue.load()
    results = list(matrix(loaded, (), releases, Shelf(cache_dir(), print)))
    assert not [r.error for r in results if r.error]
    assert all(s.outcome is not Outcome.REFUSED for r in results for s in r.sets)
    return matrix_markdown(results).splitlines()


@pytest.mark.network
def test_a_few_releases_are_planned_as_the_document_says(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = planned(RELEASES, monkeypatch)[4 : 4 + len(RELEASES)]
    assert len(summary) == len(RELEASES) and set(summary) <= set(DOCUMENT.splitlines())


@pytest.mark.network
@pytest.mark.slow
def test_the_whole_document_is_what_the_planner_says(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = planned(known()["sglang"], monkeypatch)
    assert DOCUMENT.splitlines()[-len(lines) :] == lines
