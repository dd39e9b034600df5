"""Commands for a fleet of hosts: fleet-path."""

from __future__ import annotations

import click

from sm120patch.cli.options import output_option, pass_output
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode


@click.command("fleet-path")
@output_option
@pass_output
def fleet_path(output: Output) -> int:
    """Print where the Ansible collection sm120patch.fleet lies, for ANSIBLE_COLLECTIONS_PATH."""
    from sm120patch.operations.fleet import collections_path

    found = collections_path()
    output.data({"path": str(found), "collection": "sm120patch.fleet"}, str(found))
    return ExitCode.OK


COMMANDS: tuple[click.Command, ...] = (fleet_path,)
