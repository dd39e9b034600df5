"""Settle what a dead process left: finish a committed transaction, undo any other.

Writes the target through `transaction` only, and one event to the ledger if there is one.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sm120patch.errors import ConflictError, RecoveryNeededError
from sm120patch.evidence import Event
from sm120patch.journal import Journal, read_journal
from sm120patch.ledger import open_ledger, read_ledger
from sm120patch.store import StateDirectory, Store
from sm120patch.transaction import Transaction, checkpoint, decided_side


def _rebased(journal: Journal, roots: Mapping[str, str], *, drop_missing: bool) -> Journal:
    missing = sorted({f.target for f in journal.files} - set(roots))
    if missing and not drop_missing:
        raise RecoveryNeededError(
            f"{journal.command!r} was changing {', '.join(missing)}, which is not installed now",
            hint="reinstall it, then run `sm120patch recover --keep-foreign`",
        )
    files = tuple(f._replace(root=roots[f.target]) for f in journal.files if f.target in roots)
    caches = journal.caches
    if caches is not None:
        root = roots.get("flashinfer-python", "")
        caches = caches._replace(root=root, sglang_root=roots.get("sglang", ""))
    return journal._replace(files=files, caches=caches)


class Recovery(NamedTuple):
    """What `recover` did."""

    command: str
    outcome: str
    """`finished` (it had been committed) or `undone`."""
    kept_foreign: tuple[str, ...]


def recover(
    state: StateDirectory,
    *,
    keep_foreign: bool = False,
    roots: Mapping[str, str] | None = None,
) -> Recovery | None:
    """Settle an open journal; None when there is none. The caller holds the lock.

    `roots` maps each target to its import root now: a copied or moved environment settles its own
    files, whatever absolute paths the journal was written with, and never those of another.

    Raises RecoveryNeededError, having overwritten nothing, when a file is on neither side and
    `keep_foreign` is False.
    """
    journal = read_journal(state.journal)
    if journal is None:
        return None
    if roots is not None:
        journal = _rebased(journal, roots, drop_missing=keep_foreign)
    transaction = Transaction(state, journal)
    with contextlib.ExitStack() as held:
        # A lost ledger stays lost: a new one would know nothing of what is on disk besides.
        there = state.ledger.exists()
        ledger = held.enter_context(open_ledger(state.ledger)) if there else None
        committed = None if ledger is None else ledger.committed(journal.tx)
        side = decided_side(state, journal)
        foreign: list[str] = []
        try:
            if keep_foreign:
                foreign = transaction.drop_foreign()
            transaction.settle(side)
        except (OSError, ConflictError) as error:
            raise RecoveryNeededError(
                f"recovery of {journal.command!r} stopped: {error}",
                code=getattr(error, "code", "recovery-needed"),
                hint="nothing foreign was overwritten; put the named file right, or leave it as"
                " it is with `sm120patch recover --keep-foreign`",
            ) from error
        outcome = "undone" if committed is None else "finished"
        details: Mapping[str, object] = {
            "command": journal.command,
            "tx": journal.tx,
            "outcome": outcome,
            "kept_foreign": foreign,
        }
        if ledger is not None:
            ledger.commit(Event("recovered", (), details), None)
        checkpoint("recovery recorded")
        _close(transaction)
    return Recovery(journal.command, outcome, tuple(foreign))


def _close(transaction: Transaction) -> None:
    try:
        transaction.close()
    except OSError as error:
        raise RecoveryNeededError(
            f"{transaction.journal.command!r} is settled, but tidying up failed: {error}",
            hint="every file holds its content; mend the cause, then run `sm120patch recover`",
            details={"errno": error.errno},
        ) from error


def collect(state: StateDirectory, needed: Callable[[], set[str]]) -> int:
    """Remove contents that no event and no file of the ledger speaks of; return how many.

    They come from commands that were killed before they could begin, or the ledger is older than
    the environment: `needed`, asked only then, names what is worth keeping all the same. The
    caller holds the lock. Without a ledger, or with an open journal, everything is kept, and so is
    what the disk does not let go: it takes room and nothing else.
    """
    if state.journal.exists():
        return 0
    with read_ledger(state.ledger) as ledger:
        if ledger is None:
            return 0
        known = ledger.contents()
    store = Store(state)
    unknown = store.digests() - known
    return store.drop(unknown - needed()) if unknown else 0
