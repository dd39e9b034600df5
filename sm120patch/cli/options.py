"""Options and arguments that several commands share."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from sm120patch.cli.output import Output

if TYPE_CHECKING:
    from sm120patch.catalogue import Places
    from sm120patch.published import Shelf

Command = TypeVar("Command", bound=Callable[..., Any])

PROFILE = Path("sm120patch.toml")
"""Profile that counts where no other is named, and that `init` writes."""


class FiniteRange(click.FloatRange):
    """Numbers in a range; what is no number is in none, though click lets `nan` pass."""

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> float:
        """Return the number, or fail as click does."""
        number: float = super().convert(value, param, context)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, context)
        return number


pass_output = click.make_pass_decorator(Output)
profile_option = click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Verification profile (default: ./sm120patch.toml; see `init`).",
)
time_option = click.option(
    "--max-time", type=FiniteRange(min=1), metavar="SECONDS", help="Bound the verification."
)
wheel_dir_option = click.option(
    "--wheel-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of published packages (default: ~/.cache/sm120patch/wheels).",
)
offline_option = click.option(
    "--offline", is_flag=True, help="Download nothing; take what is in the wheel directory."
)
pristine_option = click.option(
    "--pristine",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Package (.whl, .tar.gz) or directory with upstream's files; may be repeated. It counts"
    " only where RECORD's digests agree.",
)


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


_EXTRA = "sm120patch.extra_catalogues"


def _keep_extra(
    context: click.Context, _parameter: click.Parameter, value: tuple[Path, ...]
) -> tuple[Path, ...]:
    context.meta[_EXTRA] = value
    return value


def _find_places(context: click.Context, _parameter: click.Parameter, value: Path | None) -> Places:
    from sm120patch.operations.places import find_places

    return find_places(value, context.meta.get(_EXTRA, ()), os.environ)


def fail_on_option(kinds: Sequence[str]) -> Callable[[Command], Command]:
    """Add `--fail-on` for a command that has findings of these kinds."""
    return click.option(
        "--fail-on",
        multiple=True,
        type=click.Choice(kinds),
        help="Kinds of findings that exit with 1; may be repeated (default: all). What is unknown"
        " always does.",
    )


def catalogue_options(function: Command) -> Command:
    """Add `--catalogue` and `--extra-catalogue`; the command gets one `Places` as `catalogue`."""
    for option in (
        click.option(
            "--extra-catalogue",
            type=click.Path(path_type=Path, file_okay=False),
            multiple=True,
            is_eager=True,
            expose_value=False,
            callback=_keep_extra,
            help="Directory with manifests/ and patches/ to use as well; may be repeated.",
        ),
        click.option(
            "--catalogue",
            type=click.Path(path_type=Path, file_okay=False),
            callback=_find_places,
            help="Directory with manifests/ and patches/ to use instead of the shipped catalogue.",
        ),
    ):
        function = option(function)
    return function


def environment_options(function: Command) -> Command:
    """Add `--env`, `--python`, the catalogue options and `--output`."""
    function = catalogue_options(function)
    for option in (
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
    from sm120patch.operations.places import find_places

    known = catalogue.load(find_places(None, (), os.environ)).ids
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]


def sets_argument(*, required: bool = True) -> Callable[[Command], Command]:
    """Add the argument `SET...`."""

    def decorate(function: Command) -> Command:
        metavar = "SET..." if required else "[SET...]"
        return click.argument(
            "sets", nargs=-1, required=required, metavar=metavar, shell_complete=_complete_sets
        )(function)

    return decorate


def set_argument(function: Command) -> Command:
    """Add the argument `SET`."""
    return click.argument("set_id", metavar="SET", shell_complete=_complete_sets)(function)


def shelf_for(output: Output, wheel_dir: Path | None, offline: bool) -> Shelf:
    """Return the wheel directory that the options name."""
    from sm120patch.published import Shelf, cache_directory

    return Shelf(wheel_dir or cache_directory(os.environ), output.talk, offline)
