"""Hold what was found on disk against the ledger and the catalogue: files, sets, findings. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sm120patch import fingerprints
from sm120patch.audit import byhand
from sm120patch.audit.byhand import ByHand
from sm120patch.audit.findings import (
    FileReport,
    FileState,
    Finding,
    Kind,
    SetReport,
    Verification,
)
from sm120patch.catalogue import Catalogue
from sm120patch.environment.records import Difference
from sm120patch.evidence import Evidence
from sm120patch.model import ABSENT, State
from sm120patch.plan import ActiveSet, FileKey, History, OwnedFile, Role, sets_of
from sm120patch.shadowing import is_extension
from sm120patch.state import (
    DiskFact,
    EvidenceBook,
    SetStatus,
    active_status,
    changed_payload,
    disk_state,
    files_of,
    members,
)

Here = Callable[[Evidence], bool]
"""Tells whether evidence was gathered on this host as it is now."""
Contents = Callable[[FileKey], bytes | None]
"""Bytes of a file, on disk or as upstream shipped it, where they are at hand."""

LOST_LEDGER = "sm120patch recover --lost-ledger"
DIFF = "sm120patch diff"
_STATES = {
    "changed": FileState.FOREIGN,
    "missing": FileState.MISSING,
    "added": FileState.ADDED,
    "unreadable": FileState.UNREADABLE,
}
_SAID = {
    FileState.MISSING: "upstream shipped it",
    FileState.ADDED: "upstream did not ship it",
    FileState.UNREADABLE: "it cannot be read",
}
_OWNED = {
    State.LOST: FileState.LOST,
    State.DRIFTED: FileState.DRIFTED,
    State.UNKNOWN: FileState.UNREADABLE,
}


class Disk(NamedTuple):
    """What was found of the targets of one environment."""

    versions: Mapping[str, str]
    differences: Mapping[FileKey, Difference]
    digests: Mapping[FileKey, str]
    """sha256 of every file that the ledger or the catalogue knows, as far as it is there."""
    present: Contents
    pristine: Contents
    checkouts: frozenset[str] = frozenset()
    """Targets that are imported from a checkout."""
    unknown: frozenset[str] = frozenset()
    """Targets of which nobody knows what upstream shipped."""
    elsewhere: Mapping[FileKey, OwnedFile] = {}
    """Files of a shared checkout that the ledger of another environment answers for."""
    owner: str = ""
    """Prefix of that environment."""
    changing: Mapping[FileKey, frozenset[str]] = {}
    """Files of the open journal -> sha256 of both contents that the change knows."""
    obstacles: Mapping[FileKey, str] = {}
    """Files of the ledger in whose place something else stands -> what that is, in words."""
    tag: str = ""
    """`cpython-311`, or empty where nobody knows which Python it is."""
    ledger_lost: bool = False
    """There was a ledger that would tell which of the known contents were written here."""


def judge_files(
    disk: Disk, history: History, catalogue: Catalogue
) -> tuple[list[FileReport], list[Finding], list[ByHand]]:
    """Judge every file that differs or that a ledger knows, and recognise sets made by hand."""
    files: list[FileReport] = []
    findings: list[Finding] = []
    labels: dict[FileKey, tuple[str, ...]] = {}
    keys = {*disk.differences, *history.files, *disk.elsewhere, *disk.digests}
    for key in sorted(keys):
        owned = history.files.get(key)
        if _is_changing(key, disk):
            found = _changing(key, disk)
        elif owned is not None:
            found = _owned(key, owned, disk, lambda sets: asked_for(sets, history, catalogue))
        elif key in disk.elsewhere:
            found = _claimed(key, disk.elsewhere[key], disk)
        else:
            found = _unowned(key, disk, catalogue, labels)
        if found is not None:
            files.append(found[0])
            findings += [found[1]] if found[1] is not None else []
    by_hand = byhand.find(catalogue, disk.versions, labels, history.active)
    return files, findings, by_hand


Judged = tuple[FileReport, Finding | None] | None


def _is_changing(key: FileKey, disk: Disk) -> bool:
    """Tell whether a file is on either side of the open change: then it is nobody else's."""
    difference = disk.differences.get(key)
    if difference is not None and difference.kind == "unreadable":
        return False
    return (_held(key, disk) or ABSENT) in disk.changing.get(key, ())


def _held(key: FileKey, disk: Disk) -> str | None:
    difference = disk.differences.get(key)
    return disk.digests.get(key) or (difference.found if difference else None)


def _changing(key: FileKey, disk: Disk) -> Judged:
    """Judge a file of the open change: the finding about that change tells what to do."""
    difference = disk.differences.get(key)
    if difference is None:
        return None
    said = "written by a change that is not finished"
    state = FileState.OURS
    return FileReport(*key, state, _held(key, disk), difference.expected, (), said), None


def asked_for(sets: Iterable[str], history: History, catalogue: Catalogue) -> tuple[str, ...]:
    """Sets that somebody asked for and that bring the given ones; those themselves without any.

    A command for these covers what they bring.
    """
    found: dict[str, None] = {}
    asked = [n for n, s in history.active.items() if s.role is Role.REQUESTED]
    brings = {n: catalogue.closure([n]) for n in asked if n in catalogue.ids}
    for name in sets:
        over = [n for n, members in brings.items() if name in members]
        widest = [n for n in over if not any(n in brings[o] for o in over if o != n)]
        found.update(dict.fromkeys(widest or [name]))
    return tuple(found)


def _owned(
    key: FileKey,
    owned: OwnedFile,
    disk: Disk,
    asked: Callable[[tuple[str, ...]], tuple[str, ...]],
) -> Judged:
    difference, found = disk.differences.get(key), _held(key, disk)
    version = disk.versions.get(key[0])
    if difference is None and owned.pristine_sha256 != ABSENT:
        expected: str | None = found
    else:
        expected = difference.expected if difference else None
    known = fingerprints.known_as(*key, found) if found != owned.current_sha256 else ""
    pristine = expected or owned.pristine_sha256
    unreadable, obstacle = _unreadable(difference), disk.obstacles.get(key, "")
    fact = DiskFact(found, version, pristine, known, unreadable, obstacle)
    state, reason = disk_state(owned, fact)
    shipped = None if owned.pristine_sha256 == ABSENT else pristine
    if state is None:
        shipped = None if owned.pristine_sha256 == ABSENT else owned.pristine_sha256
        report = FileReport(*key, FileState.OURS, found, shipped, owned.changes)
        if difference is not None or key[0] in disk.unknown:
            return report, None
        detail = "RECORD or HEAD say that the patched content was shipped: they were rewritten"
        return report, Finding(Kind.RECORD, *key, detail, sets_of(owned.changes))
    file_state = _OWNED[state]
    kind = Kind(file_state.value)
    report = FileReport(*key, file_state, found, shipped, owned.changes, known)
    sets = sets_of(owned.changes)
    hint = DIFF if state is State.DRIFTED and not obstacle else ""
    hint = f"sm120patch apply {' '.join(asked(sets))}" if state is State.LOST else hint
    return report, Finding(kind, *key, reason, sets, hint)


def _claimed(key: FileKey, owned: OwnedFile, disk: Disk) -> Judged:
    """Judge a file of a checkout that another environment has patched."""
    found = _held(key, disk)
    shipped = None if owned.pristine_sha256 == ABSENT else owned.pristine_sha256
    if found == owned.current_sha256:
        said = f"patched from {disk.owner}"
        return FileReport(*key, FileState.OURS, found, shipped, owned.changes, said), None
    report = FileReport(*key, FileState.DRIFTED, found, shipped, owned.changes)
    detail = f"not what {disk.owner}, which has patched this checkout, says is there"
    return report, Finding(Kind.DRIFTED, *key, detail, sets_of(owned.changes))


def _unowned(
    key: FileKey, disk: Disk, catalogue: Catalogue, labels: dict[FileKey, tuple[str, ...]]
) -> Judged:
    difference = disk.differences.get(key)
    found = difference.found if difference else disk.digests.get(key)
    if found is None and difference is None:
        return None
    in_it: tuple[str, ...] = ()
    if found is not None:
        shipped = disk.pristine if difference and difference.kind == "changed" else _nothing
        in_it = byhand.labels_in(catalogue, disk.versions, key, found, shipped)
    if in_it:
        labels[key] = in_it
        return _by_hand(key, disk, found, in_it)
    if difference is None:
        return _not_as_published(key, found, disk)
    state = _STATES[difference.kind]
    known = fingerprints.known_as(*key, found)
    report = FileReport(*key, state, found, difference.expected, (), known)
    detail = leading(difference.leads_to) or _SAID.get(state, "")
    if state is FileState.ADDED and (source := _shadowed(key, disk)):
        detail += f", and Python loads it in place of {source}"
    detail = detail or _edited(key, difference, disk, catalogue, known)
    hint = DIFF if state is FileState.FOREIGN else ""
    return report, Finding(Kind(state.value), *key, detail, (), hint)


def _shadowed(key: FileKey, disk: Disk) -> str:
    """Name the source that Python passes over for the file; empty where there is none.

    An extension module comes before a source of its name, and a package before both.
    """
    target, path = key
    above, _, name = path.rpartition("/")
    stem, _, kind = name.partition(".")
    extension = is_extension(kind, disk.tag)
    sources = [f"{above}/{stem}.py"] if extension else []
    if stem == "__init__" and (extension or kind == "py"):
        sources.append(f"{above}.py")
    return next((s for s in sources if disk.present((target, s)) is not None), "")


def leading(directory: str) -> str:
    """Say what a directory is that leads elsewhere; empty for what leads nowhere."""
    looked = "only what upstream shipped was looked at below it"
    return f"it leads to the directory {directory}; {looked}" if directory else ""


def _nothing(_key: FileKey) -> None:
    return None


def _not_as_published(key: FileKey, found: str | None, disk: Disk) -> Judged:
    """Judge a file that RECORD agrees with: RECORD may have been rewritten along with it."""
    version = disk.versions[key[0]]
    if found is None or key[0] in disk.checkouts or key[0] in disk.unknown:
        return None
    known = fingerprints.recognise(*key, found)
    if known is not None and version in known.versions:
        return None
    if not fingerprints.published(*key, version):
        return None
    name = str(known) if known is not None else ""
    report = FileReport(*key, FileState.FOREIGN, found, None, (), name)
    detail = f"RECORD agrees, but this is not what was published as {version}"
    detail += f": it is {name}" if name else ""
    return report, Finding(Kind.RECORD, *key, detail)


def _by_hand(key: FileKey, disk: Disk, found: str | None, labels: tuple[str, ...]) -> Judged:
    difference = disk.differences.get(key)
    known = fingerprints.known_as(*key, found) or f"{' + '.join(labels)} applied by hand"
    if disk.ledger_lost:
        known = f"{' + '.join(labels)}; the ledger that would tell who applied it is lost"
    expected = difference.expected if difference else None
    sets = sets_of(labels)
    report = FileReport(*key, FileState.BY_HAND, found, expected, labels, known)
    if difference is None:
        detail = f"this is {known}, and RECORD or HEAD say that it was shipped so"
        return report, Finding(Kind.RECORD, *key, detail, sets)
    return report, Finding(Kind.BY_HAND, *key, f"{_digests(difference)}; this is {known}", sets)


def _edited(
    key: FileKey, difference: Difference, disk: Disk, catalogue: Catalogue, known: str
) -> str:
    detail = _digests(difference)
    if known:
        return f"{detail}; this is {known}"
    like = byhand.met(catalogue, disk.versions, key, disk.present)
    return f"{detail}; it meets what {' and '.join(like)} asks for, in other words" if like else (
        detail
    )  # fmt: skip


def _digests(difference: Difference) -> str:
    if difference.expected and difference.found:
        return f"sha256 {difference.found[:12]}, upstream {difference.expected[:12]}"
    return "differs from upstream"


# --- sets --------------------------------------------------------------------------------------


def by_hand_sets(
    found: Sequence[ByHand], *, lost: bool = False
) -> Iterator[tuple[SetReport, Finding]]:
    """Say which sets are there without a ledger that has them, and what is lacking.

    `lost`: there was a ledger, so they need not have been made by hand.
    """
    lacking = {entry.id for entry in found if not entry.complete}
    for entry in found:
        said, label = str(entry), "by-hand"
        names = entry.together or (entry.id,)
        hint = f"sm120patch adopt {' '.join(names)}"
        hint += " --complete" if lacking & set(names) else ""
        if lost:
            said = f"{entry.id} is on disk; the ledger that would tell who applied it is lost"
            label, hint = "ledger lost", LOST_LEDGER
        report = SetReport(
            entry.id, "by-hand", label, False, said, present=entry.present, lacking=entry.lacking
        )
        yield report, Finding(Kind.BY_HAND, "-", entry.id, said, (entry.id,), hint)


def ledger_sets(
    disk: Disk,
    history: History,
    catalogue: Catalogue,
    lookup: Callable[[str], Sequence[Evidence]],
    here: Here,
    busy: Mapping[str, str],
) -> Iterator[tuple[SetReport, list[Finding]]]:
    """Say in which state every set of the ledger is; `busy` maps a set to what is under way."""
    facts = {key: _fact(key, owned, disk) for key, owned in history.files.items()}
    book = EvidenceBook(lookup, here)
    anywhere = EvidenceBook(lookup, lambda _evidence: True)
    pairs: list[tuple[SetStatus, SetStatus]] = []
    for name in history.active:
        closure = members(catalogue, name, history)
        found = active_status(name, history, closure, facts, book, disk.versions, name in busy)
        other = active_status(name, history, closure, facts, anywhere, disk.versions, name in busy)
        if name in busy:
            found = found._replace(reason=busy[name])
        pairs.append((found, other))
    states = {found.id: found.state for found, _other in pairs}
    for found, other in pairs:
        report = _set_report(found, other.evidence, here)
        hint = _next_for(asked_for((found.id,), history, catalogue), states)
        if found.id not in catalogue.ids and hint:
            hint += " --extra-catalogue DIRECTORY_OF_THE_SET"
        findings = _set_findings(found, report, catalogue, history.active[found.id], hint)
        if found.state is State.LOST and _bare(found.id, history, catalogue):
            findings.append(Finding(Kind.LOST, "-", found.id, found.reason, (found.id,), hint))
        yield report, findings


def _bare(name: str, history: History, catalogue: Catalogue) -> bool:
    """Tell whether no file of the ledger, and so no finding about one, speaks for a set."""
    return name in members(catalogue, name, history) and not files_of(history, [name])


def _next_for(asked: Sequence[str], states: Mapping[str, State]) -> str:
    """Command for a set that is not verified: what brings it must be whole before that."""
    lost = [name for name in asked if states.get(name) is State.LOST]
    if lost:
        return f"sm120patch apply {' '.join(lost)}"
    if any(states.get(name) is State.DRIFTED for name in asked):
        return ""
    return f"sm120patch verify {' '.join(asked)}"


def _fact(key: FileKey, owned: OwnedFile, disk: Disk) -> DiskFact:
    difference, found = disk.differences.get(key), _held(key, disk)
    expected = difference.expected if difference else found
    if owned.pristine_sha256 == ABSENT:
        expected = None
    version = disk.versions.get(key[0])
    unreadable, obstacle = _unreadable(difference), disk.obstacles.get(key, "")
    return DiskFact(found, version, expected, unreadable=unreadable, obstacle=obstacle)


def _unreadable(difference: Difference | None) -> str:
    bad = difference is not None and difference.kind == "unreadable"
    return f"{difference.path}: {_SAID[FileState.UNREADABLE]}" if difference and bad else ""


def _set_report(status: SetStatus, evidence: Evidence | None, here: Here) -> SetReport:
    return SetReport(
        id=status.id,
        state=status.state.value,
        label=status.label,
        counts=status.counts,
        reason=status.reason,
        revision=status.revision,
        role=status.role,
        selected=status.selected,
        verification=None if evidence is None else _verification(evidence, here),
    )


def _verification(evidence: Evidence, here: Here) -> Verification:
    host = evidence.data.get("host")
    machine = host.get("machine_id") if isinstance(host, Mapping) else None
    return Verification(
        verdict=evidence.verdict,
        passed=evidence.passed,
        kind=evidence.kind,
        host=evidence.host,
        machine_id=machine if isinstance(machine, str) else None,
        here=here(evidence),
        at=evidence.at,
        event=evidence.id,
    )


def _set_findings(
    status: SetStatus, report: SetReport, catalogue: Catalogue, record: ActiveSet, hint: str
) -> list[Finding]:
    found = []
    name, sets = status.id, (status.id,)
    if status.state is State.STAGED:
        reason, verified = status.reason, report.verification
        if verified is not None and verified.passed and not verified.here:
            reason = f"{reason}; verified on another host ({verified.host[:12]}, {verified.at})"
        found.append(Finding(Kind.UNVERIFIED, "-", name, reason, sets, hint))
    elif status.state is State.APPLIED and not status.counts:
        kind = status.evidence.kind if status.evidence else "no"
        detail = f"only {kind} evidence on this host"
        found.append(Finding(Kind.UNVERIFIED, "-", name, detail, sets, hint))
    elif status.state is State.INTERRUPTED:
        found.append(Finding(Kind.INTERRUPTED, "-", name, status.reason, sets))
    elif status.state is State.UNKNOWN:
        found.append(Finding(Kind.UNKNOWN, "-", name, status.reason, sets))
    if reason := changed_payload(catalogue, record):
        hint = f"sm120patch apply {name}"
        found.append(Finding(Kind.CHANGED_PAYLOAD, "-", name, reason, sets, hint))
    return found


def gone(disk: Disk, history: History) -> Iterator[Finding]:
    """Targets of the ledger that are not installed any more."""
    for target in sorted({t for t, _path in history.files} - set(disk.versions)):
        yield Finding(Kind.LOST, target, "-", "patched once, not installed any more")
