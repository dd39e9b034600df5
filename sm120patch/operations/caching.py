"""`caches`: which builds and tactics a change touches and why, what is put away, what may go.

Reads disk and /proc. Deletes builds from shelves in `prune` only, and only what it is given.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sm120patch import transaction
from sm120patch.caches import flashinfer, sglang, stock, switch
from sm120patch.caches.builds import PRISTINE, SHELF, UNOWNED, Entry, Kind, Move, inspect, stored
from sm120patch.caches.stock import Stored
from sm120patch.errors import BusyError, HostError
from sm120patch.journal import CacheScope
from sm120patch.operations import planning, staging
from sm120patch.operations.site import Site
from sm120patch.plan import Plan
from sm120patch.planner import Request

_CONTENT_KEYED = "sglang/kernels/jit/utils/compile"
"""Package of SGLang from 0.5.18 on whose builds are named by everything they are made from."""


@dataclass(frozen=True)
class Touched:
    """A module, or a directory of tactics, that the change concerns."""

    entry: Entry
    live: str
    """What is live now: `nothing`, `upstream`, `patched` or `unowned`."""
    then: str
    """What the change makes live: `same`, `comes back`, or `is built again`."""
    moves: tuple[Move, ...]


@dataclass(frozen=True)
class User:
    """A process that has loaded a build."""

    pid: int
    command: str
    library: str
    restart_needed: bool
    """What it has loaded is not the build that is live now."""


@dataclass(frozen=True)
class Survey:
    """Answer of `caches`."""

    prefix: str
    change: str
    """What was looked at: `apply ...`, or `revert ...` of everything on disk; empty for nothing."""
    places: tuple[tuple[Kind, Path], ...]
    touched: tuple[Touched, ...]
    stored: tuple[Stored, ...]
    needed: frozenset[Path]
    """Paths on the shelves that the change would bring back."""
    users: tuple[User, ...]
    traps: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def survey(site: Site, sets: tuple[str, ...], homes: Iterable[Path] = ()) -> Survey:
    """Look at every cache that the environment's code is built into; nothing is touched.

    The change is to apply `sets`, or without any to take off all that is on disk.
    """
    plan = _plan(site, sets)
    known = staging.known_homes(site) | set(homes)
    places = _places(known, os.environ)
    scope = _scope(site, plan, known) if plan is not None else None
    found = switch.scan(scope, site.store.get) if scope else switch.Found((), ())
    touched = tuple(_touched(entry, scope) for entry in found.entries) if scope else ()
    coming = [m.source for t in touched for m in t.moves if m.destination == t.entry.live]
    return Survey(
        prefix=str(site.environment.prefix),
        change=f"{plan.action} {' '.join(plan.requested)}" if plan is not None else "",
        places=places,
        touched=touched,
        stored=stock.stock(places),
        needed=frozenset(coming),
        users=_users(places),
        traps=tuple(_traps(site, plan)),
        problems=found.problems,
        notes=tuple(_notes(site)),
    )


def touched_by(site: Site, plan: Plan, homes: Iterable[Path] = ()) -> tuple[Touched, ...]:
    """What carrying out a plan would do to caches; nothing is touched."""
    scope = _scope(site, plan, staging.known_homes(site) | set(homes))
    found = switch.scan(scope, site.store.get).entries if scope else ()
    return tuple(_touched(entry, scope) for entry in found) if scope else ()


def prune(site: Site, victims: Iterable[Stored]) -> tuple[tuple[Stored, ...], tuple[str, ...]]:
    """Delete the given directories; return what is gone, and why the others are not.

    No change may be under way or interrupted: it would miss what is deleted.
    """
    gone: list[Stored] = []
    failed: list[str] = []
    with site.state.lock("caches --prune"):
        transaction.require_no_journal(site.state)
        for item in victims:
            try:
                stock.remove(item)
                gone.append(item)
            except (HostError, BusyError) as error:
                failed.append(error.message)
    return tuple(gone), tuple(failed)


def _plan(site: Site, sets: tuple[str, ...]) -> Plan | None:
    if sets:
        return planning.plan_request(site, Request("apply", sets), None)
    active = tuple(site.history().active)
    if not active:
        return None
    return planning.plan_request(site, Request("revert", active, cascade=True), None)


def _scope(site: Site, plan: Plan, homes: set[Path]) -> CacheScope | None:
    settings = staging.settings_for(
        site, plan, "caches", restore="a", start="a", history=site.history(), homes=homes
    )
    return settings.caches


def _places(homes: set[Path], environ: Mapping[str, str]) -> tuple[tuple[Kind, Path], ...]:
    bases = sorted(homes)
    return (
        *((Kind.FLASHINFER, path) for path in flashinfer.workspaces(environ, bases)),
        *((Kind.SGLANG, path) for path in sglang.jit_directories(bases, environ)),
        *((Kind.AUTOTUNE, path) for path in sglang.autotune_directories(bases, environ)),
        *((Kind.AUTOTUNE, path) for path in sglang.managed_directories(bases, environ)),
    )


def _touched(entry: Entry, scope: CacheScope) -> Touched:
    at, to = switch.key_of(entry, scope, "a"), switch.key_of(entry, scope, "b")
    live = inspect(entry.live, entry)
    owner = (live.owner or _unmarked(entry, at)) if live.built else ""
    name = {at: "patched", to: "patched", PRISTINE: "upstream", "": "nothing"}
    then = "comes back" if stored(entry, to) else "is built again"
    return Touched(
        entry,
        live=name.get(owner, "unowned"),
        then="same" if at == to else then,
        moves=switch.moves(entry, scope, "a", "b"),
    )


def _unmarked(entry: Entry, at: str) -> str:
    """Key of a build without our mark: that of what is on disk, unless it is older."""
    built = [path.stat().st_mtime_ns for path in entry.live.glob("*.so")]
    written = [path.stat().st_mtime_ns for path in map(entry.file, entry.paths) if path.exists()]
    return UNOWNED if built and written and min(built) < max(written) else at


def _users(places: Iterable[tuple[Kind, Path]]) -> tuple[User, ...]:
    from sm120patch.host import processes

    found = processes.mapping_libraries([path for _, path in places])
    return tuple(
        User(
            pid=process.pid,
            command=" ".join(process.cmdline)[:200],
            library=path,
            restart_needed=f"/{SHELF}/" in path or path.endswith("(deleted)"),
        )
        for process, path in found
    )


def _traps(site: Site, plan: Plan | None) -> list[str]:
    """Reasons why the patched content, present or planned, would have no effect."""
    if plan is not None and plan.action == "apply":
        return switch.traps(site.environment, plan.files, os.environ)
    installation = site.environment.installations.get(switch.TARGET)
    owned = [f for (target, _), f in site.history().files.items() if target == switch.TARGET]
    if installation is None or not owned:
        return []
    changed = []
    for file in owned:
        both = [site.store.get(s) for s in (file.pristine_sha256, file.current_sha256)]
        whole = tuple(data for data in both if data is not None)
        changed.append(flashinfer.ChangedFile(file.path, whole if len(whole) == 2 else ()))
    path = site.environment.path

    def modules() -> tuple[str, ...]:
        return flashinfer.expected_modules(installation.root, changed)

    return flashinfer.traps(installation.root, path, modules, os.environ)


def _notes(site: Site) -> list[str]:
    installation = site.environment.installations.get("sglang")
    if installation is None or not (installation.root / _CONTENT_KEYED).is_dir():
        return []
    name = f"SGLang {installation.version}"
    return [f"{name}: its own kernels are named by all they are made from and need no care"]
