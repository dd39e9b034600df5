"""The command that writes a verification profile: init."""

from __future__ import annotations

from pathlib import Path

import click

from sm120patch.cli.options import PROFILE, output_option, pass_output
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode


@click.command()
@click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False),
    default=PROFILE,
    show_default=True,
    help="File to write.",
)
@click.option("--pid", type=int, help="Take the command line of this SGLang server.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@output_option
@pass_output
def init(output: Output, profile: Path, pid: int | None, force: bool) -> int:
    """Write a commented verification profile, from a running SGLang server if there is one.

    Secrets of its command line and environment are never copied.
    """
    from sm120patch.operations.initialising import write_profile

    result = write_profile(profile, pid=pid, force=force)
    output.data(
        {"path": str(result.path), "pid": result.pid, "servers": list(result.servers)}, result.text
    )
    return ExitCode.OK


COMMANDS: tuple[click.Command, ...] = (init,)
