"""The ledger: what is on disk, every event that led there, and the evidence. SQLite.

Writes `PREFIX/.sm120patch/ledger.sqlite3` only. Events are append-only, enforced by triggers; one
`commit` writes the new state, its event and its evidence in a single SQLite transaction with
`synchronous=EXTRA`, so a transaction id found in the events is the proof that it took effect.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from sm120patch import __version__
from sm120patch.disk import sync_directory, sync_file
from sm120patch.errors import BusyError, ConflictError, HostError
from sm120patch.evidence import Event, Evidence
from sm120patch.plan import (
    ActiveSet,
    History,
    OwnedFile,
    Role,
)
from sm120patch.store import unreadable

SCHEMA_VERSION = 1
PATIENCE = 10.0

_EVENT = "kind, sets, data, tx, at, id, tool"

_SCHEMA = """
CREATE TABLE events (
  id INTEGER PRIMARY KEY, at TEXT NOT NULL, kind TEXT NOT NULL, tx TEXT UNIQUE,
  sets TEXT NOT NULL, data TEXT NOT NULL, tool TEXT NOT NULL);
CREATE TRIGGER events_no_update BEFORE UPDATE ON events
  BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_no_delete BEFORE DELETE ON events
  BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TABLE event_sets (
  set_id TEXT NOT NULL, event INTEGER NOT NULL REFERENCES events(id),
  PRIMARY KEY (set_id, event)) WITHOUT ROWID;
CREATE TABLE active_sets (
  id TEXT PRIMARY KEY, revision INTEGER NOT NULL, role TEXT NOT NULL,
  selected TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE owned_files (
  target TEXT NOT NULL, path TEXT NOT NULL, root TEXT NOT NULL, version TEXT NOT NULL,
  pristine_sha256 TEXT NOT NULL, pristine_mode INTEGER NOT NULL,
  pristine_mtime_ns INTEGER NOT NULL, current_sha256 TEXT NOT NULL, changes TEXT NOT NULL,
  PRIMARY KEY (target, path));
CREATE TABLE evidence (
  id INTEGER PRIMARY KEY, at TEXT NOT NULL, event INTEGER NOT NULL REFERENCES events(id),
  content_digest TEXT NOT NULL, baseline_digest TEXT NOT NULL, host TEXT NOT NULL,
  profile TEXT NOT NULL, kind TEXT NOT NULL, verdict TEXT NOT NULL, passed INTEGER NOT NULL,
  sets TEXT NOT NULL, baseline_sets TEXT NOT NULL, data TEXT NOT NULL);
CREATE INDEX evidence_content ON evidence (content_digest);
CREATE INDEX evidence_event ON evidence (event);
"""


def now() -> str:
    """Wall clock in UTC, ISO 8601 with seconds: for people; nothing is decided by it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@contextlib.contextmanager
def _reading_rows() -> Iterator[None]:
    """Content that this module never writes is damage of the file, not a bug of ours."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise sqlite3.DatabaseError(f"a row holds what was never written: {error}") from error


class Ledger:
    """Open ledger of one environment. Use `open_ledger` or `read_ledger`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    @_reading_rows()
    def history(self) -> History:
        """Return the sets and files that the ledger says are on disk."""
        active = {
            row[0]: ActiveSet(row[0], row[1], Role(row[2]), tuple(json.loads(row[3])), row[4])
            for row in self._db.execute(
                "SELECT id, revision, role, selected, digest FROM active_sets ORDER BY id"
            )
        }
        files = {
            (row[0], row[1]): _owned_file(row)
            for row in self._db.execute("SELECT * FROM owned_files ORDER BY target, path")
        }
        return History(active, files)

    @_reading_rows()
    def events(
        self, limit: int | None = None, set_id: str | None = None, kind: str | None = None
    ) -> list[Event]:
        """Return events, newest first; `limit` counts after the filter."""
        query = f"SELECT {_EVENT} FROM events"
        order, parameters = "id", list[object]()
        if set_id is not None:
            # From the end of the set's own index, so that old events are never looked at.
            query = f"SELECT {_EVENT} FROM event_sets CROSS JOIN events ON id = event"
            query += " WHERE set_id = ?"
            order = "event"
            parameters.append(set_id)
        if kind is not None:
            query += (" AND" if set_id is not None else " WHERE") + " kind = ?"
            parameters.append(kind)
        query += f" ORDER BY {order} DESC LIMIT ?"
        parameters.append(-1 if limit is None else limit)
        return [_event(row) for row in self._db.execute(query, parameters)]

    @_reading_rows()
    def committed(self, tx: str) -> Event | None:
        """Return the event by which transaction `tx` took effect, if it did."""
        row = self._db.execute(f"SELECT {_EVENT} FROM events WHERE tx = ?", (tx,)).fetchone()
        return None if row is None else _event(row)

    @_reading_rows()
    def evidence(self, content_digest: str | None = None) -> list[Evidence]:
        """Return evidence, newest first: all of it, or what decides about one content.

        For a content, the newest of everything that is alike but for its figures: a content that
        was measured a thousand times is judged as fast as one that was measured once.
        """
        query = "SELECT * FROM evidence"
        parameters: tuple[object, ...] = ()
        if content_digest is not None:
            alike = "host, profile, kind, verdict, passed, sets, baseline_sets, baseline_digest"
            query += (
                " WHERE id IN (SELECT max(id) FROM evidence WHERE content_digest = ?"
                f" GROUP BY {alike})"
            )
            parameters = (content_digest,)
        return [_evidence(row) for row in self._db.execute(query + " ORDER BY id DESC", parameters)]

    @_reading_rows()
    def contents(self) -> set[str]:
        """Return every sha256 of a file content that a state or an event speaks of."""
        history = self.history()
        found = {d for f in history.files.values() for d in (f.pristine_sha256, f.current_sha256)}
        for (text,) in self._db.execute("SELECT data FROM events"):
            files = json.loads(text).get("files")
            for sides in files.values() if isinstance(files, dict) else ():
                found.update(side for side in sides if isinstance(side, str))
        return found

    @_reading_rows()
    def evidence_of(self, event: int) -> Evidence | None:
        """Return the evidence that was recorded with an event."""
        row = self._db.execute("SELECT * FROM evidence WHERE event = ?", (event,)).fetchone()
        return None if row is None else _evidence(row)

    def commit(
        self, event: Event, history: History | None, evidence: Evidence | None = None
    ) -> int:
        """Record `event`, the new state (None keeps it) and evidence in one transaction."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            at = now()
            cursor = self._db.execute(
                "INSERT INTO events (at, kind, tx, sets, data, tool) VALUES (?, ?, ?, ?, ?, ?)",
                (at, event.kind, event.tx, _json(event.sets), _json(event.data), __version__),
            )
            event_id = int(cursor.lastrowid or 0)
            self._db.executemany(
                "INSERT INTO event_sets (set_id, event) VALUES (?, ?)",
                [(name, event_id) for name in dict.fromkeys(event.sets)],
            )
            if history is not None:
                self._replace_state(history)
            if evidence is not None:
                self._insert_evidence(at, event_id, evidence)
        return event_id

    def _replace_state(self, history: History) -> None:
        self._db.execute("DELETE FROM active_sets")
        self._db.executemany(
            "INSERT INTO active_sets VALUES (?, ?, ?, ?, ?)",
            [
                (s.id, s.revision, s.role.value, _json(s.selected), s.digest)
                for s in history.active.values()
            ],
        )
        self._db.execute("DELETE FROM owned_files")
        self._db.executemany(
            "INSERT INTO owned_files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    f.target, f.path, _stored(f.root), f.version, f.pristine_sha256,
                    f.pristine_mode, f.pristine_mtime_ns, f.current_sha256, _json(f.changes),
                )
                for f in history.files.values()
            ],
        )  # fmt: skip

    def _insert_evidence(self, at: str, event_id: int, e: Evidence) -> None:
        self._db.execute(
            "INSERT INTO evidence (at, event, content_digest, baseline_digest, host, profile,"
            " kind, verdict, passed, sets, baseline_sets, data)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                at, event_id, e.content_digest, e.baseline_digest, e.host, e.profile, e.kind,
                e.verdict, int(e.passed), _json(e.sets), _json(e.baseline_sets), _json(e.data),
            ),
        )  # fmt: skip


def _event(row: Sequence[object]) -> Event:
    kind, sets, data, tx, at, ident, tool = row
    return Event(
        kind=str(kind), sets=tuple(json.loads(str(sets))), data=dict(json.loads(str(data))),
        tx=None if tx is None else str(tx), at=str(at), id=int(str(ident)), tool=str(tool),
    )  # fmt: skip


def _owned_file(row: Sequence[object]) -> OwnedFile:
    target, path, root, version, pristine, mode, mtime_ns, current, changes = row
    return OwnedFile(
        target=str(target), path=str(path), root=_shown(root), version=str(version),
        pristine_sha256=str(pristine), pristine_mode=int(str(mode)),
        pristine_mtime_ns=int(str(mtime_ns)), current_sha256=str(current),
        changes=tuple(json.loads(str(changes))),
    )  # fmt: skip


def _evidence(row: Sequence[object]) -> Evidence:
    (
        ident,
        at,
        _event,
        content,
        baseline,
        host,
        profile,
        kind,
        verdict,
        passed,
        sets,
        base,
        data,
    ) = row
    return Evidence(
        content_digest=str(content), baseline_digest=str(baseline), host=str(host),
        profile=str(profile), kind=str(kind), verdict=str(verdict), passed=bool(passed),
        sets=tuple(json.loads(str(sets))), baseline_sets=tuple(json.loads(str(base))),
        data=dict(json.loads(str(data))), at=str(at), id=int(str(ident)),
    )  # fmt: skip


def _stored(path: str) -> str | bytes:
    """Path as SQLite takes it: as its bytes, where they are no UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return os.fsencode(path)
    return path


def _shown(path: object) -> str:
    return os.fsdecode(path) if isinstance(path, bytes) else str(path)


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise unreadable(path, error) from error


@contextlib.contextmanager
def open_ledger(path: Path, patience: float = PATIENCE) -> Iterator[Ledger]:
    """Open for writing; the file is created complete in a temporary name and moved in.

    `patience`: seconds to wait for somebody else who holds the file, before BusyError.
    """
    ensure_ledger(path)
    with _session(path, "rw", patience) as ledger:
        yield ledger


def ensure_ledger(path: Path) -> None:
    """Create an empty ledger where there is none, complete and durably; HostError if refused."""
    if not _exists(path):
        _create(path)


@contextlib.contextmanager
def read_ledger(path: Path) -> Iterator[Ledger | None]:
    """Open for reading; None when there is no ledger. Works on a read-only file system."""
    if not _exists(path):
        yield None
        return
    # A journal that a killed writer left is rolled back by SQLite on opening, which writes.
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        with _session(path, "rw") as ledger:
            yield ledger
        return
    with contextlib.ExitStack() as held:
        # Who may only read looks at a copy in which the killed writer's work is undone.
        hot = _interrupted_write(path)
        readable = held.enter_context(_undone_copy(path)) if hot else path
        yield held.enter_context(_session(readable, "rw" if hot else "ro"))


def _interrupted_write(path: Path) -> bool:
    try:
        with contextlib.closing(_connect(f"{path.absolute().as_uri()}?mode=ro")) as connection:
            connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError:
        return path.with_name(f"{path.name}-journal").exists()
    except sqlite3.DatabaseError:
        return False  # damaged: the session says so
    return False


@contextlib.contextmanager
def _undone_copy(path: Path) -> Iterator[Path]:
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(prefix="sm120patch-ledger-") as scratch:
        copy = Path(scratch) / path.name
        for suffix in ("", "-journal"):
            with contextlib.suppress(FileNotFoundError):  # the owner has put it right meanwhile
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        yield copy


@contextlib.contextmanager
def _session(path: Path, mode: str, patience: float = PATIENCE) -> Iterator[Ledger]:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    try:
        with contextlib.closing(_connect(uri, patience)) as connection:
            with _reading_rows():
                _check_version(connection, path)
            yield Ledger(connection)
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise BusyError(
                f"the ledger {path} is in use by another process",
                hint="wait until it has finished, then run the command again",
            ) from error
        raise HostError(
            f"the ledger {path} cannot be used: {error}",
            hint="check free space and permissions of the environment's prefix",
        ) from error
    except sqlite3.DatabaseError as error:
        raise HostError(
            f"the ledger {path} is damaged: {error}",
            code="ledger-damaged",
            hint="the originals are still there: `sm120patch recover --lost-ledger` puts them back",
        ) from error


def _connect(uri: str, patience: float = PATIENCE) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=patience)
    try:
        with _reading_rows():  # a message that quotes a damaged schema need not be text
            # EXTRA syncs the directory after SQLite's own journal has gone: with FULL, a power
            # failure may bring that journal back, and with it the state from before a commit.
            connection.execute("PRAGMA synchronous=EXTRA")
            connection.execute("PRAGMA foreign_keys=ON")
    except BaseException:
        connection.close()
        raise
    return connection


def begin_ledger(path: Path, event: Event, history: History) -> None:
    """Create a ledger with its first event and state in one step; a kill leaves all or none."""
    _create(path, lambda ledger: ledger.commit(event, history))


def _create(path: Path, fill: Callable[[Ledger], object] = lambda _ledger: None) -> None:
    temporary = path.with_name(f".sm120patch-new-{os.getpid()}-{path.name}")
    try:
        temporary.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
            # Nobody else sees the file until it is complete: it needs no journal of its own.
            connection.execute("PRAGMA journal_mode=MEMORY")
            connection.execute("PRAGMA synchronous=OFF")
            connection.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;"
            )
            fill(Ledger(connection))
        sync_file(temporary)
        temporary.replace(path)
        sync_directory(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise HostError(
            f"cannot create the ledger {path}: {error}",
            hint="check free space and permissions of the environment's prefix",
        ) from error
    finally:
        # Also after ^C; once it was moved there is none. What a full disk keeps, the next command
        # that takes the lock sweeps away.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        raise sqlite3.DatabaseError("it is empty, or no ledger at all")
    if version != SCHEMA_VERSION:
        raise ConflictError(
            f"the ledger {path} has format {version}, this sm120patch knows {SCHEMA_VERSION}",
            code="ledger-version",
            hint="use the sm120patch release that wrote it, or a newer one",
        )
