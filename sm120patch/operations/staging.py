"""Put a plan on disk, or take sets off again, in one transaction without a verification.

Writes the target through the transaction, then the ledger. Used by `apply --no-verify` and
`revert`; `verifying` uses the same pieces around its measured swaps.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sm120patch import transaction
from sm120patch.caches import flashinfer, switch
from sm120patch.claims import sync_claims
from sm120patch.environment import read_back
from sm120patch.errors import ConflictError, HostError
from sm120patch.evidence import Event, Evidence
from sm120patch.journal import Side, opposite
from sm120patch.ledger import PATIENCE, open_ledger, read_ledger
from sm120patch.model import ABSENT
from sm120patch.operations.site import Site
from sm120patch.plan import FileKey, History, Plan, sets_of

MEASURED_PATIENCE = 120.0
"""Seconds to wait for a ledger that somebody else holds: a measurement took longer to make."""


class Recorded(NamedTuple):
    """What a finished transaction left behind."""

    event: int
    history: History


def after_history(history: History, plan: Plan) -> History:
    """What the ledger must say once `plan` holds.

    What an installer took from sets that the plan is not about is still lost afterwards.
    """
    active = {n: r for n, r in history.active.items() if n not in plan.remove}
    active.update({record.id: record for record in plan.add})
    steps = {(s.target, s.path): s for s in plan.files}
    files = {}
    for key, digest in plan.settled.items():
        owned = history.files.get(key)
        step = steps.get(key)
        if step is not None:
            files[key] = step.owned(digest, plan.shaped_by[key])
        elif owned is not None:
            shaped = plan.shaped_by.get(key, owned.changes)
            files[key] = owned._replace(changes=tuple(shaped))
    others = set(active) - {*plan.states, *plan.remove}
    for key, owned in history.files.items():
        if key not in files:
            theirs = tuple(c for c in owned.changes if others.intersection(sets_of((c,))))
            files |= {key: owned._replace(changes=theirs)} if theirs else {}
    return History(active, files)


def settings_for(
    site: Site,
    plan: Plan,
    command: str,
    *,
    restore: Side,
    start: Side,
    history: History,
    homes: Iterable[Path] = (),
    environ: Mapping[str, str] | None = None,
) -> transaction.Settings:
    """Fill in what the transaction needs from the environment.

    `homes` are homes and workspace bases of the serving user, besides those known already;
    `environ` are variables that the server gets besides ours.
    """
    variables = {**os.environ, **(environ or {})}
    pristine = {k: f.pristine_sha256 for k, f in history.files.items()}
    pristine |= {(s.target, s.path): s.pristine_sha256 for s in plan.files}
    # A file that a set adds is no input of any build.
    pristine = {k: digest for k, digest in pristine.items() if digest != ABSENT}
    before = {k: f.current_sha256 for k, f in history.files.items() if k in pristine}
    after = {k: digest for k, digest in plan.settled.items() if k in pristine}
    a, b = (before, after) if start == "a" else (after, before)
    places = {*homes, *known_homes(site)}
    scope = switch.scope_for(
        site.environment, a, b, pristine, places, variables, _tactics(site, history, plan)
    )
    return transaction.Settings(
        command=command,
        sets=tuple(dict.fromkeys((*(r.id for r in plan.add), *plan.remove, *plan.requested))),
        plan_digest=plan.digest,
        python=str(site.environment.python),
        restore=restore,
        start=start,
        pycache_prefix=_bytecode_trees(site, environ or {}),
        caches=scope,
        mtimes=switch.kept_times(scope, opposite(start), site.store.get) if scope else {},
    )


def _bytecode_trees(site: Site, environ: Mapping[str, str]) -> str | None:
    """Trees of PYTHONPYCACHEPREFIX, ours and the server's, separated as in PATH."""
    named = environ.get("PYTHONPYCACHEPREFIX")
    found = [str(site.environment.pycache_prefix or ""), named or ""]
    return os.pathsep.join(dict.fromkeys(tree for tree in found if tree)) or None


def _tactics(site: Site, history: History, plan: Plan) -> list[str]:
    """Files, changed before or after, by which a set changes what the autotuner chooses from."""
    labels = {(f.path, label) for f in history.files.values() for label in f.changes}
    labels |= {(path, label) for (_, path), names in plan.shaped_by.items() for label in names}
    known = {n: set(site.catalogue.get(n).tactics) for n in site.catalogue.ids}
    found = []
    for path, label in labels:
        name, _, change = label.partition("/")
        if change in known.get(name, ()):
            found.append(path)
    return found


def known_homes(site: Site) -> set[Path]:
    """Homes below which FlashInfer may keep builds: ours now, and those of earlier changes."""
    found = set(flashinfer.bases(os.environ))
    with read_ledger(site.state.ledger) as ledger:
        for event in ledger.events(limit=200) if ledger is not None else ():
            homes = event.data.get("homes")
            if isinstance(homes, list):
                found |= {Path(text) for text in homes if isinstance(text, str)}
    return {home for home in found if home.is_absolute()}


def refuse_traps(site: Site, plan: Plan, environ: Mapping[str, str]) -> None:
    """Refuse a plan whose FlashInfer sources would never be compiled; nothing is written."""
    replaced = [s for s in plan.files if s.pristine_sha256 != ABSENT]
    found = switch.traps(site.environment, replaced, environ)
    if found:
        raise ConflictError(
            "the patched FlashInfer sources would have no effect:\n"
            + "\n".join(f"  - {reason}" for reason in found),
            code="no-effect",
            hint="remove the prebuilt module (or the variable) from the environment, then repeat",
            details={"traps": found},
        )


def check_imports(site: Site, expected: Mapping[FileKey, str]) -> None:
    """Ask a fresh interpreter what it imports from where.

    Raises OSError (hence a rollback) when it is not what was just written.
    """
    problems = read_back(site.environment, expected)
    if problems:
        raise OSError(f"after the change, {site.environment.python} disagrees: {problems[0]}")


def expected_after(plan: Plan) -> dict[FileKey, str]:
    """Every file of the plan -> the digest it must hold."""
    return {(s.target, s.path): s.after_sha256 for s in plan.files}


def commit(tx: transaction.Transaction, side: Side, record: Callable[[str, Side], None]) -> None:
    """Commit; ^C that arrives too late to undo anything does not hide that it took effect."""
    try:
        tx.commit(side, record)
    except KeyboardInterrupt:
        if transaction.committed_event(tx.state, tx.journal.tx) is None:
            raise


def concerned(plan: Plan) -> tuple[str, ...]:
    """Sets that the history tells of a plan under: also those whose record stays what it was.

    Over a package that was reinstalled or upgraded only the files are written again.
    """
    shaping = {name for step in plan.files for name in sets_of(step.changes)}
    again = (name for name in plan.states if name in shaping or name in plan.requested)
    names = (*(record.id for record in plan.add), *plan.remove)
    return tuple(dict.fromkeys((*names, *(again if plan.files else ()))))


def event_details(plan: Plan, side: Side, settings: transaction.Settings) -> dict[str, object]:
    """What every event that changed files keeps."""
    return {
        "requested": list(plan.requested),
        "no_longer_needed": list(plan.remove) if plan.action == "apply" else [],
        "start": settings.start,
        "end": side,
        "command": settings.command,
        "plan": plan.digest,
        "versions": dict(plan.versions),
        "files": {f"{s.target}:{s.path}": [s.before_sha256, s.after_sha256] for s in plan.files},
        "homes": list(settings.caches.homes) if settings.caches else [],
    }


def record(
    site: Site,
    event: Event,
    history: History,
    evidence: Evidence | None = None,
) -> int:
    """Write event, state and evidence to the ledger in one step, then settle claims."""
    patience = PATIENCE if evidence is None else MEASURED_PATIENCE
    with open_ledger(site.state.ledger, patience) as ledger:
        number = ledger.commit(event, history, evidence)
    # The change is a fact by now: a claim that cannot be written must not make it look undone.
    with contextlib.suppress(OSError, HostError):
        sync_claims(site.environment, history)
    return number


def execute(
    site: Site,
    plan: Plan,
    kind: str,
    command: str,
    homes: Iterable[Path] = (),
    compiled: Callable[[History], Sequence[Mapping[str, object]]] | None = None,
    settings: transaction.Settings | None = None,
) -> Recorded:
    """Carry out `plan` as one transaction and record it as event `kind`; no verification.

    The caller holds the lock. `compiled` gets the new state once the files are in place and says
    what it compiled; when it raises, everything is put back. `settings` are those of
    `settings_for` unless given.
    """
    history = site.history()
    result = after_history(history, plan)
    if settings is None:
        settings = settings_for(
            site, plan, command, restore="a", start="a", history=history, homes=homes
        )
    chosen = settings
    numbers: list[int] = []
    modules: list[Mapping[str, object]] = []

    def write(tx: str, side: Side) -> None:
        details = {**event_details(plan, side, chosen), "compiled": modules}
        numbers.append(record(site, Event(kind, concerned(plan), details, tx), result))

    with transaction.begin(site.state, plan.files, chosen) as tx:
        tx.swap("b")
        check_imports(site, expected_after(plan))
        modules += compiled(result) if compiled else ()
        commit(tx, "b", write)
    return Recorded(numbers[0], result)
