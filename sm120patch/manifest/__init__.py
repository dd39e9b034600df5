"""Turn the TOML of one patch set into its value object, with every fault at once. Pure.

Payload bytes are handed in by the caller, so that nothing here opens a file. Not looked at is
whether a diff parses or a codemod runs: that costs imports which `list` and `status` do not need
(see `catalogue.lint`), and both refuse by themselves when they are used.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from sm120patch.errors import CatalogueError
from sm120patch.manifest.changes import ReadPayload, read_changes
from sm120patch.manifest.compiling import read_compile
from sm120patch.manifest.running import (
    read_advice,
    read_engagement,
    read_known_results,
    read_launch,
    read_verification,
)
from sm120patch.model import (
    ID,
    Change,
    PatchSet,
    digest_of,
    sha256_hex,
)
from sm120patch.tables import ONE_LINE, Table
from sm120patch.tomltext import decode

__all__ = ["MAX_BYTES", "SCHEMA", "ReadPayload", "broken", "examine", "parse"]

SCHEMA = 1
MAX_BYTES = 1 << 20
"""Largest manifest that is read."""

_CAPABILITY = r"[0-9]{1,2}\.[0-9]"
# The words of CycloneDX for patches, and of Yocto for their way upstream.
_TYPES = ("unofficial", "backport", "cherry-pick", "monkey", "advice")
_STATUSES = (
    "pending",
    "submitted",
    "backport",
    "denied",
    "inactive-upstream",
    "inappropriate",
)


def parse(text: bytes, origin: str, read_payload: ReadPayload) -> PatchSet:
    """Decode a manifest; `origin` names it in messages.

    `read_payload` gets a checked relative path below `patches/` and returns the bytes of the
    file, or raises OSError or ValueError. Raises CatalogueError that lists every fault with its
    key path.
    """
    patch_set, faults = examine(text, read_payload)
    if patch_set is None:
        raise broken(origin, faults)
    return patch_set


def examine(text: bytes, read_payload: ReadPayload) -> tuple[PatchSet | None, list[str]]:
    """Do what `parse` does, but return the faults: the set, or None and why."""
    data = _decode(text)
    if isinstance(data, str):
        return None, [data]
    faults: list[str] = []
    patch_set = _patch_set(Table(data, "", faults), text, read_payload)
    return (None if faults else patch_set), faults


def broken(origin: str, faults: Sequence[str]) -> CatalogueError:
    """Return the error for a broken manifest or catalogue: all its faults, for people and JSON."""
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    return CatalogueError(
        "\n  ".join([f"{origin} has {count}:", *faults]),
        hint="mend the manifest or the payload; no environment was touched",
        details={"origin": origin, "faults": list(faults)},
    )


def _decode(text: bytes) -> dict[str, Any] | str:
    """Return the document, or what is wrong with it as a whole."""
    if len(text) > MAX_BYTES:
        return f"{len(text)} bytes; at most {MAX_BYTES} are read"
    try:
        return decode(text.decode("utf-8"))
    except ValueError as error:
        return f"not TOML: {error}"


def _patch_set(root: Table, text: bytes, read_payload: ReadPayload) -> PatchSet:
    root.integer("schema", SCHEMA, SCHEMA)
    head = root.table("patch-set", required=True)
    host, relations = root.table("host"), root.table("relations")
    upstream = root.table("upstream", required=True)
    set_id = head.text("id", pattern=ID)
    changes = read_changes(root, set_id, read_payload)
    depends = relations.texts("depends", pattern=ID)
    kind, advice = head.choice("type", _TYPES), read_advice(root)
    _check_substance(root, kind, bool(changes or depends), bool(advice))
    status = upstream.choice("status", _STATUSES)
    patch_set = PatchSet(
        id=set_id,
        revision=head.integer("revision", 1, 1_000_000),
        title=head.text("title", pattern=ONE_LINE),
        description=head.text("description"),
        type=kind,
        compute_capability=host.texts("compute-capability", pattern=_CAPABILITY),
        depends=depends,
        conflicts=relations.texts("conflicts", pattern=ID),
        changes=changes,
        launch=read_launch(root),
        engagement=read_engagement(root),
        verification=read_verification(root.table("verification")),
        known_results=read_known_results(root),
        upstream_status=status,
        upstream_reason=upstream.text("reason", default="" if status == "pending" else None),
        last_checked=_date(upstream, "last-checked"),
        digest=_digest(text, changes),
        advice=advice,
        compile=read_compile(root, changes),
        devices=host.texts("devices"),
        min_gpus=host.integer("min-gpus", 1, 64, default=1),
        rehearsal=host.flag("rehearsal", default=False),
    )
    for table in (head, host, relations, upstream, root):
        table.finish()
    return patch_set


def _check_substance(root: Table, kind: str, patches: bool, advises: bool) -> None:
    """Note an entry that does nothing, and an advice that would change files after all."""
    if kind == "advice":
        if not advises:
            root.fault("advice", "an entry of type 'advice' needs one")
        if patches:
            root.fault("change", "an entry of type 'advice' has neither changes nor dependencies")
    elif not patches:
        root.fault("change", "a set needs changes, or dependencies that it bundles")


def _digest(text: bytes, changes: Sequence[Change]) -> str:
    payloads = {v.payload: sha256_hex(v.data) for change in changes for v in change.variants}
    return digest_of({"manifest": sha256_hex(text), "payloads": payloads})


def _date(table: Table, key: str) -> str:
    text = table.text(key)
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        if text:
            table.fault(key, f"{text!r} is no date like 2026-01-31")
    return text
