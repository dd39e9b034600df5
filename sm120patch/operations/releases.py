"""`matrix`: what sets mean for published packages that are not installed.

Reads disk, and writes the wheel cache only. Every answer is the planner's own, given a snapshot of
the packages as an installer would lay them down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sm120patch import versions
from sm120patch.catalogue import Catalogue
from sm120patch.contents import Edits
from sm120patch.errors import HostError, UsageError
from sm120patch.model import (
    IMPORT_NAMES,
    Snapshot,
    State,
    digest_of,
)
from sm120patch.packages import Package, target_snapshot
from sm120patch.plan import (
    ChangeDecision,
    History,
    Launch,
    Outcome,
    Plan,
)
from sm120patch.planner import Refusal, Request, make_plan, wanted_files
from sm120patch.published import Shelf

LEADING = "sglang"
"""The target whose releases are named; what it pins comes with it."""


@dataclass(frozen=True)
class SetResult:
    """What one set means for one combination of versions."""

    id: str
    outcome: Outcome
    """`patched`, `upstream`, `not-needed`, `not-applicable` or `refused`."""
    reasons: tuple[str, ...]
    """Every reason against it; empty unless it is not applicable or refused."""
    changes: tuple[ChangeDecision, ...]
    """Its own changes, optional ones as if they were selected."""
    launch: Launch
    """What a server must be started with then."""

    @property
    def others(self) -> tuple[str, ...]:
        """Reasons that its own changes do not give."""
        return tuple(r for r in self.reasons if not r.startswith(f"{self.id}/"))


@dataclass(frozen=True)
class ReleaseResult:
    """One combination of released versions, or why it could not be looked at."""

    versions: Mapping[str, str]
    sets: tuple[SetResult, ...] = ()
    error: str = ""


def catalogue_digest(catalogue: Catalogue) -> str:
    """Digest of all manifests and payloads: a matrix of another catalogue may be another."""
    return digest_of({set_id: catalogue.get(set_id).digest for set_id in catalogue.ids})


# --- one combination ---------------------------------------------------------------------------


def examine(
    catalogue: Catalogue,
    snapshot: Snapshot,
    sets: Iterable[str],
    selected: Mapping[str, tuple[str, ...]] | None = None,
    edits: Edits | None = None,
) -> tuple[SetResult, ...]:
    """Plan each set by itself on freshly installed packages.

    `selected` names the optional changes of a set; without it each is looked at as if it were
    selected, while the outcome of the set is that without them.
    """
    shared: Edits = {} if edits is None else edits
    results = []
    for set_id in sets:
        chosen = None if selected is None else selected.get(set_id, ())
        results.append(_set_result(catalogue, snapshot, set_id, chosen, shared))
    return tuple(results)


def _set_result(
    catalogue: Catalogue,
    snapshot: Snapshot,
    set_id: str,
    selected: tuple[str, ...] | None,
    edits: Edits,
) -> SetResult:
    def plan(chosen: tuple[str, ...]) -> tuple[Plan | Refusal, dict[str, ChangeDecision]]:
        request = Request("apply", (set_id,), chosen)
        result = make_plan(catalogue, snapshot, History(), request, edits)
        # A refused change may have been decided twice; what came last knows the whole file.
        return result, {d.change_id: d for d in result.decisions if d.set_id == set_id}

    patch_set = catalogue.get(set_id)
    result, decisions = plan(selected or ())
    optional = [c.id for c in patch_set.changes if c.optional]
    if selected is None and optional:
        whole = plan(tuple(f"{set_id}/{change}" for change in optional))[1]
        decisions |= {c: whole[c] for c in optional if c in whole}
    order = {change.id: n for n, change in enumerate(patch_set.changes)}
    changes = tuple(sorted(decisions.values(), key=lambda d: order.get(d.change_id, -1)))
    if not isinstance(result, Plan) and result.kind == "not-needed":
        return SetResult(set_id, Outcome.NOT_NEEDED, (), changes, Launch())
    if not isinstance(result, Plan):
        blocked = result.kind == "not-applicable"
        outcome = Outcome.NOT_APPLICABLE if blocked else Outcome.REFUSED
        return SetResult(set_id, outcome, result.reasons, changes, Launch())
    upstream = result.states[set_id] is State.UPSTREAM
    outcome = Outcome.UPSTREAM if upstream else Outcome.PATCHED
    return SetResult(set_id, outcome, (), changes, result.launch)


# --- matrix ------------------------------------------------------------------------------------


def matrix(
    catalogue: Catalogue,
    sets: tuple[str, ...],
    releases: Iterable[str],
    shelf: Shelf,
    capability: str | None = None,
) -> Iterator[ReleaseResult]:
    """Plan the sets (all without a name) on each release, as `VERSION` or `VERSION/COMPANION`.

    A release that cannot be had is a result with an error; the others go on.
    """
    names = sets or catalogue.ids
    for name in names:
        catalogue.get(name)
    edits: Edits = {}
    for release in releases:
        version, _, companion = release.partition("/")
        try:
            packages = _pair(shelf.get(LEADING, version), companion, shelf)
            snapshot = _snapshot(catalogue, packages, names, capability)
        except HostError as error:
            found = {LEADING: version} | ({_companions()[0]: companion} if companion else {})
            yield ReleaseResult(found, error=error.message)
            continue
        results = examine(catalogue, snapshot, names, edits=edits)
        yield ReleaseResult({n: p.version for n, p in packages.items()}, results)
        edits.clear()  # Other releases have other files; those alike are found by fingerprint.


def chosen_releases(spec: Iterable[str], known: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Turn `--releases` into versions of SGLang: `0.5.8,0.5.9`, `>=0.5.8,<0.5.14`, `0.5.9/0.6.4`.

    Nothing named means all known ones. A version by itself need not be known. Raises UsageError.
    """
    listed = known.get(LEADING, ())
    found: list[str] = []
    for text in spec:
        if text.lstrip()[:1] in ("<", ">", "=", "!", "~"):
            found += _in_range(text, listed)
            continue
        for part in filter(None, (p.strip() for p in text.split(","))):
            wrong = [v for v in part.split("/") if versions.installed(v) is None]
            if wrong or part.count("/") > 1:
                raise UsageError(
                    f"--releases: {part!r} is neither a version nor a range",
                    hint="write 0.5.9, 0.5.8,0.5.9, '>=0.5.8,<0.5.14' or a pair 0.5.9/0.6.4",
                )
            found.append(part)
    return tuple(dict.fromkeys(found)) if found else listed


def _in_range(text: str, listed: tuple[str, ...]) -> list[str]:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        wanted = SpecifierSet(text, prereleases=True)
    except InvalidSpecifier as error:
        raise UsageError(f"--releases: {error}", hint="write '>=0.5.8,<0.5.14'") from error
    found = list(wanted.filter(listed))
    if not found:
        raise UsageError(f"--releases: no known release is in {text}; the last is {listed[-1]}")
    return found


def _companions() -> list[str]:
    return [name for name in IMPORT_NAMES if name != LEADING]


def _pair(leading: Package, companion: str, shelf: Shelf) -> dict[str, Package]:
    """Add to a release what it pins, or the companion version that was named in its place."""
    packages = {leading.name: leading}
    for name in _companions():
        version = companion or leading.pins.get(name)
        if version:
            packages[name] = shelf.get(name, version)
    return packages


def _snapshot(
    catalogue: Catalogue,
    packages: Mapping[str, Package],
    sets: Iterable[str],
    capability: str | None,
) -> Snapshot:
    found = {name: package.version for name, package in packages.items()}
    wanted = wanted_files(catalogue, found, History(), Request("apply", tuple(sets)))
    return Snapshot(
        prefix="",
        targets={n: target_snapshot(p, sorted(wanted.get(n, ()))) for n, p in packages.items()},
        missing={n: "the release pins none" for n in IMPORT_NAMES if n not in packages},
        compute_capability=capability,
    )
