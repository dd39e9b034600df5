"""The compiled catalogue says what the manifests say, or is not used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sm120patch import catalogue, manifest, precompiled, versions
from sm120patch.catalogue import Places
from sm120patch.errors import CatalogueError
from sm120patch.model import sha256_hex
from tests.support.catalogue import write_catalogue
from tests.support.tools import tool

builder = tool("compile_catalogue")
ROOT = Path(__file__).parents[2]


def test_the_shipped_file_is_of_the_shipped_manifests() -> None:
    data = (ROOT / precompiled.FILE).read_bytes()
    assert data == builder.compile_all(ROOT), "run `python tools/compile_catalogue.py`"


def test_compiled_sets_are_those_that_reading_gives() -> None:
    entries = precompiled.read(builder.compile_all(ROOT))

    def payload(path: str) -> bytes:
        return (ROOT / "patches" / path).read_bytes()

    for path in (ROOT / "manifests").glob("*.toml"):
        text = path.read_bytes()
        restored = precompiled.restore(entries[sha256_hex(text)], payload)
        assert restored == manifest.parse(text, path.name, payload)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalogue in the place of the shipped one, compiled."""
    root = write_catalogue(tmp_path / "catalogue")
    (root / precompiled.FILE).write_bytes(builder.compile_all(root))
    monkeypatch.setattr(catalogue, "shipped", lambda: root)
    return root


def test_an_edited_manifest_is_read_anew(shipped: Path) -> None:
    path = shipped / "manifests" / "one.toml"
    path.write_text(path.read_text().replace("Set one", "Another title"))
    assert catalogue.load().get("one").title == "Another title"
    assert catalogue.load().get("two").title == "Set two"


def test_a_payload_that_is_not_what_was_compiled_is_a_fault(shipped: Path) -> None:
    assert catalogue.load().get("two").changes[0].variants[0].data
    (shipped / "patches" / "two" / "far.patch").write_bytes(b"another diff\n")
    with pytest.raises(CatalogueError, match=r"two/far\.patch has"):
        catalogue.load()
    (shipped / "patches" / "two" / "far.patch").unlink()
    with pytest.raises(CatalogueError, match="cannot be read"):
        catalogue.load()


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"format": 2, "sets": {}}', b"\xff"])
def test_what_is_no_compiled_catalogue_counts_for_nothing(shipped: Path, data: bytes) -> None:
    (shipped / precompiled.FILE).write_bytes(data)
    assert "one" in catalogue.load().sets


def test_only_the_shipped_one_is_believed(shipped: Path) -> None:
    file = shipped / precompiled.FILE
    document = json.loads(file.read_bytes())
    for entry in document["sets"].values():
        entry["title"] = "Harmless"
    file.write_text(json.dumps(document))
    assert catalogue.load().get("one").title == "Harmless"
    assert catalogue.load(Places(shipped)).get("one").title == "Set one"


def test_published_versions_lie_in_the_ranges_that_packaging_says() -> None:
    precompiled.read((ROOT / precompiled.FILE).read_bytes())
    answers = {(v, text): versions.within(v, text) for v in versions._numbers
               for text in versions._answers}  # fmt: skip
    assert len(answers) > 5000
    versions.learn((), {})
    for (version, text), inside in answers.items():
        assert versions.within(version, text) is inside, (version, text)
    assert versions.within("no version", ">=0.5,<0.6") is None
    assert versions.within("0.5.9+cu130", ">=0.5,<0.6") is True
