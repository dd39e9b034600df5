"""The command that settles what was interrupted, or takes files back without a ledger: recover."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120patch.cli import following
from sm120patch.cli.common import command_line
from sm120patch.cli.options import environment_options, pass_output
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode

if TYPE_CHECKING:
    from sm120patch.catalogue import Places
    from sm120patch.operations.site import Site


@click.command()
@click.option(
    "--keep-foreign",
    is_flag=True,
    help="Leave files that something else changed meanwhile as they are, and settle the rest.",
)
@click.option(
    "--lost-ledger",
    is_flag=True,
    help="The ledger is gone, damaged, or older than the environment: put upstream's content"
    " back into every file of ours. Does without a damaged journal, too.",
)
@environment_options
@pass_output
def recover(
    output: Output,
    keep_foreign: bool,
    lost_ledger: bool,
    env: str | None,
    python: str | None,
    catalogue: Places,
) -> int:
    """Finish or undo a command that was interrupted (killed, power loss)."""
    from sm120patch.operations import changing
    from sm120patch.operations.site import open_site

    site = open_site(env, python, catalogue=catalogue, tolerant=True)
    if lost_ledger:
        return _salvage(output, site)
    result, unexplained = changing.recover(site, keep_foreign=keep_foreign)
    _warn_of_originals(output, unexplained)
    if result is None:
        output.data(_result("nothing"), "nothing to recover")
        return ExitCode.OK
    text = f"{result.outcome}: {result.command}"
    text += "".join(f"\nleft as found: {path}" for path in result.kept_foreign)
    if result.outcome == "undone" and not result.kept_foreign:
        text += (
            "\nthe files of the open change hold their content from before;"
            " repeat the command if you still want it"
        )
    output.data(_result(result.outcome, result.command, result.kept_foreign), text)
    return ExitCode.OK


def _warn_of_originals(output: Output, files: Sequence[str]) -> None:
    if files:
        output.talk(
            f"warning: the ledger does not speak of {', '.join(files)}, which are not upstream's;"
            " the store keeps their originals"
        )
        hint = (
            "hint: `sm120patch adopt SET` takes a set that is there into the ledger;"
            " `sm120patch recover --lost-ledger` puts upstream's content back"
        )
        output.talk(following.prose(hint, output.given))


def _salvage(output: Output, site: Site) -> int:
    from sm120patch.operations.salvaging import salvage

    found = salvage(site, command_line())
    lines = [f"upstream's content is back: {path}" for path in found.restored]
    lines += [f"left as found, not ours: {path}" for path in found.left]
    lines += [f"the ledger from before is now {found.moved}"] if found.moved else []
    result = _result("salvaged", None, found.left, found.restored, found.moved)
    output.data(result, "\n".join(lines or ["no file had to be put back"]))
    return ExitCode.OK


def _result(
    outcome: str,
    command: str | None = None,
    kept: Sequence[str] = (),
    restored: Sequence[str] = (),
    moved: Path | None = None,
) -> dict[str, object]:
    return {
        "outcome": outcome,
        "command": command,
        "kept_foreign": list(kept),
        "restored": list(restored),
        "moved": None if moved is None else str(moved),
    }


COMMANDS: tuple[click.Command, ...] = (recover,)
