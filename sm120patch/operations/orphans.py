"""Find files that hold what known sets make where no ledger says so.

Reads disk only: the few files that the catalogue would change in the installed versions.
"""

from __future__ import annotations

from dataclasses import dataclass

from sm120patch.audit import byhand
from sm120patch.claims import claimed_files
from sm120patch.environment import take_snapshot
from sm120patch.model import ABSENT, FileSnapshot
from sm120patch.operations.site import Site
from sm120patch.plan import FileKey, sets_of


@dataclass(frozen=True)
class Orphans:
    """Files of known sets without a ledger, the sets, and what leads out of it."""

    files: tuple[str, ...]
    sets: tuple[str, ...]
    hint: str

    def __str__(self) -> str:
        """Say what is there."""
        return (
            f"no ledger has them, but {', '.join(self.files)} hold what {', '.join(self.sets)}"
            " makes: nothing was taken off"
        )


def orphans(site: Site) -> Orphans | None:
    """Return what lies on disk of known sets that the ledger does not have, None for nothing."""
    past, theirs = site.history(), claimed_files(site.environment)
    wanted = byhand.paths_of(site.catalogue, site.versions)
    snapshot = take_snapshot(site.environment, wanted, site.store.get)
    found = {
        (target, path): (file, _labels(site, (target, path), file))
        for target, installed in snapshot.targets.items()
        for path, file in installed.files.items()
        if (target, path) not in past.files and (target, path) not in theirs
    }
    labels = {key: known for key, (_file, known) in found.items() if known}
    if not labels:
        return None
    whole = byhand.find(site.catalogue, site.versions, labels, past.active)
    members = sets_of(label for known in labels.values() for label in known)
    sets = tuple(entry.id for entry in whole) or members
    stored = site.store.digests()
    lost = not past.active and all(found[key][0].sha256 in stored for key in labels)
    return Orphans(tuple(sorted(path for _, path in labels)), sets, _way_out(sets, lost=lost))


def _way_out(sets: tuple[str, ...], *, lost: bool) -> str:
    if lost:
        return "`sm120patch recover --lost-ledger` puts upstream's content back"
    names = " ".join(sets)
    return f"`sm120patch adopt {names}` makes a ledger, then `sm120patch revert {names}`"


def _labels(site: Site, key: FileKey, file: FileSnapshot) -> tuple[str, ...]:
    if file.obstacle is not None or file.sha256 in (ABSENT, file.pristine_sha256):
        return ()
    catalogue, versions = site.catalogue, site.versions
    known = byhand.labels_in(catalogue, versions, key, file.sha256, lambda _key: file.pristine)
    # Upstream's bytes may not be at hand.
    return known or byhand.met(catalogue, versions, key, lambda _key: file.data)
