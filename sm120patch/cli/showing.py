"""What `status` prints; without click, which `quick` does not load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm120patch.catalogue import Places
from sm120patch.cli import following
from sm120patch.cli.common import note_fault
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode
from sm120patch.model import State
from sm120patch.plan import Role

if TYPE_CHECKING:
    from sm120patch.operations.inspecting import Status


def show_status(
    output: Output,
    gpu: str | None,
    env: str | None,
    python: str | None,
    catalogue: Places,
    expect_content: str | None = None,
) -> int:
    """Print the state of every set in the environment; patched files are hashed again.

    Where the files of the sets do not come to `expect_content`, the exit code is 1.
    """
    from sm120patch.operations import inspecting
    from sm120patch.operations.gpus import capability_of
    from sm120patch.operations.site import open_site
    from sm120patch.plaintext import counted, table
    from sm120patch.render import status_dict, status_rows

    site = open_site(env, python, catalogue=catalogue, tolerant=True)
    result = inspecting.status(site, capability_of(gpu))
    versions = ", ".join(f"{n} {v}" for n, v in sorted(result.versions.items())) or "no target"
    lines = [f"{result.prefix}  ({versions})", table(status_rows(result.sets))]
    if not result.versions:
        lines = _without_targets(result)
    note_fault(output, site.catalogue_fault)
    recover = following.command("sm120patch recover", output.given)
    if result.interrupted:
        lines.append(f"interrupted: {result.interrupted!r}; run `{recover}`")
    elif result.versions:
        audit = following.command("sm120patch audit", output.given)
        files = counted(result.looked_at, "file")
        lines.append(f"looked at {files}: those that sets change; `{audit}` looks at all")
    lines += _next(result, output.given)
    if result.under_way:
        lines.append(f"under way: {result.under_way}")
    code = exit_code(result)
    if expect_content not in (None, result.content):
        found = result.content or "nobody can tell which"
        lines.append(f"other content than expected: {found}, expected {expect_content}")
        code = code or ExitCode.FINDINGS
    output.data(
        {
            "prefix": result.prefix,
            "python": result.python,
            "versions": dict(result.versions),
            "content": result.content,
            "missing": dict(result.missing),
            "interrupted": result.interrupted,
            "under_way": result.under_way,
            "looked_at": result.looked_at,
            "ledger_lost": result.ledger_lost,
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


def exit_code(result: Status) -> ExitCode:
    """Return 7 for an open journal, 1 where the state of a set is unknown, else 0."""
    if result.interrupted:
        return ExitCode.RECOVERY_NEEDED
    unknown = any(s.state is State.UNKNOWN for s in result.sets)
    return ExitCode.FINDINGS if unknown else ExitCode.OK


def _next(result: Status, given: following.Given) -> list[str]:
    """Next steps for what does not hold what the ledger says."""
    states = {s.state for s in result.sets}
    lines = []
    if State.LOST in states:
        # A set that somebody asked for is lost with anything that it brings.
        lost = [s.id for s in result.sets if s.state is State.LOST]
        asked = [s.id for s in result.sets if s.id in lost and s.role == Role.REQUESTED.value]
        names = " ".join(asked or lost)
        again = following.command(f"sm120patch apply {names}", given)
        off = following.command(f"sm120patch revert {names}", given)
        lines.append(f"hint: `{again}` puts back what was lost, `{off}` takes it off the books")
    if states & {State.DRIFTED, State.EDITED}:
        diff = following.command("sm120patch diff", given)
        lines.append(f"hint: `{diff}` shows what was edited, line by line")
    if result.ledger_lost:
        recover = following.command("sm120patch recover --lost-ledger", given)
        lines.append(f"hint: the ledger is gone; `{recover}` puts upstream's content back")
    elif State.EDITED in states:
        adopt = following.command("sm120patch adopt SET", given)
        lines.append(f"hint: `{adopt}` takes over a set that was applied by hand")
    return lines
