"""Commands about published releases: matrix; and what `plan --against` does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120patch.cli.options import (
    catalogue_options,
    gpu_option,
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
    from sm120patch.operations.site import Site
    from sm120patch.published import Shelf


@click.command()
@sets_argument(required=False)
@click.option(
    "--releases",
    multiple=True,
    metavar="SPEC",
    help="SGLang releases: 0.5.8,0.5.9 or '>=0.5.8,<0.5.14' or 0.5.9/0.6.4 with another"
    " FlashInfer (default: all known ones, with the FlashInfer that each pins).",
)
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
@wheel_dir_option
@offline_option
@gpu_option
@catalogue_options
@output_option
@pass_output
def matrix(
    output: Output,
    sets: tuple[str, ...],
    releases: tuple[str, ...],
    markdown: bool,
    wheel_dir: Path | None,
    offline: bool,
    gpu: str | None,
    catalogue: Places,
) -> int:
    """Show what sets mean for published releases: patched, upstream, refused and why.

    Packages are downloaded once and read, never installed. Exit 1 when a set is refused.
    """
    from sm120patch import catalogue as catalogues
    from sm120patch.cli.releasetext import counts, label, matrix_markdown, matrix_text, release_dict
    from sm120patch.operations import releases as operation
    from sm120patch.plan import Outcome
    from sm120patch.published import known

    if gpu is not None:
        from sm120patch.operations.gpus import capability_of

        gpu = capability_of(gpu)
    loaded = catalogues.load(catalogue)
    chosen = operation.chosen_releases(releases, known(catalogue.base))
    shelf = shelf_for(output, wheel_dir, offline)
    results = []
    for result in operation.matrix(loaded, sets, chosen, shelf, gpu):
        results.append(result)
        said = result.error or ", ".join(f"{n} {o}" for o, n in counts([result]).items())
        output.talk(f"[{len(results)}/{len(chosen)}] {label(result.versions)}: {said}")
    refused = any(s.outcome is Outcome.REFUSED for r in results for s in r.sets)
    code = ExitCode.FINDINGS if refused else ExitCode.OK
    if any(r.error for r in results):
        code = ExitCode.HOST
    output.data(
        {
            "catalogue": operation.catalogue_digest(loaded),
            "releases": [release_dict(r) for r in results],
            "counts": counts(results),
        },
        matrix_markdown(results) if markdown else matrix_text(results),
        code,
    )
    return code


def plan_against(
    output: Output,
    site: Site,
    sets: tuple[str, ...],
    selected: tuple[str, ...],
    texts: tuple[str, ...],
    shelf: Shelf,
    capability: str | None,
) -> int:
    """Show what becomes of sets (those on disk without a name) when packages are upgraded."""
    from sm120patch.cli.releasetext import outlook_dict, outlook_text
    from sm120patch.environment import take_snapshot
    from sm120patch.operations import upgrading

    history = site.history()
    names = sets or tuple(n for n in history.active if n in site.catalogue.ids)
    if not names:
        raise UsageError(
            "no set was named and none is on disk", hint="see `sm120patch list` for their names"
        )
    chosen = upgrading.selection(site.catalogue, names, selected, history)
    outlook = upgrading.against(
        site.catalogue,
        lambda wanted: take_snapshot(site.environment, wanted, site.store.get, capability),
        site.versions,
        upgrading.named_packages(texts, shelf),
        chosen,
        shelf,
    )
    code = ExitCode.FINDINGS if outlook.loses else ExitCode.OK
    output.data(outlook_dict(outlook), outlook_text(outlook), code)
    return code


COMMANDS: tuple[click.Command, ...] = (matrix,)
