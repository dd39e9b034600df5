"""`diff`: what differs from the content that should be there, line by line.

Reads disk, and writes the stat cache of the audit. The content that should be there is what the
ledger says was written, and without a ledger what upstream shipped; bytes count only with the
digest that ledger, RECORD or HEAD name.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sm120patch import fingerprints
from sm120patch.audit import judging
from sm120patch.audit.findings import FileReport, FileState, Kind
from sm120patch.audit.tree import Tree
from sm120patch.claims import claimed_files
from sm120patch.environment import take_snapshot
from sm120patch.errors import HostError, UsageError
from sm120patch.model import (
    ABSENT,
    FileSnapshot,
    Obstacle,
    Snapshot,
    TargetSnapshot,
    sha256_hex,
)
from sm120patch.operations import auditing
from sm120patch.operations.site import Site
from sm120patch.operations.sources import Sources
from sm120patch.plaintext import clean
from sm120patch.plan import FileKey, OwnedFile
from sm120patch.state import OBSTACLES
from sm120patch.unified import make_diff, quoted

_UNOBTAINABLE = "upstream's content cannot be had"
MAX_SHOWN = 4 << 20
"""Bytes of a file that is still shown line by line."""


@dataclass(frozen=True)
class Edit:
    """One file that does not hold what should be there."""

    target: str
    path: str
    ours: bool
    """It is a change of sets, as the ledger has it, or that of another environment."""
    detail: str
    """What was found, in words."""
    base: str = ""
    """What the diff starts from: `upstream` or `ledger`; empty without a diff."""
    source: str = ""
    """Where the bytes of the base come from."""
    diff: str = ""
    problem: str = ""
    """Why there is no diff."""

    @property
    def unobtainable(self) -> bool:
        """What upstream shipped is known, but nothing at hand holds it."""
        return self.problem.startswith(_UNOBTAINABLE)


@dataclass(frozen=True)
class Differences:
    """Answer of `diff`."""

    edits: tuple[Edit, ...]
    unknown: tuple[str, ...]
    """What could not be told, in words: without edits, this is not a clean answer either."""


def differences(
    site: Site,
    names: Sequence[str],
    sources: Sources,
    progress: Callable[[str], None],
    *,
    everything: bool,
) -> Differences:
    """Return every file that holds neither upstream's content nor ours, in order of the paths.

    `names` restricts it to some files, then the only ones that are read, or folders; `everything`
    adds what our own sets have changed. Raises UsageError for a name that is in no package, or
    that nothing knows: neither the disk nor RECORD, HEAD or the ledger.
    """
    places = [_place(site, name) for name in names]
    folders = [place for place in places if not _is_one(site, place)]
    wanted: dict[str, set[str]] = {}
    unknown: tuple[str, ...] = ()
    if folders or not places:
        found, unknown = _audited(site, progress)
        for place in folders:
            unknown += _not_there(site, place, found, unknown)
        for file in found:
            inside = any(_inside(file, place) for place in folders) or not folders
            if inside and (everything or file.state is not FileState.OURS):
                wanted.setdefault(file.target, set()).add(file.path)
    for target, path in places:
        if (target, path) not in folders:
            wanted.setdefault(target, set()).add(path)
    snapshot = take_snapshot(site.environment, wanted, site.store.get, tolerant=True)
    edits = _edits(site, snapshot, sources)
    return Differences(tuple(edit for edit in edits if everything or not edit.ours), unknown)


def _edits(site: Site, snapshot: Snapshot, sources: Sources) -> Iterator[Edit]:
    """Judge every file that was read; who else answers for it has the last word."""
    history, claimed = site.history(), claimed_files(site.environment)
    gone = () if site.state.ledger.exists() else site.store.digests()
    for target, installed in sorted(snapshot.targets.items()):
        for path, file in sorted(installed.files.items()):
            owned = history.files.get((target, path))
            known = owned if owned and owned.version == installed.version else None
            edit = _edit(site, installed, file, known, sources)
            sha256, owner = claimed.get((target, path), (None, ""))
            if edit is not None and sha256 == file.sha256:
                yield replace(edit, ours=True, detail=f"patched from {owner}")
            elif edit is not None and file.sha256 in gone:
                yield replace(edit, detail="the ledger that would tell of it is gone")
            elif edit is not None:
                yield edit


def _place(site: Site, name: str) -> FileKey:
    """Target, and path below its import root, of what a person names; links are not followed."""
    for target, found in site.environment.installations.items():
        for spelled in (Path(name).absolute(), found.root / name):
            path = os.path.relpath(spelled, found.root)  # takes `..` out
            if path == found.package or path.startswith(f"{found.package}/"):
                return target, path
    known = " or ".join(f"{i.package}/" for i in site.environment.installations.values())
    raise UsageError(
        f"{name!r} is no file of a package that is patched here",
        hint=f"name a file below {known or 'a package'}, as `sm120patch audit` does",
    )


def _is_one(site: Site, key: FileKey) -> bool:
    """Tell whether a single file, or what stands in its place, is there to be read alone."""
    place = site.environment.installations[key[0]].root / key[1]
    return os.path.lexists(place) and not place.is_dir()


def _inside(file: FileReport, key: FileKey) -> bool:
    return file.target == key[0] and f"{file.path}/".startswith(f"{key[1]}/")


def _not_there(
    site: Site, key: FileKey, found: Sequence[FileReport], unknown: Sequence[str]
) -> tuple[str, ...]:
    """Say what cannot be told of a place that is named; raises UsageError where nothing knows it.

    What RECORD, HEAD or the ledger know and is gone is among what the audit `found`.
    """
    place = site.environment.installations[key[0]].root / key[1]
    if place.exists() or any(_inside(file, key) for file in found):
        return ()
    if unknown:
        return (f"{key[1]}: it is not there, and whether it should be cannot be told",)
    raise UsageError(
        f"{str(place)!r} is not there, and neither upstream's files nor the ledger have it",
        hint="look at the spelling; `sm120patch diff` without FILE looks at every file",
    )


def _audited(
    site: Site, progress: Callable[[str], None]
) -> tuple[list[FileReport], tuple[str, ...]]:
    """Files that an audit finds to be not simply upstream's, and what it could not tell."""
    scope = auditing.Scope(env=str(site.environment.prefix))
    report = auditing.audit(scope, site.catalogue, progress)
    files = [file for environment in report.environments for file in environment.files]
    unknown = (f for _environment, f in report.all_findings if f.kind is Kind.UNKNOWN)
    return files, tuple(f.detail if f.path == "-" else f"{f.path}: {f.detail}" for f in unknown)


def _edit(
    site: Site,
    installed: TargetSnapshot,
    file: FileSnapshot,
    owned: OwnedFile | None,
    sources: Sources,
) -> Edit | None:
    """Compare one file with what should be there; None when that is what it holds."""
    target, ours = installed.target, False
    current = owned.current_sha256 if owned is not None else None
    if file.obstacle is not None and (file.obstacle, file.pristine_sha256) != _NOT_THERE:
        why, known_here = _behind_link(installed, file)
        if known_here is not None and known_here in (file.pristine_sha256, current):
            return None  # as the audit has it
        why = why or file.why or OBSTACLES[file.obstacle]
        return Edit(target, file.path, False, why, problem="there is no content to compare")
    if owned is not None:
        ours = file.sha256 == owned.current_sha256
        written = None if ours else site.store.get(owned.current_sha256)
        if written is not None:
            detail = "edited by something else since it was patched"
            known = fingerprints.known_as(target, file.path, file.sha256)
            detail += f"; this is {known}" if known else ""
            whole = Edit(target, file.path, False, detail, "ledger", "the store of the ledger")
            return _shown(whole, written, file.data)
    if file.sha256 == file.pristine_sha256:
        return None
    return _against_upstream(installed, file, sources, owned, ours=ours)


def _behind_link(installed: TargetSnapshot, file: FileSnapshot) -> tuple[str, str | None]:
    """Say which link lies on the way to a file, and the sha256 of what is read through it."""
    if file.obstacle is not Obstacle.SYMLINK:
        return "", None
    place, *below = (Path(installed.root, part) for part in _steps(file.path))
    while not place.is_symlink():
        place, *below = below
    real, whole = os.path.realpath(place), Path(installed.root, file.path)
    if below:
        said = f"it lies behind the link {place.relative_to(installed.root)}, which leads to {real}"
    else:
        said = judging.leading(real) if place.is_dir() else ""
    data = Tree().read(str(whole))
    return said, None if data is None else sha256_hex(data)


def _steps(path: str) -> list[str]:
    """`a`, `a/b`, `a/b/c` for the last."""
    return list(itertools.accumulate(path.split("/"), "{}/{}".format))


_NOT_THERE = (Obstacle.MISSING, ABSENT)


def _against_upstream(
    installed: TargetSnapshot,
    file: FileSnapshot,
    sources: Sources,
    owned: OwnedFile | None,
    *,
    ours: bool,
) -> Edit:
    detail = fingerprints.edit_words(installed.target, file.path, file.sha256)
    if owned is not None:
        detail = " + ".join(owned.changes) if ours else "edited by something else"
    edit = Edit(installed.target, file.path, ours, detail)
    if file.pristine_sha256 == ABSENT:
        added = edit if ours else replace(edit, detail="upstream did not ship it")
        shown = _shown(replace(added, base="upstream", source="-"), b"", file.data)
        # So taking the diff back removes the file.
        names, line, rest = shown.diff.partition("\n+++ ")
        return replace(shown, diff=f"--- /dev/null{line}{rest}" if names else "")
    if file.pristine_sha256 is None:
        why = installed.why_unknown
        return replace(edit, problem=f"nobody knows what upstream shipped: {why}")
    if file.pristine is not None:
        checkout = installed.kind == "editable"
        place = installed.pristine_origin if checkout else "the store of the ledger"
        return _shown(replace(edit, base="upstream", source=place), file.pristine, file.data)
    try:
        looked = sources.look(installed.target, installed.version, file.path, file.pristine_sha256)
    except HostError as error:
        return replace(edit, problem=f"{_UNOBTAINABLE}: {error.message}")
    if looked is None:
        digest = f"sha256 {file.pristine_sha256[:12]}"
        why = f"no package at hand holds what RECORD names ({digest})"
        return replace(edit, problem=f"{_UNOBTAINABLE}: {why}")
    data, place = looked
    return _shown(replace(edit, base="upstream", source=place), data, file.data)


def _shown(edit: Edit, before: bytes, after: bytes) -> Edit:
    if b"\0" in before or b"\0" in after:
        return replace(edit, base="", source="", problem="it is no text")
    if max(len(before), len(after)) > MAX_SHOWN:
        return replace(edit, base="", source="", problem=f"it has {len(after)} bytes")
    return replace(edit, diff=make_diff(edit.path, before, after))


def edit_dict(edit: Edit) -> dict[str, object]:
    """JSON-ready form."""
    return dict(vars(edit))


def edits_text(found: Sequence[Edit]) -> str:
    """Return diffs that `git apply -R` and `patch -R` take, each below a comment of what it is.

    They are the bytes of the files only when encoded as UTF-8 with `surrogateescape`. Comments are
    printable and one line each, whatever files are called.
    """
    parts = []
    for edit in found:
        base = "what the ledger wrote" if edit.base == "ledger" else "upstream's content"
        where = "" if edit.source in ("", "-") else f" ({base} from {edit.source})"
        parts.append(_comment(f"{quoted(edit.path)}: {edit.detail}{where}"))
        if edit.problem:
            parts.append(_comment(f"no diff: {edit.problem}"))
        if edit.diff:
            parts.append(edit.diff.rstrip("\n"))
    return "\n".join(parts)


def _comment(text: str) -> str:
    return f"# {clean(text, keep='')}"
