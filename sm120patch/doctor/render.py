"""A diagnosis as text for people and as data for machines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sm120patch.doctor.checks import Check
from sm120patch.doctor.flags import IdleFlag
from sm120patch.doctor.outlook import SetOutlook
from sm120patch.model import KnownResult
from sm120patch.plaintext import table

_INDENT = "  "


def check_dict(check: Check) -> dict[str, object]:
    """JSON-ready form of a check."""
    return {
        "id": check.id,
        "status": check.status.value,
        "summary": check.summary,
        "hint": check.hint,
        "facts": dict(check.facts),
    }


def set_dict(found: SetOutlook) -> dict[str, object]:
    """JSON-ready form of the outlook of a set."""
    return {
        "id": found.id,
        "outlook": found.outlook.value,
        "state": found.state,
        "reasons": list(found.reasons),
        "known": [_known_dict(known) for known in found.known],
    }


def _known_dict(known: KnownResult) -> dict[str, object]:
    return {
        "topology": known.topology,
        "effect": known.effect,
        "source": known.source,
        "harmful": known.harmful,
    }


def flag_dict(flag: IdleFlag) -> dict[str, object]:
    """JSON-ready form of a flag without effect."""
    return {
        "name": flag.name,
        "value": flag.value,
        "place": flag.place,
        "reason": flag.reason,
        "hint": flag.hint,
    }


def text(
    checks: Sequence[Check],
    sets: Sequence[SetOutlook],
    flags: Sequence[IdleFlag],
    without: str | None,
    words: Sequence[str] = (),
) -> str:
    """Checks, sets and flags, each a table, with hints below what they are for.

    `words` are those of the host's topology, by which published results are matched.
    """
    lines = [": ".join(filter(None, ("this host", ", ".join(words)))), *_checks(checks)]
    lines += ["", "patch sets here"]
    lines += [_INDENT + line for line in _sets(sets)] or [f"{_INDENT}not judged: {without}"]
    lines += ["", "set, but without effect"]
    lines += _flags(flags) or [f"{_INDENT}nothing" if without is None else f"{_INDENT}not judged"]
    return "\n".join(lines)


def _checks(checks: Sequence[Check]) -> list[str]:
    rows = [(check.status.value, check.id, check.summary) for check in checks]
    lines = table(rows).split("\n") if rows else []
    indent = " " * sum(max(len(row[column]) for row in rows) + 2 for column in (0, 1))
    found = []
    for check, line in zip(checks, lines, strict=True):
        found.append(_INDENT + line)
        if check.hint:
            found.append(f"{_INDENT}{indent}-> {check.hint}")
    return found


def _sets(sets: Sequence[SetOutlook]) -> list[str]:
    rows = []
    for found in sets:
        harm = [f"harmful on {k.topology}: {k.effect}" for k in found.known if k.harmful]
        good = [f"on {k.topology}: {k.effect}" for k in found.known if not k.harmful]
        reason = "; ".join([*harm, *found.reasons, *good]) or "-"
        rows.append((found.outlook.value, found.id, found.state, reason))
    return table(rows).split("\n") if rows else []


def _flags(flags: Sequence[IdleFlag]) -> list[str]:
    found = []
    for flag in flags:
        value = f"={flag.value}" if not flag.name.startswith("-") else f" {flag.value}".rstrip()
        line = table([(f"{flag.name}{value} ({flag.place}): {flag.reason}",)])
        found.append(_INDENT + line)
        if flag.hint:
            found.append(f"{_INDENT * 2}-> {flag.hint}")
    return found
