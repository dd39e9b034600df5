"""Commands that look at whole hosts: audit."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120patch.cli.common import command_line, note_fault
from sm120patch.cli.exporting import export_options
from sm120patch.cli.options import (
    catalogue_options,
    fail_on_option,
    output_option,
    pass_output,
)
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sm120patch.audit.findings import HostReport
    from sm120patch.catalogue import Catalogue, Places
    from sm120patch.operations.fixing import Fixed

KINDS = (
    "foreign", "by-hand", "missing", "added", "unreadable", "record", "lost", "drifted",
    "unverified", "interrupted", "changed-payload", "copies", "shared", "carrier",
    "stale-bytecode", "stale-build", "stale-server", "unknown",
)  # fmt: skip
"""Words of `findings.Kind`; a test compares them, so that `--help` needs no import."""


@click.command()
@click.option("--env", metavar="PREFIX", help="Audit this environment only.")
@click.option("--python", metavar="EXE", help="Audit the environment of this interpreter only.")
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    help="Audit an unpacked image or a container's file system that lies here; nothing outside it"
    " is read.",
)
@fail_on_option(KINDS)
@click.option(
    "--max-directories",
    type=click.IntRange(min=1),
    default=400_000,
    show_default=True,
    help="Directories that the search looks into at most.",
)
@click.option("--network", is_flag=True, help="Search network mounts too.")
@click.option(
    "--quick",
    is_flag=True,
    help="Hash only files whose size, times or inode changed since they were hashed last.",
)
@click.option(
    "--fix",
    is_flag=True,
    help="Put right what is safe, after showing it: delete stale bytecode, and take complete sets"
    " that were applied by hand into the ledger.",
)
@click.option("--yes", is_flag=True, help="With --fix: do not ask.")
@export_options
@catalogue_options
@output_option
@pass_output
def audit(
    output: Output,
    env: str | None,
    python: str | None,
    root: Path | None,
    fail_on: tuple[str, ...],
    max_directories: int,
    network: bool,
    quick: bool,
    fix: bool,
    yes: bool,
    cyclonedx: Path | None,
    prometheus: Path | None,
    sarif: Path | None,
    catalogue: Places,
) -> int:
    """Find every Python environment and compare each file with upstream's; exit 1 on findings.

    Without --env or --python the whole host is searched. No code of the environments is run.
    """
    from sm120patch.audit.findings import FailOn, Kind, host_dict
    from sm120patch.cli.audittext import report_text
    from sm120patch.operations.auditing import Scope
    from sm120patch.operations.auditing import audit as audit_host

    export = _exporter(cyclonedx, prometheus, sarif)
    scope, known = (
        Scope(root, env, python, network, quick, max_directories),
        _catalogue(output, catalogue),
    )
    report = audit_host(scope, known, _progress(output))
    fixes = _fix(output, report, catalogue, yes=yes) if fix else []
    if fixes:
        report = audit_host(scope, known, _progress(output))  # what is left, read back
    written = export(report, known)
    chosen = FailOn(frozenset(map(Kind, fail_on))) if fail_on else FailOn()
    failed = chosen.fails(finding for _environment, finding in report.all_findings)
    code = ExitCode.FINDINGS if failed else ExitCode.OK
    result = {**host_dict(report), **_single(report, named=bool(env or python))}
    result["fixes"] = [
        {**vars(done.fix), "done": not done.problem, "problem": done.problem} for done in fixes
    ]
    result["written"] = [str(path) for path in written]
    output.data(result, report_text(report, output.given), code)
    return code


def _exporter(*files: Path | None) -> Callable[[HostReport, Catalogue], Sequence[Path]]:
    """Return what writes the report for other tools; what it needs is checked now."""
    if not any(files):
        return lambda _report, _known: ()
    from sm120patch.operations import exporting

    exports = exporting.Exports(*files)
    exporting.check(exports)
    started = time.monotonic()

    def export(report: HostReport, known: Catalogue) -> Sequence[Path]:
        return exporting.write(exports, report, known.sets, exporting.Timing.since(started))

    return export


def _fix(output: Output, report: HostReport, catalogue: Places, *, yes: bool) -> list[Fixed]:
    """Show what can be put right safely, ask, and do it."""
    from sm120patch.operations import fixing
    from sm120patch.published import Shelf, cache_directory

    planned = fixing.plan_fixes(report)
    if not planned:
        output.talk("nothing that could be put right safely")
        return []
    output.talk("\n".join(["to be put right:", *(f"  {fix}" for fix in planned)]))
    if not yes and not (sys.stdin.isatty() and click.confirm("go on?", err=True)):
        output.talk("nothing was changed; add --yes to go on without a question")
        return []
    shelf = Shelf(cache_directory(os.environ), output.talk, offline=True)
    done = [fixing.carry_out(fix, catalogue, shelf, command_line()) for fix in planned]
    for one in done:
        output.talk(f"  {one.fix}: {one.problem or 'done'}")
    return done


def _single(report: HostReport, *, named: bool) -> dict[str, object]:
    """Return the keys that describe the one environment that was named."""
    if not named:
        return {"prefix": None, "versions": {}, "files": {}}
    (environment,) = report.environments
    return {
        "prefix": environment.prefix,
        "versions": environment.versions,
        "files": {p.target: p.compared for p in environment.packages},
    }


def _catalogue(output: Output, where: Places) -> Catalogue:
    """Load the catalogue; a broken one is told, and the ledger alone answers."""
    from sm120patch import catalogue as catalogues
    from sm120patch.errors import CatalogueError

    try:
        return catalogues.load(where)
    except CatalogueError as error:
        note_fault(output, error)
        return catalogues.Catalogue({})


def _progress(output: Output) -> Callable[[str], None]:
    if sys.stderr.isatty():
        return output.talk
    return lambda _text: None


COMMANDS: tuple[click.Command, ...] = (audit,)
