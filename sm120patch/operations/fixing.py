"""What of an audit's findings can be put right without a risk, and doing it.

Deletes stale bytecode, and takes sets that were applied by hand, completely, into the ledger where
upstream's bytes are at hand. Nothing else: files are never changed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sm120patch.audit import byhand
from sm120patch.audit.findings import EnvironmentReport, FileState, HostReport, Kind
from sm120patch.catalogue import Places
from sm120patch.errors import Sm120PatchError
from sm120patch.operations import adopting
from sm120patch.operations.site import open_site
from sm120patch.operations.sources import Sources
from sm120patch.planner import Request
from sm120patch.published import Shelf
from sm120patch.transaction import require_settled


@dataclass(frozen=True)
class Fix:
    """One thing that can be put right."""

    kind: str
    """`bytecode` or `adopt`."""
    prefix: str
    subject: str
    """File that is deleted, or sets that are adopted at once, separated by spaces."""

    def __str__(self) -> str:
        """Say what will be done."""
        if self.kind == "bytecode":
            return f"delete the stale bytecode {self.subject}"
        sets = self.subject.replace(" ", " and ")
        return f"take {sets} into the ledger of {self.prefix}; no file is changed"


@dataclass(frozen=True)
class Fixed:
    """What came of a fix."""

    fix: Fix
    problem: str = ""
    """Why it was not done; empty when it was."""


def plan_fixes(report: HostReport) -> list[Fix]:
    """Choose what is safe to put right; for this host only."""
    if report.root != "/":
        return []
    return [fix for environment in report.environments for fix in _of(environment)]


def _of(environment: EnvironmentReport) -> Iterator[Fix]:
    for finding in environment.findings:
        cached = Path(finding.path)
        if finding.kind is not Kind.STALE_BYTECODE:
            continue
        if cached.parent.name == "__pycache__" and not cached.parent.is_symlink():
            yield Fix("bytecode", environment.prefix, finding.path)
    sets = {entry.id: entry for entry in environment.sets if entry.state == "by-hand"}
    present = {name: entry.present for name, entry in sets.items()}
    files = [file.changes for file in environment.files if file.state is FileState.BY_HAND]
    groups = dict.fromkeys(byhand.together(name, present, files) for name in sets)
    for group in groups:
        if not any(sets[name].lacking for name in group):
            yield Fix("adopt", environment.prefix, " ".join(group))


def carry_out(fix: Fix, catalogue: Places, shelf: Shelf, command: str) -> Fixed:
    """Do one fix; what stands against it is told, not raised."""
    try:
        if fix.kind == "bytecode":
            Path(fix.subject).unlink(missing_ok=True)
        else:
            _adopt(fix, catalogue, shelf, command)
    except OSError as error:
        return Fixed(fix, error.strerror or str(error))
    except Sm120PatchError as error:
        return Fixed(fix, error.message)
    return Fixed(fix)


def _adopt(fix: Fix, catalogue: Places, shelf: Shelf, command: str) -> None:
    site = open_site(fix.prefix, None, catalogue=catalogue)
    require_settled(site.state)
    request = Request("apply", tuple(fix.subject.split()))
    adoption = adopting.plan_adoption(site, request, None, Sources((), shelf), complete=False)
    adopting.adopt(site, adoption, command=command)
