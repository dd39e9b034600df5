"""What `status` prints; without click, which `quick` does not load."""

from __future__ import annotations

from sm120patch.catalogue import Places
from sm120patch.cli import following
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode


def show_status(
    output: Output, gpu: str | None, env: str | None, python: str | None, catalogue: Places
) -> int:
    """Print the state of every set in the environment; patched files are hashed again."""
    from sm120patch.operations import inspecting
    from sm120patch.operations.planning import capability_of
    from sm120patch.operations.site import open_site
    from sm120patch.plaintext import table
    from sm120patch.render import status_dict, status_rows

    site = open_site(env, python, catalogue=catalogue, tolerant=True)
    result = inspecting.status(site, capability_of(gpu))
    versions = ", ".join(f"{n} {v}" for n, v in sorted(result.versions.items())) or "no target"
    lines = [f"{result.prefix}  ({versions})", table(status_rows(result.sets))]
    if site.catalogue_fault is not None:
        output.talk(f"warning: going by the ledger alone: {site.catalogue_fault.message}")
    recover = following.command("sm120patch recover", output.given)
    if result.interrupted:
        lines.append(f"interrupted: {result.interrupted!r}; run `{recover}`")
    if result.under_way:
        lines.append(f"under way: {result.under_way}")
    code = ExitCode.RECOVERY_NEEDED if result.interrupted else ExitCode.OK
    output.data(
        {
            "prefix": result.prefix,
            "python": result.python,
            "versions": dict(result.versions),
            "missing": dict(result.missing),
            "interrupted": result.interrupted,
            "under_way": result.under_way,
            "sets": [status_dict(s) for s in result.sets],
        },
        "\n".join(lines),
        code,
    )
    return code
