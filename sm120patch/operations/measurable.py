"""Tell whether sets can be measured: what both arms hold must be whole, and vouched for.

Reads disk only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sm120patch.errors import ConflictError
from sm120patch.model import State
from sm120patch.operations import inspecting
from sm120patch.operations.site import Site
from sm120patch.plan import FileKey, History, Plan, sets_of


def written(history: History, plan: Plan) -> set[FileKey]:
    """Files that hold what the ledger says once the plan holds, whatever they hold now."""
    theirs = {*plan.states, *plan.remove}
    given_up = {key for key, f in history.files.items() if theirs.issuperset(sets_of(f.changes))}
    return {*((s.target, s.path) for s in plan.files), *plan.shaped_by, *given_up}


def require_intact(
    site: Site, history: History, planned: Collection[FileKey], requested: Sequence[str] = ()
) -> None:
    """Evidence is for the whole content, so every file of ours must hold what the ledger says.

    `planned` are files that are settled anyway (a set that was lost), `requested` the sets that
    the command was about.
    """
    broken = [entry for entry in inspecting.broken_files(site, history) if entry[0] not in planned]
    if not broken:
        return
    from sm120patch.audit.judging import asked_for

    reasons = dict.fromkeys(f"  - {reason}" for _key, _state, reason in broken)
    sets = [name for key, *_ in broken for name in sets_of(history.files[key].changes)]
    lost = " ".join(asked_for(sets, history, site.catalogue))
    hint = "`sm120patch diff` shows every edit; undo it, or reinstall the package, then repeat"
    if all(state is State.LOST for _key, state, _reason in broken):
        together = " ".join(dict.fromkeys((*requested, *lost.split())))
        hint = (
            f"`sm120patch apply {together}` brings them back and measures them together,"
            f" `sm120patch revert {lost}` takes what was lost off the books"
        )
    raise ConflictError(
        "nothing can be verified while the disk and the ledger disagree:\n" + "\n".join(reasons),
        code="drifted",
        hint=hint,
    )


def left_over(site: Site, plan: Plan) -> bool:
    """Tell whether an installer took a part of the request, so that a baseline is nowhere.

    What is left of it would be in both arms, and is worth nothing by itself: half a set is no set.
    """
    states = _active_states(site, plan)
    return State.LOST in states.values() and State.STAGED in states.values()


def require_measured(site: Site, plan: Plan) -> None:
    """Refuse a baseline that holds members of the request which nobody has measured.

    Both arms would have them, and their effect would be credited to nobody, or worse, passed.
    """
    owed = [name for name, state in _active_states(site, plan).items() if state is State.STAGED]
    if owed:
        are = "is on disk but was never verified, so it" if len(owed) == 1 else (
            "are on disk but were never verified, so they"
        )  # fmt: skip
        raise ConflictError(
            f"{', '.join(owed)} {are} would be in both arms",
            code="unverified-baseline",
            hint=f"first `sm120patch verify {' '.join(owed)}`, or `sm120patch revert"
            f" {' '.join(owed)} --cascade`",
            details={"sets": owed},
        )


def _active_states(site: Site, plan: Plan) -> dict[str, State]:
    """State of every set of the request that the ledger has."""
    active = site.history().active
    states = {s.id: s.state for s in inspecting.status(site).sets}
    return {name: states[name] for name in plan.states if name in active}
