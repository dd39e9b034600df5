"""The command group, which loads a command when it is asked for."""

from __future__ import annotations

import importlib

import click

from sm120patch import __version__
from sm120patch.cli.main import COMMANDS

SUMMARIES = {
    "adopt": "Take sets that were applied by hand into the ledger.",
    "apply": "Patch, measure without and with the sets, keep or put back.",
    "audit": "Compare every file of every environment with upstream's.",
    "bench": "Try launch options without a patch, measured like a set.",
    "caches": "Show which compiled modules a change touches, and why.",
    "diff": "Show edits that no ledger explains, as a diff.",
    "doctor": "Say what this host can do, and which flags do nothing.",
    "fleet-path": "Print where the Ansible collection lies.",
    "fleet-report": "Compare the facts of many nodes, outliers first.",
    "history": "Show what was done to the environment, newest first.",
    "init": "Write a profile that says how your server is started.",
    "lint": "Check manifests, windows and payloads.",
    "list": "Show the patch sets of the catalogue.",
    "matrix": "Show what sets mean for published releases.",
    "new": "Begin a patch set of your own from upstream's files.",
    "plan": "Show every file and line that `apply` would change.",
    "recover": "Finish or undo a command that was interrupted.",
    "report": "Show one measurement whole, or write it as a page.",
    "revert": "Take sets off again: upstream's bytes and modes.",
    "show": "Show all that is known of a set.",
    "sign": "Sign a catalogue directory with an SSH key.",
    "status": "Show the state of every set in the environment.",
    "tune": "Let FlashInfer measure its MoE tactics on this GPU.",
    "verify": "Measure sets that are on disk already.",
}
"""What the list of commands says of each: whole on a terminal of 80 columns."""


class Commands(click.Group):
    """The commands; the module of one is loaded when it is asked for, to start fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, sorted."""
        return sorted(name for names in COMMANDS.values() for name in names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name; loads the module that holds it."""
        for holder, names in COMMANDS.items():
            if cmd_name in names:
                module = importlib.import_module(f"sm120patch.cli.{holder}")
                held: tuple[click.Command, ...] = module.COMMANDS
                return next(found for found in held if found.name == cmd_name)
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the closest commands where there is none of that name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            close = difflib.get_close_matches(args[0], self.list_commands(ctx))
            if not close:
                raise
            meant = f"{error.message} Did you mean {' or '.join(close)}?"
            raise click.UsageError(meant, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without loading the modules that hold them."""
        with formatter.section("Commands"):
            formatter.write_dl([(n, SUMMARIES.get(n, "")) for n in self.list_commands(ctx)])


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 findings, 2 usage, 3 catalogue, 4 not applicable, 5 conflict, "
    "6 rolled back, 7 recovery needed, 8 not verified, 9 busy, 10 host, 130 interrupted.",
)
@click.version_option(__version__, prog_name="sm120patch")
def cli() -> None:
    """Apply, verify and revert source patches of SGLang and FlashInfer on SM120 GPUs."""
