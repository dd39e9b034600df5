"""Options, settings and words of `--compile`, which `apply` and `verify` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120patch.cli.options import Command, FiniteRange
from sm120patch.cli.output import Output

if TYPE_CHECKING:
    from sm120patch.operations.changing import Demands
    from sm120patch.operations.compiling import Ahead
    from sm120patch.operations.site import Site
    from sm120patch.plan import Plan
    from sm120patch.verify.profile import Profile


def compile_options(function: Command) -> Command:
    """Add `--compile` and `--compile-timeout`."""
    for option in (
        click.option(
            "--compile-timeout",
            type=FiniteRange(min=1),
            default=1800,
            show_default=True,
            metavar="SECONDS",
            help="Bound --compile.",
        ),
        click.option(
            "--compile",
            "ahead",
            is_flag=True,
            help="Compile the changed modules ahead of the server, and prove from PTX that the"
            " change is in them. Needs nvcc, no GPU.",
        ),
    ):
        function = option(function)
    return function


def ahead_for(
    output: Output,
    site: Site,
    plan: Plan,
    profile: Profile | None,
    demands: Demands,
    capability: str | None,
    timeout: float,
) -> Ahead:
    """Prepare a compile with the environment that the profile's server will have."""
    from sm120patch.operations import changing, compiling

    command = changing.preview(plan, profile, demands).patched if profile else None
    settings = compiling.settings_for(capability, timeout, profile, command)
    return compiling.Ahead(site, settings, output.talk)


def profile_for(site: Site, path: Path | None, chosen: Profile | None) -> Profile | None:
    """Profile whose server the module is compiled for: the one in use, or the one there is."""
    from sm120patch.operations import profiles

    return chosen or profiles.find(path, site, Path.cwd())
