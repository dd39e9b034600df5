"""The options by which an audit is also written for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from sm120patch.cli.options import Command


def export_options(function: Command) -> Command:
    """Add `--cyclonedx`, `--prometheus` and `--sarif`, each with a file."""
    for name, what in (
        ("sarif", "a SARIF 2.1.0 log for code scanning"),
        ("prometheus", "metrics for node_exporter's textfile collector"),
        ("cyclonedx", "a CycloneDX 1.6 document with the patches in the pedigree"),
    ):
        function = click.option(
            f"--{name}",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help=f"Write {what} as well; an existing file is replaced at once.",
        )(function)
    return function
