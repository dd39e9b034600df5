"""The command that shows foreign edits line by line: diff."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120patch.cli import following
from sm120patch.cli.common import note_fault
from sm120patch.cli.options import (
    environment_options,
    offline_option,
    pass_output,
    pristine_option,
    shelf_for,
    wheel_dir_option,
)
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode

if TYPE_CHECKING:
    from sm120patch.catalogue import Places


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "--all", "everything", is_flag=True, help="Show also what the sets of the ledger changed."
)
@pristine_option
@wheel_dir_option
@offline_option
@environment_options
@pass_output
def diff(
    output: Output,
    files: tuple[str, ...],
    everything: bool,
    pristine: tuple[Path, ...],
    wheel_dir: Path | None,
    offline: bool,
    env: str | None,
    python: str | None,
    catalogue: Places,
) -> int:
    """Show edits that no ledger explains, as a diff; exit 1 when there are any.

    A file that sets have patched is compared with what the ledger says was written, any other with
    what upstream shipped. Upstream's bytes are taken from the store, from git, from --pristine, or
    from the published package, which is downloaded if need be. FILE is a path, or what `audit`
    names: without one every file of the packages is looked at. Into a pipe or a file go the exact
    bytes, which `git apply -R` takes; to a terminal, what could act on it is shown escaped.
    """
    from sm120patch.operations import differing
    from sm120patch.operations.site import open_site
    from sm120patch.operations.sources import Sources
    from sm120patch.transaction import require_settled

    site = open_site(env, python, catalogue=catalogue, tolerant=True)
    require_settled(site.state)
    note_fault(output, site.catalogue_fault)
    sources = Sources(pristine, shelf_for(output, wheel_dir, offline))
    progress = output.talk if sys.stderr.isatty() else lambda _text: None
    found = differing.differences(site, files, sources, progress, everything=everything)
    for unknown in found.unknown:
        output.talk(f"warning: not known: {unknown}")
    nothing = "" if found.unknown else "no edit that the ledger does not explain"
    text = differing.edits_text(found.edits) or nothing
    foreign = [edit for edit in found.edits if not edit.ours]
    if any(edit.unobtainable for edit in found.edits):
        given = following.command("sm120patch diff --pristine WHEEL", output.given)
        output.talk(f"hint: `{given}` takes upstream's content from a package that you have")
    result = {
        "prefix": str(site.environment.prefix),
        "versions": site.versions,
        "files": [differing.edit_dict(edit) for edit in found.edits],
        "unknown": list(found.unknown),
    }
    code = ExitCode.FINDINGS if foreign or found.unknown else ExitCode.OK
    output.data(result, text, code, exact=True)
    return code


COMMANDS: tuple[click.Command, ...] = (diff,)
