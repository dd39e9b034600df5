"""`bench`: the design of a verification over launch options; every result is kept in the ledger.

Starts and stops servers; changes no file of the environment.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sm120patch import transaction
from sm120patch.errors import InterruptedByUser
from sm120patch.evidence import Event, Evidence
from sm120patch.ledger import open_ledger, read_ledger
from sm120patch.model import EvidenceKind, VerificationPolicy
from sm120patch.operations import guarding, inspecting, noise, salvaging
from sm120patch.operations.site import Site
from sm120patch.operations.verifying import described_host
from sm120patch.policy import merge_launches
from sm120patch.redaction import redact_arguments, redact_environment
from sm120patch.state import UNDECIDED
from sm120patch.trial import Trial, launches
from sm120patch.variants import launch_for
from sm120patch.verify.commandline import Arm, Arms
from sm120patch.verify.profile import Profile
from sm120patch.verify.reporting import Reporter
from sm120patch.verify.runner import Duty, Outcome, check, run

COMMAND = "sm120patch bench"
KIND = "experiment"
"""Kind of the events that record experiments."""


@dataclass(frozen=True)
class Result:
    """What is known of one trial."""

    trial: Trial
    event: int
    evidence: Evidence
    known: bool
    """True when it was measured earlier and nothing was started."""


def run_trials(
    site: Site,
    trials: tuple[Trial, ...],
    profile: Profile,
    reporter: Reporter,
    *,
    max_time: float | None,
    again: bool,
) -> Iterator[Result]:
    """Measure each trial against the profile's server as it is; what is known is not repeated.

    `max_time` (seconds) bounds each of them. Yields results as they come. Raises HostError when
    the baseline does not run, InterruptedByUser after ^C; what was measured before stays.
    """
    duties = [duty_for(site, trial, profile) for trial in trials]
    for duty in duties:
        check(profile, duty)
    with guarding.exclusively(site, COMMAND):
        transaction.require_no_journal(site.state)
        salvaging.refuse_lost(site)
        for trial, duty in zip(trials, duties, strict=True):
            earlier = None if again else _known(site, trial, profile)
            yield earlier or _measure(site, trial, profile, duty, reporter, max_time)


def duty_for(site: Site, trial: Trial, profile: Profile) -> Duty:
    """What a trial has to show; sets on disk keep their own options in both arms."""
    active = [n for n in site.history().active if n in site.catalogue.ids]
    own = merge_launches(launch_for(site.catalogue.get(n), site.versions) for n in active)
    environ = {**os.environ, **profile.server.env}
    launch, base = launches(trial, own, profile.server.command, environ)
    copies = {i.package: str(i.root / i.package) for i in site.environment.installations.values()}
    return Duty(
        VerificationPolicy(), launch, (), site.versions, base, copies, must_differ=bool(trial.args)
    )


def preview(site: Site, trial: Trial, profile: Profile) -> Arms:
    """Both command lines of a trial; raises what could only fail later."""
    return check(profile, duty_for(site, trial, profile))


def _measure(
    site: Site,
    trial: Trial,
    profile: Profile,
    duty: Duty,
    reporter: Reporter,
    max_time: float | None,
) -> Result:
    deadline = None if max_time is None else time.monotonic() + max_time
    floors = noise.recorded(site, profile)
    try:
        outcome = run(profile, duty, _unchanged, reporter, deadline=deadline, floors=floors)
    except KeyboardInterrupt:
        raise InterruptedByUser(
            "the experiment was interrupted; the servers that it started are stopped",
            hint="results before this one are kept: `sm120patch history --experiments`",
        ) from None
    evidence = _evidence(site, trial, profile, outcome)
    told = _told(trial)
    details = {
        "experiment": told,
        "command": f"{COMMAND} --try {shlex.quote(str(told['name']))}",
        "versions": dict(site.versions),
        "verdict": outcome.verdict,
        "kind": outcome.kind.value,
    }
    with open_ledger(site.state.ledger) as ledger:
        number = ledger.commit(Event(KIND, (), details), None, evidence)
    return Result(trial, number, evidence, known=False)


def _unchanged(_arm: Arm) -> float:
    """Both arms run the same files; a server must only be younger than this moment."""
    return time.time()


def _evidence(site: Site, trial: Trial, profile: Profile, outcome: Outcome) -> Evidence:
    fingerprint, description = described_host(outcome)
    content = site.history().content(site.versions)
    return Evidence(
        content_digest=content,
        baseline_digest=content,
        host=fingerprint,
        profile=profile.digest,
        kind=outcome.kind.value,
        verdict=outcome.verdict,
        passed=outcome.verdict == "improved",
        sets=(),
        baseline_sets=(),
        data={**outcome.summary, "host": description, "experiment": _told(trial)},
    )


def _told(trial: Trial) -> dict[str, object]:
    """The trial as it is kept: without the values of secrets; the key tells equal ones apart."""
    env = redact_environment(trial.env)
    shown = Trial(tuple(redact_arguments(trial.args)), env)
    return {"name": shown.shown, "args": list(shown.args), "env": dict(env), "key": trial.key}


def _known(site: Site, trial: Trial, profile: Profile) -> Result | None:
    """The newest conclusive result of this trial: same files, host, server and workloads."""
    content = site.history().content(site.versions)
    valid = inspecting.here()
    with read_ledger(site.state.ledger) as ledger:
        for event in ledger.events(kind=KIND) if ledger is not None else ():
            noted = event.data.get("experiment")
            if not isinstance(noted, Mapping) or noted.get("key") != trial.key:
                continue
            found = ledger.evidence_of(event.id) if ledger is not None else None
            if found is None or found.verdict in UNDECIDED:
                continue
            fits = found.content_digest == content and found.profile == profile.digest
            real = found.kind == EvidenceKind.REAL.value
            worth = real or profile.server.kind is not EvidenceKind.REAL
            if fits and worth and valid(found):
                return Result(trial, event.id, found, known=True)
    return None
