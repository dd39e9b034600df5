"""The command that takes over what was applied by hand: adopt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120patch.cli import following
from sm120patch.cli.common import command_line, warn_of_running
from sm120patch.cli.options import (
    environment_options,
    gpu_option,
    offline_option,
    pass_output,
    pristine_option,
    running_option,
    sets_argument,
    shelf_for,
    wheel_dir_option,
    with_option,
)
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode

if TYPE_CHECKING:
    from sm120patch.catalogue import Places
    from sm120patch.operations.adopting import Adoption


@click.command()
@sets_argument()
@with_option
@click.option(
    "--complete",
    is_flag=True,
    help="Apply what is lacking of the sets in the same transaction.",
)
@pristine_option
@wheel_dir_option
@offline_option
@click.option("--dry-run", is_flag=True, help="Show what would be taken over; write nothing.")
@running_option
@gpu_option
@environment_options
@pass_output
def adopt(
    output: Output,
    sets: tuple[str, ...],
    selected: tuple[str, ...],
    complete: bool,
    pristine: tuple[Path, ...],
    wheel_dir: Path | None,
    offline: bool,
    dry_run: bool,
    allow_running: bool,
    gpu: str | None,
    env: str | None,
    python: str | None,
    catalogue: Places,
) -> int:
    """Take sets that were applied by hand into the ledger, to verify and revert them.

    Files that hold what the sets make stay as they are. Upstream's bytes are taken from git, from
    --pristine, or from the published package, which is downloaded if need be.
    """
    from sm120patch.operations import adopting, guarding
    from sm120patch.operations.gpus import capability_of
    from sm120patch.operations.site import open_site
    from sm120patch.operations.sources import Sources
    from sm120patch.planner import Request
    from sm120patch.transaction import require_settled

    site = open_site(env, python, catalogue=catalogue)
    require_settled(site.state)
    sources = Sources(pristine, shelf_for(output, wheel_dir, offline))
    request = Request("apply", sets, selected)
    adoption = adopting.plan_adoption(site, request, capability_of(gpu), sources, complete=complete)
    if not dry_run:
        if adoption.completed:
            warn_of_running(output, guarding.processes(site, None, allow=allow_running))
        adopting.adopt(site, adoption, command=command_line())
    output.data(adoption_dict(adoption, dry_run), adoption_text(adoption, dry_run, output.given))
    return ExitCode.OK


def adoption_dict(adoption: Adoption, dry_run: bool) -> dict[str, object]:
    """JSON-ready form of an adoption, done or planned."""
    from sm120patch.render import plan_dict

    return {
        "outcome": "planned" if dry_run else "adopted",
        "plan": plan_dict(adoption.plan),
        "completed": list(adoption.completed),
        "sources": {f"{t}:{path}": where for (t, path), where in adoption.sources.items()},
    }


def adoption_text(adoption: Adoption, dry_run: bool, given: following.Given = ()) -> str:
    """What is or would be taken over, for people; `given` goes into the command to run next."""
    plan = adoption.plan
    names = ", ".join(record.id for record in plan.add)
    lines = [f"{'would adopt' if dry_run else 'adopted'}: {names}"]
    for step in plan.files:
        how = "changed" if step.path in adoption.completed else "as it is"
        where = adoption.sources.get((step.target, step.path), "the environment")
        lines.append(f"  {step.path}: {how}; upstream's content from {where}")
    if not dry_run:
        lines.append("staged, NOT verified: this does not count as applied")
        verify = f"sm120patch verify {' '.join(plan.requested)}"
        lines.append(f"next: {following.command(verify, given)}")
    return "\n".join(lines)


COMMANDS: tuple[click.Command, ...] = (adopt,)
