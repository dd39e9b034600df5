"""JSON-ready, text and Markdown forms of a matrix of releases and of an upgrade's outlook."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from sm120patch.operations.releases import LEADING, ReleaseResult, SetResult
from sm120patch.operations.upgrading import Drift, Outlook
from sm120patch.plaintext import clean, table
from sm120patch.plan import ChangeDecision, Outcome
from sm120patch.render import decision_dict, launch_dict, launch_text

WHOLE = "*"
"""Stands for the change in a decision about a set as a whole."""


def release_dict(result: ReleaseResult) -> dict[str, object]:
    """One combination of versions, every set and change."""
    return {
        "versions": dict(result.versions),
        "error": result.error or None,
        "sets": [set_result_dict(s) for s in result.sets],
    }


def set_result_dict(result: SetResult) -> dict[str, object]:
    """One set on one combination of versions."""
    return {
        "id": result.id,
        "outcome": result.outcome.value,
        "reasons": list(result.reasons),
        "changes": [decision_dict(d) for d in result.changes],
        "launch": launch_dict(result.launch),
    }


def counts(results: Iterable[ReleaseResult]) -> dict[str, int]:
    """Outcome -> number of (release, set) pairs that ended in it."""
    found: dict[str, int] = {}
    for result in results:
        for entry in result.sets:
            found[entry.outcome.value] = found.get(entry.outcome.value, 0) + 1
    return dict(sorted(found.items()))


def label(versions: Mapping[str, str]) -> str:
    """Name a combination: `0.5.9 (0.6.3)`."""
    others = [v for name, v in versions.items() if name != LEADING]
    return versions.get(LEADING, "-") + (f" ({', '.join(others)})" if others else "")


def matrix_text(results: Sequence[ReleaseResult]) -> str:
    """Rows of release, set, change and outcome, for people."""
    rows: list[tuple[str, ...]] = []
    for result in results:
        name = label(result.versions)
        if result.error:
            rows.append((name, "-", "error", result.error))
        for entry in result.sets:
            rows.append((name, entry.id, entry.outcome.value, "; ".join(entry.others)))
            rows += [
                ("", f"  {d.change_id}", d.outcome.value, "" if d.sites else d.reason)
                for d in entry.changes
            ]
    return table(rows)


# --- Markdown ----------------------------------------------------------------------------------


def matrix_markdown(results: Sequence[ReleaseResult]) -> str:
    """One table of all sets, then one table a set of its changes, equal neighbours in one row."""
    names = list(dict.fromkeys(s.id for r in results for s in r.sets))
    lines = [
        "## Sets",
        "",
        *_markdown_table(
            ["SGLang", "FlashInfer", *(f"`{n}`" for n in names)],
            [[*_span([r]), *(_short(_set_cell(r, n)) for n in names)] for r in results],
        ),
    ]
    for name in names:
        decided = dict.fromkeys(d.change_id for r in results for d in _changes(r, name))
        if not decided:
            continue
        changes = [change for change in decided if change != WHOLE]
        outcomes = [(_row(r, name, changes), r) for r in results]
        rows = [
            [*_span([r for _cells, r in group]), *cells]
            for cells, group in itertools.groupby(outcomes, lambda pair: pair[0])
        ]
        header = ["SGLang", "FlashInfer", "set", *(f"`{c}`" for c in changes)]
        lines += ["", f"## `{name}`", "", *_markdown_table(header, rows)]
        lines += _reasons(results, name)
    return "\n".join(lines) + "\n"


def _changes(result: ReleaseResult, name: str) -> list[ChangeDecision]:
    return [d for s in result.sets if s.id == name for d in s.changes]


def _row(result: ReleaseResult, name: str, changes: Sequence[str]) -> tuple[str, ...]:
    found = {d.change_id: d.outcome.value for s in result.sets if s.id == name for d in s.changes}
    return (_set_cell(result, name), *(found.get(change, "-") for change in changes))


def _set_cell(result: ReleaseResult, name: str) -> str:
    found = [s.outcome.value for s in result.sets if s.id == name]
    return "error" if result.error else f"**{found[0]}**" if found == ["refused"] else found[0]


def _short(cell: str) -> str:
    """Keep a wide table narrow: what is not for a release is a dash."""
    return "-" if cell == Outcome.NOT_APPLICABLE.value else cell


def _span(results: Sequence[ReleaseResult]) -> tuple[str, str]:
    """First and last version of each target in a run of releases."""

    def ends(listed: Iterable[str]) -> str:
        found = list(dict.fromkeys(listed))
        return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"

    others = (", ".join(v for n, v in r.versions.items() if n != LEADING) or "-" for r in results)
    return ends(r.versions.get(LEADING, "-") for r in results), ends(others)


def _reasons(results: Sequence[ReleaseResult], name: str) -> list[str]:
    """Give every reason why a change is not made once, with the releases it holds for."""

    def named(change: str) -> str:
        return "" if change == WHOLE else f"`{change}`, "

    where: dict[tuple[str, str], list[int]] = {}
    for number, result in enumerate(results):
        for change in _changes(result, name):
            if change.outcome not in (Outcome.PATCHED, Outcome.NOT_SELECTED):
                reason = change.reason
                for target, version in result.versions.items():
                    # What differs by nothing but the version that it names is one reason.
                    reason = reason.replace(f"; found {target} {version}", "")
                    reason = reason.replace(f"{target} {version}", target)
                where.setdefault((change.change_id, reason), []).append(number)
    lines = [
        f"- {named(change)}{_runs(results, numbers)}: {_escaped(reason)}"
        for (change, reason), numbers in where.items()
    ]
    return ["", *lines] if lines else []


def _runs(results: Sequence[ReleaseResult], numbers: Sequence[int]) -> str:
    """Name releases by the runs that they form."""
    places = enumerate(numbers)
    runs = itertools.groupby(places, lambda place: place[1] - place[0])
    return ", ".join(_span([results[n] for _, n in run])[0] for _, run in runs)


def _markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(header)} |",
        "|" + "---|" * len(header),
        *(f"| {' | '.join(map(_escaped, row))} |" for row in rows),
    ]


def _escaped(text: str) -> str:
    return clean(text).replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")


# --- outlook -----------------------------------------------------------------------------------


def outlook_dict(outlook: Outlook) -> dict[str, object]:
    """What an upgrade means, every set and change."""
    return {
        "now": dict(outlook.now),
        "then": dict(outlook.then),
        "sets": [set_result_dict(s) for s in outlook.sets],
        "drifts": [drift_dict(d) for d in outlook.drifts if d.drifts],
        "launch": {"now": launch_dict(outlook.launch[0]), "then": launch_dict(outlook.launch[1])},
        "notes": list(outlook.notes),
    }


def drift_dict(drift: Drift) -> dict[str, object]:
    """One thing that the upgrade changes."""
    return {
        "set": drift.set_id,
        "change": drift.change_id or None,
        "now": drift.now,
        "then": drift.then,
        "path": drift.path,
        "moved_from": drift.moved_from,
        "reason": drift.reason,
    }


def outlook_text(outlook: Outlook) -> str:
    """The same for people: a star marks what changes."""
    lines = [f"{name}  {outlook.now.get(name, 'none')} -> {v}" for name, v in outlook.then.items()]
    rows = []
    for drift in outlook.drifts:
        name = f"  {drift.change_id}" if drift.change_id else drift.set_id
        moved = f"moved from {drift.moved_from} to {drift.path}" if drift.moved_from else ""
        said = "" if drift.then == "patched" else drift.reason
        arrow = drift.then if drift.now == drift.then else f"{drift.now} -> {drift.then}"
        mark = "*" if drift.drifts else ""
        rows.append((mark, name, arrow, "; ".join(filter(None, (moved, said)))))
    lines.append(table(rows))
    before, after = map(launch_text, outlook.launch)
    if before != after:
        lines.append(f"start the server with  {after or '(nothing)'}  (now: {before or 'nothing'})")
    lines += [f"note: {clean(note)}" for note in outlook.notes]
    return "\n".join(lines)
