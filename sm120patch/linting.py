"""What can be said against a patch set: faults that stop it, warnings that its author should read.

Pure: manifests are read by `catalogue`, releases are handed in, and so is today's date.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sm120patch import catalogue as catalogues
from sm120patch import versions
from sm120patch.errors import CatalogueError
from sm120patch.model import (
    IMPORT_NAMES,
    Change,
    Changed,
    PatchSet,
    PayloadKind,
    Refused,
    Unchanged,
    Variant,
    Window,
)

STALE_AFTER = datetime.timedelta(days=90)
"""Age at which a comparison with the published packages has to be repeated."""


class Release(Protocol):
    """The files of one published release."""

    @property
    def target(self) -> str:
        """Name of the distribution."""
        ...

    @property
    def version(self) -> str:
        """Its version."""
        ...

    def read(self, name: str) -> bytes | None:
        """Bytes of a file, None when the release does not have it."""
        ...


@dataclass(frozen=True)
class Remark:
    """One fault or warning."""

    set_id: str
    message: str


@dataclass(frozen=True)
class Report:
    """Everything that was found; faults make a set unusable somewhere, warnings do not."""

    faults: tuple[Remark, ...]
    warnings: tuple[Remark, ...]


def lint(
    found: catalogues.Collected,
    names: Sequence[str],
    releases: Sequence[Release],
    today: datetime.date,
    published: Mapping[str, Sequence[str]] | None = None,
) -> Report:
    """Examine the named sets of what was read, against the named releases.

    `published`: target -> releases that the catalogue was compared with, where that is known.
    """
    faults = [Remark(name, fault) for name in names for fault in found.faults.get(name, ())]
    warnings: list[Remark] = []
    faults += _relations(found, names)
    for name in names:
        patch_set = found.sets.get(name)
        if patch_set is None:
            continue
        faults += [Remark(name, fault) for fault in catalogues.payload_faults(patch_set)]
        warnings += [Remark(name, text) for text in _warnings(patch_set, today, published or {})]
        for change, release in itertools.product(patch_set.changes, releases):
            if change.target == release.target:
                bad, doubtful = _against(change, release)
                faults += [Remark(name, text) for text in bad]
                warnings += [Remark(name, text) for text in doubtful]
    return Report(_distinct(faults), _distinct(warnings))


def _distinct(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
    return tuple(dict.fromkeys(remarks))


def _relations(found: catalogues.Collected, names: Sequence[str]) -> Iterator[Remark]:
    # A set whose manifest is broken is named already; what needs it is not at fault for that.
    broken = set(found.files) - set(found.sets)
    for fault in catalogues.relation_faults(found.sets):
        name = fault.partition(".toml:")[0]
        if name in names and not any(repr(other) in fault for other in broken):
            yield Remark(name, fault)


# --- the set by itself ---------------------------------------------------------------------------


def _warnings(
    patch_set: PatchSet, today: datetime.date, published: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    checked = datetime.date.fromisoformat(patch_set.last_checked)
    if checked > today:
        yield f"upstream.last-checked {checked} lies in the future"
    elif today - checked > STALE_AFTER:
        yield (
            f"upstream.last-checked {checked} is {(today - checked).days} days ago: compare the"
            " windows with the releases since (`lint --against`)"
        )
    texts = {"patch-set.description": patch_set.description}
    texts |= {f"{c.id}.description": c.description for c in patch_set.changes}
    yield from (f"{where} is still to be written" for where, t in texts.items() if "TODO" in t)
    for change in patch_set.changes:
        ranges = [*(v.versions for v in change.variants), *(w.versions for w in change.windows)]
        among = published.get(change.target, ())
        yield from (f"{change.id}: {trap}" for trap in traps(change.target, ranges, among))
        for variant in change.variants:
            if versions.parse(variant.versions).high is None:
                yield (
                    f"{change.id}: {variant.versions!r} has no upper end, so it claims releases"
                    " that nobody has seen"
                )
    for kind, items in (("launch", patch_set.launch), ("engagement", patch_set.engagement)):
        for target in IMPORT_NAMES:
            ranges = [item.versions for item in items if item.target == target]
            among = published.get(target, ())
            yield from (f"{kind}: {trap}" for trap in traps(target, ranges, among))


def traps(target: str, ranges: Sequence[str], published: Sequence[str] = ()) -> Iterator[str]:
    """Name what lies between ranges that look as if they met.

    PEP 440 keeps `0.5.10rc0` out of `<0.5.10` and out of `>=0.5.10`; `>=0.5.9.post1` after
    `<0.5.9` leaves out 0.5.9 itself. Where it is known what is `published`, a gap in which none
    of that lies is none.
    """
    parsed = sorted(map(versions.parse, set(ranges)), key=lambda r: (r.low is not None, r.low))
    known = [v for v in map(versions.installed, published) if v is not None]
    met = []
    for one, two in itertools.pairwise(parsed):
        if one.high is None or two.low is None or one.high >= two.low:
            continue
        if known and not any(one.high <= version < two.low for version in known):
            continue
        if str(one.high) == f"{two.low}.dev0":
            met.append(str(two.low))
        elif str(one.high) == f"{two.low.base_version}.post0.dev0" and two.low.post is not None:
            continue  # between a release and its first post-release nothing is published
        else:
            yield f"{target} from {one.high} to before {two.low} is in no range"
    if met:
        yield (
            f"pre-releases of {target} {', '.join(met)} are in no range: PEP 440 keeps them out"
            f" of both '<{met[0]}' and '>={met[0]}'; write '<{met[0]}rc0' and '>={met[0]}rc0' if"
            " there are any"
        )


# --- the set against a release -------------------------------------------------------------------


def _against(change: Change, release: Release) -> tuple[list[str], list[str]]:
    """Faults and warnings of one change on one release of its target."""
    version = versions.installed(release.version)
    where = f"{change.id}: {release.target} {release.version}"
    choices: list[Variant | Window] = [*change.variants, *change.windows]
    chosen = [c for c in choices if version is not None and version in versions.parse(c.versions)]
    if not chosen:
        return [], [f"{where}: is in no range, so the set will not be offered there"]
    try:
        choice = chosen[0]
        if isinstance(choice, Variant):
            bad, doubtful = _variant(choice, release)
        else:
            bad, doubtful = [], _window(change, choice, release)
    except CatalogueError as error:
        bad, doubtful = [error.message], []
    return [f"{where}: {text}" for text in bad], [f"{where}: {text}" for text in doubtful]


def _variant(variant: Variant, release: Release) -> tuple[list[str], list[str]]:
    data = release.read(variant.path)
    if data is None and variant.kind is not PayloadKind.FILE:
        return [f"has no {variant.path}"], []
    result = catalogues.edit(variant, data)
    if isinstance(result, Refused):
        return [f"{variant.path}: {result.reason}"], []
    if isinstance(result, Unchanged):
        return [], [f"{variant.path} meets the post-conditions already: is this `upstream`?"]
    if not catalogues.satisfied(variant, result.data):
        return [f"{variant.path}: the edited file does not meet the post-conditions"], []
    again = catalogues.edit(variant, result.data)
    known = isinstance(again, Unchanged)
    return ([] if known else [f"{variant.path}: the edit is not known again once it is made"]), []


def _window(change: Change, window: Window, release: Release) -> list[str]:
    files = [(v, data) for v in change.variants if (data := release.read(v.path)) is not None]
    having = any(catalogues.satisfied(variant, data) for variant, data in files)
    if window.outcome == "upstream" and files and not having:
        return ["is said to have it, but meets no variant's post-conditions"]
    if window.outcome == "not-needed":
        fitting = [v for v, data in files if isinstance(catalogues.edit(v, data), Changed)]
        return [f"is said not to need it, but {v.payload} fits" for v in fitting[:1]]
    return []
