"""What several commands say alike; without click, which `quick` does not load."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from sm120patch.cli.output import Output
from sm120patch.errors import CatalogueError


def command_line() -> str:
    """What was typed, for the history."""
    import shlex

    return shlex.join(["sm120patch", *sys.argv[1:]])[:500]


def note_fault(output: Output, fault: CatalogueError | None) -> None:
    """Warn that the catalogue is broken, and so only what the ledger knows counts."""
    if fault is not None:
        output.talk(f"warning: going by the ledger alone: {fault.message}")


def warn_of_running(output: Output, processes: Iterable[str]) -> None:
    """Name the processes that the user allowed to go on while files are changed."""
    for line in processes:
        output.talk(f"warning: keeps the old code until it is restarted: {line}")
