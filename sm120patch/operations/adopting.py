"""Take sets that were applied by hand into the ledger, so that they can be verified and reverted.

Upstream's bytes must be at hand: in git, in the store, in a package that is published or given;
they count only with the digest that RECORD (or HEAD) names. Writes through the transaction; a file
that already holds what the set makes is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sm120patch import transaction
from sm120patch.audit import byhand
from sm120patch.claims import refuse_foreign_claims
from sm120patch.errors import ConflictError, HostError, UsageError
from sm120patch.model import ABSENT, FileSnapshot, Obstacle, Snapshot, sha256_hex
from sm120patch.operations import guarding, planning, salvaging, staging
from sm120patch.operations.site import Site
from sm120patch.operations.sources import Sources
from sm120patch.plan import FileKey, FileStep, History, Plan
from sm120patch.planner import Refusal, Request, make_plan


@dataclass(frozen=True)
class Adoption:
    """What will be taken over."""

    plan: Plan
    """Its steps go from what is on disk to what the sets make: the same for most files."""
    sources: Mapping[FileKey, str]
    """Where upstream's bytes of each edited file come from."""
    completed: tuple[str, ...] = ()
    """Files that are changed too, because something of the sets was lacking in them."""
    mtimes: Mapping[str, int] = field(default_factory=dict)
    """Path -> modification time that stays."""


def plan_adoption(
    site: Site, request: Request, capability: str | None, sources: Sources, *, complete: bool
) -> Adoption:
    """Plan to take over the sets of `request`. Raises ConflictError that names what stands against.

    `complete` allows that what is lacking of the sets is changed now.
    """
    history = site.history()
    active = [name for name in request.sets if name in history.active]
    if active:
        raise UsageError(
            f"{', '.join(active)} is in the ledger of {site.environment.prefix} already",
            hint="see `sm120patch status`",
        )
    snapshot = planning.snapshot_for(site, history, request, capability)
    upstream, found = _upstream(snapshot, history, sources)
    request = _with_optional(site, snapshot, upstream, request)
    made = make_plan(site.catalogue, upstream, history, request)
    if isinstance(made, Refusal):
        raise planning.refused(request, made)
    lacking, foreign, steps = _from_disk(site, snapshot, made)
    if foreign:
        raise ConflictError(
            f"{', '.join(request.sets)} cannot be taken over:\n"
            + "\n".join(f"  - {reason}" for reason in foreign),
            code="foreign-edit",
            hint="nothing was changed; undo what the set does not explain, or make it a set of"
            " its own with `sm120patch new --from-env`",
            details={"reasons": foreign},
        )
    if not any(s.before_sha256 != s.pristine_sha256 for s in steps):
        raise UsageError(
            f"nothing of {', '.join(request.sets)} is on disk by hand in {site.environment.prefix}",
            hint=f"`sm120patch apply {' '.join(request.sets)}` puts it there",
            code="nothing-to-adopt",
        )
    if lacking and not complete:
        raise ConflictError(
            f"{', '.join(request.sets)} is there in part:\n"
            + "\n".join(f"  - {reason}" for reason in lacking),
            code="partial",
            hint="add --complete to have the rest applied in the same transaction",
            details={"lacking": lacking},
        )
    same = {s.path for s in steps if s.before_sha256 == s.after_sha256}
    return Adoption(
        plan=made._replace(action="adopt", files=steps),
        sources=found,
        completed=tuple(s.path for s in steps if s.path not in same),
        mtimes={
            path: file.mtime_ns
            for target in snapshot.targets.values()
            for path, file in target.files.items()
            if path in same
        },
    )


def _upstream(
    snapshot: Snapshot, history: History, sources: Sources
) -> tuple[Snapshot, dict[FileKey, str]]:
    """Return the snapshot as if upstream's content were in every edited file."""
    found: dict[FileKey, str] = {}
    targets = {}
    for name, target in snapshot.targets.items():
        files = dict(target.files)
        for path, file in target.files.items():
            if (name, path) in history.files or not _edited(file):
                continue
            if file.pristine_sha256 == ABSENT:
                gone = file._replace(data=b"", sha256=ABSENT, obstacle=Obstacle.MISSING)
                files[path] = gone
                continue
            data, place = _bytes_of(file, name, target.version, sources)
            found[name, path] = place or target.pristine_origin
            files[path] = file._replace(data=data, sha256=sha256_hex(data), pristine=data)
        targets[name] = target._replace(files=files)
    return snapshot._replace(targets=targets), found


def _edited(file: FileSnapshot) -> bool:
    return file.obstacle is None and file.sha256 != file.pristine_sha256


def _bytes_of(file: FileSnapshot, target: str, version: str, sources: Sources) -> tuple[bytes, str]:
    if file.pristine_sha256 is None:
        raise ConflictError(
            f"{file.path}: nobody knows what upstream shipped, so it could not be given back",
            hint=f"reinstall {target} {version}, then apply the set",
            code="no-pristine",
        )
    if file.pristine is not None:
        return file.pristine, ""
    looked = sources.look(target, version, file.path, file.pristine_sha256)
    if looked is None:
        raise HostError(
            f"{file.path}: no package at hand holds what RECORD says that {target} {version}"
            f" shipped (sha256 {file.pristine_sha256[:12]})",
            hint="give the package, or a directory that holds the file, with --pristine",
            code="no-pristine",
            details={"path": file.path, "sha256": file.pristine_sha256},
        )
    return looked


def _with_optional(site: Site, snapshot: Snapshot, upstream: Snapshot, request: Request) -> Request:
    """Select the optional changes that are there."""
    there = {
        label for key, file in _files(snapshot) for label in _labels(site, upstream, key, file)
    }
    closure = site.catalogue.closure(request.sets)
    optional = {
        f"{name}/{change.id}"
        for name in closure
        for change in site.catalogue.get(name).changes
        if change.optional
    }
    selected = dict.fromkeys((*request.selected, *sorted(there & optional)))
    return request._replace(selected=tuple(selected))


def _files(snapshot: Snapshot) -> Iterator[tuple[FileKey, FileSnapshot]]:
    for name, target in snapshot.targets.items():
        for path, file in target.files.items():
            if file.obstacle is None:
                yield (name, path), file


def _labels(site: Site, upstream: Snapshot, key: FileKey, file: FileSnapshot) -> tuple[str, ...]:
    def shipped(asked: FileKey) -> bytes | None:
        return upstream.targets[asked[0]].files[asked[1]].pristine

    return byhand.labels_in(site.catalogue, site.versions, key, file.sha256, shipped)


def _from_disk(
    site: Site, snapshot: Snapshot, plan: Plan
) -> tuple[list[str], list[str], tuple[FileStep, ...]]:
    """Let every step begin at what is on disk; say what is lacking, and what is nobody's."""
    lacking: list[str] = []
    foreign: list[str] = []
    steps = []
    for step in plan.files:
        file = snapshot.targets[step.target].files[step.path]
        there = file.sha256 if file.obstacle is None else ABSENT
        if there == step.pristine_sha256:
            lacking.append(f"{step.path}: upstream's, without {' and '.join(step.changes)}")
        elif there != step.after_sha256:
            labels = _labels_of(site, step, there)
            others = [label for label in labels if label not in step.changes]
            if labels and not others:
                rest = [c for c in step.changes if c not in labels]
                lacking.append(f"{step.path}: without {' and '.join(rest)}")
            elif others:
                foreign.append(f"{step.path}: holds {' and '.join(others)} too; name that as well")
            else:
                foreign.append(f"{step.path}: sha256 {there[:12]} is not what the set makes of it")
        data = file.data if there != ABSENT else b""
        steps.append(step._replace(before=data, before_sha256=there))
    return lacking, foreign, tuple(steps)


def _labels_of(site: Site, step: FileStep, sha256: str) -> tuple[str, ...]:
    key = (step.target, step.path)
    return byhand.labels_in(site.catalogue, site.versions, key, sha256, lambda _key: step.pristine)


def adopt(site: Site, adoption: Adoption, *, command: str) -> None:
    """Carry out an adoption in one transaction; the sets are `staged` afterwards."""
    plan = adoption.plan
    if adoption.completed:
        guarding.writes(site, plan, {})
    with guarding.exclusively(site, command):
        transaction.require_no_journal(site.state)
        salvaging.refuse_lost(site)
        refuse_foreign_claims(site.environment)
        guarding.require_same(site, plan)
        staging.execute(site, plan, "adopted", command, settings=_settings(site, adoption, command))


def _settings(site: Site, adoption: Adoption, command: str) -> transaction.Settings:
    """Settings that know what the edited files hold: builds were made of that content."""
    history = site.history()
    held = {
        (s.target, s.path): s.owned(s.before_sha256, s.changes)
        for s in adoption.plan.files
        if s.before_sha256 not in (ABSENT, s.pristine_sha256)
    }
    known = History(history.active, {**history.files, **held})
    settings = staging.settings_for(
        site, adoption.plan, command, restore="a", start="a", history=known
    )
    return settings._replace(mtimes={**settings.mtimes, **adoption.mtimes})
