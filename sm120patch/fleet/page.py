"""The page about a fleet: one self-contained file, no script, in the style of the other report.

Reads its own templates only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sm120patch.fleet.compare import Comparison
from sm120patch.fleet.node import SetFacts
from sm120patch.fleet.overview import Fleet, Kind, Row, names
from sm120patch.fleet.tables import answer, host_words, speed_words
from sm120patch.fleet.words import age_words
from sm120patch.model import State

_MOST_FINDINGS = 200
_BAD = frozenset(
    {
        State.EDITED.value,
        State.DRIFTED.value,
        State.LOST.value,
        State.INTERRUPTED.value,
        State.UNKNOWN.value,
        "by-hand",
    }
)


@dataclass(frozen=True)
class Cell:
    """One set on one node."""

    state: str
    tone: str
    """`good`, `bad` or `open`."""
    contents: str
    verdict: str
    """With the kind of its evidence."""
    profile: str
    age: str
    title: str


@dataclass(frozen=True)
class Line:
    """One node."""

    label: str
    tone: str
    groups: str
    unknown: str
    versions: str
    code: str
    cells: tuple[Cell | None, ...]
    host: str
    tool: str
    collected: str
    differs: tuple[str, ...]
    troubles: tuple[str, ...]


@dataclass(frozen=True)
class FindingView:
    """One finding of the fleet."""

    kind: str
    tone: str
    subject: str
    detail: str
    nodes: str


@dataclass(frozen=True)
class Overview:
    """All of the page."""

    title: str
    tone: str
    answer: str
    counts: tuple[tuple[str, str], ...]
    findings: tuple[FindingView, ...]
    more: int
    sets: tuple[str, ...]
    lines: tuple[Line, ...]
    groups: tuple[tuple[str, str, str, str], ...]
    made: str


@dataclass(frozen=True)
class Pair:
    """The comparison on the page, in words."""

    one: str
    other: str
    answer: str
    speeds: tuple[str, ...]
    reasons: tuple[tuple[str, str, str, str, str], ...]
    missing: tuple[str, ...]


def render(fleet: Fleet, comparison: Comparison | None, now: datetime, made: str) -> str:
    """HTML of the page. Text from outside never becomes markup, and nothing is loaded or run."""
    from sm120patch.report.page import template

    page = build(fleet, now, made)
    pair = None if comparison is None else _pair(comparison)
    return template("fleet.html.j2").render(page=page, pair=pair)


def build(fleet: Fleet, now: datetime, made: str) -> Overview:
    """Collect what the page shows."""
    bad = {Kind.UNEQUAL, Kind.UNKNOWN}
    tone = "good" if not fleet.findings else "open"
    tone = "bad" if any(f.kind in bad for f in fleet.findings) else tone
    return Overview(
        title=f"Fleet of {len(fleet.rows)} nodes",
        tone=tone,
        answer=_answer(fleet),
        counts=tuple(_counts(fleet)),
        findings=tuple(
            FindingView(f.kind.value, "bad" if f.kind in bad else "open",
                        "" if f.subject == "node" else f.subject, f.detail, names(f.nodes, 20))
            for f in fleet.findings[:_MOST_FINDINGS]
        ),
        more=max(len(fleet.findings) - _MOST_FINDINGS, 0),
        sets=fleet.sets,
        lines=tuple(_line(row, fleet.sets, now) for row in fleet.rows),
        groups=tuple(
            (g.name, *_equality(g.equal), names(g.nodes, 50)) for g in fleet.groups
        ),
        made=f"sm120patch {made}, {now.isoformat(timespec='seconds')}",
    )  # fmt: skip


def _answer(fleet: Fleet) -> str:
    kinds = [finding.kind for finding in fleet.findings]
    if Kind.UNEQUAL in kinds:
        return "Nodes that serve as one hold different code."
    if Kind.UNKNOWN in kinds:
        return "Not everything is known, and what is unknown is not OK."
    if Kind.NOT_APPLIED in kinds:
        return "Sets that should be on every node are not."
    bare = " There is no patch set on any of them." if fleet.bare else ""
    if Kind.DIFFERS in kinds:
        return f"All nodes are known; they are not all alike.{bare}"
    return f"All nodes are known and alike.{bare}" + (
        " Their audits found something." if kinds else ""
    )


def _counts(fleet: Fleet) -> list[tuple[str, str]]:
    rows = [
        ("nodes", str(len(fleet.rows))),
        ("unknown", str(len(fleet.unknown))),
    ]
    return rows + [(f"{name} applied", f"on {fleet.applied(name)}") for name in fleet.sets]


def _equality(equal: bool | None) -> tuple[str, str]:
    words = {True: ("equal", "good"), False: ("UNEQUAL", "bad"), None: ("unknown", "bad")}
    return words[equal]


def _line(row: Row, sets: Sequence[str], now: datetime) -> Line:
    node = row.node
    outlying = any(usual is not None for _aspect, _value, usual in row.differs)
    tone = "bad" if node.unknown or row.unequal else "open" if outlying or node.troubles else ""
    at = node.collected_at
    return Line(
        label=row.label,
        tone=tone,
        groups=", ".join(row.groups),
        unknown=node.unknown,
        versions=", ".join(f"{n} {v}" for n, v in sorted(node.versions.items())),
        code=node.code[:12] or "unknown",
        cells=tuple(_cell(node.sets.get(name), now) for name in sets),
        host=host_words(node),
        tool=node.tool,
        collected="" if at is None else f"{age_words(now - at)} ago",
        differs=tuple(
            f"{aspect}: {value}" + ("" if usual is None else f", usually {usual}")
            for aspect, value, usual in row.differs
        ),
        troubles=tuple(f"{t.kind}: {t.path}: {t.detail}" for t in node.troubles[:10]),
    )


def _cell(found: SetFacts | None, now: datetime) -> Cell | None:
    if found is None:
        return None
    tone = "good" if found.counts else "bad" if found.state in _BAD else "open"
    tone = "" if found.is_quiet else tone
    age = "" if found.at is None else f"{age_words(now - found.at)} old"
    return Cell(
        found.label,
        tone,
        found.digest[:12],
        found.verdict_words,
        found.profile[:12],
        age,
        found.reason,
    )


def _pair(found: Comparison) -> Pair:
    return Pair(
        found.one.name,
        found.other.name,
        answer(found),
        (*(speed_words(s, found.one, found.other) for s in found.speeds),
         *(f"not compared: {text}" for text in found.not_compared)),
        tuple((r.matter, *r.values, r.slower, r.why) for r in found.reasons[:_MOST_FINDINGS]),
        found.missing,
    )  # fmt: skip
