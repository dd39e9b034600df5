"""Whether the patched code was seen running: `/server_info`, the log, what processes have loaded.

Reads the server's log and /proc; everything else is pure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm120patch.model import Engagement
from sm120patch.redaction import redact_output
from sm120patch.verify.dotted import descend
from sm120patch.verify.loaded import first_lines, judge_module, mapped_files, matching

_MAX_LINE = 1 << 16


@dataclass(frozen=True)
class Seen:
    """One probe of a set and what came of it."""

    probe: str
    """What was looked for, in words."""
    found: str
    """What was found; a full sentence when the probe does not hold."""
    ok: bool

    def as_dict(self) -> dict[str, object]:
        """JSON-ready form."""
        return {"probe": self.probe, "found": self.found, "ok": self.ok}


def info_seen(engagement: Sequence[Engagement], info: Mapping[str, object]) -> list[Seen]:
    """Fields of `/server_info` held against the values that the patch sets demand."""
    seen = []
    for probe in engagement:
        for path, wanted in probe.server_info.items():
            there, value = descend(info, path)
            words = f"server_info says {path} = {value!r}, expected {wanted!r}"
            if not there:
                words = f"server_info has no {path} (expected {wanted!r})"
            words += _asked_by(probe)
            ok = there and value == wanted and isinstance(value, bool) == isinstance(wanted, bool)
            seen.append(Seen(f"server_info: {path}", repr(value) if ok else words, ok))
    return seen


def _asked_by(probe: Engagement) -> str:
    """Whose probe it was: a request of several sets ends with the first that does not run."""
    return f", which {probe.of} asks for" if probe.of else ""


def failures(seen: Sequence[Seen]) -> list[str]:
    """What did not hold, in words."""
    return [item.found for item in seen if not item.ok]


def engaged_baseline(engagement: Sequence[Engagement], info: Mapping[str, object]) -> list[str]:
    """Fields by which the *baseline* already looks patched: such a run compares nothing."""
    return [
        f"{path} = {value!r}"
        for probe in engagement
        if probe.server_info and not failures(info_seen([probe], info))
        for path, value in probe.server_info.items()
    ]


def log_seen(engagement: Sequence[Engagement], log: Path, offset: int = 0) -> list[Seen]:
    """Log probes held against the part of the log after `offset`.

    A line that must be there comes when the feature first runs: ask after the warm-up.
    """
    wanted = {p.log: re.compile(p.log) for p in engagement if p.log}
    asked = {p.log: _asked_by(p) for p in reversed(engagement)}
    banned = {p.log_absent: re.compile(p.log_absent) for p in engagement if p.log_absent}
    if not (wanted or banned):
        return []
    said: dict[str, str] = {}
    for line in _lines(log, offset):
        for text, pattern in (*wanted.items(), *banned.items()):
            if text not in said and pattern.search(line):
                said[text] = redact_output(line.strip(), os.environ)[:200]
    seen = [
        Seen(
            f"log: /{text}/",
            said.get(text, f"the log never says /{text}/{asked[text]}"),
            text in said,
        )
        for text in wanted
    ]
    return seen + [
        Seen(f"not in the log: /{text}/", f"the log says: {said[text]}", False)
        if text in said
        else Seen(f"not in the log: /{text}/", "the log does not say it", True)
        for text in banned
    ]


def process_seen(
    engagement: Sequence[Engagement], pids: Sequence[int], swapped_at: float
) -> list[Seen]:
    """Probes of what the processes of the server have loaded.

    `swapped_at` (epoch seconds) is when the content was put in place.
    """
    patterns = dict.fromkeys(p.loaded for p in engagement if p.loaded)
    modules = dict.fromkeys(p.jit_module for p in engagement if p.jit_module)
    if not (patterns or modules):
        return []
    files = mapped_files(pids)
    hidden = "the memory maps of the server's processes cannot be read"
    seen = []
    for pattern in patterns:
        found = matching(files or (), pattern)
        words = f"no process of the server has loaded a file /{pattern}/"
        words = first_lines(found) if found else hidden if files is None else words
        seen.append(Seen(f"loaded: /{pattern}/", words, bool(found)))
    for module in modules:
        ok, words = (False, hidden) if files is None else judge_module(files, module, swapped_at)
        seen.append(Seen(f"JIT module: {module}", words, ok))
    return seen


def needs_log(engagement: Sequence[Engagement]) -> bool:
    """True when some probe looks at the log."""
    return any(probe.log or probe.log_absent for probe in engagement)


def _lines(log: Path, offset: int) -> Iterator[str]:
    try:
        with log.open("rb") as stream:
            if offset <= log.stat().st_size:  # shorter: it was rotated, all of it is new
                stream.seek(offset)
            while line := stream.readline(_MAX_LINE):
                yield line.decode("utf-8", "replace")
    except OSError:
        return
