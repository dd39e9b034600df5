"""Recognise known sets in contents that no ledger explains, wholly or in part. Pure.

A content is recognised by its digest: in the shipped fingerprints, or because it is what the
catalogue makes of upstream's bytes where those are at hand.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

from sm120patch import fingerprints
from sm120patch.catalogue import Catalogue, choose, edit, satisfied
from sm120patch.errors import CatalogueError
from sm120patch.model import Changed, Variant, sha256_hex
from sm120patch.plan import FileKey, sets_of

_TOGETHER = 4
"""Changes of one file that are tried together at most."""


class ByHand(NamedTuple):
    """A set that is on disk without a ledger that has it; ids are `set/change`."""

    id: str
    present: tuple[str, ...]
    lacking: tuple[str, ...]
    """Changes that the set needs for these versions and that are not there."""
    together: tuple[str, ...] = ()
    """It and the sets that share a file with it: they are taken over at once, or not at all."""

    @property
    def complete(self) -> bool:
        """Nothing is lacking."""
        return not self.lacking

    def __str__(self) -> str:
        """Say what it is."""
        if self.complete:
            return f"this is {self.id} applied by hand"
        lacking = " and ".join(label.partition("/")[2] for label in self.lacking)
        return f"this is {self.id} applied by hand, without its {lacking} change"


def paths_of(catalogue: Catalogue, versions: Mapping[str, str]) -> dict[str, set[str]]:
    """Return target -> files that any set of the catalogue would change in these versions."""
    found: dict[str, set[str]] = {}
    for _label, target, variant in variants(catalogue, versions):
        found.setdefault(target, set()).add(variant.path)
    return found


def variants(
    catalogue: Catalogue,
    versions: Mapping[str, str],
    ids: Iterable[str] | None = None,
    *,
    optional: bool = True,
) -> Iterator[tuple[str, str, Variant]]:
    """Yield `set/change`, target and variant of everything that applies to these versions."""
    for name in catalogue.ids if ids is None else ids:
        for change in catalogue.get(name).changes:
            choice, _reason = choose(change, versions)
            if isinstance(choice, Variant) and (optional or not change.optional):
                yield f"{name}/{change.id}", change.target, choice


def labels_in(
    catalogue: Catalogue,
    versions: Mapping[str, str],
    key: FileKey,
    sha256: str,
    shipped: Callable[[FileKey], bytes | None],
) -> tuple[str, ...]:
    """Return the `set/change` ids that are in a content; empty when it is nothing known.

    `shipped` gives upstream's bytes, where they are at hand; without them only what the shipped
    fingerprints know is recognised.
    """
    known = fingerprints.recognise(*key, sha256)
    if known is not None:
        return known.changes
    candidates = _candidates(catalogue, versions, key)
    pristine = shipped(key) if candidates else None
    if pristine is None or sha256_hex(pristine) == sha256:
        return ()
    for count in range(1, min(len(candidates), _TOGETHER) + 1):
        for chosen in combinations(candidates, count):
            made = _make(pristine, [variant for _label, variant in chosen])
            if made is not None and sha256_hex(made) == sha256:
                return tuple(label for label, _variant in chosen)
    return ()


def met(
    catalogue: Catalogue,
    versions: Mapping[str, str],
    key: FileKey,
    held: Callable[[FileKey], bytes | None],
) -> tuple[str, ...]:
    """Return the `set/change` ids whose post-conditions a content meets, in whatever words.

    `held` gives the bytes of the file, and is asked only where a change is for it.
    """
    candidates = _candidates(catalogue, versions, key)
    data = held(key) if candidates else None
    if data is None:
        return ()
    return tuple(label for label, variant in candidates if satisfied(variant, data))


def _candidates(
    catalogue: Catalogue, versions: Mapping[str, str], key: FileKey
) -> list[tuple[str, Variant]]:
    return [
        (label, variant)
        for label, target, variant in variants(catalogue, versions)
        if (target, variant.path) == key
    ]


def _make(data: bytes, variants: Iterable[Variant]) -> bytes | None:
    for variant in variants:
        try:
            result = edit(variant, data)
        except CatalogueError:
            return None
        if not isinstance(result, Changed):
            return None
        data = result.data
    return data


def find(
    catalogue: Catalogue,
    versions: Mapping[str, str],
    labels: Mapping[FileKey, tuple[str, ...]],
    active: Iterable[str] = (),
) -> list[ByHand]:
    """Return the sets whose changes are in `labels` (file -> ids in it), bundles before members.

    `active` are sets that a ledger has; they, and bundles of them alone, are left out.
    """
    there = {label for found in labels.values() for label in found}
    known = set(active)
    found: dict[str, ByHand] = {}
    for name in catalogue.ids:
        members = [n for n in catalogue.closure([name]) if n not in known]
        needed = {
            label
            for label, _target, _variant in variants(catalogue, versions, members, optional=False)
        }
        present = sorted(label for label in there if label.partition("/")[0] in members)
        if present and _is_meant(catalogue, versions, members, present, needed):
            found[name] = ByHand(name, tuple(present), tuple(sorted(needed - there)))
    entries = [entry for name, entry in found.items() if not _covered(catalogue, name, found)]
    ids = {entry.id: entry.present for entry in entries}
    return [e._replace(together=together(e.id, ids, labels.values())) for e in entries]


def together(
    name: str, present: Mapping[str, Iterable[str]], files: Iterable[Iterable[str]]
) -> tuple[str, ...]:
    """Name the sets that share a file with a set, directly or through others, and itself.

    `present` maps sets to their `set/change` ids that are there, `files` has those in each file.
    """
    group, begun = {name}, set[str]()
    held = [set(labels) for labels in files]
    while group != begun:
        begun = set(group)
        theirs = {label for member in begun for label in present[member]}
        shared = set[str]().union(*(labels for labels in held if labels & theirs))
        group |= {other for other, labels in present.items() if shared & set(labels)}
    return tuple(sorted(group))


def _is_meant(
    catalogue: Catalogue,
    versions: Mapping[str, str],
    members: list[str],
    present: list[str],
    needed: set[str],
) -> bool:
    """Tell whether a set is what was meant: of several members each must be possible and begun."""
    if len(members) == 1:
        return True
    busy, begun = set(sets_of(needed)), set(sets_of(present))
    possible = all(
        change.optional or choose(change, versions)[0] is not None
        for member in members
        for change in catalogue.get(member).changes
    )
    return possible and begun >= busy


def _covered(catalogue: Catalogue, name: str, found: Mapping[str, ByHand]) -> bool:
    """Tell whether a bigger set that was found has this one among its members."""
    return any(
        other != name and name in catalogue.closure([other]) for other in found if other != name
    )
