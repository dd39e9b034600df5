"""Commands that change an environment: apply, verify, revert."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120patch.cli import following
from sm120patch.cli.common import command_line, note_fault, warn_of_running
from sm120patch.cli.compiling import ahead_for, compile_options, profile_for
from sm120patch.cli.options import (
    environment_options,
    gpu_option,
    pass_output,
    profile_option,
    running_option,
    sets_argument,
    time_option,
    with_option,
)
from sm120patch.cli.output import Output
from sm120patch.errors import ConflictError, ExitCode, UsageError

if TYPE_CHECKING:
    from sm120patch.catalogue import Places
    from sm120patch.cli.progress import Progress
    from sm120patch.known import Match
    from sm120patch.operations.changing import Change, Demands
    from sm120patch.operations.rejections import Rejection
    from sm120patch.operations.site import Site
    from sm120patch.plan import Plan
    from sm120patch.verify.profile import Profile

goal_option = click.option(
    "--goal",
    type=click.Choice(["speed", "no-regression"]),
    help="Demand more or less than the manifest does.",
)
expect_option = click.option(
    "--expect", metavar="DIGEST", help="Refuse any plan but the one of this digest."
)


@click.command()
@sets_argument()
@with_option
@profile_option
@goal_option
@time_option
@click.option("--no-verify", is_flag=True, help="Stage only: the sets will not count as applied.")
@click.option("--dry-run", is_flag=True, help="Show plan and command lines; write nothing.")
@click.option(
    "--yes",
    is_flag=True,
    help="Measure what is known to do harm on a host like this one, or was rejected here before.",
)
@expect_option
@click.option(
    "--expect-content",
    metavar="DIGEST",
    help="Refuse to end with any other code than this (`content` of a plan): the same on every"
    " node of a fleet.",
)
@compile_options
@running_option
@gpu_option
@environment_options
@pass_output
def apply(
    output: Output,
    sets: tuple[str, ...],
    selected: tuple[str, ...],
    profile: Path | None,
    goal: str | None,
    max_time: float | None,
    no_verify: bool,
    dry_run: bool,
    yes: bool,
    expect: str | None,
    expect_content: str | None,
    ahead: bool,
    compile_timeout: float,
    allow_running: bool,
    gpu: str | None,
    env: str | None,
    python: str | None,
    catalogue: Places,
) -> int:
    """Patch the environment, verify by benchmark, and keep the sets only if they pass.

    The server is started without and with the sets; a regression, broken answers or code that
    does not run put every file back.
    """
    from sm120patch.operations import changing, gpus, guarding, planning, profiles
    from sm120patch.operations.known import known_here
    from sm120patch.operations.rejections import rejected_before
    from sm120patch.operations.site import open_site
    from sm120patch.planner import Request
    from sm120patch.render import plan_text
    from sm120patch.transaction import require_settled
    from sm120patch.verify.reporting import Reporter

    demands = changing.Demands.of(goal, max_time)
    site = open_site(env, python, catalogue=catalogue)
    require_settled(site.state)
    chosen = None if no_verify else profiles.find(profile, site, Path.cwd())
    request = Request("apply", sets, selected)
    capability = gpus.capability_of(gpu, profiles.declared_capability(chosen))
    plan = planning.plan_request(
        site, request, capability, expect=expect, expect_content=expect_content
    )
    known = known_here(site, plan, chosen)
    before = rejected_before(site, plan, chosen)
    for told in [*(match.shown for match in known), *([before.shown] if before else [])]:
        output.talk(told)
    if dry_run:
        lacking = () if no_verify else changing.owed_sets(site, request, plan, chosen, demands)
        if lacking:
            changing.refuse_unmeasurable(site, plan)
        doubt = None if plan.is_noop and not lacking else _doubt(known, before if lacking else None)
        return _show_plan(output, site, plan, chosen, demands, lacking, doubt)
    owed = not no_verify and changing.verification_owed(site, request, plan, chosen, demands)
    if plan.is_noop and not owed and not ahead:
        return _report(output, site, changing.Change(plan, "nothing"))
    if owed and chosen is None:
        raise profiles.missing(Path.cwd(), stageable=True)
    doubt = _doubt(known, before if owed else None)
    if doubt is not None and not (yes or _confirmed(output)):
        raise doubt
    output.talk(plan_text(plan, diffs=False))
    if chosen is not None:
        changing.preview(plan, chosen, demands)
    warn_of_running(output, guarding.processes(site, chosen, allow=allow_running))
    server = profile_for(site, profile, chosen) if ahead else None
    change = changing.apply(
        site,
        request,
        plan,
        chosen if owed or not ahead else None,
        Reporter() if chosen is None else _progress(output),
        command=command_line(),
        demands=demands,
        capability=capability,
        ahead=ahead_for(output, site, plan, server, demands, capability, compile_timeout)
        if ahead
        else None,
    )
    return _report(output, site, change)


@click.command()
@sets_argument()
@profile_option
@goal_option
@time_option
@click.option("--dry-run", is_flag=True, help="Show which sets lack it, and both command lines.")
@compile_options
@running_option
@gpu_option
@environment_options
@pass_output
def verify(
    output: Output,
    sets: tuple[str, ...],
    profile: Path | None,
    goal: str | None,
    max_time: float | None,
    dry_run: bool,
    ahead: bool,
    compile_timeout: float,
    allow_running: bool,
    gpu: str | None,
    env: str | None,
    python: str | None,
    catalogue: Places,
) -> int:
    """Verify sets that are on disk already (staged, or applied on another host).

    A pass makes them applied; a regression takes them off. With --compile no server is started:
    what the sets changed is compiled and looked at, and their state stays as it is.
    """
    from sm120patch.operations import changing, gpus, guarding, measurable, profiles
    from sm120patch.operations.site import open_site
    from sm120patch.transaction import require_settled

    site = open_site(env, python, catalogue=catalogue)
    require_settled(site.state)
    demands = changing.Demands.of(goal, max_time)
    chosen = profiles.find(profile, site, Path.cwd())
    capability = gpus.capability_of(gpu, profiles.declared_capability(chosen))
    plan = changing.verification_plan(site, sets, capability)
    if dry_run:
        measurable.require_intact(site, site.history(), (), sets)
        lacking = changing.unanswered(site, sets, chosen, demands)
        return _show_plan(output, site, plan, chosen, demands, lacking, verifying=True)
    if ahead:
        made = ahead_for(output, site, plan, chosen, demands, capability, compile_timeout)
        command = command_line()
        return _report(
            output,
            site,
            changing.verify_compiled(site, sets, made, command=command, capability=capability),
        )
    if chosen is None:
        raise profiles.missing(Path.cwd())
    changing.preview(plan, chosen, demands)
    warn_of_running(output, guarding.processes(site, chosen, allow=allow_running))
    change = changing.verify(
        site,
        sets,
        chosen,
        _progress(output),
        command=command_line(),
        demands=demands,
        capability=capability,
    )
    return _report(output, site, change)


@click.command()
@sets_argument(required=False)
@click.option("--all", "everything", is_flag=True, help="Take every set off.")
@click.option("--cascade", is_flag=True, help="Take off also the sets that need the named ones.")
@click.option("--dry-run", is_flag=True, help="Show the plan; write nothing.")
@expect_option
@running_option
@environment_options
@pass_output
def revert(
    output: Output,
    sets: tuple[str, ...],
    everything: bool,
    cascade: bool,
    dry_run: bool,
    expect: str | None,
    allow_running: bool,
    env: str | None,
    python: str | None,
    catalogue: Places,
) -> int:
    """Take sets off again: every file gets upstream's bytes and mode back.

    Other sets stay as they are, whatever the order in which they came.
    """
    from sm120patch.operations import changing, guarding, planning
    from sm120patch.operations.site import open_site
    from sm120patch.planner import Request
    from sm120patch.render import plan_text
    from sm120patch.transaction import require_settled

    if bool(sets) == everything:
        raise UsageError("name the sets to take off, or give --all", hint="see `sm120patch status`")
    site = open_site(env, python, catalogue=catalogue, tolerant=everything)
    note_fault(output, site.catalogue_fault)
    require_settled(site.state)
    names = tuple(site.history().active) if everything else sets
    request = Request("revert", names, cascade=cascade or everything)
    plan = planning.plan_request(site, request, None, expect=expect)
    left = plan.is_noop and _warn_of_orphans(output, site)
    if dry_run:
        return _show_plan(output, site, plan, None, changing.Demands())
    if not plan.is_noop:
        output.talk(plan_text(plan, diffs=False))
        warn_of_running(output, guarding.processes(site, None, allow=allow_running))
    change = changing.revert(site, plan, command=command_line())
    return _report(output, site, change, ExitCode.FINDINGS if left else ExitCode.OK)


# --- shared ------------------------------------------------------------------------------------


def _progress(output: Output) -> Progress:
    from sm120patch.cli.progress import Progress

    return Progress(output.talk)


def _doubt(known: tuple[Match, ...], again: Rejection | None) -> ConflictError | None:
    """Return what speaks against measuring it here; only `--yes` or a person goes on."""
    from sm120patch.operations.known import refuse_harm
    from sm120patch.operations.rejections import refuse_again

    try:
        refuse_harm(known)
        refuse_again(again)
    except ConflictError as error:
        return error
    return None


def _confirmed(output: Output) -> bool:
    """Ask the person at the terminal, if there is one."""
    there = sys.stdin.isatty() and sys.stderr.isatty() and not output.as_json
    return there and click.confirm("measure it here all the same?", err=True)


def _warn_of_orphans(output: Output, site: Site) -> bool:
    """With nothing in the ledger there may still be something on disk: tell, and return whether."""
    from sm120patch.operations.orphans import orphans

    found = orphans(site)
    if found is not None:
        output.talk(f"warning: {found}")
        output.talk(f"hint: {following.prose(found.hint, output.given)}")
    return found is not None


def _show_plan(
    output: Output,
    site: Site,
    plan: Plan,
    profile: Profile | None,
    demands: Demands,
    owed: tuple[str, ...] = (),
    doubt: ConflictError | None = None,
    *,
    verifying: bool = False,
) -> int:
    """Print what would be done; `owed` are the sets that would be measured.

    `doubt` is what the command would end with unless it is told `--yes`; `verifying`: the sets
    are on disk, and the plan takes them off for the baseline alone.
    """
    from sm120patch.cli.caching import touched_dict, touched_text
    from sm120patch.operations import caching, changing, profiles
    from sm120patch.render import plan_dict, plan_text

    result = plan_dict(plan)
    homes = profiles.homes_of(profile) if profile is not None else []
    touched = caching.touched_by(site, plan, homes)
    result["caches"] = [touched_dict(item) for item in touched]
    if profile is not None:
        arms = changing.preview(plan, profile, demands)
        result["commands"] = {"baseline": arms.baseline.shown, "patched": arms.patched.shown}
        output.talk(f"baseline: {arms.baseline.shown}\npatched:  {arms.patched.shown}")
    result["owed"] = list(owed)
    result["measures"] = None if profile is None else profile.server.kind.value
    result["doubt"] = None if doubt is None else {"code": doubt.code, "message": doubt.message}
    measured = f"to be measured: {', '.join(owed)}" if owed else ""
    if verifying:  # the plan is only how the baseline is made: nothing of it stays
        output.data(result, measured or "verified already: nothing to be measured")
        return ExitCode.OK
    refused = "" if doubt is None else f"without --yes it is refused: {doubt.message}"
    parts = [plan_text(plan, diffs=True), touched_text(touched), measured, refused]
    text = "\n".join(filter(None, parts))
    output.data(result, text)
    return ExitCode.OK


def _report(output: Output, site: Site, change: Change, otherwise: ExitCode = ExitCode.OK) -> int:
    """Print what holds now, read back from disk and ledger; `otherwise` is the code of success."""
    from sm120patch.cli.outcome import change_dict, change_text, exit_code, unverified_others
    from sm120patch.operations import inspecting

    status = inspecting.status(site)
    concerned = [s for s in status.sets if s.id in change.plan.states]
    code = exit_code(change) or otherwise
    # Its lines take longer to find than all else that is said here.
    result = change_dict(change, concerned) if output.as_json else {}
    text = change_text(change, concerned, output.given)
    others = [s for s in status.sets if s not in concerned] if change.outcome != "nothing" else []
    output.data(result, "\n".join([text, *unverified_others(others, output.given)]), code)
    return code


COMMANDS: tuple[click.Command, ...] = (apply, verify, revert)
