"""Take patched files off again after the ledger was lost: the contents are still in the store.

A new ledger is written that owns every file whose present content the store knows and whose
upstream content can be had; an ordinary revert then puts upstream's bytes back.
"""

import os
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from sm120patch import exchange, transaction
from sm120patch.disk import remove_file, sync_directory
from sm120patch.environment import Installation, take_snapshot, verify_records
from sm120patch.errors import ConflictError, HostError, RecoveryNeededError, UsageError
from sm120patch.evidence import Event
from sm120patch.journal import read_journal
from sm120patch.ledger import begin_ledger, read_ledger
from sm120patch.model import ABSENT, FileSnapshot
from sm120patch.operations import guarding, planning, staging
from sm120patch.operations.site import Site
from sm120patch.plan import ActiveSet, History, OwnedFile, Role
from sm120patch.planner import Request

NAME = "lost-ledger"
"""Stands in the new ledger for all sets that the old one knew."""


class Salvaged(NamedTuple):
    """What was put back, what was left alone, and where a useless ledger is now."""

    restored: tuple[str, ...]
    left: tuple[str, ...]
    """Files that differ from upstream's and that the store does not know: not ours."""
    moved: Path | None


def salvage(site: Site, command: str) -> Salvaged:
    """Put upstream's content back into every file that was ours. Takes the lock.

    Raises UsageError when the ledger can be read and knows what is on disk: then `revert` is the
    way.
    """
    with guarding.exclusively(site, command):
        lost = _what_is_lost(site)
        try:
            moved = _move_aside(site) if lost is Lost.LEDGER else None
            _drop_journal(site)
        except OSError as error:
            raise HostError(
                f"{site.state.path} cannot be tidied up: {error.strerror or error}",
                hint="no file of the packages was touched; mend the cause and repeat",
                details={"errno": error.errno},
            ) from error
        if lost is Lost.JOURNAL:
            return Salvaged((), (), None)
        owned, left = _find(site)
        if owned:
            _own(site, owned)
            plan = planning.plan_request(site, Request("revert", (NAME,), cascade=True), None)
            staging.execute(site, plan, "reverted", command)
        return Salvaged(tuple(path for _, path in owned), left, moved)


def refuse_lost(site: Site) -> None:
    """Raise HostError where the ledger is gone and files still hold what it spoke of.

    A new ledger would know nothing of them, and their originals would count as rubbish.
    """
    if site.state.ledger.exists() or not site.store.digests():
        return
    owned, _left = _find(site)
    if owned:
        files = sorted(path for _, path in owned)
        raise HostError(
            f"the ledger {site.state.ledger} is gone, and {', '.join(files)} hold what it spoke of",
            code="ledger-lost",
            hint="the originals are still there: `sm120patch recover --lost-ledger` puts them back",
            details={"paths": files},
        )


class Unexplained(NamedTuple):
    """What the disk says of contents that the ledger does not speak of."""

    contents: set[str]
    """Everything that a file holds in place of upstream's, and upstream's of every such file."""
    files: tuple[str, ...]
    """Files that were ours: the store has what they hold and what upstream shipped."""


def unexplained(site: Site) -> Unexplained:
    """Look for what a ledger does not know that was restored from an older copy, or is another's.

    Hashes every file that RECORD lists. Of a checkout git has the originals.
    """
    stored, past = site.store.digests(), site.history()
    contents: set[str] = set()
    files = []
    for name, installation in site.environment.installations.items():
        for difference in verify_records(installation):
            expected, found = difference.expected or "", difference.found or ""
            contents |= {expected, found}
            owned = past.files.get((name, difference.path))
            said = owned and (owned.version, owned.current_sha256) == (installation.version, found)
            files += [difference.path] if {expected, found} <= stored and not said else []
    return Unexplained(contents, tuple(sorted(files)))


class Lost(Enum):
    """What cannot be relied on."""

    LEDGER = "gone, damaged, or older than what is on disk"
    JOURNAL = "the journal alone: every file holds what the ledger says, or upstream's"


def _what_is_lost(site: Site) -> Lost:
    """Return what was lost; UsageError when nothing was."""
    if not site.state.ledger.exists():
        if site.store.digests():
            return Lost.LEDGER
        raise UsageError(
            f"{site.state.path} keeps no contents: nothing was ever patched here, or all is lost",
            hint="`sm120patch audit` compares every file with upstream's",
        )
    try:
        with read_ledger(site.state.ledger) as ledger:
            if ledger is not None:
                ledger.contents()
    except HostError as error:
        if error.code == "ledger-damaged":
            return Lost.LEDGER
        raise
    if unexplained(site).files:
        return Lost.LEDGER
    if not _readable_journal(site):
        return Lost.JOURNAL
    raise UsageError(
        f"the ledger {site.state.ledger} is intact",
        hint="`sm120patch revert --all` takes everything off",
    )


def _move_aside(site: Site) -> Path | None:
    """Keep a ledger, if there is one, under another name, with the journal of SQLite's to it."""
    ledger = site.state.ledger
    if not ledger.exists():
        return None
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    moved = ledger.with_name(f"{ledger.name}.damaged-{stamp}-{os.getpid()}")
    journal = ledger.with_name(f"{ledger.name}-journal")
    if journal.exists():
        journal.rename(moved.with_name(f"{moved.name}-journal"))
    ledger.rename(moved)
    sync_directory(ledger.parent)
    return moved


def _readable_journal(site: Site) -> bool:
    """True also when there is none; RecoveryNeededError for the journal of another release."""
    try:
        read_journal(site.state.journal)
    except RecoveryNeededError as error:
        if error.code == "journal-version":
            raise
        return False
    return True


def _drop_journal(site: Site) -> None:
    """Close an open transaction where it stands: each of its contents is in the store."""
    journal = read_journal(site.state.journal) if _readable_journal(site) else None
    if journal is not None:
        exchange.tidy(journal.files, journal.tx)
    stored = site.store.digests()
    for installation in site.environment.installations.values():
        exchange.clear(installation.root, installation.package, stored)
    remove_file(site.state.journal)
    transaction.checkpoint("journal dropped")


def _find(site: Site) -> tuple[dict[tuple[str, str], OwnedFile], tuple[str, ...]]:
    installations = site.environment.installations
    differing = {
        name: [d.path for d in verify_records(installation) if d.kind in ("changed", "added")]
        for name, installation in installations.items()
    }
    known = site.store.digests()
    snapshot = take_snapshot(site.environment, differing, site.store.get)
    owned, left = {}, []
    for target, found in snapshot.targets.items():
        for path, file in found.files.items():
            if file.obstacle is None and file.sha256 in known and _restorable(file):
                owned[target, path] = _owned(installations[target], file)
            else:
                left.append(path)
    return owned, tuple(sorted(left))


def _restorable(file: FileSnapshot) -> bool:
    return file.pristine_sha256 == ABSENT or file.pristine is not None


def _owned(installation: Installation, file: FileSnapshot) -> OwnedFile:
    record = installation.record
    # The time that the ledger knew is lost; that of the installation is the nearest to it.
    mtime_ns = file.mtime_ns if record is None else record.stat().st_mtime_ns
    return OwnedFile(
        target=installation.target,
        path=file.path,
        root=str(installation.root),
        version=installation.version,
        pristine_sha256=file.pristine_sha256 or ABSENT,
        pristine_mode=file.mode,
        pristine_mtime_ns=mtime_ns,
        current_sha256=file.sha256,
        changes=(f"{NAME}/unknown",),
    )


def _own(site: Site, files: Mapping[tuple[str, str], OwnedFile]) -> None:
    if NAME in site.catalogue.ids:
        raise ConflictError(
            f"the catalogue has a set named {NAME}", hint="use the shipped catalogue for this"
        )
    history = History({NAME: ActiveSet(NAME, 0, Role.REQUESTED, (), "")}, files)
    event = Event("salvaged", (NAME,), {"files": sorted(p for _, p in files)})
    # In one step: with an empty ledger the originals would count as rubbish.
    begin_ledger(site.state.ledger, event, history)
