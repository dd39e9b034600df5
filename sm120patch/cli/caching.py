"""The command `caches`: what a change touches and why, what is put away, and `--prune`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sm120patch.cli.options import environment_options, pass_output, sets_argument
from sm120patch.cli.output import Output
from sm120patch.errors import ExitCode

if TYPE_CHECKING:
    from sm120patch.caches.stock import Stored
    from sm120patch.catalogue import Places
    from sm120patch.operations.caching import Survey, Touched

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _size(_context: click.Context, _parameter: click.Parameter, value: str) -> int:
    """Turn a number of bytes, with K, M, G or T for powers of 1024, into one."""
    found = re.fullmatch(r"([0-9]{1,6}) ?([KMGT]?)(?:i?B)?", value, re.IGNORECASE)
    if found is None:
        raise click.BadParameter(f"{value!r} is no size such as 500M or 2G")
    return int(found[1]) * _UNITS[found[2].upper()]


@click.command()
@sets_argument(required=False)
@click.option(
    "--home",
    "homes",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Home, or FLASHINFER_WORKSPACE_BASE, of the user who serves; may be repeated.",
)
@click.option("--prune", is_flag=True, help="Show which builds that are put away may go.")
@click.option(
    "--max-size",
    metavar="SIZE",
    default="2G",
    show_default=True,
    callback=_size,
    help="With --prune: how much may stay. What can never come back goes in any case.",
)
@click.option("--yes", is_flag=True, help="With --prune: delete what it shows.")
@environment_options
@pass_output
def caches(
    output: Output,
    sets: tuple[str, ...],
    homes: tuple[Path, ...],
    prune: bool,
    max_size: int,
    yes: bool,
    env: str | None,
    python: str | None,
    catalogue: Places,
) -> int:
    """Show which compiled modules a change touches and why, and what is put away for later.

    With SET: what applying it would touch; without, what taking everything off would. Builds are
    moved aside and come back, never deleted, unless you ask for it: --prune --yes.
    """
    from sm120patch.caches.stock import expendable
    from sm120patch.operations import caching
    from sm120patch.operations.site import open_site
    from sm120patch.transaction import require_settled

    if (yes or max_size != 2 << 30) and not prune:
        raise click.UsageError("--yes and --max-size go with --prune")
    site = open_site(env, python, catalogue=catalogue, tolerant=not sets)
    require_settled(site.state)  # Until then neither the files nor the builds tell anything.
    found = caching.survey(site, sets, [home.absolute() for home in homes])
    result, text = survey_dict(found), survey_text(found)
    code = ExitCode.OK
    if prune:
        chosen = expendable(found.stored, found.needed, max_size)
        gone, failed = caching.prune(site, chosen) if yes else ((), ())
        text = _pruning(output, chosen, gone, failed, yes)
        result["pruning"] = {
            "chosen": [str(item.path) for item in chosen],
            "removed": [str(item.path) for item in gone],
            "bytes": sum(item.size for item in (gone if yes else chosen)),
            "failed": list(failed),
        }
        code = ExitCode.HOST if failed else ExitCode.OK
    output.data(result, text, code)
    return code


def _pruning(
    output: Output,
    chosen: tuple[Stored, ...],
    gone: tuple[Stored, ...],
    failed: tuple[str, ...],
    done: bool,
) -> str:
    from sm120patch.plaintext import counted, table

    for reason in failed:
        output.talk(f"error: {reason}")
    if chosen and not done:
        output.talk("nothing was deleted; add --yes to delete these")
    rows = [_stored_row(item) for item in (gone if done else chosen)]
    total = sum(item.size for item in (gone if done else chosen))
    word = "deleted" if done else "may go"
    return "\n".join(
        filter(None, [table(rows), f"{counted(len(rows), 'build')}, {_bytes(total)} {word}"])
    )


def survey_dict(found: Survey) -> dict[str, object]:
    """Everything of a survey, for machines."""
    return {
        "prefix": found.prefix,
        "change": found.change,
        "places": [{"kind": kind.value, "path": str(path)} for kind, path in found.places],
        "touched": [touched_dict(item) for item in found.touched],
        "stored": [
            {
                "kind": item.entry.kind.value,
                "module": item.entry.module,
                "version": item.entry.version,
                "arch": item.entry.arch,
                "key": item.key,
                "path": str(item.path),
                "bytes": item.size,
                "put_away": item.put_away,
                "can_come_back": item.back,
                "needed": item.path in found.needed,
            }
            for item in found.stored
        ],
        "processes": [
            {
                "pid": user.pid,
                "command": user.command,
                "library": user.library,
                "restart_needed": user.restart_needed,
            }
            for user in found.users
        ],
        "traps": list(found.traps),
        "problems": list(found.problems),
        "notes": list(found.notes),
        "pruning": None,
    }


def touched_dict(item: Touched) -> dict[str, object]:
    """One module that a change touches, for machines."""
    entry = item.entry
    return {
        "kind": entry.kind.value,
        "module": entry.module,
        "arch": entry.arch,
        "path": str(entry.live),
        "files": list(entry.paths),
        "reason": entry.reason,
        "built_from": entry.built_from,
        "live": item.live,
        "then": item.then,
        "moves": [[str(m.source), str(m.destination)] for m in item.moves],
    }


def survey_text(found: Survey) -> str:
    """Return a survey for people."""
    from sm120patch.plaintext import table

    lines = [f"{kind.value:12}{path}" for kind, path in found.places] or ["no cache was found"]
    lines.append(f"\n`{found.change}` would touch" if found.change else "\nnothing is patched here")
    lines.append(_rows(found.touched) or ("  nothing" if found.change else ""))
    for item in found.touched:
        if item.entry.built_from:
            lines.append(f"  {item.entry.module} was built from {item.entry.built_from}")
    if found.stored:
        total = sum(item.size for item in found.stored)
        lines.append(f"\nput away ({_bytes(total)}; see --prune)")
        lines.append(table([_stored_row(item) for item in found.stored]))
    for user in found.users:
        said = "RESTART NEEDED, it runs" if user.restart_needed else "has loaded"
        lines.append(f"pid {user.pid} ({user.command[:60]}): {said} {user.library}")
    lines += [f"trap: {text}" for text in found.traps]
    lines += [f"problem: {text}" for text in found.problems]
    lines += [f"note: {text}" for text in found.notes]
    return "\n".join(line for line in lines if line)


def touched_text(items: Sequence[Touched]) -> str:
    """What a plan does to caches, for people; empty when nothing depends on its files."""
    return f"compiled modules that depend on these files:\n{_rows(items)}" if items else ""


def _rows(items: Sequence[Touched]) -> str:
    from sm120patch.plaintext import table

    return table(
        (f"  {t.entry.module}", t.entry.arch or "-", f"live: {t.live}", t.then, t.entry.reason)
        for t in items
    )


def _stored_row(item: Stored) -> tuple[str, ...]:
    what = "upstream" if item.key == "pristine" else f"content {item.key[:8]}"
    what = what if item.back else "cannot come back"
    version = "/".join(filter(None, (item.entry.version, item.entry.arch)))
    name = item.entry.module or item.path.name
    return (f"  {name}", version or "-", what, _bytes(item.size), str(item.path))


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


COMMANDS: tuple[click.Command, ...] = (caches,)
