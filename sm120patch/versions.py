"""Version ranges as manifests may write them: half-open intervals and nothing else. Pure.

`==0.5.8` and `<=0.5.8` miss `0.5.8.post1`, `>0.5.8` misses it too, and `~=0.5.8` lets 0.5.9 in;
SGLang and FlashInfer publish post-releases, so those forms are refused. Of what is left every
range is an interval, and whether two ranges overlap can be told without trying versions.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from packaging.version import Version

_CLAUSE = re.compile(r"(>=|<|==)\s*([0-9a-z.!]+?)(\.\*)?", re.ASCII)
_ALLOWED = "write '>=A,<B', one half of it, or '==A.*'"


class Range(NamedTuple):
    """Versions from `low` on up to, but not including, `high`; None where it is open."""

    text: str
    low: "Version | None"
    high: "Version | None"

    def __contains__(self, version: object) -> bool:
        """Compare as PEP 440 specifiers do that let pre-releases in; a local part is ignored."""
        from packaging.version import Version

        if not isinstance(version, Version):
            return False
        public = Version(version.public)
        above = self.low is None or public >= self.low
        return above and (self.high is None or public < self.high)

    def overlaps(self, other: "Range") -> bool:
        """Tell whether some version lies in both."""
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return not lows or not highs or max(lows) < min(highs)


@lru_cache(maxsize=512)
def parse(text: str) -> Range:
    """Read a range. Raises ValueError that says what is wrong with `text`."""
    low: Version | None = None
    high: Version | None = None
    seen: set[str] = set()
    for part in text.split(","):
        match = _CLAUSE.fullmatch(part.strip())
        if match is None or (match[1] == "==") != bool(match[3]):
            raise ValueError(f"{part.strip()!r} is not allowed; {_ALLOWED}")
        operator, version = match[1], _version(match[2])
        if operator in seen or "==" in seen or (seen and operator == "=="):
            raise ValueError(f"{text!r} combines what cannot be combined; {_ALLOWED}")
        seen.add(operator)
        if operator == ">=":
            low = version
        elif operator == "<":
            high = _before(version)
        else:
            low, high = _family(version)
    if low is not None and high is not None and low >= high:
        raise ValueError(f"{text!r} is empty")
    return Range(text, low, high)


def within(version: str, text: str) -> bool | None:
    """Tell whether a version lies in a range; None when it is no PEP 440 version.

    Raises ValueError for a `text` that is no range.
    """
    bits, number = _answers.get(text), _numbers.get(version)
    if bits is not None and number is not None:
        return bool(bits >> number & 1)
    found = installed(version)
    return None if found is None else found in parse(text)


def comparable(version: str) -> bool:
    """Tell whether the text is a PEP 440 version."""
    return version in _numbers or installed(version) is not None


_numbers: dict[str, int] = {}
_answers: dict[str, int] = {}
"""What `within` says of published versions: range -> one bit for each of them by its number."""


def learn(published: Sequence[str], answers: Mapping[str, int]) -> None:
    """Take over answers of `within` that were worked out before: `packaging` is slow to load."""
    _numbers.clear()
    _numbers.update({version: number for number, version in enumerate(published)})
    _answers.clear()
    _answers.update(answers)


def exactly(version: str) -> str:
    """Return the half-open range that holds this release alone, not its post-releases.

    A local part (`+cu130`) does not count. Raises ValueError when it is no version.
    """
    from packaging.version import Version

    found = Version(_version(version).public)
    if found.dev is not None:
        following = re.sub(r"\d+$", str(found.dev + 1), str(found))
    elif found.post is not None:
        following = re.sub(r"\d+$", str(found.post + 1), str(found))
    else:
        following = f"{found}.post0"
    return f">={found},<{following}"


def installed(version: str) -> "Version | None":
    """Parse the version of an installed distribution; None when it is no PEP 440 version."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version)
    except InvalidVersion:
        return None


def _version(text: str) -> "Version":
    version = installed(text)
    if version is None:
        raise ValueError(f"{text!r} is no version")
    return version


def _before(version: "Version") -> "Version":
    """Return the bound of `<version`: PEP 440 keeps its pre-releases out, unless it is one."""
    from packaging.version import Version

    return version if version.is_prerelease else Version(f"{version}.dev0")


def _family(version: "Version") -> "tuple[Version, Version]":
    """Return the bounds of `==version.*`."""
    from packaging.version import Version

    if version.public != version.base_version:
        raise ValueError(f"'=={version}.*' has a suffix; {_ALLOWED}")
    *head, last = version.release
    following = ".".join(map(str, (*head, last + 1)))
    return Version(f"{version}.dev0"), Version(f"{version.epoch}!{following}.dev0")
