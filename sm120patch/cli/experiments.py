"""The command for experiments without a patch: bench."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120patch.cli.options import (
    environment_options,
    pass_output,
    profile_option,
    running_option,
    time_option,
)
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from sm120patch.catalogue import Places
    from sm120patch.operations.experimenting import Result


@click.command()
@click.option(
    "--try",
    "texts",
    multiple=True,
    metavar="OPTIONS",
    help="What to try, as one word: '--num-continuous-decode-steps 4' or 'VARIABLE=1 --option x'."
    " May be repeated: each is compared with the server as it is.",
)
@click.option("--again", is_flag=True, help="Measure also what the ledger has a result for.")
@profile_option
@time_option
@running_option
@environment_options
@pass_output
def bench(
    output: Output,
    texts: tuple[str, ...],
    again: bool,
    profile: Path | None,
    max_time: float | None,
    allow_running: bool,
    env: str | None,
    python: str | None,
    catalogue: Places,
) -> int:
    """Try launch options without a patch, measured as `apply` measures sets.

    Every result is kept, also that something does not help: it is not measured again for the same
    files, host, server and workloads. `history --experiments` lists them.
    """
    from sm120patch.cli.progress import Progress
    from sm120patch.operations import experimenting, guarding, profiles
    from sm120patch.operations.site import open_site
    from sm120patch.transaction import require_settled
    from sm120patch.trial import read_trial

    trials = tuple({t.key: t for t in map(read_trial, texts)}.values())
    if not trials:
        raise UsageError(
            "there is nothing to try",
            hint="for example --try '--num-continuous-decode-steps 4'",
        )
    site = open_site(env, python, catalogue=catalogue)
    require_settled(site.state)
    chosen = profiles.find(profile, site, Path.cwd())
    if chosen is None:
        raise profiles.missing(Path.cwd())
    output.talk(
        "answers must be those of the server as it is, up to rounding (class `tolerance`): an"
        " option that is meant to change them ends `broken`"
    )
    for line in guarding.processes(site, chosen, allow=allow_running):
        output.talk(f"warning: {line}")
    results = []
    for result in experimenting.run_trials(
        site, trials, chosen, Progress(output.talk, other="variant"),
        max_time=max_time, again=again,
    ):  # fmt: skip
        results.append(result)
    output.data({"experiments": [_dict(r) for r in results]}, "\n".join(map(_line, results)))
    return ExitCode.OK


def _line(result: Result) -> str:
    from sm120patch.report.charts import effects_text

    seen = result.evidence
    simulated = "" if seen.kind == "real" else f" ({seen.kind})"
    known = f", known since {seen.at} (event {result.event})" if result.known else ""
    effects = effects_text(seen.data)
    return f"{result.trial.shown}: {seen.verdict}{simulated}{known}" + (
        f": {effects}" if effects else ""
    )


def _dict(result: Result) -> dict[str, object]:
    from sm120patch.render import evidence_dict

    return {
        "options": result.evidence.data["experiment"],
        "verdict": result.evidence.verdict,
        "known": result.known,
        "event": result.event,
        "evidence": {**evidence_dict(result.evidence), "data": dict(result.evidence.data)},
    }


COMMANDS: tuple[click.Command, ...] = (bench,)
