"""What `status` prints; without click, which `quick` does not load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm120patch.catalogue import Places
from sm120patch.cli import following
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode
from sm120patch.model import State

if TYPE_CHECKING:
    from sm120patch.operations.inspecting import Status


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
    if not result.versions:
        lines = _without_targets(result)
    if site.catalogue_fault is not None:
        output.talk(f"warning: going by the ledger alone: {site.catalogue_fault.message}")
    recover = following.command("sm120patch recover", output.given)
    if result.interrupted:
        lines.append(f"interrupted: {result.interrupted!r}; run `{recover}`")
    lines += _drifted(result, output.given)
    if result.under_way:
        lines.append(f"under way: {result.under_way}")
    code = ExitCode.RECOVERY_NEEDED if result.interrupted else ExitCode.OK
    output.data(
        {
            "prefix": result.prefix,
            "python": result.python,
            "versions": dict(result.versions),
            "content": result.content,
            "missing": dict(result.missing),
            "interrupted": result.interrupted,
            "under_way": result.under_way,
            "sets": [status_dict(s) for s in result.sets],
        },
        "\n".join(lines),
        code,
    )
    return code


def _without_targets(result: Status) -> list[str]:
    """What there is to say of an environment that holds nothing to patch."""
    from sm120patch.plaintext import table
    from sm120patch.render import status_rows

    kept = [s for s in result.sets if s.role]  # what the ledger remembers stays in sight
    packages = " nor ".join(sorted(result.missing)) or "any package that is patched"
    return [
        f"{result.prefix}: has neither {packages}",
        "hint: is it the wrong environment? `sm120patch audit` looks for those of this host",
        table(status_rows(kept)),
    ]


def _drifted(result: Status, given: following.Given) -> list[str]:
    """Next steps for files that hold neither upstream's content nor ours."""
    drifted = [s for s in result.sets if s.state is State.DRIFTED]
    if not drifted:
        return []
    audit = following.command("sm120patch audit", given)
    lines = [f"hint: `{audit}` names what differs from upstream"]
    if any(not s.role for s in drifted):
        adopt = following.command("sm120patch adopt SET", given)
        lines.append(f"hint: `{adopt}` takes over a set that was applied by hand")
    return lines
