"""The index of known contents says what the payloads make of them, or says nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120patch import catalogue, fingerprints, variants
from sm120patch.catalogue import Catalogue
from sm120patch.fingerprints import edit_key, recognise, replay
from sm120patch.model import (
    Changed,
    Unchanged,
    Variant,
    sha256_hex,
)
from tests.support.catalogue import A_TEXT, B_TEXT, A, B, write_catalogue
from tests.support.tools import tool

builder = tool("build_fingerprints")

Use = Callable[[bytes], None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put other bytes in the place of the shipped index."""

    def put(data: bytes) -> None:
        fingerprints._entry.cache_clear()
        monkeypatch.setattr(fingerprints, "_index", lambda: data)

    yield put
    fingerprints._entry.cache_clear()


@pytest.fixture
def small(tmp_path: Path) -> Catalogue:
    return catalogue.load(write_catalogue(tmp_path / "catalogue"))


def indexed(loaded: Catalogue, contents: dict[str, str]) -> Any:
    made = builder.Builder()
    for version in ("1.0", "1.1"):
        chains = builder.chains(loaded, "sglang", version)
        for path, text in contents.items():
            made.add("sglang", path, version, text.encode(), chains.get(path, []))
    return made


def variant(loaded: Catalogue, set_id: str, change_id: str) -> Variant:
    change = loaded.get(set_id).change(change_id)
    assert change is not None
    return change.variants[0]


def test_known_edits_are_replayed_without_their_payload(
    small: Catalogue, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(fingerprints.write({}, indexed(small, {A: A_TEXT, B: B_TEXT}).contents))
    one, two = variant(small, "one", "first"), variant(small, "two", "far")
    expected = variants.run(one, A_TEXT.encode())
    assert isinstance(expected, Changed)
    both = variants.run(two, expected.data)
    monkeypatch.setattr(variants, "run", lambda *_: pytest.fail("the payload was run"))
    assert variants.edit(one, A_TEXT.encode()) == expected
    assert variants.edit(two, expected.data) == both


def test_every_combination_is_recognised_by_name(small: Catalogue, use: Use) -> None:
    use(fingerprints.write({}, indexed(small, {A: A_TEXT}).contents))
    content, found = A_TEXT.encode(), recognise("sglang", A, sha256_hex(A_TEXT.encode()))
    assert found is not None and (found.versions, found.changes) == (("1.0", "1.1"), ())
    assert str(found) == "the file of sglang 1.0 to 1.1"
    for set_id, change_id in (("one", "first"), ("two", "far")):
        result = variants.edit(variant(small, set_id, change_id), content)
        assert isinstance(result, Changed)
        content = result.data
    found = recognise("sglang", A, sha256_hex(content))
    assert found is not None and found.changes == ("one/first", "two/far")
    assert str(found) == "one/first + two/far applied by hand to sglang 1.0 to 1.1"
    assert recognise("sglang", B, sha256_hex(content)) is None, "another file"
    assert recognise("sglang", A, sha256_hex(b"?")) is None
    assert recognise("sglang", A, "no digest") is None


def test_another_payload_or_post_condition_is_not_known(small: Catalogue, use: Use) -> None:
    use(fingerprints.write({}, indexed(small, {A: A_TEXT}).contents))
    known = variant(small, "one", "first")
    assert fingerprints.edit(known, A_TEXT.encode())
    for other in (
        known._replace(sha256="0" * 64),
        known._replace(present={"x": 1}),
        known._replace(absent=("x",)),
        known._replace(path=B),
    ):
        assert edit_key(other) != edit_key(known)
        assert fingerprints.edit(other, A_TEXT.encode()) is None


def test_an_edit_that_comes_out_otherwise_is_left_to_the_payload(
    small: Catalogue, use: Use
) -> None:
    contents = indexed(small, {A: A_TEXT}).contents
    (edits,) = (e["e"] for k, e in contents.items() if sha256_hex(A_TEXT.encode()).startswith(k))
    for edit in edits.values():
        edit[2][0][2] += "tampered"
    use(fingerprints.write({}, contents))
    first = variant(small, "one", "first")
    assert fingerprints.edit(first, A_TEXT.encode()) is None
    assert isinstance(variants.edit(first, A_TEXT.encode()), Changed)


def test_what_upstream_has_is_known_as_unchanged(small: Catalogue, use: Use) -> None:
    has_it = A_TEXT.replace("line_3 = 3\n", "line_3 = 'one'\n")
    use(fingerprints.write({}, indexed(small, {A: has_it}).contents))
    first = variant(small, "one", "first")
    known = fingerprints.edit(first, has_it.encode())
    assert isinstance(known, Unchanged) and known == variants.run(first, has_it.encode())


@pytest.mark.parametrize(
    "data", [b"", b"garbage", b'# sm120patch fingerprints {"format": 99}\n', b"# sm120patch f"]
)
def test_an_index_of_another_format_is_as_good_as_none(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sm120patch").mkdir()
    (tmp_path / fingerprints.FILE).write_bytes(data)
    monkeypatch.setattr(fingerprints, "__file__", str(tmp_path / "sm120patch" / "x.py"))
    fingerprints._index.cache_clear()
    try:
        assert fingerprints._index() == b"" and fingerprints.header() == {}
        (tmp_path / fingerprints.FILE).write_bytes(fingerprints.write({}, {}))
        fingerprints._index.cache_clear()
        assert fingerprints.header() == {"format": fingerprints.FORMAT}
    finally:
        fingerprints._index.cache_clear()


lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"ab\n", b"\xff\r\n", b""]), max_size=12)


@given(lines, lines)
def test_splices_turn_one_content_into_the_other(old: list[bytes], new: list[bytes]) -> None:
    before, after = b"".join(old), b"".join(new)
    cuts = builder.splices(before, after)
    assert replay(before, cuts) == after
    if before == after:
        assert cuts == []


def test_the_same_releases_give_the_same_bytes(small: Catalogue) -> None:
    one, two = (
        fingerprints.write({"n": 1}, indexed(small, {A: A_TEXT, B: B_TEXT}).contents)
        for _ in range(2)
    )
    assert one == two


# --- the shipped index -------------------------------------------------------------------------


def test_the_shipped_index_is_of_this_catalogue_and_engine() -> None:
    head = fingerprints.header()
    sets = catalogue.load().sets.values()
    assert head["catalogue"] == fingerprints.edits_digest(sets), "run `make fingerprints`"
    assert head["engine"] == builder.engine_digest(), "run `make fingerprints`"


def test_the_shipped_index_is_small_and_whole() -> None:
    assert len(fingerprints._index()) < 1 << 20
    found = dict(fingerprints.entries())
    assert len(found) == fingerprints.header()["contents"]
    for entry in found.values():
        assert ("v" in entry) or (entry["c"] and "v" in found[entry["o"]])
        for edit in entry.get("e", {}).values():
            assert isinstance(edit, str) or edit[1] in found, "every result is recognised"
