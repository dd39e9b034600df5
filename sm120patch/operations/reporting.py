"""`report`: find an event with its evidence and the lines that were changed, write the page.

Reads ledger and store; writes the one file it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sm120patch.disk import write_file
from sm120patch.errors import HostError, UsageError
from sm120patch.evidence import Event, Evidence
from sm120patch.ledger import Ledger, read_ledger
from sm120patch.model import ABSENT
from sm120patch.operations.site import Site
from sm120patch.report.view import Changed, Subject
from sm120patch.store import Store

_MOST_BYTES = 4 << 20  # of a content that is compared line by line


def find_subject(site: Site, wanted: str | None) -> Subject:
    """Return what was measured: event `wanted` of the history, the newest of that set, or of all.

    Raises UsageError when there is no such event or it measured nothing.
    """
    with read_ledger(site.state.ledger) as ledger:
        found = None if ledger is None else _find(ledger, wanted)
        event = None if ledger is None or found else _event(ledger, wanted)
    if found is None:
        raise UsageError(
            _nothing(wanted, event, str(site.environment.prefix)),
            hint="`sm120patch history` lists the events with their numbers",
            code="no-evidence",
        )
    event, evidence = found
    changed = tuple(_changed(event, site.store))
    return Subject(event, evidence, str(site.environment.prefix), changed)


def _find(ledger: Ledger, wanted: str | None) -> tuple[Event, Evidence] | None:
    by_number = wanted is not None and wanted.isdecimal()
    for event in ledger.events(set_id=None if by_number else wanted):
        if by_number and str(event.id) != wanted:
            continue
        evidence = ledger.evidence_of(event.id)
        if evidence is not None:
            return event, evidence
    return None


def _event(ledger: Ledger, wanted: str | None) -> Event | None:
    return next((event for event in ledger.events() if str(event.id) == wanted), None)


def _nothing(wanted: str | None, event: Event | None, prefix: str) -> str:
    """Say what is missing: the event, or a measurement of it."""
    if wanted is None or not wanted.isdecimal():
        asked = "" if wanted is None else f" for {wanted}"
        return f"nothing was measured{asked} in {prefix}"
    if event is None:
        return f"there is no event {wanted} in the history of {prefix}"
    return f"event {wanted} in the history of {prefix} ({event.kind}) measured nothing"


def _changed(event: Event, store: Store) -> Iterator[Changed]:
    """Files that differ between the arms, baseline first whatever the way of the plan."""
    files = event.data.get("files")
    # `verify` plans from the patched content to the one without the sets.
    from_patched = event.data.get("start", "b" if event.kind == "verified" else "a") == "b"
    for key, pair in sorted(files.items()) if isinstance(files, Mapping) else ():
        target, _, path = str(key).partition(":")
        if not isinstance(pair, list) or len(pair) != 2:
            continue
        before, after = (str(digest) for digest in (reversed(pair) if from_patched else pair))
        yield Changed(target, path, before, after, _diff(path, before, after, store))


def _diff(path: str, before: str, after: str, store: Store) -> str | None:
    from sm120patch.unified import make_diff

    contents = [_content(digest, store) for digest in (before, after)]
    old, new = contents
    if old is None or new is None or max(len(old), len(new)) > _MOST_BYTES:
        return None
    return make_diff(path, old, new)


def _content(digest: str, store: Store) -> bytes | None:
    if digest == ABSENT:
        return b""
    known = len(digest) == 64 and set(digest) <= set("0123456789abcdef")
    return store.get(digest) if known else None


@dataclass(frozen=True)
class Written:
    """A page on disk."""

    path: Path
    size: int


def write_page(subject: Subject, path: Path) -> Written:
    """Write the page about `subject`; a file there is replaced, anything else is refused."""
    from sm120patch.report.page import render

    return write_html(render(subject), path)


def write_html(text: str, path: Path) -> Written:
    """Write a page; a file there is replaced, anything else is refused."""
    data = text.encode("utf-8", "replace")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError(f"{path} is there and is no regular file", hint="name another file")
    try:
        write_file(path, data, tag="report")
    except OSError as error:
        raise HostError(
            f"the report cannot be written to {path}: {error.strerror}",
            hint="name a file in a directory that exists and can be written",
        ) from error
    return Written(path.absolute(), len(data))
