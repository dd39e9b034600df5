"""The measured part of `apply` and `verify`: a journalled loop of swaps that ends in a verdict.

Side `a` is the environment without the request, side `b` with it. Whatever happens in between
(^C, a crash of the server, of this process, of the host), the environment ends on the side that
it held before the command, unless a verdict was committed to the ledger.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sm120patch import transaction
from sm120patch.disk import write_file
from sm120patch.errors import (
    BusyError,
    HostError,
    InterruptedByUser,
    Sm120PatchError,
)
from sm120patch.evidence import Event, Evidence
from sm120patch.host import machine
from sm120patch.journal import Side
from sm120patch.ledger import open_ledger
from sm120patch.model import EvidenceKind, VerificationPolicy, digest_of
from sm120patch.operations import inspecting, measurable, noise, profiles, staging
from sm120patch.operations.site import Site
from sm120patch.plan import History, Plan, sets_of
from sm120patch.verify.commandline import Arm
from sm120patch.verify.profile import Profile
from sm120patch.verify.reporting import Reporter
from sm120patch.verify.runner import Duty, Outcome, check, run
from sm120patch.verify.spawn import run_restart


@dataclass(frozen=True)
class Case:
    """One verification: what the two sides are, and what each ending means for the ledger."""

    plan: Plan
    """Leads from the present side to the other one."""
    start: Side
    """Side the environment is on: `a` for an apply, `b` for a set that is on disk already."""
    sets: tuple[str, ...]
    """Closure whose effect is measured."""
    without: History
    """Ledger state on side `a`."""
    having: History
    """Ledger state on side `b`."""
    passed: str
    """Event kind of a pass: `applied` or `verified`."""

    def digest(self, side: Side, versions: Mapping[str, str]) -> str:
        """Content digest of a side."""
        return (self.without if side == "a" else self.having).content(versions)


@dataclass(frozen=True)
class Verified:
    """A verification that ran to a verdict, and the side that holds now."""

    outcome: Outcome
    end: Side
    event: int
    confirmed: bool
    """False when it passed but the GPU is unknown: then it stays staged."""
    restart_problem: str | None = None
    """Why an external server could not be restarted on the content that holds now."""


def applying(site: Site, plan: Plan) -> Case:
    """Case of `apply`: the plan leads from what is there to what is to be verified."""
    history = site.history()
    planned = measurable.written(history, plan)
    measurable.require_intact(site, history, planned, plan.requested)
    return Case(
        plan=plan,
        start="a",
        sets=tuple(plan.states),
        without=_really_there(site, history, planned),
        having=staging.after_history(history, plan),
        passed="applied",
    )


def _really_there(site: Site, history: History, planned: set[tuple[str, str]]) -> History:
    """Ledger state without the files, and the sets, that a reinstallation took away."""
    lost = {key for key, *_ in inspecting.broken_files(site, history) if key in planned}
    if not lost:
        return history
    files = {key: f for key, f in history.files.items() if key not in lost}
    left = {name for file in files.values() for name in sets_of(file.changes)}
    gone = {name for key in lost for name in sets_of(history.files[key].changes)} - left
    return History({n: r for n, r in history.active.items() if n not in gone}, files)


def reverifying(site: Site, plan: Plan) -> Case:
    """Case of `verify`: `plan` would take the sets off; that is the other side, `a`."""
    history = site.history()
    measurable.require_intact(site, history, (), plan.requested)
    return Case(
        plan=plan,
        start="b",
        sets=plan.remove,
        without=staging.after_history(history, plan),
        having=history,
        passed="verified",
    )


def duty_for(plan: Plan, policy: VerificationPolicy, site: Site | None = None) -> Duty:
    """What the runner has to show for the sets of `plan`, in the environment of `site`."""
    installed = site.environment.installations.values() if site is not None else ()
    copies = {found.package: str(found.root / found.package) for found in installed}
    return Duty(policy, plan.launch, plan.engagement, plan.versions, plan.base_launch, copies)


def verify_case(
    site: Site,
    case: Case,
    profile: Profile,
    duty: Duty,
    command: str,
    reporter: Reporter,
    deadline: float | None = None,
    ahead: Callable[[History], object] | None = None,
) -> Verified:
    """Measure both sides and commit the verdict. The caller holds the lock.

    `ahead` is called once with side `b` in place, before the first server starts.

    Raises InterruptedByUser after ^C and HostError when the baseline does not run; the
    environment then holds what it held before.
    """
    profile = profiles.weighed(site, profile)
    history = case.without if case.start == "a" else case.having
    settings = staging.settings_for(
        site,
        case.plan,
        command,
        restore=case.start,
        start=case.start,
        history=history,
        homes=profiles.homes_of(profile),
        environ=profile.server.env,
    )
    floors = noise.recorded(site, profile)
    try:
        with transaction.begin(site.state, case.plan.files, settings) as tx:
            if ahead is not None:
                _Swap(site, tx)(Arm.PATCHED)
                ahead(case.having)
            outcome = run(
                profile, duty, _Swap(site, tx), reporter, deadline=deadline, floors=floors
            )
            result = _commit(site, case, profile, tx, outcome, settings)
    except KeyboardInterrupt:
        transaction.require_no_journal(site.state)
        _leave_external(profile, duty, case.start)
        _note(site, case, "interrupted", {"command": command})
        raise InterruptedByUser(
            f"{command!r} was interrupted; every file holds its content from before",
            hint="`sm120patch status` shows the environment",
        ) from None
    except Sm120PatchError as error:
        if not site.state.journal.exists():
            _leave_external(profile, duty, case.start)
            _note(site, case, "failed", {"command": command, "error": error.message})
        raise
    return replace(result, restart_problem=_leave_external(profile, duty, result.end))


def _leave_external(profile: Profile, duty: Duty, side: Side) -> str | None:
    """Restart a server that somebody else runs on the content that holds now.

    The last arm that was measured may have been the other one: a rejected set must not go on
    running in memory. Returns what went wrong, if anything did.
    """
    if not profile.server.external:
        return None
    arm = Arm.PATCHED if side == "b" else Arm.BASELINE
    try:
        run_restart(profile, check(profile, duty).of(arm))
    except Sm120PatchError as error:
        return error.message
    return None


@dataclass(frozen=True)
class _Swap:
    """Puts the content of an arm in place, as the runner asks for it."""

    site: Site
    tx: transaction.Transaction

    def __call__(self, arm: Arm) -> float:
        side: Side = "b" if arm is Arm.PATCHED else "a"
        at = self.tx.swap(side)
        expected = {(f.target, f.path): f.sha256(side) for f in self.tx.journal.files}
        staging.check_imports(self.site, expected)
        return at


def _commit(
    site: Site,
    case: Case,
    profile: Profile,
    tx: transaction.Transaction,
    outcome: Outcome,
    settings: transaction.Settings,
) -> Verified:
    real = outcome.kind is EvidenceKind.REAL
    confirmed = not (real and outcome.passed) or _has_the_gpu(site, case)
    end: Side = "a" if outcome.rejected else "b"
    kind = case.passed if outcome.passed and confirmed else "staged"
    kind = "rejected" if outcome.rejected else kind
    evidence = _evidence(site, case, profile, outcome, passed=outcome.passed and confirmed)
    numbers: list[int] = []

    def record(tx_id: str, side: Side) -> None:
        details = {
            **staging.event_details(case.plan, side, settings),
            "verdict": outcome.verdict,
            "kind": outcome.kind.value,
        }
        history = case.without if side == "a" else case.having
        event = Event(kind, case.sets, details, tx_id)
        try:
            numbers.append(staging.record(site, event, history, evidence))
        except (BusyError, HostError) as error:
            raise _unrecorded(site, tx_id, evidence, error) from error

    if tx.journal.at != end:
        _Swap(site, tx)(Arm.PATCHED if end == "b" else Arm.BASELINE)
    staging.commit(tx, end, record)
    return Verified(outcome, end, numbers[0], confirmed)


def _unrecorded(
    site: Site, tx_id: str, evidence: Evidence, error: BusyError | HostError
) -> BusyError | HostError:
    """What was measured outlives a ledger that does not take it: keep it where people look."""
    place = site.state.logs / f"unrecorded-{tx_id}.json"
    text = json.dumps(evidence._asdict(), indent=1, sort_keys=True, default=str)
    try:
        write_file(place, text.encode())
    except OSError as other:
        kept = f"what was measured could not be kept either ({other.strerror})"
    else:
        kept = f"what was measured is kept in {place}"
    return type(error)(f"{error.message}; {kept}", code=error.code, hint=error.hint)


def _has_the_gpu(site: Site, case: Case) -> bool:
    """Ask the driver; only where it does not answer is `--gpu` taken at its word."""
    found = set(machine.probe().compute_capabilities)
    if not found:
        return case.plan.applicability == "confirmed"
    known = [n for n in case.sets if n in site.catalogue.ids]
    wanted = [site.catalogue.get(n).compute_capability for n in known]
    return all(found & set(capabilities) for capabilities in wanted if capabilities)


def _evidence(
    site: Site, case: Case, profile: Profile, outcome: Outcome, *, passed: bool
) -> Evidence:
    versions = case.plan.versions
    fingerprint, description = described_host(outcome)
    return Evidence(
        content_digest=case.digest("b", versions),
        baseline_digest=case.digest("a", versions),
        host=fingerprint,
        profile=profile.digest,
        kind=outcome.kind.value,
        verdict=outcome.verdict if passed or not outcome.passed else "unconfirmed",
        passed=passed,
        sets=case.sets,
        baseline_sets=tuple(n for n in case.without.active if n not in case.sets),
        data={**outcome.summary, "host": description},
    )


def described_host(outcome: Outcome) -> tuple[str, dict[str, object]]:
    """Fingerprint and description of the host that was measured.

    A simulated host is a declaration: its fingerprint never equals that of a machine.
    """
    found = machine.probe()
    description = {**machine.describe(found)}
    if outcome.kind is EvidenceKind.REAL:
        return found.fingerprint, description
    declared = outcome.summary.get("server")
    fingerprint = digest_of([outcome.kind.value, found.machine_id, declared])
    return fingerprint, {**description, "declared": declared}


def _note(site: Site, case: Case, kind: str, details: dict[str, object]) -> None:
    """Keep what did not work in the history; nothing changed on disk, so no state is written.

    A ledger that cannot be written must not hide why the command failed.
    """
    with contextlib.suppress(Sm120PatchError), open_ledger(site.state.ledger) as ledger:
        ledger.commit(Event(kind, case.sets, details), None)
