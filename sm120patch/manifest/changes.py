"""Read the changes of a manifest: their variants, payloads and windows. Pure."""

from __future__ import annotations

from collections.abc import Callable

from sm120patch import relpath
from sm120patch.manifest.ranges import check_disjoint, read_range, read_requires
from sm120patch.model import (
    ID,
    IMPORT_NAMES,
    Change,
    PayloadKind,
    Variant,
    Window,
    sha256_hex,
)
from sm120patch.tables import ONE_LINE, Table

ReadPayload = Callable[[str], bytes]

ADDED = (".py", ".json")
"""Kinds of files that may be added: data that Python code looks for, never an input of a build."""
_SHA256 = r"[0-9a-f]{64}"
_OUTCOMES = ("upstream", "not-needed", "not-applicable", "refused")


def read_changes(root: Table, set_id: str, read_payload: ReadPayload) -> tuple[Change, ...]:
    """Read every `[[change]]`; payloads must lie below the directory of their set."""
    tables = root.tables("change")
    changes = tuple(_change(table, set_id, read_payload) for table in tables)
    seen: set[str] = set()
    for table, change in zip(tables, changes, strict=True):
        if change.id in seen:
            table.fault("id", f"{change.id!r} is there twice")
        seen.add(change.id)
    return changes


def _change(table: Table, set_id: str, read_payload: ReadPayload) -> Change:
    target = table.choice("target", tuple(IMPORT_NAMES))
    variants, windows = table.tables("variant"), table.tables("window")
    change = Change(
        id=table.text("id", pattern=ID),
        target=target,
        summary=table.text("summary", pattern=ONE_LINE),
        description=table.text("description"),
        optional=table.flag("optional", default=False),
        variants=tuple(_variant(t, target, set_id, read_payload) for t in variants),
        windows=tuple(_window(t) for t in windows),
        tactics=table.flag("tactics", default=False),
    )
    if not variants:
        table.fault("variant", "a change needs one at least")
    ranges = [*(v.versions for v in change.variants), *(w.versions for w in change.windows)]
    check_disjoint([*variants, *windows], ranges)
    table.finish()
    return change


def _variant(table: Table, target: str, set_id: str, read_payload: ReadPayload) -> Variant:
    payload = table.text("payload")
    sha256 = table.text("sha256", pattern=_SHA256)
    variant = Variant(
        versions=read_range(table),
        kind=PayloadKind(table.choice("kind", [kind.value for kind in PayloadKind])),
        path=table.text("path"),
        payload=payload,
        sha256=sha256,
        data=_payload(table, payload, set_id, sha256, read_payload),
        present=table.mapping("present", int, pattern=ONE_LINE),
        absent=table.texts("absent", pattern=ONE_LINE),
        requires=read_requires(table),
    )
    _check_path(table, variant, target)
    _check_conditions(table, variant)
    table.finish()
    return variant


def _check_path(table: Table, variant: Variant, target: str) -> None:
    path, package = variant.path, IMPORT_NAMES[target]
    if not path:
        return  # noted where it was read
    if problem := relpath.fault(path):
        table.fault("path", problem)
    elif not path.startswith(f"{package}/"):
        table.fault("path", f"{path!r} is not inside {package!r}, the package of {target}")
    elif variant.kind is PayloadKind.CODEMOD and not path.endswith(".py"):
        table.fault("path", f"{path!r} is no Python file, so a codemod cannot change it")
    elif variant.kind is PayloadKind.FILE and not path.endswith(ADDED):
        table.fault("path", f"{path!r} cannot be added; only {' and '.join(ADDED)} can")


def _check_conditions(table: Table, variant: Variant) -> None:
    """Diffs carry their post-conditions in the manifest, codemods in the payload."""
    given = bool(variant.present or variant.absent)
    if variant.kind is PayloadKind.DIFF and not given:
        table.fault("present", "a diff needs a post-condition, `present` or `absent`")
    if variant.kind is PayloadKind.CODEMOD and given:
        table.fault("present", "a codemod declares its post-conditions itself")
    if variant.kind is PayloadKind.FILE and given:
        table.fault("present", "a file that is added is known by its content")
    for text, count in variant.present.items():
        if count < 1:
            table.fault("present", f"{text!r}: {count} is no number of occurrences; see `absent`")
        if any(other in text for other in variant.absent):
            table.fault("absent", f"contradicts what is to be present: {text!r}")


def _payload(
    table: Table, payload: str, set_id: str, sha256: str, read_payload: ReadPayload
) -> bytes:
    if not payload:
        return b""  # noted where it was read
    problem = relpath.fault(payload)
    if not problem and not payload.startswith(f"{set_id}/"):
        problem = f"{payload!r} is not below {set_id + '/'!r}; payloads belong to their set"
    if problem:
        table.fault("payload", problem)
        return b""
    try:
        data = read_payload(payload)
    except (OSError, ValueError) as error:
        table.fault("payload", f"{payload} cannot be read: {error}")
        return b""
    if sha256 != (found := sha256_hex(data)):
        table.fault("sha256", f"{payload} has {found}")
    return data


def _window(table: Table) -> Window:
    window = Window(
        versions=read_range(table),
        outcome=table.choice("outcome", _OUTCOMES),
        reason=table.text("reason", pattern=ONE_LINE),
    )
    table.finish()
    return window
