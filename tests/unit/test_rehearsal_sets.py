"""Rehearsal sets: for copies made for a rehearsal, refused on anything that was released."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120patch import catalogue as catalogues
from sm120patch.catalogue import Catalogue
from sm120patch.manifest import examine
from sm120patch.model import EvidenceKind, Snapshot, State, TargetSnapshot, is_rehearsal
from sm120patch.plan import History, Plan
from sm120patch.planner import Refusal, Request, make_plan
from tests.support.catalogue import write_catalogue
from tests.support.place import Place
from tests.support.planning import snapshot

COPY = "1.0+rehearsal.sm90"


@pytest.fixture
def known(tmp_path: Path) -> Catalogue:
    return catalogues.load(rehearsing(write_catalogue(tmp_path / "catalogue")))


def rehearsing(root: Path) -> Path:
    for path in (root / "manifests").iterdir():
        path.write_text(path.read_text().replace("[host]\n", "[host]\nrehearsal = true\n"))
    return root


def labelled(at: Snapshot, **versions: str) -> Snapshot:
    names = {"sglang": "sglang", "flashinfer": "flashinfer-python"}
    chosen = {names[short]: version for short, version in versions.items()}

    def target(found: TargetSnapshot) -> TargetSnapshot:
        return found._replace(version=chosen.get(found.target, found.version))

    return at._replace(targets={name: target(found) for name, found in at.targets.items()})


@pytest.mark.parametrize(
    ("version", "copy"),
    [
        (COPY, True),
        ("0.6.12+rehearsal", True),
        ("0.6.12", False),
        ("0.6.12+cu130", False),
        ("0.6.12+cu130.rehearsal", False),
        ("0.0.0+unknown", False),
    ],
)
def test_a_copy_is_known_by_its_local_version(version: str, copy: bool) -> None:
    assert is_rehearsal(version) is copy


def test_a_rehearsal_set_is_refused_on_a_release(known: Catalogue) -> None:
    result = make_plan(known, snapshot(), History(), Request("apply", ("one",)))
    assert isinstance(result, Refusal)
    assert result.kind == "not-applicable"
    assert "for copies made for a rehearsal, and sglang 1.0 is none" in result.reasons[0]


def test_it_is_planned_on_a_copy(known: Catalogue) -> None:
    at = labelled(snapshot(), sglang=COPY, flashinfer=COPY)
    result = make_plan(known, at, History(), Request("apply", ("bundle",)))
    assert isinstance(result, Plan)
    assert len(result.files) == 2


def test_a_bundle_is_refused_where_one_package_is_a_release(known: Catalogue) -> None:
    at = labelled(snapshot(), sglang=COPY)
    result = make_plan(known, at, History(), Request("apply", ("bundle",)))
    assert isinstance(result, Refusal)
    assert any("flashinfer-python 1.0 is none" in reason for reason in result.reasons)


def test_only_the_packages_that_a_set_changes_must_be_copies(known: Catalogue) -> None:
    at = labelled(snapshot(), sglang=COPY)
    result = make_plan(known, at, History(), Request("apply", ("one",)))
    assert isinstance(result, Plan)
    assert result.states == {"one": State.ABSENT}


def test_a_shipped_set_is_none(known: Catalogue) -> None:
    shipped = catalogues.load()
    assert not any(shipped.get(name).rehearsal for name in shipped.ids)
    assert all(known.get(name).rehearsal for name in known.ids)


def test_the_key_takes_a_boolean(tmp_path: Path) -> None:
    root = write_catalogue(tmp_path)
    text = (root / "manifests" / "one.toml").read_text()
    broken = text.replace("[host]\n", '[host]\nrehearsal = "yes"\n').encode()
    _set, faults = examine(broken, lambda name: (root / "patches" / name).read_bytes())
    assert any("host.rehearsal" in fault for fault in faults)


PROFILE = """
[server]
command = ["{{tool_python}}", "-c", "pass", "{{set_args}}"]
url = "http://127.0.0.1:1"
kind = "{kind}"
"""


@pytest.mark.parametrize(
    ("version", "kind", "worth"),
    [
        ("1.0", "real", EvidenceKind.REAL),
        (COPY, "real", EvidenceKind.REHEARSAL),
        (COPY, "simulated", EvidenceKind.SIMULATED),
    ],
)
def test_evidence_from_a_copy_is_never_real(
    tmp_path: Path, version: str, kind: str, worth: EvidenceKind
) -> None:
    from sm120patch.operations import profiles
    from sm120patch.operations.site import open_site

    place = Place(tmp_path, version)
    profile = tmp_path / "profile.toml"
    profile.write_text(PROFILE.format(kind=kind))
    site = open_site(str(place.prefix), None, catalogue=place.catalogue)
    found = profiles.find(profile, site, tmp_path)
    assert found is not None
    assert found.server.kind is worth


def test_status_says_why_it_is_not_for_a_release(tmp_path: Path) -> None:
    place = Place(tmp_path)
    rehearsing(place.catalogue)
    states = {s["id"]: s for s in place.run("status", "--gpu", "12.0").result["sets"]}
    assert {s["state"] for s in states.values()} == {"not-applicable"}
    assert "copies made for a rehearsal" in states["one"]["reason"]


def test_apply_writes_nothing_on_a_release(tmp_path: Path) -> None:
    place = Place(tmp_path)
    rehearsing(place.catalogue)
    ran = place.run("apply", "bundle", "--gpu", "12.0", "--no-verify")
    assert ran.code == 4
    assert place.changed() == set()
