"""What all formats share: where a finding lies, and what may be claimed of a set. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from sm120patch.audit.findings import (
    EnvironmentReport,
    Finding,
    HostReport,
    SetReport,
)
from sm120patch.model import State

Diffs = Mapping[tuple[str, str], str]
"""(import root of the package, path below it) -> unified diff from upstream's content."""

_REFERENCE = re.compile(r"\b([\w.-]+/[\w.-]+)#(\d{1,7})\b")


def plain(text: str) -> str:
    """Text that any format can hold: bytes of names that are no UTF-8 are shown escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def cleaned(report: HostReport) -> HostReport:
    """The same report with `plain` texts throughout."""
    found = _cleaned(report)
    assert isinstance(found, HostReport)
    return found


def _cleaned(value: object) -> object:
    if isinstance(value, Enum) or value is None:
        return value
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, tuple):
        items = map(_cleaned, value)
        return value._make(items) if hasattr(value, "_make") else tuple(items)
    return value


def claimed(report: SetReport) -> str:
    """State of a set as other tools may see it: without real evidence on this host, `unverified`.

    Evidence that is simulated or rehearsed never reaches a format that machines count by.
    """
    if report.state == State.APPLIED.value and not report.counts:
        return "unverified"
    return report.state


def location(environment: EnvironmentReport | None, finding: Finding) -> str:
    """Absolute path, inside the audited root, that a finding is about."""
    if finding.path.startswith("/"):
        return finding.path
    if environment is None:
        return "/"
    if "/" in finding.path:
        for package in environment.packages:
            if package.target == finding.target:
                return f"{package.root.rstrip('/')}/{finding.path}"
    return environment.prefix


def references(text: str) -> list[str]:
    """Addresses of the issues and pull requests that a text names as `owner/repository#N`."""
    found = (
        f"https://github.com/{repo}/issues/{number}" for repo, number in _REFERENCE.findall(text)
    )
    return list(dict.fromkeys(found))
