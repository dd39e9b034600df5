"""`apply`, `verify`, `revert` and `recover` from end to end: look, lock, look again, act."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sm120patch import recovery, transaction
from sm120patch.caches import flashinfer
from sm120patch.claims import refuse_foreign_claims, sync_claims
from sm120patch.errors import HostError, InterruptedByUser, UsageError
from sm120patch.evidence import Event
from sm120patch.model import EvidenceKind, Goal, State, VerificationPolicy
from sm120patch.operations import (
    guarding,
    inspecting,
    measurable,
    planning,
    salvaging,
    staging,
)
from sm120patch.operations.site import Site
from sm120patch.plan import Plan
from sm120patch.planner import Request

if TYPE_CHECKING:  # what measures and what compiles is loaded where it is done
    from sm120patch.operations import compiling, verifying
    from sm120patch.verify.commandline import Arms
    from sm120patch.verify.profile import Profile
    from sm120patch.verify.reporting import Reporter


class Demands(NamedTuple):
    """What the user asks of a verification beyond the manifest."""

    goal: Goal | None = None
    max_time: float | None = None
    """Seconds for the whole verification."""

    @classmethod
    def of(cls, goal: str | None, max_time: float | None) -> "Demands":
        """Build from the words of the command line."""
        return cls(None if goal is None else Goal(goal), max_time)


class Change(NamedTuple):
    """What a changing command did."""

    plan: Plan
    outcome: str
    """`nothing`, `staged`, `applied`, `verified`, `rejected`, `reverted` or `compiled`."""
    verified: "verifying.Verified | None" = None
    compiled: "tuple[compiling.Compiled, ...] | None" = None
    """Modules that were compiled ahead; None when that was not asked for."""


def apply(
    site: Site,
    request: Request,
    plan: Plan,
    profile: "Profile | None",
    reporter: "Reporter",
    *,
    command: str,
    demands: Demands,
    capability: str | None = None,
    environ: Mapping[str, str] | None = None,
    ahead: "compiling.Ahead | None" = None,
) -> Change:
    """Carry out an `apply` plan, with verification unless `profile` is None.

    `ahead` compiles before anything is measured or recorded; what does not compile is put back.

    Everything that can be refused is refused before the first write; the plan is made again
    under the lock and must be the same.
    """
    variables = os.environ if environ is None else environ
    guarding.writes(site, plan, {**variables, **(profile.server.env if profile else {})})
    with guarding.exclusively(site, command):
        transaction.require_no_journal(site.state)
        salvaging.refuse_lost(site)
        refuse_foreign_claims(site.environment)
        guarding.require_same(site, plan)
        if ahead is not None:
            ahead.prepare(staging.after_history(site.history(), plan))
        if profile is None:
            return _staged(site, plan, command, ahead)
        if not plan.files:  # the baseline would hold the same files: there is nothing to compare
            owed = owed_sets(site, request, plan, profile, demands)
            if not plan.is_noop:
                staging.execute(site, plan, "staged", command)
            if not owed:
                return Change(plan, "nothing" if plan.is_noop else "staged")
            return _reverify(site, owed, profile, reporter, command, demands, capability, ahead)
        from sm120patch.operations import verifying

        case = verifying.applying(site, plan)
        if measurable.left_over(site, plan):
            staging.execute(site, plan, "staged", command)
            owed = owed_sets(site, request, plan, profile, demands)
            with _left_whole(owed, command):
                return _reverify(site, owed, profile, reporter, command, demands, capability, ahead)
        measurable.require_measured(site, plan)
        return _measured(site, case, plan, profile, reporter, command, demands, ahead)


@contextlib.contextmanager
def _left_whole(sets: Sequence[str], command: str) -> Iterator[None]:
    """Say after ^C what is on disk where half a set was made whole before it was measured."""
    try:
        yield
    except InterruptedByUser:
        names = " ".join(sets)
        raise InterruptedByUser(
            f"{command!r} was interrupted; what was lost is on disk again, staged: not verified",
            hint=f"`sm120patch verify {names}` measures it, `sm120patch revert {names}` takes it"
            " off",
        ) from None


def _staged(site: Site, plan: Plan, command: str, ahead: "compiling.Ahead | None") -> Change:
    if plan.is_noop:
        return compile_present(site, plan, ahead) if ahead else Change(plan, "nothing")
    homes = flashinfer.bases((ahead.settings.environ if ahead else None) or {})
    staging.execute(site, plan, "staged", command, homes, compiled=ahead)
    return Change(plan, "staged", compiled=ahead.compiled if ahead else None)


def compile_present(site: Site, plan: Plan, ahead: "compiling.Ahead") -> Change:
    """Compile what is on disk already, and keep what came of it in the history."""
    history = site.history()
    modules = ahead(history)
    names = tuple(dict.fromkeys(c.duty.set_id for c in ahead.compiled))
    if names:
        staging.record(site, Event("compiled", names, {"compiled": modules}), history)
    return Change(plan, "compiled" if names else "nothing", compiled=ahead.compiled)


def verify_compiled(
    site: Site,
    sets: tuple[str, ...],
    ahead: "compiling.Ahead",
    *,
    command: str,
    capability: str | None,
) -> Change:
    """Compile and prove what sets on disk changed; no server is started, no state changes."""
    with guarding.exclusively(site, command):
        transaction.require_no_journal(site.state)
        plan = verification_plan(site, sets, capability)
        measurable.require_intact(site, site.history(), (), sets)
        ahead.prepare(site.history())
        return compile_present(site, plan, ahead)


def refuse_unmeasurable(site: Site, plan: Plan) -> None:
    """Raise what keeps the sets of an `apply` plan from being measured: for dry runs."""
    from sm120patch.operations import verifying

    if not plan.files:
        measurable.require_intact(site, site.history(), (), plan.requested)
        return
    if not measurable.left_over(site, plan):
        measurable.require_measured(site, plan)
    verifying.applying(site, plan)


def _measured(
    site: Site,
    case: "verifying.Case",
    plan: Plan,
    profile: "Profile",
    reporter: "Reporter",
    command: str,
    demands: Demands,
    ahead: "compiling.Ahead | None" = None,
) -> Change:
    from sm120patch.operations import verifying

    duty = verifying.duty_for(plan, policy_of(plan, demands), site)
    deadline = None if demands.max_time is None else time.monotonic() + demands.max_time
    result = verifying.verify_case(site, case, profile, duty, command, reporter, deadline, ahead)
    compiled = ahead.compiled if ahead else None
    if result.outcome.rejected:
        return Change(plan, "rejected", result, compiled)
    good = result.outcome.passed and result.confirmed
    return Change(plan, case.passed if good else "staged", result, compiled)


def policy_of(plan: Plan, demands: Demands) -> VerificationPolicy:
    """Policy of the sets with what the user demands on top."""
    if demands.goal is None:
        return plan.verification
    return plan.verification._replace(goal=demands.goal)


def preview(plan: Plan, profile: "Profile", demands: Demands) -> "Arms":
    """Both command lines; raises what could only fail later, before anything is written."""
    from sm120patch.operations import verifying
    from sm120patch.verify.runner import check

    return check(profile, verifying.duty_for(plan, policy_of(plan, demands)))


def verify(
    site: Site,
    sets: tuple[str, ...],
    profile: "Profile",
    reporter: "Reporter",
    *,
    command: str,
    demands: Demands,
    capability: str | None = None,
    ahead: "compiling.Ahead | None" = None,
) -> Change:
    """Verify sets that are on disk already, against the environment without them."""
    with guarding.exclusively(site, command):
        transaction.require_no_journal(site.state)
        if ahead is not None:
            ahead.prepare(site.history())
        return _reverify(site, sets, profile, reporter, command, demands, capability, ahead)


def owed_sets(
    site: Site, request: Request, plan: Plan, profile: "Profile | None", demands: Demands
) -> tuple[str, ...]:
    """Requested sets that are on disk, or will be, without the verification that is asked for.

    Evidence that is not real does not answer a profile that is, nor a mere no-regression a
    demand for speed.
    """
    wanted = tuple(n for n in request.sets if plan.states[n] is not State.UPSTREAM)
    return wanted if plan.files else unanswered(site, wanted, profile, demands)


def unanswered(
    site: Site, sets: Sequence[str], profile: "Profile | None", demands: Demands
) -> tuple[str, ...]:
    """Those of `sets` whose present content lacks the verification that is asked for."""
    known = {s.id: s for s in inspecting.status(site).sets}

    def answered(name: str) -> bool:
        status = known[name]
        if status.state is not State.APPLIED or status.evidence is None:
            return False
        real = profile is not None and profile.server.kind is EvidenceKind.REAL
        if real and status.evidence.kind != EvidenceKind.REAL.value:
            return False
        return demands.goal is not Goal.SPEED or status.evidence.verdict == "improved"

    return tuple(name for name in sets if not answered(name))


def verification_owed(
    site: Site, request: Request, plan: Plan, profile: "Profile | None", demands: Demands
) -> bool:
    """Tell whether `apply` has to measure: yes unless all is upstream or verified already."""
    return bool(owed_sets(site, request, plan, profile, demands))


def _reverify(
    site: Site,
    sets: tuple[str, ...],
    profile: "Profile",
    reporter: "Reporter",
    command: str,
    demands: Demands,
    capability: str | None,
    ahead: "compiling.Ahead | None" = None,
) -> Change:
    plan = verification_plan(site, sets, capability)
    from sm120patch.operations import verifying

    case = verifying.reverifying(site, plan)
    return _measured(site, case, plan, profile, reporter, command, demands, ahead)


def verification_plan(site: Site, sets: tuple[str, ...], capability: str | None) -> Plan:
    """Plan that would take the sets, and those that need them, off: the baseline of `verify`."""
    active = site.history().active
    for name in sets:
        if name in active and name not in site.catalogue.ids:
            raise UsageError(
                f"{name} is on disk, but this catalogue does not know it: nobody can say what it"
                " has to show",
                hint="name the catalogue that it is from: --extra-catalogue DIRECTORY",
                code="unknown-set",
            )
        site.catalogue.get(name)
        if name not in active:
            raise UsageError(
                f"{name} is not on disk in {site.environment.prefix}: nothing to verify",
                hint=f"`sm120patch apply {name}` puts it there and verifies it",
            )
    request = Request("revert", sets, cascade=True)
    return planning.plan_request(site, request, capability, done="verified")


def revert(site: Site, plan: Plan, *, command: str) -> Change:
    """Carry out a `revert` plan in one transaction."""
    guarding.writes(site, plan, {})
    if plan.is_noop:
        return Change(plan, "nothing")
    with guarding.exclusively(site, command):
        transaction.require_no_journal(site.state)
        guarding.require_same(site, plan)
        staging.execute(site, plan, "reverted", command)
    return Change(plan, "reverted")


class Settled(NamedTuple):
    """What `recover` did, and what it found."""

    recovery: recovery.Recovery | None
    """None when nothing was interrupted."""
    unexplained: tuple[str, ...] = ()
    """Files whose originals are in the store while the ledger does not speak of them."""


def recover(site: Site, *, keep_foreign: bool) -> Settled:
    """Settle an interrupted command, and clear away what dead commands left under the prefix.

    Raises HostError where the ledger is damaged or gone.
    """
    if site.journal() is None and not site.state.path.is_dir():
        return Settled(None)
    files: list[str] = []

    def needed() -> set[str]:
        found = salvaging.unexplained(site)
        files.extend(found.files)
        return found.contents

    try:
        with guarding.exclusively(site, "recover"):
            roots = {n: str(i.root) for n, i in site.environment.installations.items()}
            result = recovery.recover(site.state, keep_foreign=keep_foreign, roots=roots)
            if result is None:
                salvaging.refuse_lost(site)
            else:
                # It is settled by now: a claim that cannot be written must not hide that.
                with contextlib.suppress(OSError, HostError):
                    sync_claims(site.environment, site.history())
            recovery.collect(site.state, needed)
    except HostError as error:
        # A read-only environment in which nothing was interrupted needs nothing.
        settled = site.journal() is None and site.state.path.is_dir()
        if not settled or error.code == "ledger-lost":
            raise
        # A ledger that cannot be read, or is gone, is something: its error names the way out.
        site.history()
        salvaging.refuse_lost(site)
        return Settled(None)
    return Settled(result, tuple(files))
