from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from sm120patch import versions

numbers = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(lambda n: ".".join(map(str, n)))
suffixes = st.sampled_from(
    ["", "", "", "rc0", "rc1", "a2", ".post0", ".post1", ".dev0", "rc1.dev2"]
)
plain = st.tuples(numbers, suffixes).map("".join)
installed = st.tuples(plain, st.sampled_from(["", "", "+cu130"])).map("".join)


@st.composite
def ranges(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(["half", "low", "high", "family"]))
    if kind == "family":
        return f"=={draw(numbers)}.*"
    parts = []
    if kind != "high":
        parts.append(f">={draw(plain)}")
    if kind != "low":
        parts.append(f"<{draw(plain)}")
    return ",".join(parts)


def parsed(text: str) -> versions.Range | None:
    try:
        return versions.parse(text)
    except ValueError:
        return None


@given(ranges(), installed)
def test_a_range_holds_what_its_specifier_holds(text: str, version: str) -> None:
    found = parsed(text)
    specifier = SpecifierSet(text)
    if found is None:
        assert not specifier.contains(Version(version).public, prereleases=True)
    else:
        public = Version(version).public
        assert (Version(version) in found) is specifier.contains(public, prereleases=True)


@given(ranges(), ranges(), installed)
def test_ranges_that_share_a_version_overlap(first: str, second: str, version: str) -> None:
    one, two = parsed(first), parsed(second)
    assume(one is not None and two is not None)
    assert one is not None
    assert two is not None
    if Version(version) in one and Version(version) in two:
        assert one.overlaps(two)
    assert one.overlaps(two) is two.overlaps(one)
