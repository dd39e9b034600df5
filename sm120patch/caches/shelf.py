"""Puts builds of a module away by content key, and back. Renames below a workspace only.

A workspace is `.../.cache/flashinfer`. The live build of a module is the directory that FlashInfer
uses, `<version>/<arch>/cached_ops/<module>`; the builds of other contents stand on the shelf,
`.sm120patch/<key>/<version>/<arch>/<module>`. Whole directories move by rename: ninja finds a build
up to date only together with its own log, dependency log and times.

A marker file inside a directory names the key it was built for. A live directory without a marker
is FlashInfer's own work and belongs to the content that was on disk. While files are being
exchanged the live directory is empty but for a marker `unowned`: what somebody builds there at such
a time is of unknown content and is never put back. Nothing is overwritten or deleted, except
markers, directories that hold nothing else, and what was copied because it could not be renamed.
"""

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from sm120patch.caches.builds import (
    COPY,
    MARKER,
    OURS,
    TVM_LOCK,
    UNOWNED,
    Entry,
    Kind,
    Move,
    free_slot,
    inspect,
    label_of,
    plain_name,
    refused,
    settled,
    stored,
)
from sm120patch.disk import sync_directory
from sm120patch.errors import BusyError, HostError, UsageError

Step = Callable[[str], None]
"""Called before every step that changes the disk; tests stop the process there."""

LOCK_TIMEOUT = 10.0
"""Seconds to wait for FlashInfer's own lock: a compile holds it for minutes."""


def _anything(_entry: Entry, _seeded: bool) -> bool:
    return True


def _worthwhile(_entry: Entry, _directory: Path) -> bool:
    return True


def _unnamed(_entry: Entry, _directory: Path) -> str:
    return ""


class Checks(NamedTuple):
    """What a build must show before it may stay live. Without checks it is taken as it is."""

    good: Callable[[Entry, bool], bool] = _anything
    """(entry, whether it is a copy) -> what a compiler would now do with the live build is what it
    should do: nothing, or for a copy exactly the objects that include a changed file."""
    identity: Callable[[Entry, Path], str] = _unnamed
    """Names the files, apart from those exchanged, that the build in a directory is made from."""
    worth: Callable[[Entry, Path], bool] = _worthwhile
    """A copy of that build would save a part of the compile, and there is room for it."""


NO_CHECKS = Checks()


def park(
    entry: Entry,
    key: str,
    *,
    trusted: Collection[str] = (),
    checks: Checks = NO_CHECKS,
    step: Step = lambda _: None,
    timeout: float = LOCK_TIMEOUT,
) -> tuple[Move, ...]:
    """Put the live build away as that of `key`, the content on disk. Call *before* writing files.

    Until `place` the live directory holds a marker `unowned` only. Doing it again after a crash at
    any point is harmless. `trusted` names the contents that a marker may name besides `key`: the
    sides of an interrupted transaction. Raises BusyError when a compile holds the module, HostError
    when the disk refuses.
    """
    with locked(entry, timeout):
        return _park(entry, key, trusted, checks, step)


def place(
    entry: Entry,
    key: str,
    *,
    seed: str | None = None,
    checks: Checks = NO_CHECKS,
    step: Step = lambda _: None,
    timeout: float = LOCK_TIMEOUT,
) -> tuple[Move, ...]:
    """Make the build of `key` live, or leave room for it. Call *after* the files hold `key`.

    When none is stored, or it does not pass the checks, FlashInfer will compile into the live
    directory, which is marked as `key` already; into a copy of the stored build of `seed`, when
    that is given and passes. Raises as `park`.
    """
    with locked(entry, timeout):
        return _place(entry, key, seed, checks, step)


def swap(
    entry: Entry,
    from_key: str,
    to_key: str,
    *,
    trusted: Collection[str] = (),
    checks: Checks = NO_CHECKS,
    step: Step = lambda _: None,
    timeout: float = LOCK_TIMEOUT,
) -> tuple[Move, ...]:
    """`park` and `place` in one, for when no file changes in between."""
    if settled(inspect(entry.live, entry), from_key, to_key):
        return ()
    with locked(entry, timeout):
        parked = _park(entry, from_key, trusted, checks, step)
        return parked + _place(entry, to_key, None, checks, step)


def _park(
    entry: Entry, key: str, trusted: Collection[str], checks: Checks, step: Step
) -> tuple[Move, ...]:
    _check_names(entry, key)
    live = inspect(entry.live, entry)
    moves: list[Move] = []
    label = label_of(live, key, trusted)
    if label is not None:
        if live.owner != label or label == key:
            step("mark")
            inputs = checks.identity(entry, entry.live)
            _write_marker(entry, entry.live, label, inputs=inputs)
        moves.append(_move(entry, entry.live, free_slot(entry, label), step))
    step("reserve")
    _reserve(entry, UNOWNED)
    return tuple(moves)


def _place(
    entry: Entry, key: str, seed: str | None, checks: Checks, step: Step
) -> tuple[Move, ...]:
    _check_names(entry, key)
    live = inspect(entry.live, entry)
    if live.built and live.owner == key and checks.good(entry, live.seeded):
        return ()
    moves: list[Move] = []
    if live.built:
        # Built while files were being exchanged, by somebody who could not know.
        moves.append(_disown(entry, step))
    if stored(entry, key):
        wanted = inspect(entry.slot(key), entry).inputs
        _clear(entry, step)
        moves.append(_move(entry, entry.slot(key), entry.live, step))
        if wanted == checks.identity(entry, entry.live) and checks.good(entry, False):
            return tuple(moves)
        moves.append(_disown(entry, step))
    if seed is None or not _seeded(entry, key, seed, checks, step):
        step("reserve")
        _reserve(entry, key)
    return tuple(moves)


def _disown(entry: Entry, step: Step) -> Move:
    step("mark")
    _write_marker(entry, entry.live, UNOWNED)
    return _move(entry, entry.live, free_slot(entry, UNOWNED), step)


def _seeded(entry: Entry, key: str, seed: str, checks: Checks, step: Step) -> bool:
    """Make a copy of the build of `seed` live, for a compiler to renew; False when there is none.

    A disk without room for it is no reason to fail: the module is compiled as a whole then.
    """
    source = entry.slot(seed)
    same = inspect(source, entry).inputs == checks.identity(entry, source)
    if not (stored(entry, seed) and same and checks.worth(entry, source)):
        return False
    step("seed")
    try:
        with _copied(source, source.parent) as copy:
            _write_marker(entry, copy, key, seeded=True)
            _clear(entry, step)
            copy.rename(entry.live)
            sync_directory(entry.live.parent)
    except (OSError, HostError):
        return False
    if checks.good(entry, True):
        return True
    import shutil

    shutil.rmtree(entry.live, ignore_errors=True)  # our own copy
    return False


def _move(entry: Entry, source: Path, destination: Path, step: Step) -> Move:
    step("move")
    _make_directories(entry, destination.parent)
    try:
        try:
            source.rename(destination)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _copy_over(source, destination, step)
        for directory in (source.parent, destination.parent):
            sync_directory(directory)
    except OSError as error:
        raise refused("move", source, error) from error
    return Move(source, destination)


def _copy_over(source: Path, destination: Path, step: Step) -> None:
    """Move where rename cannot: to another mount, or a directory of a container image's layer.

    Times are kept, or ninja would build everything anew. The copy appears under its name only when
    it is complete, and then the source goes, marker first: half a source is no build of any key.
    """
    step("copy")
    with _copied(source, destination.parent) as copy:
        copy.rename(destination)
    step("copied")
    (source / MARKER).unlink(missing_ok=True)
    import shutil

    shutil.rmtree(source)


@contextlib.contextmanager
def _copied(source: Path, parent: Path) -> Iterator[Path]:
    """Yield a durable copy of a build beside its place; what was not renamed away is removed."""
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(prefix=COPY, dir=parent) as scratch:
        copy = Path(scratch) / source.name
        shutil.copytree(source, copy, symlinks=True, copy_function=shutil.copy2)
        _keep_owners(source, copy)
        os.sync()
        yield copy


def _keep_owners(source: Path, copy: Path) -> None:
    if os.geteuid() != 0:
        return
    for original in (source, *source.rglob("*")):
        status = original.lstat()
        made = copy / original.relative_to(source)
        os.chown(made, status.st_uid, status.st_gid, follow_symlinks=False)


def _reserve(entry: Entry, key: str) -> None:
    _make_directories(entry, entry.live)
    _write_marker(entry, entry.live, key)
    sync_directory(entry.live.parent)


def _clear(entry: Entry, step: Step) -> None:
    """Remove a live directory that holds our marker at most."""
    step("clear")
    directory = entry.live
    names = {*OURS, TVM_LOCK} if entry.kind is Kind.SGLANG else OURS
    try:
        for name in names:
            (directory / name).unlink(missing_ok=True)
        directory.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        raise refused("clear", directory, error) from error


def _write_marker(
    entry: Entry, directory: Path, key: str, *, seeded: bool = False, inputs: str = ""
) -> None:
    mtimes = {}
    for path in entry.paths:
        with contextlib.suppress(OSError):
            mtimes[path] = entry.file(path).stat().st_mtime_ns
    content: dict[str, object] = {"key": key, "module": entry.module, "mtimes_ns": mtimes}
    content |= {"seeded": seeded, "inputs": inputs}
    temporary = directory / f"{MARKER}.new"
    try:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            json.dump(content, stream, sort_keys=True)
            _give_to_owner(entry, descriptor)
            stream.flush()
            os.fsync(descriptor)
        temporary.replace(directory / MARKER)
        sync_directory(directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise refused("mark", directory, error) from error


def _make_directories(entry: Entry, directory: Path) -> None:
    """Create what is missing between the workspace and `directory`, owned like the workspace."""
    current = entry.workspace
    for part in directory.relative_to(entry.workspace).parts:
        current = current / part
        try:
            current.mkdir()
            _give_to_owner(entry, current)
            sync_directory(current.parent)  # a build moved into it must not get lost with it
        except FileExistsError:
            if current.is_symlink():
                raise HostError(
                    f"{current} is a symbolic link; it may lead out of the workspace",
                    hint="link the whole workspace (~/.cache/flashinfer) instead of a part of it",
                ) from None
        except OSError as error:
            raise refused("create", current, error) from error


def _give_to_owner(entry: Entry, what: Path | int) -> None:
    """Let root leave nothing behind that the owner of the workspace could not use.

    A directory that the owner has exchanged for a link meanwhile does not make them a present of
    what the link leads to.
    """
    if os.geteuid() != 0:
        return
    owner = entry.workspace.stat()
    if isinstance(what, int):
        if os.fstat(what).st_uid == 0:
            os.chown(what, owner.st_uid, owner.st_gid)
    elif what.lstat().st_uid == 0:
        os.chown(what, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _check_names(entry: Entry, key: str) -> None:
    for name in (key, *entry.names):
        if not plain_name(name) or key == UNOWNED:
            raise UsageError(f"{name!r} is not usable as a name of a cache directory")


@contextlib.contextmanager
def locked(entry: Entry, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
    """Hold the builder's own lock of the module (a `flock`, as the filelock library takes it)."""
    path = entry.lock
    _make_directories(entry, path.parent)
    deadline = time.monotonic() + timeout
    while (descriptor := _try_lock(entry, path)) is None:
        if time.monotonic() >= deadline:
            raise BusyError(
                f"{path} is held by another process: it is compiling {entry.module}",
                hint="wait until the compile is done, or stop the server, then repeat",
                details={"lock": str(path)},
            )
        time.sleep(0.1)
    try:
        yield
    finally:
        os.close(descriptor)


def _try_lock(entry: Entry, path: Path) -> int | None:
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o644)
        _give_to_owner(entry, descriptor)
    except OSError as error:
        raise refused("lock", path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A holder may remove the file when it lets go: then this lock guards nothing.
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
