"""Examine one environment: what it imports, how that differs, what ledger and catalogue say.

Reads disk; writes the stat cache only.
"""

import contextlib
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sm120patch import exchange
from sm120patch.audit import byhand, gittree, judging, ledgers
from sm120patch.audit.compare import Comparison, Means, begin
from sm120patch.audit.findings import (
    EnvironmentReport,
    FileReport,
    Finding,
    Kind,
    PackageReport,
    SetReport,
)
from sm120patch.audit.judging import Disk, Here
from sm120patch.audit.layout import Copy, Layout, read_layout
from sm120patch.audit.ledgers import Kept
from sm120patch.audit.places import Place
from sm120patch.catalogue import Catalogue
from sm120patch.errors import HostError
from sm120patch.evidence import Evidence
from sm120patch.journal import busy_sets
from sm120patch.model import Obstacle
from sm120patch.plan import FileKey, OwnedFile
from sm120patch.shadowing import loaded_instead
from sm120patch.state import LOADED_INSTEAD, OBSTACLES

if TYPE_CHECKING:
    from sm120patch.published import Shelf


class Knowledge(NamedTuple):
    """What environments are held against."""

    catalogue: Catalogue
    here: Here
    shelf: "Callable[[], Shelf]"
    """Gives the published packages that are on this host already."""


class Examined(NamedTuple):
    """An environment's report, and what further looks at it need."""

    report: EnvironmentReport
    layout: Layout
    comparisons: Mapping[str, Comparison]
    changed_at: str = ""
    """When the ledger last recorded a change; ISO 8601, empty without one."""


_LOOKS = 3
"""How often an environment is looked at that changes meanwhile."""


def examine(means: Means, place: Place, knowledge: Knowledge) -> Examined:
    """Examine the environment at `place`; again when a change was committed meanwhile.

    The files would be of after it and the ledger of before. What never comes to rest is `unknown`.
    """
    before = ledgers.moment(means.tree, place.prefix)
    for _ in range(_LOOKS):
        found = _examined(means, place, knowledge)
        after = ledgers.moment(means.tree, place.prefix)
        if after == before:
            return found
        before = after
    detail = "it was changed again and again while it was looked at: audit it once more"
    unknown = Finding(Kind.UNKNOWN, "-", "-", detail)
    return found._replace(report=with_findings(found, [unknown]))


def _examined(means: Means, place: Place, knowledge: Knowledge) -> Examined:
    with ledgers.opened(means.tree, place.prefix) as kept:
        written = {target: file.root for (target, _), file in kept.history.files.items()}
        layout = read_layout(means.tree, place, written)
        if not layout.copies and not layout.problems and not kept.history.files:
            found = _problems(layout, {}, kept)
            return Examined(_report(place, kept, (), [], found), layout, {})
        asked = _asked(layout, kept, knowledge.catalogue)
        begun = [(c.target, begin(means, c, asked.get(c.target, ()))) for c in layout.copies]
        comparisons = {target: compared() for target, compared in begun}
        kept = ledgers.caught_up(means.tree, place.prefix, kept)
        disk = _disk(means, place, layout, comparisons, knowledge, kept)
        files, findings, by_hand = judging.judge_files(disk, kept.history, knowledge.catalogue)
        findings += _problems(layout, comparisons, kept)
        findings += judging.gone(disk, kept.history)
        sets: list[SetReport] = []
        damage: list[str] = []
        busy = _busy(kept, knowledge.catalogue)
        evidence = _evidence(kept, damage)
        for report, found in judging.ledger_sets(
            disk, kept.history, knowledge.catalogue, evidence, knowledge.here, busy
        ):
            sets.append(report)
            findings += found
        for report, finding in judging.by_hand_sets(by_hand, lost=disk.ledger_lost):
            sets.append(report)
            # What an open change has written is in no ledger yet: settle it first.
            busy_now = kept.holder or kept.journal is not None
            findings.append(finding._replace(hint="") if busy_now else finding)
        packages = tuple(_package(c, comparisons[c.target], files) for c in layout.copies)
        changed = _changed_at(kept, damage)
        findings += [
            Finding(Kind.UNKNOWN, "-", "-", said, (), judging.LOST_LEDGER) for said in damage
        ]
        environment = _report(place, kept, packages, sets, findings)
    return Examined(environment, layout, comparisons, changed)


def _evidence(kept: Kept, damage: list[str]) -> Callable[[str], Sequence[Evidence]]:
    def lookup(content: str) -> Sequence[Evidence]:
        return ledgers.read_on(kept, damage, lambda ledger: ledger.evidence(content))

    return lookup


def with_findings(examined: Examined, more: list[Finding]) -> EnvironmentReport:
    """Return the report with further findings, in the order of all reports."""
    found = (*examined.report.findings, *more)
    return examined.report._replace(findings=ordered(found))


def ordered(findings: tuple[Finding, ...] | list[Finding]) -> tuple[Finding, ...]:
    """Sort findings, each once."""
    unique = dict.fromkeys(findings)
    return tuple(sorted(unique, key=lambda f: (f.kind.value, f.target, f.path, f.detail)))


def _report(
    place: Place,
    kept: Kept,
    packages: tuple[PackageReport, ...],
    sets: list[SetReport],
    findings: list[Finding],
) -> EnvironmentReport:
    return EnvironmentReport(
        prefix=place.prefix,
        kind=place.kind,
        python=place.python,
        names=place.names,
        packages=packages,
        sets=tuple(sorted(sets, key=lambda s: s.id)),
        findings=ordered(findings),
        ledger=kept.ledger is not None,
    )


def _asked(layout: Layout, kept: Kept, catalogue: Catalogue) -> dict[str, set[str]]:
    versions = {c.target: c.version for c in layout.copies}
    asked = byhand.paths_of(catalogue, versions)
    for target, path in kept.history.files:
        asked.setdefault(target, set()).add(path)
    return asked


def _disk(
    means: Means,
    place: Place,
    layout: Layout,
    comparisons: Mapping[str, Comparison],
    knowledge: Knowledge,
    kept: Kept,
) -> Disk:
    copies = {c.target: c for c in layout.copies}
    tag = f"cpython-{place.python.replace('.', '')}" if place.python else ""
    owner, elsewhere = _elsewhere(means, place, comparisons)
    # What a change that is under way keeps beside its files is told as that change.
    passing = (
        set() if kept.journal is None else exchange.passing(kept.journal.files, kept.journal.tx)
    )
    differences = {
        (target, d.path): d
        for target, found in comparisons.items()
        for d in found.differences
        if (target, d.path) not in passing
    }

    def present(key: FileKey) -> bytes | None:
        return means.tree.read(f"{copies[key[0]].root}/{key[1]}")

    def pristine(key: FileKey) -> bytes | None:
        return _pristine(means, copies[key[0]], comparisons[key[0]], key[1], knowledge, kept)

    return Disk(
        versions={c.target: c.version for c in layout.copies},
        differences=differences,
        digests={(t, path): s for t, c in comparisons.items() for path, s in c.digests.items()},
        present=present,
        pristine=pristine,
        checkouts=frozenset(c.target for c in layout.copies if c.kind == "editable"),
        unknown=frozenset(t for t, found in comparisons.items() if not found.compared),
        elsewhere=elsewhere,
        owner=owner,
        changing=_changing(kept),
        obstacles=dict(_obstacles(means, copies, kept, tag)),
        tag=tag,
        ledger_lost=_is_lost(kept, comparisons),
    )


def _obstacles(
    means: Means, copies: Mapping[str, Copy], kept: Kept, tag: str
) -> Iterator[tuple[FileKey, str]]:
    """Find what stands in place of files of the ledger, or is loaded in place of them.

    A link counts wherever it leads.
    """
    for target, path in kept.history.files:
        place = f"{copies[target].root}/{path}" if target in copies else ""
        status = means.tree.status(place) if place else None
        if status is None:
            continue
        straight = f"{means.tree.real(copies[target].root).rstrip('/')}/{path}"
        if means.tree.real(place) != straight:
            yield (target, path), OBSTACLES[Obstacle.SYMLINK]
        elif not stat.S_ISREG(status.st_mode):
            yield (target, path), OBSTACLES[Obstacle.NOT_REGULAR]
        elif other := loaded_instead(_lister(means, copies[target].root), path, tag):
            yield (target, path), LOADED_INSTEAD.format(other)


def _lister(means: Means, root: str) -> Callable[[str], list[str]]:
    return lambda directory: means.tree.names(f"{root}/{directory}")


def _is_lost(kept: Kept, comparisons: Mapping[str, Comparison]) -> bool:
    """Tell whether a ledger is damaged, or gone while contents that it spoke of are left."""
    if kept.damaged:
        return True
    if kept.ledger is not None or kept.journal is not None or kept.problem or kept.store is None:
        return False
    stored = kept.store.digests()
    return any(d.found in stored for c in comparisons.values() for d in c.differences)


def _changing(kept: Kept) -> dict[FileKey, frozenset[str]]:
    """Both contents of every file of the open journal: neither is anybody else's."""
    files = () if kept.journal is None else kept.journal.files
    return {(f.target, f.path): frozenset((f.a_sha256, f.b_sha256)) for f in files}


def _pristine(
    means: Means, copy: Copy, found: Comparison, path: str, knowledge: Knowledge, kept: Kept
) -> bytes | None:
    """Upstream's bytes of a file, from where they can be had without a download."""
    if found.commit is not None:
        blob = found.commit.blobs.get(path)
        return None if blob is None else gittree.read_blob(means.tree, found.commit, blob)
    expected = next((d.expected for d in found.differences if d.path == path), None)
    if expected is not None and kept.store is not None:
        data = kept.store.get(expected)
        if data is not None:
            return data
    shelf = knowledge.shelf()
    if shelf.find(copy.target, copy.version) is None:
        return None
    with contextlib.suppress(HostError):
        return shelf.get(copy.target, copy.version).read([path]).get(path)
    return None


def _elsewhere(
    means: Means, place: Place, comparisons: Mapping[str, Comparison]
) -> tuple[str, dict[FileKey, OwnedFile]]:
    """Files of shared checkouts that the ledger of another environment answers for."""
    owner, found = "", {}
    for target, comparison in comparisons.items():
        commit = comparison.commit
        other = commit and ledgers.claimant(means.tree, commit.git_dir, place.prefix)
        if not other:
            continue
        owner = other
        with ledgers.opened(means.tree, other) as kept:
            found.update({k: f for k, f in kept.history.files.items() if k[0] == target})
    return owner, found


def _problems(layout: Layout, comparisons: Mapping[str, Comparison], kept: Kept) -> list[Finding]:
    found = [Finding(Kind.UNKNOWN, target, "-", reason) for target, reason in layout.problems]
    for copy in layout.copies:
        for other in copy.others:
            detail = f"a second copy; {copy.root} is imported"
            found.append(Finding(Kind.COPIES, copy.target, other, detail))
        for metadata in copy.other_metadata:
            detail = "metadata of a second version"
            found.append(Finding(Kind.COPIES, copy.target, metadata, detail))
        comparison = comparisons.get(copy.target)
        for problem in comparison.problems if comparison else ():
            path = copy.record or "-"
            found.append(Finding(Kind.UNKNOWN, copy.target, path, problem))
    if kept.problem:
        hint = "sm120patch recover" if "journal" in kept.problem else ""
        hint = judging.LOST_LEDGER if kept.damaged else hint
        found.append(Finding(Kind.UNKNOWN, "-", "-", kept.problem, (), hint))
    if kept.holder:
        detail = f"a change is under way: {kept.holder}"
        found.append(Finding(Kind.INTERRUPTED, "-", "-", detail))
    elif kept.journal is not None:
        detail = f"{kept.journal.command!r} was interrupted"
        found.append(Finding(Kind.INTERRUPTED, "-", "-", detail, (), "sm120patch recover"))
    return found


def _busy(kept: Kept, catalogue: Catalogue) -> dict[str, str]:
    doing = "a change is under way" if kept.holder else "a change was interrupted"
    return dict.fromkeys(busy_sets(catalogue, kept.history, kept.journal), doing)


def _package(copy: Copy, found: Comparison, files: list[FileReport]) -> PackageReport:
    return PackageReport(
        target=copy.target,
        version=copy.version,
        kind=copy.kind,
        root=copy.root,
        origin=found.origin,
        compared=found.compared,
        bytes=found.bytes,
        files=tuple(f for f in files if f.target == copy.target),
    )


def _changed_at(kept: Kept, damage: list[str]) -> str:
    """When the newest event that changed files took effect."""
    events = ledgers.read_on(kept, damage, lambda ledger: ledger.events(200))
    return next((e.at for e in events if e.data.get("files")), "")
