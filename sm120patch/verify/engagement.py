"""Whether the patched code was seen running: probes on `/server_info` and the log.

Reads the server's log; everything else is pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sm120patch.model import Engagement

_MAX_LINE = 1 << 16


def info_failures(engagement: Sequence[Engagement], info: Mapping[str, object]) -> list[str]:
    """Fields of `/server_info` that do not have the value the patch sets demand."""
    failures = []
    for probe in engagement:
        for path, wanted in probe.server_info.items():
            found, value = _descend(info, path)
            if not found:
                failures.append(f"server_info has no {path} (expected {wanted!r})")
            elif value != wanted or isinstance(value, bool) != isinstance(wanted, bool):
                failures.append(f"server_info says {path} = {value!r}, expected {wanted!r}")
    return failures


def engaged_baseline(engagement: Sequence[Engagement], info: Mapping[str, object]) -> list[str]:
    """Fields by which the *baseline* already looks patched: such a run compares nothing."""
    return [
        f"{path} = {value!r}"
        for probe in engagement
        if probe.server_info and not info_failures([probe], info)
        for path, value in probe.server_info.items()
    ]


def log_failures(engagement: Sequence[Engagement], log: Path, offset: int = 0) -> list[str]:
    """Log probes that do not hold in the part of the log after `offset`.

    A line that must be there comes when the feature first runs: ask after the warm-up.
    """
    wanted = {p.log: re.compile(p.log) for p in engagement if p.log}
    banned = {p.log_absent: re.compile(p.log_absent) for p in engagement if p.log_absent}
    if not (wanted or banned):
        return []
    seen: set[str] = set()
    said: dict[str, str] = {}
    for line in _lines(log, offset):
        seen.update(text for text, pattern in wanted.items() if pattern.search(line))
        for text, pattern in banned.items():
            if text not in said and pattern.search(line):
                said[text] = line.strip()[:200]
    missing = [f"the log never says /{text}/" for text in wanted if text not in seen]
    return missing + [f"the log says: {line}" for line in said.values()]


def needs_log(engagement: Sequence[Engagement]) -> bool:
    """True when some probe looks at the log."""
    return any(probe.log or probe.log_absent for probe in engagement)


def _descend(info: Mapping[str, object], path: str) -> tuple[bool, object]:
    value: object = info
    for name in path.split("."):
        if isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, Mapping) and name in value:
            value = value[name]
        else:
            return False, None
    return True, value


def _lines(log: Path, offset: int) -> Iterator[str]:
    try:
        with log.open("rb") as stream:
            if offset <= log.stat().st_size:  # shorter: it was rotated, all of it is new
                stream.seek(offset)
            while line := stream.readline(_MAX_LINE):
                yield line.decode("utf-8", "replace")
    except OSError:
        return
