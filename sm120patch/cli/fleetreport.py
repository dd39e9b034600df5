"""The command that looks at many nodes at once: fleet-report."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120patch.cli.options import FiniteRange, fail_on_option, output_option, pass_output
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm120patch.fleet.compare import Comparison
    from sm120patch.fleet.overview import Fleet

KINDS = ("unequal", "unknown", "not-applied", "differs", "unexpected", "finding")
"""Words of `overview.Kind`; a test compares them, so that `--help` needs no import."""


@click.command("fleet-report")
@click.argument(
    "facts",
    metavar="FACTS_DIR|FILE...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)
@click.option(
    "--expect",
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE",
    help="Nodes that there should be: one name a line, an inventory of Ansible, or what"
    " `ansible-inventory --list` printed. One without facts is unknown.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="NAME[=NODE,NODE]",
    help="Nodes that serve as one and must hold the same code; NAME alone is a group of the"
    " inventory. May be repeated.",
)
@click.option(
    "--sets",
    "sets",
    multiple=True,
    metavar="NAME[,NAME]",
    help="Sets that must be applied on every node, with real evidence; one that is not is a"
    " finding. May be repeated.",
)
@click.option(
    "--compare",
    nargs=2,
    type=str,
    metavar="NODE NODE",
    help="Say instead why one of two nodes is slower: what differs, the most probable reason"
    " first.",
)
@click.option(
    "--max-age",
    type=FiniteRange(min=0, min_open=True, max=876_000),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Age beyond which facts are stale, and their node unknown.",
)
@click.option(
    "--late",
    type=FiniteRange(min=0, max=36_500),
    default=30.0,
    show_default=True,
    metavar="DAYS",
    help="How much older than the median of the nodes evidence may be.",
)
@fail_on_option(KINDS)
@click.option("--all", "every", is_flag=True, help="Give every node a line, those alike too.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write one self-contained page.",
)
@output_option
@pass_output
def fleet_report(
    output: Output,
    facts: tuple[Path, ...],
    expect: Path | None,
    groups: tuple[str, ...],
    sets: tuple[str, ...],
    compare: tuple[str, str] | None,
    max_age: float,
    late: float,
    fail_on: tuple[str, ...],
    every: bool,
    html: Path | None,
) -> int:
    """Compare the facts of many nodes: which differ, which are unknown; exit 1 on findings.

    Facts are JSON files, one a node, in the form of docs/fleet.md. No node is connected to.
    """
    from sm120patch.fleet.overview import FailOn, Kind, overview
    from sm120patch.fleet.parsing import Reading
    from sm120patch.operations import fleetfacts

    now = datetime.now(timezone.utc)
    how = Reading(now, timedelta(hours=max_age))
    expected = fleetfacts.expected(expect, groups, sets)
    gathered = fleetfacts.gather(facts, how, compare, _progress(output))
    if not gathered.nodes and not expected.nodes:
        raise UsageError(
            f"there are no facts in {', '.join(map(str, facts))}",
            hint="the audit playbook of the collection gathers them; see docs/fleet.md",
            code="no-facts",
        )
    found = overview(gathered.nodes, expected, timedelta(days=late))
    chosen = FailOn(frozenset(map(Kind, fail_on))) if fail_on else FailOn()
    failed = chosen.fails(found.findings)
    if gathered.comparison is not None:
        failed = gathered.comparison.unknown
    code = ExitCode.FINDINGS if failed else ExitCode.OK
    written = None if html is None else _write(found, gathered.comparison, now, html)
    _show(output, found, gathered.comparison, now, written, every, code)
    return code


def _show(
    output: Output,
    found: Fleet,
    comparison: Comparison | None,
    now: datetime,
    written: Path | None,
    every: bool,
    code: ExitCode,
) -> None:
    from sm120patch.fleet import answers, tables

    if written is not None:
        output.talk(f"wrote {written}")
    text = (
        tables.fleet_text(found, now, every=every)
        if comparison is None
        else tables.comparison_text(comparison)
    )
    result = {
        **answers.fleet_dict(found),
        "compare": None if comparison is None else answers.comparison_dict(comparison),
        "html": None if written is None else str(written),
    }
    output.data(result, text, code)


def _write(found: Fleet, comparison: Comparison | None, now: datetime, path: Path) -> Path:
    from sm120patch import __version__
    from sm120patch.fleet.page import render
    from sm120patch.operations.reporting import write_html

    return write_html(render(found, comparison, now, __version__), path).path


def _progress(output: Output) -> Callable[[int, str], None]:
    if not sys.stderr.isatty():
        return lambda _count, _name: None
    from sm120patch.audit.discovery import ticking

    return ticking(output.talk, "reading facts")


COMMANDS: tuple[click.Command, ...] = (fleet_report,)
