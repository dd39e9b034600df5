"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from sm120patch.cli.output import Output

Command = TypeVar("Command", bound=Callable[..., Any])


def _choose_format(context: click.Context, _parameter: click.Parameter, value: str) -> str:
    output = context.find_object(Output)
    if output is not None:
        output.as_json = value == "json"
        output.command = context.info_name or ""
    return value


def output_option(function: Command) -> Command:
    """Add `--output`."""
    return click.option(
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        is_eager=True,
        expose_value=False,
        callback=_choose_format,
        help="Form of the result on stdout.",
    )(function)


def environment_options(function: Command) -> Command:
    """Add `--env`, `--python`, `--catalogue` and `--output`."""
    for option in (
        click.option(
            "--catalogue",
            type=click.Path(path_type=Path, file_okay=False),
            help="Directory with manifests/ and patches/ to use instead of the shipped catalogue.",
        ),
        click.option("--python", metavar="EXE", help="Interpreter of the environment to work on."),
        click.option(
            "--env",
            metavar="PREFIX",
            help="Prefix of the environment to work on (default: the active one).",
        ),
    ):
        function = option(function)
    return output_option(function)


def gpu_option(function: Command) -> Command:
    """Add `--gpu`."""
    return click.option(
        "--gpu",
        metavar="CAPABILITY",
        help="Compute capability of the GPU, such as 12.0 (default: ask the driver).",
    )(function)


def with_option(function: Command) -> Command:
    """Add `--with`."""
    return click.option(
        "--with", "selected", multiple=True, metavar="CHANGE", help="Select an optional change."
    )(function)


def running_option(function: Command) -> Command:
    """Add `--allow-running`."""
    return click.option(
        "--allow-running",
        is_flag=True,
        help="Write although running processes use the files or hold the GPUs.",
    )(function)


def _complete_sets(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from sm120patch import catalogue

    return [CompletionItem(name) for name in catalogue.load().ids if name.startswith(incomplete)]


def sets_argument(*, required: bool = True) -> Callable[[Command], Command]:
    """Add the argument `SET...`."""

    def decorate(function: Command) -> Command:
        return click.argument(
            "sets", nargs=-1, required=required, metavar="SET...", shell_complete=_complete_sets
        )(function)

    return decorate


def set_argument(function: Command) -> Command:
    """Add the argument `SET`."""
    return click.argument("set_id", metavar="SET", shell_complete=_complete_sets)(function)
