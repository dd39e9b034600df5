"""`status`, `list` and `history`: what is on disk, re-hashed now, and what the ledger says.

Reads disk; writes nothing. Imports neither libcst nor git for an environment of wheels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sm120patch import fingerprints
from sm120patch.catalogue import advice_for, choose
from sm120patch.environment import take_snapshot
from sm120patch.errors import RecoveryNeededError
from sm120patch.evidence import Event, Evidence
from sm120patch.journal import Journal, busy_sets
from sm120patch.ledger import Ledger, read_ledger
from sm120patch.model import (
    ABSENT,
    EvidenceKind,
    FileSnapshot,
    PatchSet,
    PayloadKind,
    Snapshot,
    State,
    Variant,
    Window,
)
from sm120patch.operations.site import Site
from sm120patch.plan import History, OwnedFile, content_digest
from sm120patch.render import evidence_dict
from sm120patch.state import (
    DiskFact,
    EvidenceBook,
    FileKey,
    SetStatus,
    active_status,
    changed_payload,
    disk_state,
)

if TYPE_CHECKING:
    from sm120patch.host import Host

_RECENT = 50
_WITHOUT_EFFECT = ("failed", "interrupted", "recovered", "compiled")
"""Events of attempts that ended where they had begun: they do not outdate a rejection."""


@dataclass(frozen=True)
class Status:
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
    content: str = ""
    """Digest of what the files of ours hold now, and of the versions: see `Plan.content`."""


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
        snapshot = _snapshot(site, past, capability)
        facts = _facts(past, snapshot)
        seen = _Seen(past, snapshot, facts)
        sets = list(_states(site, ledger, seen, journal, holder is not None))
    return Status(
        prefix=str(site.environment.prefix),
        python=str(site.environment.python),
        versions=site.versions,
        missing=dict(site.environment.missing),
        sets=tuple(sets),
        interrupted=journal.command if journal is not None and holder is None else damaged,
        under_way=holder,
        content=content_digest({k: f.sha256 or ABSENT for k, f in facts.items()}, site.versions),
    )


@dataclass(frozen=True)
class _Seen:
    """What the ledger says is on disk, and what is there."""

    past: History
    snapshot: Snapshot
    facts: Mapping[FileKey, DiskFact]


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
            known = name in site.catalogue.ids
            # What a set bundles cannot be told without its manifest: then it answers for all.
            closure = site.catalogue.closure([name]) if known else tuple(past.active)
            found = active_status(
                name, past, closure, seen.facts, book, site.versions, name in busy
            )
            if name in busy:
                found = replace(found, reason=doing)
            changed = changed_payload(site.catalogue, past.active[name])
            yield replace(found, reason="; ".join(filter(None, (found.reason, changed))))
        elif name in busy:
            yield SetStatus(name, State.INTERRUPTED, doing)
        else:
            last = None if ledger is None else _last(ledger, name)
            yield _inactive(site, seen.snapshot, past, name, last)


def _last(ledger: Ledger, name: str) -> Event | None:
    """Newest event of a set that had an effect; mostly it is the newest of all."""
    for limit in (2, _RECENT):
        events = ledger.events(limit, name)
        last = next((e for e in events if e.kind not in _WITHOUT_EFFECT), None)
        if last is not None or len(events) < limit:
            return last
    return None


def broken_files(site: Site, past: History) -> list[tuple[FileKey, str]]:
    """Files of ours that do not hold what the ledger says, each with the reason."""
    facts = _facts(past, _snapshot(site, past, None))
    found = ((key, disk_state(f, facts[key])) for key, f in past.files.items())
    return [(key, reason) for key, (state, reason) in found if state is not None]


def _snapshot(site: Site, history: History, capability: str | None) -> Snapshot:
    wanted: dict[str, set[str]] = {}
    for target, path in history.files:
        wanted.setdefault(target, set()).add(path)
    for name in site.catalogue.ids:
        for change in site.catalogue.get(name).changes:
            choice, _reason = choose(change, site.versions)
            if isinstance(choice, Variant):
                wanted.setdefault(change.target, set()).add(choice.path)
    return take_snapshot(site.environment, wanted, site.store.get, capability)


def _facts(history: History, snapshot: Snapshot) -> dict[FileKey, DiskFact]:
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
            known_as=known_as(target, path, digest) if known else "",
        )
    return facts


def here() -> Callable[[Evidence], bool]:
    """Return the test whether an evidence was gathered on this host as it is now.

    The host is asked only when there is evidence to be judged, and once.
    """
    known: list[Host] = []

    def valid(evidence: Evidence) -> bool:
        from sm120patch import host

        found = known[0] if known else host.probe()
        known[:] = [found]
        if evidence.kind == EvidenceKind.REAL.value:
            return evidence.host == found.fingerprint
        recorded = evidence.data.get("host")
        return isinstance(recorded, Mapping) and recorded.get("machine_id") == found.machine_id

    return valid


def _inactive(
    site: Site, snapshot: Snapshot, past: History, name: str, last: Event | None
) -> SetStatus:
    """State of a set that is not on disk: decided by version, and by hash, never by a parse."""
    patch_set = site.catalogue.get(name)
    members = [site.catalogue.get(n) for n in site.catalogue.closure([name])]
    capability = snapshot.compute_capability
    found = [_look(m, snapshot, past, capability) for m in members]
    drift = [reason for state, reason in found if state is State.DRIFTED]
    blocked = [reason for state, reason in found if state is State.NOT_APPLICABLE]
    if drift:
        return SetStatus(name, State.DRIFTED, drift[0], revision=patch_set.revision)
    if all(state is State.UPSTREAM for state, _ in found):
        return SetStatus(name, State.UPSTREAM, found[0][1], revision=patch_set.revision)
    if blocked:
        return SetStatus(name, State.NOT_APPLICABLE, blocked[0], revision=patch_set.revision)
    versions = {n: t.version for n, t in snapshot.targets.items()}
    if last is not None and last.kind == "rejected" and last.data.get("versions") == versions:
        kind = last.data.get("kind", EvidenceKind.REAL.value)
        said = "" if kind == EvidenceKind.REAL.value else f" ({kind})"
        reason = f"{last.data.get('verdict', 'rejected')}{said} on {last.at}"
        return SetStatus(name, State.REJECTED, reason, revision=patch_set.revision)
    return SetStatus(name, State.ABSENT, "", revision=patch_set.revision)


def _look(
    patch_set: PatchSet, snapshot: Snapshot, past: History, capability: str | None
) -> tuple[State, str]:
    if patch_set.rehearsal and (unfit := snapshot.unfit(patch_set)):
        return State.NOT_APPLICABLE, unfit
    wanted = patch_set.compute_capability
    if capability is not None and wanted and capability not in wanted:
        return State.NOT_APPLICABLE, f"for compute capability {' or '.join(wanted)}"
    versions = {name: t.version for name, t in snapshot.targets.items()}
    if patch_set.only_advice:
        return State.NOT_APPLICABLE, advice_for(patch_set, versions)[1]
    reasons, live = [], False  # a set without changes is nothing but its dependencies
    for change in patch_set.changes:
        if change.optional:
            continue
        if change.target not in snapshot.targets:
            why = snapshot.missing.get(change.target, "not installed")
            return State.NOT_APPLICABLE, f"{change.target}: {why}"
        choice, reason = choose(change, versions)
        if choice is None:
            return State.NOT_APPLICABLE, reason
        if isinstance(choice, Window):
            reasons.append(choice.reason)
            continue
        live = True
        file = snapshot.targets[change.target].files.get(choice.path)
        addable = file is not None and file.sha256 == file.pristine_sha256 == ABSENT
        if choice.kind is PayloadKind.FILE and addable:
            continue
        if problem := _foreign(change.target, file, past.files.get((change.target, choice.path))):
            return State.DRIFTED, f"{choice.path}: {problem}"
    return (State.ABSENT, "") if live else (State.UPSTREAM, reasons[0] if reasons else "")


def known_as(target: str, path: str, sha256: str | None) -> str:
    """Say what a content is, if it is one that somebody published or that the catalogue makes."""
    known = None if sha256 is None else fingerprints.recognise(target, path, sha256)
    return "" if known is None else str(known)


def _foreign(target: str, file: FileSnapshot | None, owned: OwnedFile | None) -> str | None:
    if file is None or (owned is not None and owned.current_sha256 == file.sha256):
        return None
    if file.obstacle is not None:
        return file.obstacle.value
    if file.pristine_sha256 == ABSENT:
        return "upstream did not ship it"
    if file.pristine_sha256 is not None and file.sha256 != file.pristine_sha256:
        known = known_as(target, file.path, file.sha256)
        return "edited by something else" + (f"; this is {known}" if known else "")
    return None


def history(
    site: Site, set_id: str | None, limit: int | None, kind: str | None = None
) -> list[Event]:
    """Events of the ledger, newest first; of one set, of one kind."""
    if set_id is not None and set_id not in site.catalogue.ids:
        known = site.history().active
        if set_id not in known:
            site.catalogue.get(set_id)
    with read_ledger(site.state.ledger) as ledger:
        return [] if ledger is None else ledger.events(limit, set_id, kind)


def evidence_of(site: Site, events: Iterable[Event]) -> dict[int, dict[str, object]]:
    """Event id -> all that was measured for it, for the events that have evidence."""
    found = {}
    with read_ledger(site.state.ledger) as ledger:
        for event in events if ledger is not None else ():
            evidence = ledger.evidence_of(event.id) if ledger is not None else None
            if evidence is not None:
                found[event.id] = {**evidence_dict(evidence), "data": dict(evidence.data)}
    return found
