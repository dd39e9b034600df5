"""Read the ledger and journal of an environment that is audited; the environment is not written.

Of another root both are read through `tree` into a temporary directory first: SQLite follows links,
and settles a killed writer's journal by writing.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sm120patch.audit.tree import Tree
from sm120patch.errors import HostError, RecoveryNeededError, Sm120PatchError
from sm120patch.journal import Journal, read_journal
from sm120patch.plan import History
from sm120patch.store import DIRECTORY_NAME, StateDirectory, Store

if TYPE_CHECKING:
    from sm120patch.ledger import Ledger

Row = TypeVar("Row")

_LIMIT = 1 << 30
_FILES = ("ledger.sqlite3", "ledger.sqlite3-journal", "journal.json")


class Kept(NamedTuple):
    """What an environment keeps about its patches."""

    ledger: "Ledger | None"
    history: History
    journal: Journal | None
    holder: str | None
    """Command that is changing the environment right now."""
    problem: str = ""
    """Why ledger or journal cannot be read."""
    damaged: bool = False
    """There is a ledger, and it is damaged: only `recover --lost-ledger` leads on."""
    store: Store | None = None
    """Contents by digest; None for another root."""


@contextlib.contextmanager
def opened(tree: Tree, prefix: str) -> Iterator[Kept]:
    """Open what is kept under a prefix; damage is told, not raised."""
    with contextlib.ExitStack() as stack:
        state = _state(tree, prefix, stack)
        journal, problem = _journal(state)
        ledger, history, damaged = None, History(), False
        try:
            if state.ledger.exists():
                from sm120patch.ledger import read_ledger

                # A row that is damaged is told when the ledger is closed.
                with contextlib.ExitStack() as opening:
                    ledger = opening.enter_context(read_ledger(state.ledger))
                    history = History() if ledger is None else ledger.history()
                    stack.push(opening.pop_all())
        except Sm120PatchError as error:
            ledger, problem = None, error.message
            damaged = error.code == "ledger-damaged"
        except OSError as error:
            ledger, problem = None, f"cannot read {state.ledger}: {error.strerror}"
        holder = state.holder() if tree.is_host else None
        store = Store(state) if tree.is_host else None
        yield Kept(ledger, history, journal, holder, problem, damaged, store)


def read_on(kept: Kept, problems: list[str], read: "Callable[[Ledger], list[Row]]") -> list[Row]:
    """Read more of an open ledger; nothing, and a problem in words, where that is damaged."""
    import sqlite3

    try:
        return [] if kept.ledger is None else read(kept.ledger)
    except sqlite3.DatabaseError as error:
        problems.append(f"the ledger is damaged: {error}")
        return []


def caught_up(tree: Tree, prefix: str, kept: Kept) -> Kept:
    """Look again for a change that began while the files were hashed."""
    if not tree.is_host or kept.journal is not None:
        return kept
    state = StateDirectory.of(Path(prefix))
    journal, problem = _journal(state)
    holder = state.holder() or kept.holder
    return kept._replace(journal=journal, holder=holder, problem=kept.problem or problem)


def moment(tree: Tree, prefix: str) -> tuple[int, str | None]:
    """Name what ledger and journal say now: newest event, and id of the open transaction.

    Equal before and after means that what was looked at in between belongs to one state. Of another
    root, and of what cannot be read, it is always the same: `opened` tells about that.
    """
    if not tree.is_host:
        return 0, None
    state = StateDirectory.of(Path(prefix))
    journal, _problem = _journal(state)
    newest = 0
    with contextlib.suppress(Sm120PatchError, OSError):
        if state.ledger.exists():
            from sm120patch.ledger import read_ledger

            with read_ledger(state.ledger) as ledger:
                events = [] if ledger is None else ledger.events(1)
                newest = events[0].id if events else 0
    return newest, None if journal is None else journal.tx


def _state(tree: Tree, prefix: str, stack: contextlib.ExitStack) -> StateDirectory:
    if tree.is_host:
        return StateDirectory.of(Path(prefix))
    import tempfile

    copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sm120patch-audit-")))
    for name in _FILES:
        data = tree.read(f"{prefix}/{DIRECTORY_NAME}/{name}", _LIMIT)
        if data is not None:
            (copy / name).write_bytes(data)
    return StateDirectory(copy)


def _journal(state: StateDirectory) -> tuple[Journal | None, str]:
    try:
        return read_journal(state.journal), ""
    except (HostError, RecoveryNeededError) as error:
        return None, error.message


def claimant(tree: Tree, git_dir: str, prefix: str) -> str | None:
    """Prefix of another environment that has patched this checkout and still has its ledger."""
    from sm120patch.claims import CLAIM_NAME

    try:
        data = json.loads(tree.text(f"{git_dir}/{CLAIM_NAME}"))
    except ValueError:
        return None
    owner = data.get("prefix") if isinstance(data, dict) else None
    if not isinstance(owner, str) or not owner.startswith("/"):
        return None
    if tree.is_host and os.path.realpath(owner) == os.path.realpath(prefix):
        return None
    ledger = StateDirectory.of(Path(owner)).ledger
    return owner if owner != prefix and tree.is_file(str(ledger)) else None
