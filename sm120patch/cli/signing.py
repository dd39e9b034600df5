"""`sign`: let other hosts know that a catalogue comes from you."""

from __future__ import annotations

from pathlib import Path

import click

from sm120patch.cli.options import output_option, pass_output
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--key",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    required=True,
    help="SSH key to sign with; a public one is enough where an agent holds the other half.",
)
@output_option
@pass_output
def sign(output: Output, directory: Path, key: Path) -> int:
    """Sign a catalogue directory with an SSH key.

    Hosts that list your public key in /etc/sm120patch/allowed_signers (or in the file that
    SM120PATCH_ALLOWED_SIGNERS names) then refuse the catalogue once anything in it was changed.
    """
    from sm120patch import signing

    signature = signing.sign(directory, key)
    files = signing.listing(directory).count(b"\n")
    result: dict[str, object] = {"signature": str(signature), "files": files}
    output.data(result, f"signed {files} files: {signature}")
    return ExitCode.OK


COMMANDS: tuple[click.Command, ...] = (sign,)
