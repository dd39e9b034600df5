"""`plan --against`: what becomes of sets when their packages are upgraded.

Reads disk, and writes the wheel cache only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from sm120patch import versions
from sm120patch.catalogue import Catalogue
from sm120patch.contents import Edits
from sm120patch.errors import HostError, UsageError
from sm120patch.model import (
    IMPORT_NAMES,
    Snapshot,
    TargetSnapshot,
    sha256_hex,
)
from sm120patch.operations.releases import LEADING, SetResult, examine
from sm120patch.packages import Package, target_snapshot
from sm120patch.plan import (
    History,
    Launch,
    Outcome,
    Plan,
)
from sm120patch.planner import Request, make_plan, wanted_files
from sm120patch.policy import merge_launches
from sm120patch.published import Shelf

TOGETHER = "together: "
"""Begins the notes about sets that fit one by one and not together."""


@dataclass(frozen=True)
class Drift:
    """One change (or, with an empty change, its set) now and after an upgrade."""

    set_id: str
    change_id: str
    now: str
    then: str
    reason: str
    """Why it is so then."""
    path: str | None = None
    moved_from: str | None = None
    """The file that it edits now, when that is another one."""

    @property
    def drifts(self) -> bool:
        """True when the upgrade changes anything about it."""
        return self.now != self.then or self.moved_from is not None


@dataclass(frozen=True)
class Outlook:
    """What becomes of sets after an upgrade."""

    now: Mapping[str, str]
    then: Mapping[str, str]
    sets: tuple[SetResult, ...]
    drifts: tuple[Drift, ...]
    """Every set and change, drifting or not, in order."""
    launch: tuple[Launch, Launch]
    """What the server must be started with, now and then."""
    notes: tuple[str, ...] = ()

    @property
    def loses(self) -> bool:
        """True when a set does not fit any more, or not together with the others."""
        worse = any(
            drift.then == Outcome.REFUSED.value
            or (drift.drifts and drift.then == Outcome.NOT_APPLICABLE.value)
            for drift in self.drifts
            if not drift.change_id
        )
        return worse or any(note.startswith(TOGETHER) for note in self.notes)


def named_packages(texts: Iterable[str], shelf: Shelf) -> dict[str, Package]:
    """Open what `--against` names: a file, `NAME==VERSION`, or a version of SGLang.

    Raises UsageError when two name one target, HostError when one cannot be had.
    """
    packages: dict[str, Package] = {}
    for text in filter(None, (p.strip() for t in texts for p in t.split(","))):
        package = shelf.resolve(text, LEADING)
        if package.name in packages:
            raise UsageError(f"--against names two versions of {package.name}")
        packages[package.name] = package
    return packages


def selection(
    catalogue: Catalogue, sets: Iterable[str], labels: Iterable[str], history: History
) -> dict[str, tuple[str, ...]]:
    """Return set -> optional changes: those named (`CHANGE`, `SET/CHANGE`), else those on disk."""
    chosen: dict[str, set[str]] = {name: set() for name in sets}
    for label in labels:
        set_id, _, change_id = label.rpartition("/")
        owners = [
            name
            for name in catalogue.closure(chosen)
            if set_id in ("", name)
            and any(c.id == change_id and c.optional for c in catalogue.get(name).changes)
        ]
        if not owners:
            raise UsageError(f"no optional change {label!r}: {catalogue.optional(chosen)}")
        for name in owners:
            chosen.setdefault(name, set()).add(change_id)
    for name in catalogue.closure(chosen):
        record = history.active.get(name)
        picked = chosen.setdefault(name, set())
        if record is not None and not picked:
            picked.update(record.selected)
    return {name: tuple(sorted(chosen[name])) for name in catalogue.closure(chosen)}


def against(
    catalogue: Catalogue,
    present: Callable[[Mapping[str, set[str]]], Snapshot],
    installed: Mapping[str, str],
    packages: Mapping[str, Package],
    selected: Mapping[str, tuple[str, ...]],
    shelf: Shelf,
) -> Outlook:
    """Compare what sets (set -> optional changes selected) do now with what they would do then.

    `present` reads the wanted files of the environment. Targets that are not named come as pip
    would bring them: as the new SGLang pins them, or as they are. Nothing is written.
    """
    packages, notes = _completed(packages, installed, shelf)
    then = {**installed, **{n: p.version for n, p in packages.items()}}
    request = Request("apply", tuple(selected))
    before = _as_shipped(present(wanted_files(catalogue, installed, History(), request)))
    wanted = wanted_files(catalogue, then, History(), request)
    after = _as_shipped(present(wanted))
    targets = {**after.targets}
    for name, package in packages.items():
        targets[name] = target_snapshot(package, sorted(wanted.get(name, ())))
    missing = {n: why for n, why in after.missing.items() if n not in targets}
    upgraded = after._replace(targets=targets, missing=missing)
    edits: Edits = {}
    old = examine(catalogue, before, selected, selected, edits)
    new = examine(catalogue, upgraded, selected, selected, edits)
    drifts = tuple(d for one, two in zip(old, new, strict=True) for d in _drifts(one, two))
    launch = (merge_launches(r.launch for r in old), merge_launches(r.launch for r in new))
    if all(r.outcome is not Outcome.REFUSED for r in new):
        notes += _together(catalogue, upgraded, selected, edits)
    return Outlook(dict(installed), then, new, drifts, launch, tuple(notes))


def _together(
    catalogue: Catalogue,
    snapshot: Snapshot,
    selected: Mapping[str, tuple[str, ...]],
    edits: Edits,
) -> list[str]:
    """Name what keeps sets apart that fit one by one."""
    labels = tuple(f"{name}/{change}" for name, chosen in selected.items() for change in chosen)
    request = Request("apply", tuple(selected), labels)
    joint = make_plan(catalogue, snapshot, History(), request, edits)
    if isinstance(joint, Plan) or joint.kind != "conflict":
        return []
    return [TOGETHER + reason for reason in joint.reasons]


def _completed(
    packages: Mapping[str, Package], installed: Mapping[str, str], shelf: Shelf
) -> tuple[dict[str, Package], list[str]]:
    completed, notes = dict(packages), []
    leading = packages.get(LEADING)
    for name, version in (leading.pins if leading else {}).items():
        if name not in IMPORT_NAMES or name in packages:
            continue
        if versions.installed(installed.get(name, "")) == versions.installed(version):
            continue
        try:
            completed[name] = shelf.get(name, version)
        except HostError as error:
            notes.append(
                f"{LEADING} {leading.version if leading else ''} pins {name} {version}, which could"
                f" not be had ({error.message}); planned with {installed.get(name, 'none')}"
            )
    return completed, notes


def _as_shipped(snapshot: Snapshot) -> Snapshot:
    """Take our own and foreign edits back: what counts is what a new package would meet."""

    def clean(target: TargetSnapshot) -> TargetSnapshot:
        files = {}
        for path, file in target.files.items():
            if file.pristine is None or file.obstacle is not None:
                files[path] = file
                continue
            digest = sha256_hex(file.pristine)
            files[path] = file._replace(data=file.pristine, sha256=digest, pristine_sha256=digest)
        return target._replace(files=files)

    targets = {name: clean(target) for name, target in snapshot.targets.items()}
    return snapshot._replace(targets=targets)


def _drifts(one: SetResult, two: SetResult) -> Iterator[Drift]:
    yield Drift(one.id, "", one.outcome.value, two.outcome.value, "; ".join(two.others))
    before = {d.change_id: d for d in one.changes}
    for change in two.changes:
        old = before.get(change.change_id)
        moved = old is not None and old.path and change.path and old.path != change.path
        yield Drift(
            set_id=one.id,
            change_id=change.change_id,
            now=old.outcome.value if old else Outcome.NOT_APPLICABLE.value,
            then=change.outcome.value,
            reason=change.reason,
            path=change.path,
            moved_from=old.path if moved and old else None,
        )
