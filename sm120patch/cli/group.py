"""The command group, which loads a command when it is asked for."""

from __future__ import annotations

import importlib

import click

from sm120patch import __version__
from sm120patch.cli.main import COMMANDS


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


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 findings, 2 usage, 3 catalogue, 4 not applicable, 5 conflict, "
    "6 rolled back, 7 recovery needed, 8 not verified, 9 busy, 10 host, 130 interrupted.",
)
@click.version_option(__version__, prog_name="sm120patch")
def cli() -> None:
    """Apply, verify and revert source patches of SGLang and FlashInfer on SM120 GPUs."""
