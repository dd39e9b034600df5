"""State of a set that no ledger has on disk: by version, and by hash.

What RECORD or HEAD have and nobody has published is looked into, anything else is not parsed.

Reads nothing itself: it is handed a snapshot, and the ledger's history and newest event.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from sm120patch import fingerprints
from sm120patch.catalogue import Catalogue, advice_for, choose
from sm120patch.evidence import Event
from sm120patch.model import (
    ABSENT,
    Change,
    EvidenceKind,
    FileSnapshot,
    Obstacle,
    PatchSet,
    PayloadKind,
    Snapshot,
    State,
    TargetSnapshot,
    Variant,
    Window,
)
from sm120patch.plan import FileKey, History, Outcome
from sm120patch.state import OBSTACLES, SetStatus
from sm120patch.variants import satisfied

_FIRST = (State.UNKNOWN, State.EDITED)
"""What is wrong with a file comes before what versions say, what nobody could read first."""


class Others(NamedTuple):
    """What is known of contents that the ledger at hand does not have."""

    claimed: Mapping[FileKey, tuple[str, str]] = {}
    """(target, path) -> sha256 and prefix of the environment whose ledger has it."""
    orphaned: Collection[str] = ()
    """sha256 of what is left in the store of a ledger that is gone."""

    def orphan(self, file: FileSnapshot) -> bool:
        """Tell whether a ledger that is gone would answer for what a file holds."""
        return file.sha256 in self.orphaned and file.sha256 != file.pristine_sha256


class _Look(NamedTuple):
    """What one set by itself comes to."""

    state: State
    reason: str = ""
    unneeded: bool = False
    """The versions have nothing that it could change: what brings it along works without it."""


def inactive_status(
    catalogue: Catalogue,
    snapshot: Snapshot,
    past: History,
    name: str,
    last: Event | None,
    others: Others,
) -> SetStatus:
    """State of a set that is not in the ledger; `last` is its newest event that had an effect."""
    patch_set = catalogue.get(name)
    members = [catalogue.get(n) for n in catalogue.closure([name])]
    looks = [found for member in members for found in _look(member, snapshot, past, others)]
    state, reason = _joined(looks)
    rejected = "" if last is None else _rejection(last, snapshot)
    if state is State.ABSENT and rejected:
        state, reason = State.REJECTED, rejected
    return SetStatus(name, state, reason, revision=patch_set.revision)


def _rejection(event: Event, snapshot: Snapshot) -> str:
    """Say of a rejection of these versions what the verdict was, and when; empty for all else.

    Evidence that is not real is always named with its kind.
    """
    if event.kind != "rejected" or event.data.get("versions") != snapshot.versions:
        return ""
    kind = event.data.get("kind", EvidenceKind.REAL.value)
    said = "" if kind == EvidenceKind.REAL.value else f" ({kind})"
    return f"{event.data.get('verdict', 'rejected')}{said} on {event.at}"


def _joined(looks: list[_Look]) -> tuple[State, str]:
    """State of a bundle from what its members come to; the reason names every bad file."""
    for state in _FIRST:
        if any(found.state is state for found in looks):
            return state, "; ".join(dict.fromkeys(f.reason for f in looks if f.state in _FIRST))
    live = [found for found in looks if not found.unneeded]
    blocked = [found for found in live if found.state is State.NOT_APPLICABLE]
    if live and all(found.state is State.UPSTREAM for found in live):
        return State.UPSTREAM, live[0].reason
    if blocked or (looks and not live):
        return State.NOT_APPLICABLE, (blocked or looks)[0].reason
    return State.ABSENT, ""


def _look(
    patch_set: PatchSet,
    snapshot: Snapshot,
    past: History,
    others: Others,
) -> Iterator[_Look]:
    """Yield what stands for or against one set; a bundle by itself has little to say."""
    capability, wanted = snapshot.compute_capability, patch_set.compute_capability
    if patch_set.rehearsal and (unfit := snapshot.unfit(patch_set)):
        yield _Look(State.NOT_APPLICABLE, unfit)
    elif capability is not None and wanted and capability not in wanted:
        yield _Look(State.NOT_APPLICABLE, f"for compute capability {' or '.join(wanted)}")
    elif patch_set.only_advice:
        yield _Look(State.NOT_APPLICABLE, advice_for(patch_set, snapshot.versions)[1])
    elif patch_set.changes:
        needed = [change for change in patch_set.changes if not change.optional]
        changes = [_change(change, snapshot, past, others) for change in needed]
        yield from _of_changes(changes)


def _of_changes(changes: list[_Look]) -> Iterator[_Look]:
    bad = [found for found in changes if found.state in _FIRST]
    blocked = [c for c in changes if c.state is State.NOT_APPLICABLE and not c.unneeded]
    upstream = [found for found in changes if found.state is State.UPSTREAM]
    if bad or blocked:
        yield from bad or blocked[:1]
    elif any(found.state is State.ABSENT for found in changes):
        yield _Look(State.ABSENT)
    else:
        yield from (upstream or changes or [_Look(State.ABSENT)])[:1]


def _change(
    change: Change,
    snapshot: Snapshot,
    past: History,
    others: Others,
) -> _Look:
    found = snapshot.targets.get(change.target)
    if found is None:
        why = snapshot.missing.get(change.target, "not installed")
        return _Look(State.NOT_APPLICABLE, f"{change.target}: {why}")
    choice, reason = choose(change, snapshot.versions)
    if choice is None:
        return _Look(State.NOT_APPLICABLE, reason)
    if isinstance(choice, Window):
        if choice.outcome == Outcome.UPSTREAM.value:
            return _Look(State.UPSTREAM, choice.reason)
        return _Look(State.NOT_APPLICABLE, choice.reason, unneeded=True)
    file = found.files.get(choice.path)
    addable = file is not None and file.sha256 == file.pristine_sha256 == ABSENT
    owned = past.files.get((change.target, choice.path))
    ours = file is None or (owned is not None and owned.current_sha256 == file.sha256)
    if file is None or ours or (choice.kind is PayloadKind.FILE and addable):
        return _Look(State.ABSENT)
    sha256, owner = others.claimed.get((change.target, choice.path), (None, ""))
    if sha256 == file.sha256:
        return _Look(State.EDITED, f"{file.path}: patched from {owner}, whose ledger has it")
    if others.orphan(file):
        return _Look(State.EDITED, f"{file.path}: the ledger that would tell of it is gone")
    look = _foreign(found, file)
    if look.state is State.ABSENT and _has_it(change.target, choice, file, found.version):
        return _Look(State.UPSTREAM, "what RECORD or HEAD has meets the post-conditions already")
    return look


def _has_it(target: str, variant: Variant, file: FileSnapshot, version: str) -> bool:
    """Tell whether a content that is upstream's by RECORD or HEAD makes the change needless.

    What was published as this version does not: that is what the variant is for.
    """
    known = fingerprints.recognise(target, file.path, file.sha256)
    published = known is not None and version in known.versions and not known.changes
    return not published and satisfied(variant, file.data)


def _foreign(found: TargetSnapshot, file: FileSnapshot) -> _Look:
    """Judge a file that no ledger answers for."""
    if file.obstacle is Obstacle.UNREADABLE:
        return _Look(State.UNKNOWN, file.why)
    if file.obstacle is not None:
        return _Look(State.EDITED, f"{file.path}: {OBSTACLES[file.obstacle]}")
    if file.pristine_sha256 is None:
        why = found.why_unknown
        return _Look(State.UNKNOWN, f"{file.path}: nobody knows what upstream shipped: {why}")
    if file.pristine_sha256 == ABSENT:
        return _Look(State.EDITED, f"{file.path}: upstream did not ship it, and no ledger has it")
    if file.sha256 == file.pristine_sha256:
        return _Look(State.ABSENT)
    said = fingerprints.edit_words(found.target, file.path, file.sha256)
    return _Look(State.EDITED, f"{file.path}: {said}")
