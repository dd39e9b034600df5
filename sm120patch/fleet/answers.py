"""JSON-ready forms of a fleet and of a comparison; their keys are in docs/fleet.md. Pure."""

from __future__ import annotations

import math
from datetime import datetime

from sm120patch.fleet.compare import Comparison, Speed
from sm120patch.fleet.node import NodeFacts, SetFacts
from sm120patch.fleet.overview import Fleet, Row


def fleet_dict(fleet: Fleet) -> dict[str, object]:
    """The whole report; nodes in the order of the table."""
    unknown = len(fleet.unknown)
    return {
        "nodes": [_row(row) for row in fleet.rows],
        "sets": list(fleet.sets),
        "groups": [
            {"name": g.name, "nodes": list(g.nodes), "equal": g.equal} for g in fleet.groups
        ],
        "findings": [
            {"kind": f.kind.value, "subject": f.subject, "detail": f.detail, "nodes": list(f.nodes)}
            for f in fleet.findings
        ],
        "counts": {
            "nodes": len(fleet.rows),
            "known": len(fleet.rows) - unknown,
            "unknown": unknown,
            "applied": {name: fleet.applied(name) for name in fleet.sets},
        },
    }


def _row(row: Row) -> dict[str, object]:
    node = row.node
    host = node.host
    return {
        "node": node.name,
        "prefix": node.prefix or None,
        "known": not node.unknown,
        "reason": node.unknown or None,
        "source": node.source or None,
        "groups": list(row.groups),
        "collected_at": _time(node.collected_at),
        "tool": node.tool or None,
        "versions": dict(node.versions),
        "content": node.content or None,
        "code": node.code or None,
        "sets": [_set(found) for found in node.sets.values()],
        "host": None
        if host is None
        else {"gpus": list(host.gpus), "driver": host.driver or None,
              "topology": list(host.topology)},
        "differs": [
            {"aspect": aspect, "value": value, "usual": usual}
            for aspect, value, usual in row.differs
        ],
        "findings": [vars(trouble) for trouble in node.troubles],
        "more_findings": node.more_troubles,
    }  # fmt: skip


def _set(found: SetFacts) -> dict[str, object]:
    return {
        "id": found.id,
        "state": found.state,
        "label": found.label,
        "counts": found.counts,
        "reason": found.reason,
        "revision": found.revision,
        "with": list(found.selected),
        "digest": found.digest or None,
        "verdict": found.verdict or None,
        "kind": found.kind or None,
        "profile": found.profile or None,
        "at": _time(found.at),
    }


def comparison_dict(found: Comparison) -> dict[str, object]:
    """The comparison of two nodes; reasons begin with the most probable one."""
    return {
        "nodes": [_side(node) for node in (found.one, found.other)],
        "slower": found.slower or None,
        "speeds": [_speed(speed) for speed in found.speeds],
        "not_compared": list(found.not_compared),
        "reasons": [
            {"matter": r.matter, "values": list(r.values), "slower": r.slower or None, "why": r.why}
            for r in found.reasons
        ],
        "missing": list(found.missing),
    }


def _side(node: NodeFacts) -> dict[str, object]:
    return {"node": node.name, "known": not node.unknown, "reason": node.unknown or None}


def _speed(speed: Speed) -> dict[str, object]:
    numbers = {
        "ratio": speed.interval.ratio,
        "low": speed.interval.sure_low,
        "high": speed.interval.sure_high,
        "smallest_effect": speed.interval.smallest,
    }
    return {
        "workload": speed.workload,
        "kind": speed.kind or None,
        "tok_s": [speed.one, speed.other],
        **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
        "beyond_noise": speed.beyond_noise,
    }


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")
