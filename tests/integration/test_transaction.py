"""The transaction against a disk that misbehaves: all old or all new, and nothing left behind."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sm120patch import disk, recovery, transaction
from sm120patch.errors import ConflictError, HostError, RecoveryNeededError, RolledBackError
from sm120patch.evidence import Event
from sm120patch.journal import Side, read_journal
from sm120patch.ledger import open_ledger
from sm120patch.model import sha256_hex
from sm120patch.plan import FileStep, History
from sm120patch.store import StateDirectory, Store

OLD = {"pkg/a.py": b"a = 'old'\n", "pkg/sub/b.cuh": b"// old\r\n", "pkg/c.py": b"c = 'old'"}
NEW = {"pkg/a.py": b"a = 'new'\n", "pkg/sub/b.cuh": b"// new\r\n", "pkg/c.py": b"c = 'new'"}
LONG_AGO = 1_600_000_000_123_456_789


class Place:
    def __init__(self, root: Path) -> None:
        self.root = root / "site"
        self.state = StateDirectory.of(root)
        self.state.ensure()
        for path, data in OLD.items():
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            os.utime(file, ns=(LONG_AGO, LONG_AGO))
        self.modes = dict.fromkeys(OLD, 0o644)
        """Modes that upstream's files were first seen with."""

    def content(self) -> dict[str, bytes]:
        return {path: (self.root / path).read_bytes() for path in OLD}

    def litter(self) -> list[str]:
        return [p.name for p in self.root.parent.rglob(f"{disk.TEMP_PREFIX}*")]

    def steps(self, before: dict[str, bytes], after: dict[str, bytes]) -> tuple[FileStep, ...]:
        return tuple(
            FileStep(
                "sglang", path, str(self.root), "1.0", sha256_hex(before[path]),
                sha256_hex(after[path]), sha256_hex(OLD[path]), self.modes[path], LONG_AGO,
                before[path], after[path], OLD[path],
            )
            for path in before
        )  # fmt: skip

    def settings(self, restore: Side = "a") -> transaction.Settings:
        return transaction.Settings("test", ("one",), "digest", "python", restore, "a")

    def run(self, before: dict[str, bytes] = OLD, after: dict[str, bytes] = NEW) -> None:
        with transaction.begin(self.state, self.steps(before, after), self.settings()) as tx:
            tx.swap("b")
            tx.commit("b", self.record)

    def record(self, tx: str, side: Side) -> None:
        with open_ledger(self.state.ledger) as ledger:
            ledger.commit(Event("staged", ("one",), {"end": side}, tx), History())

    def events(self) -> list[str]:
        with open_ledger(self.state.ledger) as ledger:
            return [e.kind for e in ledger.events()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(autouse=True)
def checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[Callable[[str], None]], None]]:
    def install(function: Callable[[str], None]) -> None:
        monkeypatch.setattr(transaction, "on_checkpoint", function)

    yield install


def test_a_finished_transaction_leaves_the_new_content_only(place: Place) -> None:
    place.run()
    assert place.content() == NEW
    assert place.litter() == [] and not place.state.journal.exists()
    assert place.events() == ["staged"]


def test_going_back_gives_bytes_modes_and_times_back(place: Place) -> None:
    (place.root / "pkg/a.py").chmod(0o640)
    place.modes["pkg/a.py"] = 0o640
    place.run()
    assert stat.S_IMODE((place.root / "pkg/a.py").stat().st_mode) == 0o640
    (place.root / "pkg/a.py").chmod(0o600)
    place.run(NEW, OLD)
    assert place.content() == OLD
    for path in OLD:
        assert (place.root / path).stat().st_mtime_ns == LONG_AGO
    assert stat.S_IMODE((place.root / "pkg/a.py").stat().st_mode) == 0o640


def test_new_content_is_a_whole_second_away_from_the_old(place: Place) -> None:
    now = (place.root / "pkg/a.py").stat().st_mtime_ns
    os.utime(place.root / "pkg/a.py", ns=(now, 2**62))
    before = (place.root / "pkg/a.py").stat().st_mtime_ns // 10**9
    place.run()
    assert (place.root / "pkg/a.py").stat().st_mtime_ns // 10**9 > before


def test_hard_links_elsewhere_keep_their_bytes(place: Place, tmp_path: Path) -> None:
    cached = tmp_path / "uv-cache.py"
    cached.hardlink_to(place.root / "pkg/a.py")
    place.run()
    assert cached.read_bytes() == OLD["pkg/a.py"]
    assert (place.root / "pkg/a.py").stat().st_nlink == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", ["fsync", "replace", "utime", "fchmod", "link", "unlink"])
@pytest.mark.parametrize("nth", [1, 2, 3, 5, 7])
def test_a_failing_disk_rolls_back(
    place: Place, monkeypatch: pytest.MonkeyPatch, call: str, code: int, nth: int
) -> None:
    """One failing system call, wherever it strikes, ends on the old or the committed content."""
    real, count = getattr(os, call), 0

    def failing(*arguments: object, **options: object) -> object:
        nonlocal count
        count += 1
        if count == nth:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    monkeypatch.setattr(os, call, failing)
    try:
        place.run()
        outcome = "done"
    except (RolledBackError, HostError):
        outcome = "failed"
    monkeypatch.undo()
    committed = place.state.ledger.exists() and place.events() == ["staged"]
    assert place.content() == (NEW if committed else OLD)
    assert committed or outcome == "failed"
    assert place.litter() == []
    if place.state.journal.exists():
        recovery.recover(place.state)
        assert place.content() == (NEW if committed else OLD)
    place.run(place.content(), NEW)
    assert place.content() == NEW


def test_a_full_disk_is_an_error_with_everything_as_before(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = disk.stage

    def full(place: disk.Spot, data: bytes, **options: Any) -> None:
        if "c.py" in place.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(place, data, **options)

    monkeypatch.setattr(disk, "stage", full)
    with pytest.raises(RolledBackError, match="No space left"):
        place.run()
    assert place.content() == OLD and place.litter() == []
    assert not place.state.journal.exists() and place.events() == []


def test_when_even_the_rollback_fails_the_journal_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, count = disk.rename, 0

    def dying(source: disk.Spot, name: str) -> None:
        nonlocal count
        if "pkg" in str(source.shown):
            count += 1
            if count >= 2:
                raise OSError(errno.EIO, "gone")
        real(source, name)

    monkeypatch.setattr(disk, "rename", dying)
    with pytest.raises(RecoveryNeededError, match="could not be rolled back"):
        place.run()
    monkeypatch.undo()
    with pytest.raises(RecoveryNeededError):
        transaction.require_settled(place.state)
    result = recovery.recover(place.state)
    assert result is not None and result.outcome == "undone"
    assert place.content() == OLD and place.litter() == []


def test_a_stale_plan_is_refused_before_the_first_write(place: Place) -> None:
    steps = place.steps(OLD, NEW)
    (place.root / "pkg/c.py").write_bytes(b"edited")
    with (
        pytest.raises(ConflictError, match="stale"),
        transaction.begin(place.state, steps, place.settings()),
    ):
        pass
    assert (place.root / "pkg/a.py").read_bytes() == OLD["pkg/a.py"]
    assert not place.state.journal.exists()


def test_a_file_edited_between_two_swaps_is_not_overwritten(place: Place) -> None:
    with (
        pytest.raises(RecoveryNeededError),
        transaction.begin(place.state, place.steps(OLD, NEW), place.settings()) as tx,
    ):
        tx.swap("b")
        (place.root / "pkg/a.py").write_bytes(b"mine\n")
        tx.swap("a")
    assert (place.root / "pkg/a.py").read_bytes() == b"mine\n"
    assert recovery.recover(place.state, keep_foreign=True) is not None
    assert place.content() == {**OLD, "pkg/a.py": b"mine\n"}


def test_leaving_without_commit_restores(place: Place) -> None:
    with (
        pytest.raises(RuntimeError),
        transaction.begin(place.state, place.steps(OLD, NEW), place.settings()) as tx,
    ):
        tx.swap("b")
    assert place.content() == OLD and not place.state.journal.exists()


def test_the_restore_side_may_be_the_patched_one(place: Place) -> None:
    """`verify` of a set that is on disk starts and restores on side b."""
    place.run()
    steps = place.steps(NEW, OLD)
    settings = transaction.Settings("verify", ("one",), "digest", "python", "b", "b")
    with pytest.raises(KeyboardInterrupt), transaction.begin(place.state, steps, settings) as tx:
        tx.swap("a")
        assert place.content() == OLD
        raise KeyboardInterrupt
    assert place.content() == NEW


def test_the_first_interrupt_waits_until_the_files_are_whole(
    place: Place, checkpoint: Callable[[Callable[[str], None]], None]
) -> None:
    sent = []

    def interrupt(label: str) -> None:
        if label.startswith("replace") and not sent:
            sent.append(label)
            # To this thread: others of a test process would not hold it back.
            signal.raise_signal(signal.SIGINT)

    checkpoint(interrupt)
    with pytest.raises(KeyboardInterrupt):
        place.run()
    assert sent, "the signal must have come between two files"
    assert place.content() == OLD and place.litter() == []


def test_an_interrupt_after_the_ledger_commit_keeps_the_new_content(
    place: Place, checkpoint: Callable[[Callable[[str], None]], None]
) -> None:
    def interrupt(label: str) -> None:
        if label == "ledger commit":
            signal.raise_signal(signal.SIGINT)

    checkpoint(interrupt)
    with pytest.raises(KeyboardInterrupt):
        place.run()
    assert place.content() == NEW and place.events() == ["staged"]
    assert not place.state.journal.exists()


@pytest.mark.parametrize("path", ["../outside.py", "/etc/passwd", "pkg/../../x", ""])
def test_paths_never_leave_the_root(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConflictError), disk.spot(tmp_path, path):
        pass


def test_a_symlinked_directory_is_refused(place: Place, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x.py").write_bytes(b"x")
    (place.root / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ConflictError, match="symbolic link"), disk.spot(place.root, "link/x.py"):
        pass


@pytest.mark.parametrize(
    "garbage",
    [b"", b"{", b"[]", b"null", b'{"schema": 1}', b'{"schema": 99, "files": []}', b"\xff\xfe"],
)
def test_a_damaged_journal_asks_for_help_and_changes_nothing(place: Place, garbage: bytes) -> None:
    place.state.journal.write_bytes(garbage)
    with pytest.raises(RecoveryNeededError) as caught:
        recovery.recover(place.state)
    assert caught.value.hint
    assert place.content() == OLD and place.state.journal.read_bytes() == garbage


def rot(place: Place) -> None:
    for entry in (place.state.path / "objects").rglob("*"):
        if entry.is_file():
            entry.write_bytes(b"rotten")


def test_a_lost_original_is_said_and_nothing_is_touched(place: Place) -> None:
    with pytest.raises(RecoveryNeededError, match="store"):  # noqa: SIM117 - one raises
        with transaction.begin(place.state, place.steps(OLD, NEW), place.settings()) as tx:
            tx.swap("b")
            rot(place)
            for kept in place.root.rglob("*.kept"):
                kept.unlink()
            tx.swap("a")
    assert place.content() == NEW
    assert read_journal(place.state.journal) is not None


def test_the_files_that_were_replaced_are_at_hand_until_the_end(place: Place) -> None:
    """The way back needs neither the store nor room on the disk."""
    inodes = {path: (place.root / path).stat().st_ino for path in OLD}
    with transaction.begin(place.state, place.steps(OLD, NEW), place.settings()) as tx:
        tx.swap("b")
        rot(place)
        tx.swap("a")
        assert {path: (place.root / path).stat().st_ino for path in OLD} == inodes
        tx.swap("b")
        assert place.content() == NEW
        tx.swap("a")
        tx.commit("a", place.record)
    assert place.content() == OLD and place.litter() == []
    assert {path: (place.root / path).stat().st_ino for path in OLD} == inodes


def test_without_hard_links_the_store_gives_the_content(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    place.run()
    assert place.content() == NEW
    place.run(NEW, OLD)
    assert place.content() == OLD and place.litter() == []


def test_what_is_written_into_a_file_at_the_last_moment_is_not_lost(place: Place) -> None:
    """A program that has the old file open writes into it while it leaves its name."""
    open_before = (place.root / "pkg/c.py").open("r+b")
    real = os.link

    def write(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        if arguments[0] == "c.py":
            open_before.write(b"c = 'own'")
            open_before.flush()

    with open_before, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", write)
        with pytest.raises((ConflictError, RecoveryNeededError), match="changed by something"):
            place.run()
    assert (place.root / "pkg/c.py").read_bytes() == b"c = 'own'"
    if place.state.journal.exists():
        recovery.recover(place.state, keep_foreign=True)
    assert place.content() == {**OLD, "pkg/c.py": b"c = 'own'"}
    assert place.litter() == []


def test_the_store_replaces_a_rotten_object(place: Place) -> None:
    store = Store(place.state)
    digest = store.put(b"content")
    next(p for p in (place.state.path / "objects").rglob("*") if p.is_file()).write_bytes(b"rot")
    assert store.get(digest) is None
    assert store.put(b"content") == digest and store.get(digest) == b"content"


@pytest.mark.parametrize("gone", ["journal.json", "."])
def test_files_are_put_back_though_somebody_removed_the_state(place: Place, gone: str) -> None:
    """The journal is for the next process; this one knows what it has exchanged."""
    steps = place.steps(OLD, NEW)
    with (
        pytest.raises(KeyboardInterrupt),
        transaction.begin(place.state, steps, place.settings()) as tx,
    ):
        tx.swap("b")
        shutil.rmtree(place.state.path) if gone == "." else place.state.journal.unlink()
        raise KeyboardInterrupt
    assert place.content() == OLD and place.litter() == []


def test_what_cannot_be_recorded_any_more_did_not_take_effect(place: Place) -> None:
    steps = place.steps(OLD, NEW)
    with (
        pytest.raises(HostError, match="cannot create the ledger"),
        transaction.begin(place.state, steps, place.settings()) as tx,
    ):
        tx.swap("b")
        shutil.rmtree(place.state.path)
        tx.commit("b", place.record)
    assert place.content() == OLD and place.litter() == []


def test_an_environment_that_was_moved_away_is_not_said_to_be_put_back(place: Place) -> None:
    away = place.root.parent.with_name("away")
    steps = place.steps(OLD, NEW)
    with (
        pytest.raises(RecoveryNeededError, match="could not be rolled back"),
        transaction.begin(place.state, steps, place.settings()) as tx,
    ):
        tx.swap("b")
        place.root.parent.rename(away)
        raise KeyboardInterrupt
    moved = StateDirectory.of(away)
    recovery.recover(moved, roots={"sglang": str(away / "site")})
    assert {path: (away / "site" / path).read_bytes() for path in OLD} == OLD


@pytest.mark.parametrize(
    ("installed", "error"),
    [(OLD, ConflictError), ({**OLD, "pkg/a.py": b"3\n"}, RecoveryNeededError)],
)
def test_a_package_installed_over_the_new_content_is_not_said_to_be_patched(
    place: Place, installed: dict[str, bytes], error: type[Exception]
) -> None:
    steps = place.steps(OLD, NEW)
    with (
        pytest.raises(error, match="changed by something else"),
        transaction.begin(place.state, steps, place.settings()) as tx,
    ):
        tx.swap("b")  # and a server is measured, for an hour
        for path, data in installed.items():
            (place.root / path).write_bytes(data)
        tx.commit("b", place.record)
    assert place.content() == installed and place.events() == []


def test_a_host_that_refuses_the_record_is_told_apart_from_files_that_stay(place: Place) -> None:
    def refuse(_tx: str, _side: Side) -> None:
        raise HostError("the ledger cannot be used: database or disk is full", hint="make room")

    with (
        pytest.raises(HostError) as caught,
        transaction.begin(place.state, place.steps(OLD, NEW), place.settings()) as tx,
    ):
        tx.commit("b", refuse)
    assert caught.value.hint == "every file holds its content from before; make room"
    assert place.content() == OLD
