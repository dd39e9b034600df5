from __future__ import annotations

import pytest

from sm120patch import versions


def inside(version: str, text: str) -> bool:
    parsed = versions.installed(version)
    assert parsed is not None
    return parsed in versions.parse(text)


@pytest.mark.parametrize(
    ("version", "text", "expected"),
    [
        ("0.5.8", ">=0.5.8,<0.5.9", True),
        ("0.5.8.post1", ">=0.5.8,<0.5.9", True),
        ("0.5.9", ">=0.5.8,<0.5.9", False),
        ("0.5.9rc0", ">=0.5.8,<0.5.9", False),
        ("0.5.9rc0", ">=0.5.8,<0.5.9rc1", True),
        ("0.5.10rc0", ">=0.5.8,<0.5.11", True),
        ("0.5.8rc1", ">=0.5.8", False),
        ("0.5.9+cu130", ">=0.5.8,<0.5.9", False),
        ("0.5.9+cu130", ">=0.5.9,<0.5.10", True),
        ("0.5.8+cu130", "==0.5.*", True),
        ("0.5.0.dev1", "==0.5.*", True),
        ("0.6.0.dev1", "==0.5.*", False),
        ("0.4", "<0.5", True),
        ("1!0.1", ">=0.5", True),
    ],
)
def test_versions_fall_where_pep_440_puts_them(version: str, text: str, expected: bool) -> None:
    assert inside(version, text) is expected


@pytest.mark.parametrize(
    "text",
    ["", "0.5.8", "==0.5.8", "~=0.5.8", "<=0.5.8", ">0.5.8", "!=0.5.8", "===0.5.8", ">=0.5.8.*",
     "==*", ">=0.5,>=0.6", "<1,<2", "==0.5.*,<0.6", ">=0.4,==0.5.*", ">=0.6,<0.5", ">=0.5,<0.5",
     ">=0.5,", ">=0.5+cu130", "==0.5rc1.*", ">= 0.5 <0.6", "<nonsense", "≥0.5"],
)  # fmt: skip
def test_forms_that_mislead_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        versions.parse(text)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (">=0.5,<0.6", ">=0.6,<0.7", False),
        (">=0.5,<0.6", ">=0.6rc1,<0.7", False),
        (">=0.5,<0.6", ">=0.5.9,<0.7", True),
        ("<0.6", ">=0.6", False),
        ("<0.6", ">=0.5", True),
        (">=0.5", ">=0.9", True),
        ("==0.5.*", ">=0.6,<0.7", False),
        ("==0.5.*", ">=0.6.dev1,<0.7", False),
        ("==0.5.*", "<0.5.1", True),
    ],
)
def test_overlap_is_told_from_the_bounds(first: str, second: str, expected: bool) -> None:
    assert versions.parse(first).overlaps(versions.parse(second)) is expected
    assert versions.parse(second).overlaps(versions.parse(first)) is expected


@pytest.mark.parametrize("version", ["unknown", "", "0.5.9-custom build", "main"])
def test_a_version_that_cannot_be_compared_is_none(version: str) -> None:
    assert versions.installed(version) is None
