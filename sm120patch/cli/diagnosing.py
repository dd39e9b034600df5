"""The command that says why sets can or cannot work here: doctor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120patch.cli import following
from sm120patch.cli.options import (
    PROFILE,
    FiniteRange,
    environment_options,
    gpu_option,
    pass_output,
)
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from sm120patch.catalogue import Places
    from sm120patch.operations.diagnosing import Diagnosis
    from sm120patch.operations.site import Site


@click.command()
@click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Verification profile whose options and variables are looked at as well"
    f" (default: {PROFILE} of the working directory, if it is there).",
)
@click.option(
    "--limit",
    type=FiniteRange(min=0.1, max=600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time that one reading may take before it is given up.",
)
@gpu_option
@environment_options
@pass_output
def doctor(
    output: Output,
    profile: Path | None,
    limit: float,
    gpu: str | None,
    env: str | None,
    python: str | None,
    catalogue: Places,
) -> int:
    """Say what this host can do, what each set comes to on it, and which flags have no effect."""
    from sm120patch.doctor.gathering import Source
    from sm120patch.operations import diagnosing
    from sm120patch.operations.gpus import capability_of

    site, without = _site(env, python, catalogue)
    if profile is None and PROFILE.is_file():
        profile = PROFILE
    named = capability_of(gpu) if gpu is not None else None
    question = diagnosing.Question(site, without, named, profile)
    found = diagnosing.diagnose(question, Source(limit=limit), dict(os.environ))
    return _show(output, found)


def _site(env: str | None, python: str | None, catalogue: Places) -> tuple[Site | None, str | None]:
    """The environment, or why there is none to judge: the host can be looked at all the same."""
    from sm120patch.operations.site import open_site

    try:
        return open_site(env, python, catalogue=catalogue), None
    except UsageError as error:
        if error.code != "no-environment":
            raise
        return None, f"{error.message}; name one with --env PREFIX"


def _show(output: Output, found: Diagnosis) -> int:
    from sm120patch.doctor import render
    from sm120patch.host.machine import describe

    code = ExitCode.OK if found.clean else ExitCode.FINDINGS
    topology = found.readings.host.topology
    text = render.text(found.checks, found.sets, found.flags, found.without, topology)
    output.data(
        {
            "prefix": found.prefix,
            "versions": dict(found.versions),
            "host": dict(describe(found.readings.host)),
            "checks": [render.check_dict(check) for check in found.checks],
            "sets": [render.set_dict(outlook) for outlook in found.sets],
            "flags": [render.flag_dict(flag) for flag in found.flags],
        },
        following.prose(text, output.given),
        code,
    )
    return code


COMMANDS: tuple[click.Command, ...] = (doctor,)
