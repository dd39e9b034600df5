"""Exchange one file of a transaction between its two contents, keeping what it takes the place of.

Writes below the target through `disk` only. The inode that leaves its name keeps a second one
until the transaction is closed: the way back then needs no room on the disk, and what somebody
wrote into it at the last moment is not lost.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from sm120patch import disk
from sm120patch.errors import ConflictError, RecoveryNeededError
from sm120patch.journal import SIDES, JournalFile, Side, opposite
from sm120patch.model import ABSENT

Contents = Callable[[str], bytes | None]
_KEPT = ".kept"


class Ready(NamedTuple):
    """New content of one file, durable beside it; `name` is None where the file shall go."""

    entry: JournalFile
    name: str | None


def short(digest: str) -> str:
    """Digest for a message."""
    return "no file" if digest == ABSENT else digest[:12]


def found(root: str, path: str) -> str:
    """Digest of what is at `path` below `root`, `ABSENT` when nothing is.

    Raises ConflictError for a link, or for what is no regular file.
    """
    try:
        with disk.spot(root, path) as place:
            return disk.digest(place) or ABSENT
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT


def require_known(entry: JournalFile, command: str) -> str:
    """Return what a file holds; ConflictError when that is neither side's content."""
    held = found(entry.root, entry.path)
    if held not in (entry.a_sha256, entry.b_sha256):
        raise _foreign(entry, held, command)
    return held


def _foreign(entry: JournalFile, held: str, command: str) -> ConflictError:
    return changed(entry, held, command, entry.a_sha256, entry.b_sha256)


def changed(entry: JournalFile, held: str, command: str, *expected: str) -> ConflictError:
    """Error for a file that holds none of the contents that a command has put there."""
    path = Path(entry.root, entry.path)
    return ConflictError(
        f"{path} was changed by something else while {command!r} was under way:"
        f" sha256 {short(held)}, expected {' or '.join(map(short, expected))}",
        code="foreign-edit",
        hint="nothing foreign was overwritten; run `sm120patch audit`",
        details={"path": str(path), "found": held},
    )


def is_foreign(entry: JournalFile) -> bool:
    """Tell whether a file is on neither side."""
    try:
        return found(entry.root, entry.path) not in (entry.a_sha256, entry.b_sha256)
    except (ConflictError, OSError):
        return True  # A link, a directory or something unreadable is not ours either.


def is_right(entry: JournalFile, side: Side, held: str) -> bool:
    """Tell whether a file that holds `held` needs nothing to be on `side`."""
    if held != entry.sha256(side):
        return False
    if held == ABSENT:
        return True
    with disk.spot(entry.root, entry.path) as place:
        return disk.status(place).st_mtime_ns == entry.mtime_ns(side)


def stage(entry: JournalFile, side: Side, tx: str, contents: Contents) -> Ready:
    """Have the content of a side durable beside its file.

    The inode that was kept when the file left that side is taken where it is intact.
    """
    wanted = entry.sha256(side)
    if wanted == ABSENT:
        return Ready(entry, None)
    with disk.spot(entry.root, entry.path) as place:
        kept = _kept(place, side, tx)
        if _reusable(kept, entry, side):
            return Ready(entry, kept.name)
        data = contents(wanted)
        if data is None:
            raise RecoveryNeededError(
                f"the store has no intact copy of {entry.path} (sha256 {wanted})",
                hint=f"reinstall {entry.target}, then run `sm120patch recover --keep-foreign`",
            )
        temporary = place.beside(disk.temp_name(place.name, tx))
        like = disk.open_file(place)
        try:
            disk.stage(
                temporary,
                data,
                mode=entry.mode(side),
                mtime_ns=entry.mtime_ns(side),
                like=like,
            )
        finally:
            if like is not None:
                os.close(like)
        return Ready(entry, temporary.name)


def _kept(place: disk.Spot, side: Side, tx: str) -> disk.Spot:
    return place.beside(disk.temp_name(place.name, f"{tx}-{side}", _KEPT))


def _reusable(kept: disk.Spot, entry: JournalFile, side: Side) -> bool:
    try:
        if disk.digest(kept) != entry.sha256(side):
            return False
        status = disk.status(kept)
    except (ConflictError, OSError):
        return False
    mode = stat.S_IMODE(status.st_mode)
    return (mode, status.st_mtime_ns) == (entry.mode(side), entry.mtime_ns(side))


def exchange(ready: Ready, side: Side, tx: str, command: str) -> None:
    """Put the prepared content in place of the other one.

    ConflictError, with the foreign content back under its name, when somebody else has written.
    """
    entry = ready.entry
    held = require_known(entry, command)  # Staging took time: somebody may have written meanwhile.
    leaving = held == entry.sha256(opposite(side)) and entry.a_sha256 != entry.b_sha256
    with disk.spot(entry.root, entry.path) as place:
        kept = _kept(place, opposite(side), tx)
        if ready.name is None:
            if held != ABSENT:
                disk.rename(place, kept.name)
                _require_kept(place, kept, entry, held, command)
            return
        if held == ABSENT:
            if not disk.appear(place.beside(ready.name), place.name):
                raise _foreign(entry, disk.digest(place) or ABSENT, command)
            return
        saved = leaving and disk.link(place, kept.name)
        disk.rename(place.beside(ready.name), place.name)
        if saved:
            _require_kept(place, kept, entry, held, command)


def _require_kept(
    place: disk.Spot, kept: disk.Spot, entry: JournalFile, held: str, command: str
) -> None:
    """What left its name must be what was looked at; else it goes back there."""
    now = disk.digest(kept) or ABSENT
    if now != held:
        disk.rename(kept, place.name)
        raise _foreign(entry, now, command)


def sync(entries: list[JournalFile]) -> None:
    """Make the exchanges durable: every directory once."""
    directories = {(e.root, e.path.rpartition("/")[0]): e for e in entries}
    for entry in directories.values():
        with disk.spot(entry.root, entry.path) as place:
            os.fsync(place.directory)


def names(name: str, tx: str) -> list[str]:
    """Every temporary name that a transaction may give to a file beside its own."""
    kept = [disk.temp_name(name, f"{tx}-{side}", _KEPT) for side in SIDES]
    return [disk.temp_name(name, tx), *kept]


def passing(entries: Iterable[JournalFile], tx: str) -> set[tuple[str, str]]:
    """(target, path) of every file that is there only as long as the transaction is open."""
    found = set()
    for entry in entries:
        directory, slash, name = entry.path.rpartition("/")
        found |= {(entry.target, f"{directory}{slash}{beside}") for beside in names(name, tx)}
    return found


def clear(root: Path, package: str, stored: Collection[str]) -> None:
    """Remove what transactions left below a package that nobody knows any more, durably.

    A kept file of which the store has no copy is left alone. Raises OSError where the disk refuses.
    """
    for directory, _, found in os.walk(root / package):
        for name in found:
            if not name.startswith(disk.TEMP_PREFIX):
                continue
            path = Path(directory, name).relative_to(root).as_posix()
            with contextlib.suppress(ConflictError), disk.spot(root, path) as place:
                if name.endswith(disk.TEMP_SUFFIX) or disk.digest(place) in stored:
                    disk.remove(place)
                    os.fsync(place.directory)


def tidy(entries: tuple[JournalFile, ...], tx: str) -> None:
    """Remove every temporary and kept file of the transaction, durably.

    What cannot be looked at any more (the package is gone, a link is in its place) is left alone.
    Raises OSError where the disk refuses.
    """
    for entry in entries:
        with (
            contextlib.suppress(ConflictError, FileNotFoundError, NotADirectoryError),
            disk.spot(entry.root, entry.path) as place,
        ):
            gone = [disk.remove(place.beside(name)) for name in names(place.name, tx)]
            if any(gone):
                os.fsync(place.directory)
