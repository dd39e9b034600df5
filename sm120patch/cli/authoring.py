"""Commands for those who write patch sets: new, lint, tune."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120patch.cli import following
from sm120patch.cli.options import (
    FiniteRange,
    catalogue_options,
    offline_option,
    output_option,
    pass_output,
    sets_argument,
    shelf_for,
    wheel_dir_option,
)
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from sm120patch.catalogue import Places
    from sm120patch.operations.authoring import Begun, Finished
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
@wheel_dir_option
@offline_option
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
    wheel_dir: Path | None,
    offline: bool,
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
    shelf = shelf_for(output, wheel_dir, offline)
    begun = authoring.begin(request, place, shelf, os.environ, force=force)
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
    command = f"sm120patch new {about.set_id} --finish"
    if begun.directory != Path(f"{about.set_id}.scratch"):
        command += f" --scratch {shlex.quote(str(begun.directory))}"
    return (
        f"{about.target} {about.version} ({about.source}): {begun.files} files in"
        f" {begun.directory}\nedit them, then: {command}"
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
    from sm120patch.plaintext import table

    rows = [(m.change, m.kind, m.path, m.note) for m in done.made]
    lines = [table(rows), *(f"wrote {done.catalogue / name}" for name in done.written)]
    if any(m.kind == "unwritten" for m in done.made):
        lines.append("next: write the edit of every codemod that is `unwritten`; until then it")
        lines.append("refuses. `lint` and the test tell when it is done")
    where = shlex.quote(str(done.catalogue))
    command = f"sm120patch lint {done.about.set_id} --catalogue {where}"
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
@wheel_dir_option
@offline_option
@catalogue_options
@output_option
@pass_output
def lint(
    output: Output,
    sets: tuple[str, ...],
    against: tuple[str, ...],
    wheel_dir: Path | None,
    offline: bool,
    catalogue: Places,
) -> int:
    """Check manifests, windows and payloads, on published releases too; exit 3 on faults."""
    import datetime

    from sm120patch.operations import linting
    from sm120patch.plaintext import counted, table

    done = linting.lint(
        catalogue,
        sets,
        against,
        shelf_for(output, wheel_dir, offline),
        datetime.date.today(),
    )
    faults, warnings = done.report.faults, done.report.warnings
    rows = [("fault", r.set_id, r.message) for r in faults]
    rows += [("warning", r.set_id, r.message) for r in warnings]
    code = ExitCode.CATALOGUE if faults else ExitCode.OK
    tried = f" on {', '.join(done.releases)}" if done.releases else ""
    found = f"{counted(len(faults), 'fault')}, {counted(len(warnings), 'warning')}"
    summary = f"{counted(len(done.names), 'set')}{tried}: {found}"
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


@click.command()
@click.argument("set_id", metavar="SET")
@click.option(
    "--moe",
    "layers",
    multiple=True,
    metavar="LAYER",
    help="NVFP4 MoE layer as one rank holds it:"
    " experts=E,hidden=H,intermediate=I,top-k=K[,tp=T][,ep=E][,packed=1]; may be repeated.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1, 1 << 20),
    default=8192,
    show_default=True,
    help="Largest number of tokens in a batch.",
)
@click.option(
    "--record",
    "replay",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Take the record of an earlier run instead of measuring.",
)
@click.option(
    "--into",
    type=directory,
    required=True,
    help="Directory of the local catalogue to write the set into.",
)
@click.option(
    "--timeout",
    type=FiniteRange(min=1),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="Bound the measuring; the first run compiles FlashInfer's MoE module.",
)
@click.option("--force", is_flag=True, help="Overwrite an earlier set of this name.")
@click.option("--python", metavar="EXE", help="Interpreter of the environment to measure in.")
@click.option("--env", metavar="PREFIX", help="Environment to measure in (default: active one).")
@output_option
@pass_output
def tune(
    output: Output,
    set_id: str,
    layers: tuple[str, ...],
    max_tokens: int,
    replay: Path | None,
    into: Path,
    timeout: float,
    force: bool,
    python: str | None,
    env: str | None,
) -> int:
    """Measure MoE tactics on this GPU with FlashInfer's own autotuner; write a local set.

    Needs the GPU, idle, for minutes. The set is for this device, these layers and the releases of
    FlashInfer whose list of tactics is the same; `apply` it like any other.
    """
    import datetime

    from sm120patch.operations import tuning
    from sm120patch.operations.writing import check_name
    from sm120patch.tuning.record import parse_shape

    check_name(set_id)
    if (replay is None) == (not layers):
        raise UsageError("name the layers to measure with --moe, or a record with --record")
    if replay is not None:
        found = tuning.read_record(replay)
    else:
        try:
            shapes = [parse_shape(text) for text in layers]
        except ValueError as error:
            raise UsageError(str(error), hint="see `sm120patch tune --help`") from error
        from sm120patch.plaintext import counted

        output.talk(
            f"measuring {counted(len(shapes), 'layer')}; the first run compiles FlashInfer's module"
        )
        found = tuning.measure(env, python, shapes, max_tokens, os.environ, timeout)
    done = tuning.keep(found, set_id, into, datetime.date.today().isoformat(), force=force)
    origin = f"FlashInfer {found.flashinfer} on {found.device}"
    apply = f"sm120patch apply {set_id} --extra-catalogue {shlex.quote(str(into))}"
    lines = [
        f"{found.count} entries, measured by {origin}",
        *(f"wrote {into / name}" for name in done.written),
        f"next: {following.command(apply, output.given)}",
    ]
    output.data(
        {
            "set": set_id,
            "flashinfer": found.flashinfer,
            "device": found.device,
            "entries": found.count,
            "catalogue": str(into),
            "written": list(done.written),
        },
        "\n".join(lines),
    )
    return ExitCode.OK


COMMANDS: tuple[click.Command, ...] = (new, lint, tune)
