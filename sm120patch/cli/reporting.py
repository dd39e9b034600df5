"""The command that shows one verification or experiment whole: report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120patch.cli.options import environment_options, pass_output
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode

if TYPE_CHECKING:
    from sm120patch.catalogue import Places
    from sm120patch.report.view import Subject


@click.command()
@click.argument("wanted", metavar="[ID]", required=False)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write one self-contained page with charts, answers, versions and diffs.",
)
@environment_options
@pass_output
def report(
    output: Output,
    wanted: str | None,
    html: Path | None,
    env: str | None,
    python: str | None,
    catalogue: Places,
) -> int:
    """Show what was measured: verdict, both arms, correctness, host, and what was changed.

    ID is the number of an event in `history`, or a set (its newest measurement); without one it
    is the newest measurement of all.
    """
    from sm120patch.operations.reporting import find_subject, write_page
    from sm120patch.operations.site import open_site
    from sm120patch.render import event_dict, evidence_dict

    site = open_site(env, python, catalogue=catalogue, tolerant=True)
    subject = find_subject(site, wanted)
    written = None if html is None else write_page(subject, html)
    text = _text(subject) if written is None else f"wrote {written.path} ({written.size} bytes)"
    output.data(
        {
            "event": event_dict(subject.event),
            "evidence": {**evidence_dict(subject.evidence), "data": dict(subject.evidence.data)},
            "changed": [vars(changed) for changed in subject.changed],
            "html": None if written is None else str(written.path),
        },
        text,
    )
    return ExitCode.OK


def _text(subject: Subject) -> str:
    from sm120patch.plaintext import table
    from sm120patch.report.view import build

    page = build(subject)
    simulated = "" if page.kind == "real" else f" ({page.kind})"
    lines = [f"{page.title}: {page.verdict}{simulated}", *(f"  {r}" for r in page.reasons)]
    lines += [f"  {page.outcome}"] if page.outcome else []
    lines += [f"  {workload.name}: {workload.words}" for workload in page.workloads]
    lines += [f"  fault: {fault}" for fault in page.faults]
    # One blank between words: what stands behind more is a column of its own on a terminal.
    rows = [(label, " ".join(value.split())) for label, value in page.facts]
    rows += [*page.versions, *page.host, *page.commands]
    rows += [("changed", f"{' '.join(f.title.split())}: {f.digests}") for f in page.files]
    return "\n".join([*lines, table(rows)])


COMMANDS: tuple[click.Command, ...] = (report,)
