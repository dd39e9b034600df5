"""`status`, `list` and `history`: what is on disk, re-hashed now, and what the ledger says.

Reads disk; writes nothing. Imports neither libcst nor git for an environment of wheels.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from sm120patch import fingerprints
from sm120patch.catalogue import choose
from sm120patch.claims import claimed_files
from sm120patch.environment import take_snapshot
from sm120patch.errors import RecoveryNeededError
from sm120patch.evidence import Event, Evidence
from sm120patch.journal import Journal, busy_sets
from sm120patch.ledger import Ledger, read_ledger
from sm120patch.model import (
    ABSENT,
    EvidenceKind,
    FileSnapshot,
    Obstacle,
    Snapshot,
    State,
    Variant,
)
from sm120patch.operations.inactive import Others, inactive_status
from sm120patch.operations.originals import with_originals
from sm120patch.operations.site import Site
from sm120patch.plan import FileKey, History, content_digest
from sm120patch.render import evidence_dict
from sm120patch.shadowing import loaded_instead
from sm120patch.state import (
    IN_PLACE,
    LOADED_INSTEAD,
    OBSTACLES,
    DiskFact,
    EvidenceBook,
    SetStatus,
    active_status,
    changed_payload,
    disk_state,
    members,
)

if TYPE_CHECKING:
    from sm120patch.host.machine import Host

_RECENT = 50
_WITHOUT_EFFECT = ("failed", "interrupted", "recovered", "compiled")
"""Events of attempts that ended where they had begun: they do not outdate a rejection."""


class Status(NamedTuple):
    """Answer of `status`."""

    prefix: str
    python: str
    versions: Mapping[str, str]
    missing: Mapping[str, str]
    sets: tuple[SetStatus, ...]
    interrupted: str | None
    """Command that an open journal belongs to, when nobody works on it any more."""
    under_way: str | None = None
    """Command that holds the environment right now."""
    content: str | None = None
    """Digest of every file that does not hold upstream's content now, and of the versions.

    See `Plan.content`. None while a journal that nobody can read hides what was changed.
    """
    looked_at: int = 0
    """Files that sets change or have changed: no other was looked at."""
    ledger_lost: bool = False
    """There is no ledger, and files hold what one has left in the store."""


def status(site: Site, capability: str | None = None) -> Status:
    """State of every set of the catalogue and of the ledger in this environment."""
    holder = site.state.holder()
    damaged = None
    try:
        journal = site.journal()
    except RecoveryNeededError as error:
        journal, damaged = None, error.message
    with read_ledger(site.state.ledger) as ledger:
        past = History() if ledger is None else ledger.history()
        snapshot = _snapshot(site, past, capability, journal)
        facts = _facts(site, past, snapshot)
        # Where there is no ledger, what the store holds was written by one that is gone.
        gone = site.store.digests() if ledger is None and site.state.path.is_dir() else ()
        seen = _Seen(past, snapshot, facts, Others(claimed_files(site.environment), gone))
        sets = list(_states(site, ledger, seen, journal, holder is not None))
    files = [file for target in snapshot.targets.values() for file in target.files.values()]
    return Status(
        prefix=str(site.environment.prefix),
        python=str(site.environment.python),
        versions=site.versions,
        missing=dict(site.environment.missing),
        sets=tuple(sets),
        interrupted=journal.command if journal is not None and holder is None else damaged,
        under_way=holder,
        content=None if damaged else _content(past, journal, snapshot),
        looked_at=len(files),
        ledger_lost=any(seen.others.orphan(file) for file in files),
    )


def _content(past: History, journal: Journal | None, snapshot: Snapshot) -> str:
    """Digest of what is on disk, by the hashes of `snapshot` alone.

    A file counts unless it holds what upstream shipped: the ledger knows neither what an open
    change has written nor what was edited without it. Where nobody knows what upstream shipped, the
    files of the ledger and of the journal count.
    """
    opened = () if journal is None else journal.files
    ours = {*past.files, *((f.target, f.path) for f in opened)}
    found = {(t, p): f for t, target in snapshot.targets.items() for p, f in target.files.items()}
    held = {key: _held(file) for key, file in found.items() if _changed(file, key in ours)}
    gone = dict.fromkeys(ours - set(found), ABSENT)
    return content_digest({**gone, **held}, snapshot.versions)


def _changed(file: FileSnapshot, ours: bool) -> bool:
    """Tell whether a file holds anything but what upstream shipped."""
    if file.pristine_sha256 is None:
        return ours
    return _held(file) != file.pristine_sha256


def _held(file: FileSnapshot) -> str:
    """Digest of what a file holds; a word where it is none that could be read."""
    return file.sha256 or (file.obstacle.value if file.obstacle else ABSENT)


class _Seen(NamedTuple):
    """What the ledger says is on disk, and what is there."""

    past: History
    snapshot: Snapshot
    facts: Mapping[FileKey, DiskFact]
    others: Others


def _states(
    site: Site,
    ledger: Ledger | None,
    seen: _Seen,
    journal: Journal | None,
    held: bool,
) -> Iterator[SetStatus]:
    past = seen.past
    busy = busy_sets(site.catalogue, past, journal)
    doing = "a change is under way" if held else "a change was interrupted"
    book = EvidenceBook(ledger.evidence if ledger is not None else lambda _content: [], here())
    for name in sorted(set(site.catalogue.ids) | set(past.active)):
        if name in past.active:
            closure = members(site.catalogue, name, past)
            found = active_status(
                name, past, closure, seen.facts, book, site.versions, name in busy
            )
            if name in busy:
                found = found._replace(reason=doing)
            changed = changed_payload(site.catalogue, past.active[name])
            yield found._replace(reason="; ".join(filter(None, (found.reason, changed))))
        elif name in busy:
            yield SetStatus(name, State.INTERRUPTED, doing)
        else:
            last = None if ledger is None else _last(ledger, name)
            yield inactive_status(site.catalogue, seen.snapshot, past, name, last, seen.others)


def _last(ledger: Ledger, name: str) -> Event | None:
    """Newest event of a set that had an effect; mostly it is the newest of all."""
    for limit in (2, _RECENT):
        events = ledger.events(limit, name)
        last = next((e for e in events if e.kind not in _WITHOUT_EFFECT), None)
        if last is not None or len(events) < limit:
            return last
    return None


def broken_files(site: Site, past: History) -> list[tuple[FileKey, State, str]]:
    """Files of ours that do not hold what the ledger says, each with its state and the reason."""
    facts = _facts(site, past, _snapshot(site, past, None))
    found = ((key, disk_state(f, facts[key])) for key, f in past.files.items())
    return [(key, state, reason) for key, (state, reason) in found if state is not None]


def _snapshot(
    site: Site, history: History, capability: str | None, journal: Journal | None = None
) -> Snapshot:
    opened = () if journal is None else journal.files
    wanted: dict[str, set[str]] = {}
    for target, path in (*history.files, *((f.target, f.path) for f in opened)):
        wanted.setdefault(target, set()).add(path)
    for name in site.catalogue.ids:
        for change in site.catalogue.get(name).changes:
            choice, _reason = choose(change, site.versions)
            if isinstance(choice, Variant):
                wanted.setdefault(change.target, set()).add(choice.path)
    found = take_snapshot(site.environment, wanted, site.store.get, capability, tolerant=True)
    return with_originals(found, history, site.store.get)


def _facts(site: Site, history: History, snapshot: Snapshot) -> dict[FileKey, DiskFact]:
    facts = {}
    for target, path in history.files:
        found = snapshot.targets.get(target)
        file = None if found is None else found.files.get(path)
        digest = None if file is None or file.obstacle is not None else file.sha256
        known = digest not in (None, history.files[target, path].current_sha256)
        facts[target, path] = DiskFact(
            sha256=digest,
            version=None if found is None else found.version,
            pristine_sha256=None if file is None else file.pristine_sha256,
            known_as=fingerprints.known_as(target, path, digest) if known else "",
            unreadable=file.why if file and file.obstacle is Obstacle.UNREADABLE else "",
            obstacle=_in_place(site, target, file),
        )
    return facts


def _in_place(site: Site, target: str, file: FileSnapshot | None) -> str:
    """Say what stands in place of a file, or is loaded in place of it; empty where it is used."""
    installation = site.environment.installations.get(target)
    if file is None or installation is None:
        return ""
    if file.obstacle is not None:
        return OBSTACLES[file.obstacle] if file.obstacle in IN_PLACE else ""

    def names(directory: str) -> list[str]:
        try:
            with os.scandir(installation.root / directory) as entries:
                return [entry.name for entry in entries]
        except OSError:
            return []

    other = loaded_instead(names, file.path, site.environment.cache_tag)
    return LOADED_INSTEAD.format(other) if other else ""


def here() -> Callable[[Evidence], bool]:
    """Return the test whether an evidence was gathered on this host as it is now.

    The host is asked only when there is evidence to be judged, and once.
    """
    known: list[Host] = []

    def valid(evidence: Evidence) -> bool:
        from sm120patch.host import machine

        found = known[0] if known else machine.probe()
        known[:] = [found]
        if evidence.kind == EvidenceKind.REAL.value:
            return evidence.host == found.fingerprint
        recorded = evidence.data.get("host")
        return isinstance(recorded, Mapping) and recorded.get("machine_id") == found.machine_id

    return valid


def history(
    site: Site, set_id: str | None, limit: int | None, kind: str | None = None
) -> list[Event]:
    """Events of the ledger, newest first; of one set, of one kind.

    UsageError for a set that neither the ledger nor the catalogue has ever heard of.
    """
    with read_ledger(site.state.ledger) as ledger:
        found = [] if ledger is None else ledger.events(limit, set_id, kind)
    if set_id is not None and not found:
        site.catalogue.get(set_id)
    return found


def evidence_of(site: Site, events: Iterable[Event]) -> dict[int, dict[str, object]]:
    """Event id -> all that was measured for it, for the events that have evidence."""
    found = {}
    with read_ledger(site.state.ledger) as ledger:
        for event in events if ledger is not None else ():
            evidence = ledger.evidence_of(event.id) if ledger is not None else None
            if evidence is not None:
                found[event.id] = {**evidence_dict(evidence), "data": dict(evidence.data)}
    return found
