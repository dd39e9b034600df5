"""Exchange the files of a plan as one unit, durably; `recovery` settles what a dead process left.

The only module that changes files below a target; it writes nothing but the plan's files, their
bytecode and build caches, and the journal. A transaction knows two complete contents, side `a`
and side `b`, and may swap between them any number of times (a verification does) before it
commits. Until the ledger holds the transaction's id, `recover` brings back the side named
`restore`; from then on it finishes the committed one.
"""

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sm120patch import disk, exchange
from sm120patch.caches import bytecode
from sm120patch.errors import (
    ConflictError,
    HostError,
    RecoveryNeededError,
    RolledBackError,
    Sm120PatchError,
)
from sm120patch.evidence import Event
from sm120patch.journal import (
    CacheScope,
    Journal,
    JournalFile,
    Side,
    opposite,
    read_journal,
    remove_journal,
    write_journal,
)
from sm120patch.ledger import ensure_ledger, now, read_ledger
from sm120patch.model import ABSENT
from sm120patch.plan import FileStep
from sm120patch.signals import held_back
from sm120patch.store import StateDirectory, Store, busy

Checkpoint = Callable[[str], None]


def _nothing(_label: str) -> None:
    return None


on_checkpoint: Checkpoint = _nothing
"""Called after every step that changes the disk; tests kill the process there."""


def checkpoint(label: str) -> None:
    """Tell that a step changed the disk."""
    on_checkpoint(label)


class Settings(NamedTuple):
    """What a transaction needs besides the plan."""

    command: str
    sets: tuple[str, ...]
    plan_digest: str
    python: str
    restore: Side
    start: Side
    """Side that is on disk now."""
    pycache_prefix: str | None = None
    """Trees of PYTHONPYCACHEPREFIX, separated as in PATH."""
    caches: CacheScope | None = None
    mtimes: Mapping[str, int] = {}
    """Path of a FlashInfer file -> time that keeps a stored build of the new content valid."""


class Transaction:
    """A journalled exchange between side `a` and side `b`. Use `begin` or `recover`."""

    def __init__(self, state: StateDirectory, journal: Journal) -> None:
        self.state = state
        self._store = Store(state)
        self.journal = journal
        self.closed = False
        """True once nothing is under way. That the journal is gone does not say so: somebody may
        have removed it, or moved the environment."""

    def swap(self, side: Side) -> float:
        """Bring every file, its bytecode and the build caches to `side`; return the time then.

        The time (seconds since the epoch) is taken after the last write: a server started before
        it proves nothing. Raises ConflictError before any write when a file is neither side.
        """
        return self._swap(side, self._write)

    def settle(self, side: Side) -> None:
        """Like `swap`, on the way back or after a crash: a full disk does not keep it from it.

        The journal that is there leads to the same end, so it need not be written.
        """
        self._swap(side, self._try_to_write)

    def _swap(self, side: Side, write: Callable[..., None]) -> float:
        tx, command = self.journal.tx, self.journal.command
        with held_back():
            write(moving_to=side)
            pending = [
                entry
                for entry in self.journal.files
                if not exchange.is_right(entry, side, exchange.require_known(entry, command))
            ]
            # A full disk is met here, before anything has moved.
            ready = [self._stage(entry, side) for entry in pending]
            self._park_caches()
            for one in ready:
                exchange.exchange(one, side, tx, command)
                checkpoint(f"{'replace' if one.name else 'remove'} {one.entry.path}")
            self._after_replace(pending, side)
            self._read_back(side)
            write(at=side, moving_to=None)
        return time.time()

    def _write(self, **changes: object) -> None:
        # `_replace` itself refuses what is no field of Journal.
        self.journal = self.journal._replace(**changes)  # type: ignore[arg-type]  # one for each field
        write_journal(self.state.journal, self.journal)
        checkpoint(f"journal at={self.journal.at} moving_to={self.journal.moving_to}")

    def _try_to_write(self, **changes: object) -> None:
        with contextlib.suppress(OSError):
            self._write(**changes)

    def _stage(self, entry: JournalFile, side: Side) -> exchange.Ready:
        ready = exchange.stage(entry, side, self.journal.tx, self._store.get)
        if ready.name is not None:
            checkpoint(f"stage {entry.path}")
        return ready

    def _moved(self, side: Side) -> bool:
        """Tell whether a file holds the other side's content: only then is there work to undo."""
        return any(
            exchange.found(e.root, e.path) == e.sha256(opposite(side))
            for e in self.journal.files
            if e.a_sha256 != e.b_sha256
        )

    def _after_replace(self, entries: list[JournalFile], side: Side) -> None:
        exchange.sync(entries)
        trees = [Path(t) for t in (self.journal.pycache_prefix or "").split(os.pathsep) if t]
        for entry in self.journal.files:
            bytecode.purge(Path(entry.root), entry.path, trees)
        checkpoint("purge bytecode")
        self._place_caches(side)

    def _park_caches(self) -> None:
        if self.journal.caches is not None:
            from sm120patch.caches import switch

            # No server runs during a swap, so a build without a mark is of the side we come from.
            switch.park(self.journal.caches, self.journal.at, self._store.get, checkpoint)

    def _place_caches(self, side: Side) -> None:
        if self.journal.caches is not None:
            from sm120patch.caches import switch

            switch.place(self.journal.caches, side, self._store.get, checkpoint)

    def _unpark_caches(self, side: Side) -> None:
        """Bring builds back that were put away before anything else failed."""
        if self.journal.caches is not None:
            from sm120patch.caches import switch

            switch.unpark(self.journal.caches, side, self._store.get, checkpoint)

    def _read_back(self, side: Side) -> None:
        for entry in self.journal.files:
            if exchange.found(entry.root, entry.path) != entry.sha256(side):
                raise OSError(
                    f"{Path(entry.root, entry.path)} does not hold what was written to it"
                )

    def _require_held(self, side: Side) -> None:
        """Raise ConflictError where a file does not hold what `side` put there long ago."""
        for entry in self.journal.files:
            held = exchange.found(entry.root, entry.path)
            if held != entry.sha256(side):
                raise exchange.changed(entry, held, self.journal.command, entry.sha256(side))

    def commit(self, side: Side, record: Callable[[str, Side], None]) -> None:
        """End on `side`: swap there if needed, let `record(tx, side)` write the ledger, close.

        A package that was installed again while a server was measured is a ConflictError.

        `record` must write the event with `tx` and `data["end"] = side`; once it returns, the
        transaction is a fact and only tidying up is left.
        """
        with held_back():
            if self.journal.at != side or self.journal.moving_to is not None:
                self.swap(side)
            self._require_held(side)
            record(self.journal.tx, side)
            checkpoint("ledger commit")
            self.close()

    def abort(self) -> bool:
        """Bring the decided side back and close; True when that undid the transaction.

        False: the ledger had committed already, so the committed side holds. Raises
        RecoveryNeededError when the side cannot be brought back.
        """
        try:
            with held_back():
                side = decided_side(self.state, self.journal)
                # When no file has moved, nothing has to be, and a foreign edit is left to its
                # owner.
                if self.journal.at != side or self._moved(side):
                    self.settle(side)
                elif self.journal.moving_to is not None:
                    self._unpark_caches(side)
                self.close()
        except (OSError, Sm120PatchError) as error:
            raise RecoveryNeededError(
                f"{self.journal.command!r} failed and could not be rolled back: {error}",
                hint="mend the cause, then run `sm120patch recover`",
                details={"journal": str(self.state.journal)},
            ) from error
        return committed_event(self.state, self.journal.tx) is None

    def close(self) -> None:
        """Remove what is left of the transaction: from here on nothing is under way."""
        exchange.tidy(self.journal.files, self.journal.tx)
        checkpoint("temporaries removed")
        remove_journal(self.state.journal)
        self.closed = True
        checkpoint("journal removed")

    def drop_foreign(self) -> list[str]:
        """Leave out files that are on neither side; return their paths."""
        exchange.tidy(self.journal.files, self.journal.tx)
        foreign = [e for e in self.journal.files if exchange.is_foreign(e)]
        kept = tuple(e for e in self.journal.files if e not in foreign)
        self._write(files=kept)
        return [e.path for e in foreign]


def committed_event(state: StateDirectory, tx: str) -> Event | None:
    """Return the ledger's event for that transaction: the proof that it took effect."""
    with read_ledger(state.ledger) as ledger:
        return ledger.committed(tx) if ledger is not None else None


def decided_side(state: StateDirectory, journal: Journal) -> Side:
    """Side that must hold: the one the ledger committed, else the one to restore."""
    committed = committed_event(state, journal.tx)
    if committed is None:
        return journal.restore
    return "a" if committed.data.get("end") == "a" else "b"


def require_settled(state: StateDirectory) -> None:
    """Refuse to start while another command is at work or was interrupted.

    For callers without the lock: BusyError while its holder lives, else as `require_no_journal`.
    """
    holder = state.holder()
    if holder is not None:
        raise busy(state, holder)
    require_no_journal(state)


def require_no_journal(state: StateDirectory) -> None:
    """Raise RecoveryNeededError for a journal that nobody works on; the caller has the lock."""
    journal = read_journal(state.journal)
    if journal is not None:
        raise RecoveryNeededError(
            f"{journal.command!r} (pid {journal.pid}, started {journal.started}) was interrupted",
            code="interrupted",
            hint="run `sm120patch recover`: it finishes or undoes it",
            details={"command": journal.command, "started": journal.started},
        )


@contextlib.contextmanager
def begin(
    state: StateDirectory,
    steps: tuple[FileStep, ...],
    settings: Settings,
) -> Iterator[Transaction]:
    """Open a transaction over `steps`; the caller holds the lock.

    Refuses a stale plan: every file must still hold the plan's `before` bytes. Leaving the block
    by an exception restores; leaving it without `commit` is a bug and restores as well.
    """
    require_no_journal(state)
    _require_unchanged(steps)
    transaction: Transaction | None = None
    try:
        with held_back():  # A signal between journal and `try` would leave the journal open.
            transaction = _open(state, steps, settings)
        yield transaction
        if not transaction.closed:
            raise RuntimeError("a transaction ended without commit")
    except BaseException as error:
        if transaction is None:
            raise
        undone = False if transaction.closed else transaction.abort()
        if not undone and isinstance(error, OSError):
            raise HostError(
                f"{settings.command!r} took effect, but tidying up failed: {error}",
                hint="`sm120patch status` shows the environment",
                details={"errno": error.errno},
            ) from error
        if undone and isinstance(error, OSError):
            raise RolledBackError(
                f"{settings.command!r} failed and was rolled back: {error}",
                hint="every file holds its content from before; mend the cause and repeat",
                details={"errno": error.errno},
            ) from error
        if undone and isinstance(error, HostError):
            error.hint = f"every file holds its content from before; {error.hint}"
        raise


def _open(state: StateDirectory, steps: tuple[FileStep, ...], settings: Settings) -> Transaction:
    """Keep every content, then open the journal; HostError when the disk refuses."""
    store = Store(state)
    ensure_ledger(state.ledger)  # First: contents without a ledger mean that one was lost.
    try:
        for step in steps:
            sides = (step.before_sha256, step.before), (step.after_sha256, step.after)
            for digest, data in (*sides, (step.pristine_sha256, step.pristine)):
                if digest != ABSENT:
                    store.put(data, private=not step.mode & 0o044)
            checkpoint(f"store {step.path}")
        transaction = Transaction(state, _journal(steps, settings))
        write_journal(state.journal, transaction.journal)
    except OSError as error:
        with contextlib.suppress(OSError):
            remove_journal(state.journal)
        raise HostError(
            f"{settings.command!r} could not begin: {state.path}: {error.strerror or error}",
            hint="no file of the packages was touched; check free space and permissions",
            details={"path": str(state.path), "errno": error.errno},
        ) from error
    checkpoint("journal opened")
    return transaction


def _require_unchanged(steps: tuple[FileStep, ...]) -> None:
    stale = [s.path for s in steps if exchange.found(s.root, s.path) != s.before_sha256]
    if stale:
        raise ConflictError(
            f"the plan is stale: changed since it was made: {', '.join(stale)}",
            code="stale-plan",
            hint="run the command again to plan from the present content",
            details={"paths": stale},
        )


def _journal(steps: tuple[FileStep, ...], settings: Settings) -> Journal:
    return Journal(
        tx=f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(4).hex()}",
        command=settings.command,
        sets=settings.sets,
        plan_digest=settings.plan_digest,
        python=settings.python,
        restore=settings.restore,
        at=settings.start,
        moving_to=None,
        files=tuple(_journal_file(step, settings) for step in steps),
        pycache_prefix=settings.pycache_prefix,
        caches=settings.caches,
        pid=os.getpid(),
        started=now(),
    )


def _journal_file(step: FileStep, settings: Settings) -> JournalFile:
    present, mode = 0, step.mode
    if step.before_sha256 != ABSENT:
        with disk.spot(step.root, step.path) as place:
            status = disk.status(place)
        present, mode = status.st_mtime_ns, stat.S_IMODE(status.st_mode)
    if step.to_pristine:
        other = step.pristine_mtime_ns
    else:
        # A whole second apart, or same-size sources would keep their old bytecode.
        fresh = max(time.time_ns(), (present // 10**9 + 1) * 10**9)
        other = settings.mtimes.get(step.path, fresh)
    before = (step.before_sha256, present, mode)
    after = (step.after_sha256, other, step.mode if step.to_pristine else mode)
    a, b = (before, after) if settings.start == "a" else (after, before)
    return JournalFile(
        step.target, step.root, step.path, a[0], a[1], b[0], b[1], a_mode=a[2], b_mode=b[2]
    )
