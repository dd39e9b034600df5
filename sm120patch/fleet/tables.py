"""A fleet, and a comparison of two nodes, for people at a terminal: outliers first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from sm120patch.fleet.compare import Comparison, Speed
from sm120patch.fleet.node import NodeFacts, SetFacts
from sm120patch.fleet.overview import Fleet, Kind, Row, names
from sm120patch.fleet.words import age_words
from sm120patch.model import EvidenceKind
from sm120patch.plaintext import clean, counted, table

NO_SETS = "no patch set on any known node"
_MOST_FINDINGS = 40
_MOST_REASONS = 30
_WIDE = 160
_SHORT = 8  # characters of a digest in a table; findings and JSON have more


def fleet_text(fleet: Fleet, now: datetime, *, every: bool = False) -> str:
    """Summary, findings, and a table of all nodes; nodes alike share a line unless `every`."""
    lines = [_summary(fleet)]
    lines += [_finding(kind, subject, detail) for kind, subject, detail in _shown(fleet)]
    rest = len(fleet.findings) - _MOST_FINDINGS
    lines += (
        [f"and {counted(rest, 'finding')} more: see --output json or --html"] if rest > 0 else []
    )
    classes = _classes(fleet, every=every)
    return "\n".join([*lines, "", table(_rows(classes, fleet, now))])


def _summary(fleet: Fleet) -> str:
    unknown = len(fleet.unknown)
    parts = [counted(len(fleet.rows), "node")]
    parts += [f"{unknown} UNKNOWN"] if unknown else []
    unequal = sum(group.equal is False for group in fleet.groups)
    parts += [f"{counted(unequal, 'group')} UNEQUAL"] if unequal else []
    parts += [f"{name} applied on {fleet.applied(name)}" for name in fleet.sets]
    parts += [NO_SETS] if fleet.bare else []
    versions, host, code, profile = _common(fleet)
    named = (code and f"code {code}", profile and f"profile {profile}")
    common = "; ".join(filter(None, (versions, host, *named)))
    return _line(", ".join(parts) + (f"  ({common})" if common else ""), 2000)


def _shown(fleet: Fleet) -> Iterator[tuple[str, str, str]]:
    for finding in fleet.findings[:_MOST_FINDINGS]:
        where = names(finding.nodes)
        if finding.kind is Kind.UNEQUAL:
            yield "UNEQUAL", f"group {finding.subject}", finding.detail
        elif finding.kind is Kind.DIFFERS:
            yield finding.kind.value, finding.subject, finding.detail
        else:
            subject = "" if finding.subject == "node" else f"{finding.subject}: "
            yield finding.kind.value, where, f"{subject}{finding.detail}"


def _finding(kind: str, subject: str, detail: str) -> str:
    return f"{kind:11} {_line(subject)}: {_line(detail)}"


def _line(words: str, most: int = 400) -> str:
    flat = clean(words).replace("\n", " ")
    return flat if len(flat) <= most else flat[: most - 1] + "…"


Class = tuple[list[str], Row]
"""Labels of nodes that are alike in all that the table shows, and one of them."""


def _classes(fleet: Fleet, *, every: bool) -> list[Class]:
    found: dict[object, Class] = {}
    scattered = _scattered(fleet)
    for row in fleet.rows:
        key: object = row.label
        if not every and not row.node.unknown:
            key = _signature(row, fleet.sets, scattered)
        found.setdefault(key, ([], row))[0].append(row.label)
    return list(found.values())


def _scattered(fleet: Fleet) -> frozenset[str]:
    """Titles of differences between profiles of which none is usual: ports that nodes chose.

    A finding names them; in the table every node would be a class of its own.
    """
    found = (d for d in fleet.differences if d.aspect == "profile" and d.usual is None)
    return frozenset(d.title for d in found)


def _signature(row: Row, sets: Sequence[str], scattered: frozenset[str]) -> tuple[object, ...]:
    node = row.node
    found = [node.sets.get(name) for name in sets]
    shown = [_cells(s)[:2] if scattered else _cells(s) for s in found]
    cells = tuple((*c, s.verdict_words if s else "") for c, s in zip(shown, found, strict=True))
    differs = tuple(own for own in row.differs if own[0] not in scattered)
    troubles = tuple(sorted({t.kind for t in node.troubles}))
    said = (tuple(node.versions.items()), node.code, host_words(node), node.tool)
    return row.unequal, row.groups, said, cells, troubles, differs


def _rows(classes: Sequence[Class], fleet: Fleet, now: datetime) -> Iterator[tuple[str, ...]]:
    kept = _columns(fleet)
    names_ = ("NODES", "GROUP", "VERSIONS", "HOST", "CODE", "SET", "STATE", "CONTENTS", "PROFILE")
    yield (*_kept(names_, kept), "VERDICT, AGE")
    for labels, row in classes:
        head: tuple[str, ...] = _head(labels, row)
        if row.node.unknown or not fleet.sets:
            state = "UNKNOWN" if row.node.unknown else "-"
            yield (*_kept((*head, "-", state, "-", "-"), kept), "-")
            continue
        for listed, cells, verdict in _alike(row.node, fleet.sets, kept, now):
            yield (*_kept(head, kept[: len(head)]), ", ".join(listed), *cells, verdict)
            head = ("",) * len(head)


def _alike(
    node: NodeFacts, sets: Sequence[str], kept: tuple[bool, ...], now: datetime
) -> Iterator[tuple[list[str], tuple[str, ...], str]]:
    """Sets of a node that share a line, as all that is shown of them is alike."""
    lines: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for name in sets:
        found = node.sets.get(name)
        cells = _kept(_cells(found), kept[-3:])
        lines.setdefault((cells, _verdict(found, now)), []).append(name)
    yield from ((names, cells, verdict) for (cells, verdict), names in lines.items())


def _columns(fleet: Fleet) -> tuple[bool, ...]:
    """Which of the first columns are worth their room."""
    versions, host, code, profile = (found is None for found in _common(fleet))
    contents = any(d.aspect == "contents" for d in fleet.differences)
    profile = profile and not _scattered(fleet)
    return True, bool(fleet.groups), versions, host, code, True, True, contents, profile


def _kept(cells: tuple[str, ...], columns: tuple[bool, ...]) -> tuple[str, ...]:
    return tuple(cell for cell, kept in zip(cells, columns, strict=True) if kept)


def _common(fleet: Fleet) -> tuple[str | None, str | None, str | None, str | None]:
    """Versions, host, code, and profile of all evidence, where all known nodes have the same."""
    known = [row.node for row in fleet.rows if not row.node.unknown]
    sets = [node.sets.get(name) for node in known for name in fleet.sets]
    profiles = {_profile(found) for found in sets if found is not None and found.profile}
    found = (
        {_versions(node) for node in known},
        {host_words(node) for node in known},
        {node.code[:_SHORT] or None for node in known},
        profiles,
    )
    versions, host, code, profile = (v.pop() if len(v) == 1 else None for v in found)
    return versions, host, code, profile if profiles or profile else ""


def _profile(found: SetFacts | None) -> str:
    return found.profile[:_SHORT] if found is not None else ""


def host_words(node: NodeFacts) -> str:
    """GPUs and driver; empty where nobody asked the node for them."""
    if node.host is None:
        return ""
    driver = f", driver {node.host.driver}" if node.host.driver else ""
    return (node.host.gpu_words or "no GPU") + driver


def _versions(node: NodeFacts) -> str:
    return ", ".join(f"{n} {v}" for n, v in sorted(node.versions.items())) or "nothing to patch"


def _head(labels: Sequence[str], row: Row) -> tuple[str, str, str, str, str]:
    shown = labels[0] if len(labels) == 1 else f"{names(labels, 2)}"
    groups = ",".join(row.groups) or "-"
    versions = "-" if row.node.unknown else _line(_versions(row.node), 80)
    host = _line(host_words(row.node), 80) or "-"
    return _line(shown, _WIDE), _line(groups, 40), versions, host, row.node.code[:_SHORT] or "?"


def _cells(found: SetFacts | None) -> tuple[str, str, str]:
    """State, contents, profile."""
    if found is None:
        return "-", "-", "-"
    return found.label, found.digest[:_SHORT] or "-", _profile(found) or "-"


def _verdict(found: SetFacts | None, now: datetime) -> str:
    """With the kind of its evidence and how old that is."""
    if found is None or not found.verdict:
        return "-"
    age = "" if found.at is None else f", {age_words(now - found.at)}"
    return f"{found.verdict_words}{age}"


# --- two nodes ----------------------------------------------------------------------------------


def comparison_text(found: Comparison) -> str:
    """Answer, measured levels, reasons in order, and what was not looked at."""
    if found.unknown:
        return answer(found)
    lines = [answer(found), ""]
    lines += [speed_words(speed, found.one, found.other) for speed in found.speeds]
    lines += [f"not compared: {_line(text)}" for text in found.not_compared]
    if found.reasons:
        rows: list[tuple[str, ...]] = [
            ("WHAT DIFFERS", found.one.name, found.other.name, "SLOWER", "WHY")
        ]
        rows += [
            (_line(r.matter, 60), *(_line(v, 60) for v in r.values), r.slower or "-", r.why or "-")
            for r in found.reasons[:_MOST_REASONS]
        ]
        lines += ["", table(rows)]
        rest = len(found.reasons) - _MOST_REASONS
        lines += [f"and {rest} more: see --output json"] if rest > 0 else []
    lines += [f"not looked at: {_line(text)}" for text in found.missing]
    return "\n".join(lines)


def answer(found: Comparison) -> str:
    """Say in one sentence which node is slower, and by what most probably."""
    if found.unknown:
        nodes = [node for node in (found.one, found.other) if node.unknown]
        return "; ".join(f"{node.name} is unknown: {_line(node.unknown)}" for node in nodes)
    if found.slower:
        return f"{found.slower} is slower{_kind(found.kind)}, by more than noise; {_because(found)}"
    one, other = found.one.name, found.other.name
    if any(speed.beyond_noise for speed in found.speeds):
        said = f"which of {one} and {other} is slower depends on the load"
    elif any(speed.interval.bounded for speed in found.speeds):
        said = f"{one} and {other} differ by no more than noise where both were measured"
    else:
        said = f"how fast {one} and {other} are was not measured alike"
    said += _kind(found.kind)
    if not found.reasons:
        return f"{said}; nothing in the facts differs that could explain a difference"
    first = found.reasons[0]
    return f"{said}; what differs most tellingly: {_of(first.matter, first.why)}"


def _kind(kind: str) -> str:
    """Say of figures that are not of GPUs what they are."""
    return "" if kind in ("", EvidenceKind.REAL.value) else f" ({kind})"


def _because(found: Comparison) -> str:
    """The most probable reason for the slower node."""
    if not found.reasons:
        return "nothing in the facts explains it"
    for reason in found.reasons:
        if reason.slower == found.slower:
            return f"most probable: {_of(reason.matter, reason.why)}"
    first = _line(found.reasons[0].matter)
    return f"of what differs nothing is known to make it so; first: {first}"


def _of(matter: str, why: str) -> str:
    return _line(f"{matter} ({why})" if why else matter)


def speed_words(speed: Speed, one: NodeFacts, other: NodeFacts) -> str:
    """Both levels, the ratio with its interval, and whether that is more than noise."""
    found = speed.interval
    workload = _line(speed.workload) + _kind(speed.kind)
    levels = f"{one.name} {speed.one:.1f} tok/s, {other.name} {speed.other:.1f} tok/s"
    if not found.bounded:
        return f"{workload}: {levels}: too few server starts to tell"
    low, high = ((bound - 1) * 100 for bound in (found.sure_low, found.sure_high))
    words = f"{(found.ratio - 1) * 100:+.1f} % ({low:+.1f} % to {high:+.1f} %, 99 %)"
    told = "more than noise" if speed.beyond_noise else "no more than noise"
    return f"{workload}: {levels}: {words}: {told}"
