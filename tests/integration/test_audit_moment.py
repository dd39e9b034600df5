"""Files and ledger of one audit belong to one moment, whatever is committed while it looks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sm120patch import catalogue as catalogues
from sm120patch.audit import examine
from sm120patch.audit.findings import EnvironmentReport
from sm120patch.operations.auditing import Scope, audit
from tests.support.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def audited(
    place: Place, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[int], object]
) -> EnvironmentReport:
    """Audit; `meanwhile` runs after the ledger was read and before the files are, each time."""
    looks: list[str] = []
    begin = examine.begin

    def later(means: Any, copy: Any, asked: Any) -> Any:
        if copy.target == "sglang":
            looks.append(copy.target)
            meanwhile(len(looks))
        return begin(means, copy, asked)

    monkeypatch.setattr(examine, "begin", later)
    report = audit(Scope(env=str(place.prefix)), catalogues.load(place.catalogue))
    (environment,) = report.environments
    return environment


def kinds(report: EnvironmentReport) -> set[str]:
    return {f.kind.value for f in report.findings}


def test_what_is_applied_meanwhile_is_not_called_made_by_hand(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = audited(place, monkeypatch, lambda look: look == 1 and place.stage("one"))
    assert kinds(report) == {"unverified"}
    assert [(s.id, s.state) for s in report.sets] == [("one", "staged")]


def test_what_is_reverted_meanwhile_is_not_called_lost(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.stage("one")
    revert = lambda look: look == 1 and place.done("revert", "--all")  # noqa: E731 - one use
    report = audited(place, monkeypatch, revert)
    assert (kinds(report), report.sets) == (set(), ())


def test_what_never_comes_to_rest_is_unknown(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def toggle(look: int) -> None:
        if look % 2:
            place.stage("one")
        else:
            place.done("revert", "--all")

    report = audited(place, monkeypatch, toggle)
    assert "unknown" in kinds(report)
    assert any("while it was looked at" in f.detail for f in report.findings)


def test_a_roundabout_path_is_no_other_name(place: Place) -> None:
    roundabout = place.root / "catalogue" / ".." / place.prefix.name
    (environment,) = audit(
        Scope(env=str(roundabout)), catalogues.load(place.catalogue)
    ).environments
    assert (environment.prefix, environment.names) == (str(place.prefix), ())


def test_an_edit_by_hand_is_still_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.stage("one")
    changed = place.read("sglang/a.py")
    place.done("revert", "--all")
    place.write("sglang/a.py", changed)
    assert kinds(audited(place, monkeypatch, lambda _look: None)) == {"by-hand"}
