"""Commands for those who write patch sets: new, lint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120patch.cli.options import catalogue_options, output_option, sets_argument
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from sm120patch.catalogue import Places
    from sm120patch.operations.authoring import Begun, Finished

pass_output = click.make_pass_decorator(Output)
directory = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.argument("set_id", metavar="SET")
@click.option("--target", metavar="DIST", help="Distribution to patch: sglang, flashinfer-python.")
@click.option("--from-env", metavar="PREFIX", help="Start from what is installed there.")
@click.option("--version", metavar="V", help="Start from the published wheel of this version.")
@click.option("--title", metavar="TEXT", help="One line that says what the set does.")
@click.option(
    "--capability",
    multiple=True,
    metavar="CAPABILITY",
    default=("12.0",),
    show_default=True,
    help="Compute capability it is for; may be repeated.",
)
@click.option("--scratch", type=directory, help="Scratch repository [default: SET.scratch].")
@click.option("--finish", "finishing", is_flag=True, help="Write the set for what was edited.")
@click.option(
    "--into",
    type=directory,
    default=Path("catalogue"),
    show_default=True,
    help="With --finish: catalogue directory to write into.",
)
@click.option("--force", is_flag=True, help="Overwrite an earlier scratch, or an earlier set.")
@output_option
@pass_output
def new(
    output: Output,
    set_id: str,
    target: str | None,
    from_env: str | None,
    version: str | None,
    title: str | None,
    capability: tuple[str, ...],
    scratch: Path | None,
    finishing: bool,
    into: Path,
    force: bool,
) -> int:
    """Begin a patch set from upstream's files, and with --finish write it from what you edited.

    The files are copied into a scratch git repository. Edit them there; nothing is installed.
    """
    import datetime

    from sm120patch.operations import authoring

    place = scratch or authoring.default_scratch(set_id)
    if finishing:
        if target or from_env or version or title:
            raise UsageError(
                "--finish takes target, version and title from the scratch",
                hint=f"sm120patch new {set_id} --finish",
            )
        today = datetime.date.today().isoformat()
        done = authoring.finish(set_id, place, into, today, force=force)
        output.data(_finished_dict(done), _finished_text(done))
        return ExitCode.OK
    if target is None:
        raise UsageError("name the distribution to patch with --target", hint="--target sglang")
    title = title or f"TODO: one line that says what {set_id} does"
    request = authoring.Request(set_id, target, from_env, version, title, capability)
    begun = authoring.begin(request, place, os.environ, force=force)
    output.data(_begun_dict(begun), _begun_text(begun))
    return ExitCode.OK


def _begun_dict(begun: Begun) -> dict[str, object]:
    return {
        "set": begun.about.set_id,
        "target": begun.about.target,
        "version": begun.about.version,
        "source": begun.about.source,
        "scratch": str(begun.directory),
        "catalogue": None,
        "written": [],
        "changes": [],
    }


def _begun_text(begun: Begun) -> str:
    about = begun.about
    return (
        f"{about.target} {about.version} ({about.source}): {begun.files} files in"
        f" {begun.directory}\n"
        f"edit them, then: sm120patch new {about.set_id} --finish"
    )


def _finished_dict(done: Finished) -> dict[str, object]:
    about = done.about
    return {
        "set": about.set_id,
        "target": about.target,
        "version": about.version,
        "source": about.source,
        "scratch": None,
        "catalogue": str(done.catalogue),
        "written": list(done.written),
        "changes": [
            {
                "change": m.change,
                "path": m.path,
                "kind": m.kind,
                "payload": m.payload,
                "note": m.note,
            }
            for m in done.made
        ],
    }


def _finished_text(done: Finished) -> str:
    from sm120patch.render import table

    rows = [(m.change, m.kind, m.path, m.note) for m in done.made]
    lines = [table(rows), *(f"wrote {done.catalogue / name}" for name in done.written)]
    if any(m.kind == "unwritten" for m in done.made):
        lines.append("next: write the edit of every codemod that is `unwritten`; until then it")
        lines.append("refuses. `lint` and the test tell when it is done")
    command = f"sm120patch lint {done.about.set_id} --catalogue {done.catalogue}"
    lines.append(f"next: {command} --against {done.about.target}=={done.about.version}")
    return "\n".join(lines)


@click.command()
@sets_argument(required=False)
@click.option(
    "--against",
    multiple=True,
    metavar="RELEASE",
    help="Wheel, or DIST==VERSION (downloaded once), to try the changes on; may be repeated.",
)
@catalogue_options
@output_option
@pass_output
def lint(output: Output, sets: tuple[str, ...], against: tuple[str, ...], catalogue: Places) -> int:
    """Check manifests, windows and payloads, on published releases too; exit 3 on faults."""
    import datetime

    from sm120patch.operations import linting
    from sm120patch.render import table

    done = linting.lint(catalogue, sets, against, os.environ, datetime.date.today())
    faults, warnings = done.report.faults, done.report.warnings
    rows = [("fault", r.set_id, r.message) for r in faults]
    rows += [("warning", r.set_id, r.message) for r in warnings]
    code = ExitCode.CATALOGUE if faults else ExitCode.OK
    tried = f" on {', '.join(done.releases)}" if done.releases else ""
    summary = f"{len(done.names)} sets{tried}: {len(faults)} faults, {len(warnings)} warnings"
    output.data(
        {
            "sets": list(done.names),
            "releases": list(done.releases),
            "faults": [{"set": r.set_id, "message": r.message} for r in faults],
            "warnings": [{"set": r.set_id, "message": r.message} for r in warnings],
        },
        "\n".join(filter(None, [table(rows), summary])),
        code,
    )
    return code


COMMANDS: tuple[click.Command, ...] = (new, lint)
