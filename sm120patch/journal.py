"""The journal of a transaction under way: two complete contents, and which one is meant to hold.

Reads and writes `PREFIX/.sm120patch/journal.json` only. The file is replaced atomically, so it is
either absent, the last complete state, or the next complete state.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from sm120patch.catalogue import Catalogue
from sm120patch.disk import read_file, remove_file, write_file
from sm120patch.errors import RecoveryNeededError
from sm120patch.plan import History, sets_of
from sm120patch.store import unreadable

Side = Literal["a", "b"]
SIDES: tuple[Side, Side] = ("a", "b")
SCHEMA = 1
MAX_BYTES = 32 << 20
"""Largest journal that is read: thousands of files."""
_MODES, _TIMES = range(0o10000), range(-(1 << 63), 1 << 63)


def opposite(side: Side) -> Side:
    """The side that is not `side`."""
    return "b" if side == "a" else "a"


class JournalFile(NamedTuple):
    """One file with its content on both sides."""

    target: str
    root: str
    path: str
    a_sha256: str
    a_mtime_ns: int
    b_sha256: str
    b_mtime_ns: int
    a_mode: int
    b_mode: int

    def sha256(self, side: Side) -> str:
        """Digest the file has on that side."""
        return self.a_sha256 if side == "a" else self.b_sha256

    def mode(self, side: Side) -> int:
        """Permission bits the file has on that side."""
        return self.a_mode if side == "a" else self.b_mode

    def mtime_ns(self, side: Side) -> int:
        """Modification time the file has on that side: build caches compare it."""
        return self.a_mtime_ns if side == "a" else self.b_mtime_ns


class CacheScope(NamedTuple):
    """Which build caches follow the swap: what the files hold on either side.

    Paths begin with the name of their package, which tells the root.
    """

    homes: tuple[str, ...]
    """Homes and workspace bases below which `.cache/flashinfer` is looked for."""
    root: str
    version: str
    """FlashInfer's own version string, which names the cache directory."""
    pristine: Mapping[str, str]
    """Path -> sha256 of upstream's content, for every file concerned."""
    a_patched: Mapping[str, str]
    """Path -> sha256 of every file that is not upstream's on side `a`."""
    b_patched: Mapping[str, str]
    sglang_root: str = ""
    """Import root of SGLang; empty when it is not installed. `root` is that of FlashInfer."""
    tactics: tuple[str, ...] = ()
    """Changed files that decide which tactics FlashInfer's autotuner has to choose from."""
    places: Mapping[str, str] = {}
    """Variables of the server that move a cache away from the homes."""
    ninjas: tuple[str, ...] = ()
    """Executables that the server may use: one of them must find a build up to date."""

    def patched(self, side: Side) -> Mapping[str, str]:
        """Files that are not upstream's on that side."""
        return self.a_patched if side == "a" else self.b_patched


class Journal(NamedTuple):
    """State of a transaction. `a` is the content without the plan, `b` the content with it."""

    tx: str
    command: str
    sets: tuple[str, ...]
    plan_digest: str
    python: str
    """Interpreter of the environment, asked afterwards which file it imports."""
    restore: Side
    """Side that holds again when the transaction does not commit."""
    at: Side
    """Side that the environment was on when the journal was written."""
    moving_to: Side | None
    """Side under way; None between swaps."""
    files: tuple[JournalFile, ...]
    pycache_prefix: str | None
    caches: CacheScope | None
    pid: int
    started: str


def write_journal(path: Path, journal: Journal) -> None:
    """Replace the journal durably."""
    inner = {
        "files": [entry._asdict() for entry in journal.files],
        "caches": None if journal.caches is None else journal.caches._asdict(),
    }
    text = json.dumps({"schema": SCHEMA, **journal._asdict(), **inner}, indent=1, sort_keys=True)
    write_file(path, text.encode())


def read_journal(path: Path) -> Journal | None:
    """Return the open journal, None when there is none; RecoveryNeededError when unreadable."""
    try:
        raw = read_file(path, MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        if len(raw) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        data = json.loads(raw)
        schema = data.pop("schema")
        if type(schema) is int and schema != SCHEMA:
            raise _of_another_release(path, schema)
        if schema != SCHEMA:
            raise ValueError("unknown schema")
        files = tuple(JournalFile(**entry) for entry in data.pop("files"))
        caches = data.pop("caches")
        if caches is not None:
            for name in ("homes", "tactics", "ninjas"):
                caches[name] = tuple(caches.get(name, ()))
            caches = CacheScope(**caches)
        sets = tuple(data.pop("sets"))
        journal = Journal(**data, sets=sets, files=files, caches=caches)
        _check(journal)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RecoveryNeededError(
            f"the journal {path} cannot be read: {error}",
            hint="it is written atomically, so something else damaged it; "
            "`sm120patch recover --lost-ledger` does without it",
        ) from error
    return journal


def _of_another_release(path: Path, schema: int) -> RecoveryNeededError:
    return RecoveryNeededError(
        f"the journal {path} has format {schema}, this sm120patch knows {SCHEMA}",
        code="journal-version",
        hint="use the sm120patch release that wrote it, or a newer one",
    )


def _check(journal: Journal) -> None:
    """Raise ValueError for what `write_journal` never writes."""
    sides: tuple[object, ...] = SIDES
    if journal.restore not in sides or journal.at not in sides:
        raise ValueError("unknown side")
    if journal.moving_to not in (*sides, None):
        raise ValueError("unknown side")
    _check_texts(journal.tx, journal.command, journal.plan_digest, journal.python, *journal.sets)
    _check_texts(journal.started, journal.pycache_prefix or "")
    if type(journal.pid) is not int or "/" in journal.tx:
        raise ValueError("no pid, or no transaction")
    for entry in journal.files:
        _check_file(entry)
    if journal.caches is not None:
        _check_caches(journal.caches)


def _check_file(entry: JournalFile) -> None:
    _check_texts(entry.target, entry.root, entry.path, entry.a_sha256, entry.b_sha256)
    for side in SIDES:
        mode, mtime = entry.mode(side), entry.mtime_ns(side)
        if type(mode) is not int or mode not in _MODES:
            raise ValueError("a file entry has an impossible mode")
        if type(mtime) is not int or mtime not in _TIMES:
            raise ValueError("a file entry has an impossible time")


def _check_caches(scope: CacheScope) -> None:
    _check_texts(scope.root, scope.version, scope.sglang_root)
    _check_texts(*scope.homes, *scope.tactics, *scope.ninjas)
    for texts in (scope.pristine, scope.a_patched, scope.b_patched, scope.places):
        _check_texts(*texts.keys(), *texts.values())


def _check_texts(*values: object) -> None:
    for value in values:
        if not isinstance(value, str) or b"\0" in os.fsencode(value):
            raise ValueError("something that should be a text is none")


def remove_journal(path: Path) -> None:
    """Close the journal durably: from here on nothing is under way."""
    remove_file(path)


def busy_sets(catalogue: Catalogue, past: History, journal: Journal | None) -> set[str]:
    """Sets whose files a journal exchanges, those stacked on the same files included."""
    if journal is None:
        return set()
    keys = {(f.target, f.path) for f in journal.files}
    labels = [c for key, f in past.files.items() if key in keys for c in f.changes]
    busy = {*journal.sets, *sets_of(labels)}
    known = [n for n in past.active if n in catalogue.ids]
    return busy | {n for n in known if busy & set(catalogue.closure([n]))}
