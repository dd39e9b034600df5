"""What a version has nothing for is not-applicable, never upstream; status and matrix agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sm120patch import catalogue as catalogues
from sm120patch.audit.byhand import paths_of
from sm120patch.catalogue import Catalogue
from sm120patch.model import FileSnapshot, Snapshot, State, TargetSnapshot, sha256_hex
from sm120patch.operations.inactive import Others, inactive_status
from sm120patch.plan import History, Plan
from sm120patch.planner import Refusal, Request, make_plan
from tests.support.catalogue import write_catalogue

DOCUMENT = (Path(__file__).parents[2] / "docs" / "releases.md").read_text()
MEANS = {
    "patched": State.ABSENT,
    "upstream": State.UPSTREAM,
    "not-needed": State.NOT_APPLICABLE,
    "-": State.NOT_APPLICABLE,
}
"""Outcome of the table of all releases -> state of the set on freshly installed packages."""


def untouched(known: Catalogue, versions: dict[str, str]) -> Snapshot:
    """Packages of those versions in which every file that sets change is upstream's."""
    paths = paths_of(known, versions)
    return Snapshot(
        "/env",
        {
            name: TargetSnapshot(
                name, version, "/env/site", "wheel",
                {
                    path: FileSnapshot(path, b"", sha256_hex(b""), 0, 0, 1, sha256_hex(b""), b"")
                    for path in paths.get(name, ())
                },
            )
            for name, version in versions.items()
        },
    )  # fmt: skip


def rows() -> list[tuple[str, str, dict[str, str]]]:
    """SGLang, FlashInfer, and set -> outcome, of every line of the first table."""
    table = DOCUMENT.partition("## Sets")[2].strip().partition("\n\n")[0].splitlines()
    head, _, *lines = [[c.strip(" `") for c in line.strip("|").split("|")] for line in table]
    found = [(line[0], line[1], dict(zip(head[2:], line[2:], strict=True))) for line in lines]
    assert len(found) > 50 and all(re.match(r"[0-9]", sglang) for sglang, _, _ in found)
    return found


@pytest.mark.parametrize(("sglang", "flashinfer", "outcomes"), rows(), ids=lambda v: str(v)[:12])
def test_status_of_untouched_packages_agrees_with_the_table_of_all_releases(
    sglang: str, flashinfer: str, outcomes: dict[str, str]
) -> None:
    known = catalogues.load()
    snapshot = untouched(known, {"sglang": sglang, "flashinfer-python": flashinfer})
    found = {n: inactive_status(known, snapshot, History(), n, None, Others()) for n in known.ids}
    assert {n: s.state for n, s in found.items()} == {n: MEANS[o] for n, o in outcomes.items()}
    assert all(s.reason for s in found.values() if s.state is not State.ABSENT)


@pytest.fixture
def known(tmp_path: Path) -> Catalogue:
    """From 2.0 on: `one` is upstream, and there is nothing that `kernel` and `two` could change."""
    root = write_catalogue(tmp_path)
    for name in ("kernel", "two"):
        path = root / "manifests" / f"{name}.toml"
        text = path.read_text().replace('"upstream"\nreason = "ups', '"not-needed"\nreason = "no')
        path.write_text(text)
    return catalogues.load(root)


def answer(known: Catalogue, name: str) -> tuple[State, Plan | Refusal]:
    snapshot = untouched(known, {"sglang": "2.0", "flashinfer-python": "2.0"})
    state = inactive_status(known, snapshot, History(), name, None, Others()).state
    return state, make_plan(known, snapshot, History(), Request("apply", (name,)))


def test_a_set_that_has_nothing_to_change_is_refused_with_the_reason(known: Catalogue) -> None:
    state, made = answer(known, "kernel")
    assert state is State.NOT_APPLICABLE and isinstance(made, Refusal)
    assert (made.kind, made.reasons) == ("not-needed", ("kernel/gate: notream since 2.0",))


def test_a_bundle_does_without_a_member_that_has_nothing_to_change(known: Catalogue) -> None:
    state, made = answer(known, "bundle")
    assert state is State.UPSTREAM and isinstance(made, Plan) and made.is_noop
    assert made.states == {
        "one": State.UPSTREAM, "kernel": State.NOT_APPLICABLE, "bundle": State.UPSTREAM,
    }  # fmt: skip
