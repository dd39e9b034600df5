"""Decide the state of every set from the ledger, the disk and the evidence. Pure.

Order of precedence: interrupted > lost > drifted > upstream > not-applicable > what the ledger
says; where a package holds some of our contents still, or foreign ones, it was not lost as a whole:
that is drifted. A set counts as applied only through evidence for exactly the content on disk, on
this host.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sm120patch.catalogue import Catalogue
from sm120patch.evidence import Evidence
from sm120patch.model import ABSENT, EvidenceKind, Obstacle, State
from sm120patch.plan import ActiveSet, FileKey, History, OwnedFile, sets_of

UNDECIDED = ("inconclusive", "unconfirmed")
"""Verdicts that neither give nor take anything."""
OBSTACLES = {
    Obstacle.SYMLINK: "a symbolic link stands in its place",
    Obstacle.NOT_REGULAR: "something that is no regular file stands in its place",
    Obstacle.MISSING: "is missing",
    Obstacle.OUTSIDE: "lies outside the package",
    Obstacle.UNREADABLE: "cannot be read",
}
"""What stands in place of a file, in words."""
LOADED_INSTEAD = "Python loads {} in its place"
IN_PLACE = (Obstacle.SYMLINK, Obstacle.NOT_REGULAR)
"""Something else is there."""


class DiskFact(NamedTuple):
    """What was found where the ledger expects one of our files."""

    sha256: str | None
    version: str | None
    pristine_sha256: str | None
    known_as: str = ""
    """What a content that is not the ledger's is known as, in words."""
    unreadable: str = ""
    """Why the file cannot be read, where it is there."""
    obstacle: str = ""
    """What stands in its place, in words; what is read through that does not count."""


class SetStatus(NamedTuple):
    """State of one set, with the reason and the evidence behind it."""

    id: str
    state: State
    reason: str = ""
    role: str = ""
    revision: int = 0
    selected: tuple[str, ...] = ()
    evidence: Evidence | None = None

    @property
    def label(self) -> str:
        """State for people: evidence that is not real is always named with it."""
        if self.state is State.APPLIED and self.evidence is not None:
            kind = self.evidence.kind
            return "applied" if kind == EvidenceKind.REAL.value else f"applied ({kind})"
        return self.state.value

    @property
    def counts(self) -> bool:
        """True only for a set that is applied with real evidence: audit and metrics count these."""
        return (
            self.state is State.APPLIED
            and self.evidence is not None
            and self.evidence.kind == EvidenceKind.REAL.value
        )


def members(catalogue: Catalogue, name: str, history: History) -> tuple[str, ...]:
    """Sets that change files and make up a set of the ledger, itself among them.

    What a set bundles cannot be told without its manifest: then all that is on disk answers for it.
    """
    if name not in catalogue.ids:
        return sets_of(change for f in history.files.values() for change in f.changes)
    return tuple(n for n in catalogue.closure([name]) if catalogue.get(n).changes)


def files_of(history: History, closure: Sequence[str]) -> list[OwnedFile]:
    """Files that any set of the closure shaped."""
    prefixes = tuple(f"{name}/" for name in closure)
    return [f for f in history.files.values() if any(c.startswith(prefixes) for c in f.changes)]


def disk_state(owned: OwnedFile, fact: DiskFact) -> tuple[State | None, str]:
    """Compare one of our files with the disk: (None, "") when it holds what was written."""
    if fact.version is None:
        return State.LOST, f"{owned.target} is not installed any more"
    if fact.version != owned.version:
        return State.LOST, f"{owned.target} is now {fact.version}, was {owned.version}"
    if fact.unreadable:
        return State.UNKNOWN, fact.unreadable
    if fact.obstacle:
        return State.DRIFTED, f"{owned.path}: {fact.obstacle}"
    if fact.sha256 == owned.current_sha256:
        return None, ""
    if fact.sha256 is not None and fact.sha256 == fact.pristine_sha256:
        return State.LOST, f"{owned.path} holds upstream's content again (reinstalled?)"
    if fact.sha256 is None and owned.pristine_sha256 == ABSENT:
        return State.LOST, f"{owned.path}, which was added, is gone"
    if fact.sha256 is None:
        return State.DRIFTED, f"{owned.path} is missing"
    known = f"; this is {fact.known_as}" if fact.known_as else ""
    return State.DRIFTED, f"{owned.path} was edited by something else{known}"


def _combined(
    owned: Sequence[OwnedFile], facts: Mapping[FileKey, DiskFact]
) -> tuple[State | None, str]:
    findings = [(f.target, *disk_state(f, facts[f.target, f.path])) for f in owned]
    bad = {target for target, state, _reason in findings if state is not None}
    if not bad:
        return None, ""
    reasons = "; ".join(dict.fromkeys(r for _target, state, r in findings if state is not None))
    # An installer replaces whole packages; what it leaves of the others is still ours.
    if all(state is State.LOST for target, state, _ in findings if target in bad):
        return State.LOST, reasons
    states = {state for _target, state, _reason in findings}
    unknown = State.UNKNOWN in states and State.DRIFTED not in states
    return State.UNKNOWN if unknown else State.DRIFTED, reasons


class EvidenceBook:
    """Answers what verifications say about a content on this host.

    `lookup` returns the evidence for a content digest, newest first; `here` tells whether it was
    gathered on this host as it is now.
    """

    def __init__(
        self, lookup: Callable[[str], Sequence[Evidence]], here: Callable[[Evidence], bool]
    ) -> None:
        self._lookup = lookup
        self._here = here

    def decisive(self, set_id: str, content: str) -> Evidence | None:
        """Newest conclusive evidence for that set in that content; real beats any other kind.

        A set that was on disk in both arms of a passed verification rests on its own evidence
        for the baseline's content.
        """
        seen: set[str] = set()
        link: str | None = None
        while content not in seen:
            seen.add(content)
            # What was compared with itself says nothing.
            entries = [
                e
                for e in self._lookup(content)
                if e.verdict not in UNDECIDED and e.baseline_digest != content and self._here(e)
            ]
            own = [e for e in entries if set_id in e.sets]
            if own:
                real = [e for e in own if e.kind == EvidenceKind.REAL.value]
                found = (real or own)[0]
                return found._replace(kind=link) if link is not None else found
            below = [e for e in entries if e.passed and set_id in e.baseline_sets]
            if not below:
                return None
            real = [e for e in below if e.kind == EvidenceKind.REAL.value]
            if not real:
                link = below[0].kind  # A chain is worth no more than its weakest link.
            content = (real or below)[0].baseline_digest
        return None


def _intact(history: History, facts: Mapping[FileKey, DiskFact]) -> bool:
    """Evidence is for the whole content: one foreign file anywhere makes it another one."""
    return all(disk_state(f, facts[f.target, f.path])[0] is None for f in history.files.values())


def active_status(
    set_id: str,
    history: History,
    closure: Sequence[str],
    facts: Mapping[FileKey, DiskFact],
    book: EvidenceBook,
    versions: Mapping[str, str],
    interrupted: bool,
) -> SetStatus:
    """State of a set that the ledger says is on disk; `closure` is that of `members`."""
    record = history.active[set_id]
    owned = files_of(history, closure)
    bare = [n for n in closure if n in history.active and not files_of(history, [n])]
    state, reason = _combined(owned, facts)
    evidence = None
    if interrupted:
        state, reason = State.INTERRUPTED, "a change is under way, or was interrupted"
    elif not owned or (state is None and bare):
        state, reason = State.LOST, f"nothing of {', '.join(bare) or set_id} is on disk"
    elif state is None and not _intact(history, facts):
        state, reason = State.STAGED, "not verified together with what else is on disk now"
    elif state is None:
        evidence = book.decisive(set_id, history.content(versions))
        if evidence is not None and evidence.passed:
            state, reason = State.APPLIED, f"verified: {evidence.verdict}"
        elif evidence is not None:
            state, reason = State.STAGED, f"not verified: last verdict {evidence.verdict}"
        else:
            state, reason = State.STAGED, "not verified: does not count as applied"
    return SetStatus(
        set_id, state, reason, record.role.value, record.revision, record.selected, evidence
    )


def changed_payload(catalogue: Catalogue, record: ActiveSet) -> str:
    """Say that a set is no longer what was applied; empty when it is, or is not known here."""
    known = catalogue.sets.get(record.id)
    if known is None or known.digest == record.digest:
        return ""
    revision = f"revision {record.revision} -> {known.revision}"
    if known.revision == record.revision:
        revision = f"still revision {known.revision}"
    return f"its payloads changed in the catalogue since it was applied ({revision})"
