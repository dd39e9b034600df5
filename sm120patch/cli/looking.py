"""Commands that only look: list, show, plan, status, history."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120patch.cli.options import (
    catalogue_options,
    environment_options,
    gpu_option,
    offline_option,
    output_option,
    pass_output,
    set_argument,
    sets_argument,
    shelf_for,
    wheel_dir_option,
    with_option,
)
from sm120patch.cli.output import Output, width
from sm120patch.cli.releases import plan_against
from sm120patch.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from sm120patch.catalogue import Places


@click.command("list")
@catalogue_options
@output_option
@pass_output
def list_sets(output: Output, catalogue: Places) -> int:
    """Show the patch sets of the catalogue."""
    from sm120patch import catalogue as catalogues
    from sm120patch.plaintext import table
    from sm120patch.render import set_dict

    found = catalogues.load(catalogue)
    foreign = any(origin != catalogues.SHIPPED for origin in found.origins.values())
    shown = [found.sets[name] for name in found.ids]  # in the order of `status`
    rows = [
        (s.id, f"r{s.revision}", "advice" if s.only_advice else s.verification.goal.value)
        + ((found.origins[s.id],) if foreign else ())
        + (s.title,)
        for s in shown
    ]
    sets = [{**set_dict(s), "origin": found.origins[s.id]} for s in shown]
    output.data({"sets": sets}, table(rows))
    return ExitCode.OK


@click.command()
@set_argument
@catalogue_options
@output_option
@pass_output
def show(output: Output, set_id: str, catalogue: Places) -> int:
    """Show what a set changes, on which versions, what it needs and what is known of it."""
    from sm120patch import catalogue as catalogues
    from sm120patch.cli.describe import WIDTH, describe_set
    from sm120patch.render import set_dict

    known = catalogues.load(catalogue)
    found, origin = known.get(set_id), known.origins[set_id]
    text = describe_set(found, origin, width(sys.stdout) or WIDTH)
    output.data({**set_dict(found), "origin": origin}, text)
    return ExitCode.OK


@click.command()
@sets_argument(required=False)
@with_option
@click.option(
    "--against",
    multiple=True,
    metavar="WHEEL_OR_VERSION",
    help="Show instead what becomes of the sets (without a name: those on disk) when these"
    " packages are installed: a wheel, 0.5.10, or flashinfer-python==0.6.7.",
)
@wheel_dir_option
@offline_option
@click.option("--revert", is_flag=True, help="Plan taking the sets off instead.")
@click.option("--cascade", is_flag=True, help="With --revert: also the sets that need them.")
@gpu_option
@environment_options
@pass_output
def plan(
    output: Output,
    sets: tuple[str, ...],
    selected: tuple[str, ...],
    against: tuple[str, ...],
    wheel_dir: Path | None,
    offline: bool,
    revert: bool,
    cascade: bool,
    gpu: str | None,
    env: str | None,
    python: str | None,
    catalogue: Places,
) -> int:
    """Show every file and line that `apply SET...` would change. Writes nothing."""
    from sm120patch.operations.gpus import capability_of
    from sm120patch.operations.planning import plan_request
    from sm120patch.operations.site import open_site
    from sm120patch.planner import Request
    from sm120patch.render import plan_dict, plan_text
    from sm120patch.transaction import require_settled

    if against and (revert or cascade):
        raise UsageError("--against shows an upgrade; leave out --revert and --cascade")
    site = open_site(env, python, catalogue=catalogue)
    if against:
        shelf = shelf_for(output, wheel_dir, offline)
        return plan_against(output, site, sets, selected, against, shelf, capability_of(gpu))
    if not sets:
        raise UsageError("name the sets to plan", hint="see `sm120patch list`")
    require_settled(site.state)
    request = Request("revert" if revert else "apply", sets, selected, cascade)
    result = plan_request(site, request, capability_of(gpu))
    output.data(plan_dict(result), plan_text(result, diffs=True))
    return ExitCode.OK


@click.command()
@click.option(
    "--expect-content",
    metavar="DIGEST",
    help="Exit with 1 where the files of the sets and the versions come to anything else"
    " (`content` of a plan or of another status).",
)
@gpu_option
@environment_options
@pass_output
def status(
    output: Output,
    expect_content: str | None,
    gpu: str | None,
    env: str | None,
    python: str | None,
    catalogue: Places,
) -> int:
    """Show the state of every set in the environment; patched files are hashed again."""
    from sm120patch.cli.showing import show_status

    return show_status(output, gpu, env, python, catalogue, expect_content)


@click.command()
@click.argument("set_id", metavar="[SET]", required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Number of events to show.",
)
@click.option(
    "--experiments",
    is_flag=True,
    help="Show what was tried without a patch (`bench`), and how it ended.",
)
@environment_options
@pass_output
def history(
    output: Output,
    set_id: str | None,
    limit: int,
    experiments: bool,
    env: str | None,
    python: str | None,
    catalogue: Places,
) -> int:
    """Show what was done to the environment, newest first."""
    from sm120patch.cli.outcome import experiment_rows, history_rows
    from sm120patch.operations import inspecting
    from sm120patch.operations.site import open_site
    from sm120patch.plaintext import table
    from sm120patch.render import event_dict

    site = open_site(env, python, catalogue=catalogue, tolerant=True)
    kind = "experiment" if experiments else None
    events = inspecting.history(site, set_id, limit, kind)
    evidence = inspecting.evidence_of(site, events) if output.as_json else {}
    rows = history_rows(events)
    shown = [{**event_dict(e), "evidence": evidence.get(e.id)} for e in events]
    if experiments:
        rows = experiment_rows(events, inspecting.evidence_of(site, events))
    output.data({"events": shown}, table(rows) or "nothing was done here")
    return ExitCode.OK


COMMANDS: tuple[click.Command, ...] = (list_sets, show, plan, status, history)
