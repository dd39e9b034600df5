"""The ledger keeps every event, writes state with its event, and refuses what it cannot read."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from sm120patch.errors import ConflictError, HostError
from sm120patch.evidence import Event, Evidence
from sm120patch.ledger import open_ledger, read_ledger
from sm120patch.plan import (
    ActiveSet,
    History,
    OwnedFile,
    Role,
)

FILE = OwnedFile("sglang", "sglang/a.py", "/site", "0.5.9", "p", 0o644, 5, "c", ("one/change",))
HISTORY = History(
    {"one": ActiveSet("one", 2, Role.REQUESTED, ("opt",), "digest")},
    {("sglang", "sglang/a.py"): FILE},
)


def test_state_survives_reopening(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with open_ledger(path) as ledger:
        ledger.commit(Event("staged", ("one",), {"end": "b"}, tx="t1"), HISTORY)
    with read_ledger(path) as ledger:
        assert ledger is not None
        assert ledger.history() == HISTORY
        event = ledger.committed("t1")
        assert event is not None and event.kind == "staged" and event.data == {"end": "b"}
        assert ledger.committed("t2") is None


def test_a_missing_ledger_reads_as_none_and_is_not_created(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with read_ledger(path) as ledger:
        assert ledger is None
    assert list(tmp_path.iterdir()) == []


def test_events_can_be_neither_changed_nor_deleted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with open_ledger(path) as ledger:
        ledger.commit(Event("staged", ("one",)), None)
    raw = sqlite3.connect(path)
    for statement in ("UPDATE events SET kind = 'x'", "DELETE FROM events"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            raw.execute(statement)
    raw.close()


def test_a_transaction_id_takes_effect_once_and_leaves_no_half_state(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with open_ledger(path) as ledger:
        ledger.commit(Event("staged", ("one",), tx="t1"), HISTORY)
    with pytest.raises(HostError), open_ledger(path) as ledger:
        ledger.commit(Event("reverted", ("one",), tx="t1"), History())
    with open_ledger(path) as ledger:
        assert ledger.history() == HISTORY
        assert [e.kind for e in ledger.events()] == ["staged"]


def test_events_are_newest_first_and_filtered_by_set(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        for number in range(4):
            ledger.commit(Event(f"e{number}", ("even",) if number % 2 == 0 else ("odd",)), None)
        assert [e.kind for e in ledger.events(limit=2)] == ["e3", "e2"]
        assert [e.kind for e in ledger.events(set_id="even")] == ["e2", "e0"]


def test_events_are_filtered_by_kind_alone_and_with_a_set(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        for kind, sets in (("applied", ("one",)), ("experiment", ()), ("applied", ("two",))):
            ledger.commit(Event(kind, sets), None)
        assert [e.id for e in ledger.events(kind="applied")] == [3, 1]
        assert [e.id for e in ledger.events(set_id="one", kind="applied")] == [1]
        assert ledger.events(set_id="one", kind="experiment") == []
        assert [e.id for e in ledger.events(limit=1, kind="experiment")] == [2]


def test_events_of_a_set_are_found_without_a_look_at_all_others(tmp_path: Path) -> None:
    asked: list[str] = []
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        ledger._db.set_trace_callback(asked.append)
        assert ledger.events(5, "one") == ledger.events(5) == []
        ledger._db.set_trace_callback(None)
        plans = [row[3] for q in asked for row in ledger._db.execute(f"EXPLAIN QUERY PLAN {q}")]
    assert len(plans) == 3 and "SEARCH" in plans[0]
    assert not any("TEMP B-TREE" in step for step in plans), plans


def test_evidence_is_found_by_content(tmp_path: Path) -> None:
    entry = Evidence(
        "content", "base", "host", "p", "real", "improved", True, ("one",), (), {"n": 1}
    )
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        ledger.commit(Event("verified", ("one",)), None, entry)
        (found,) = ledger.evidence("content")
        assert (found.verdict, found.passed, found.sets, found.data) == (
            "improved", True, ("one",), {"n": 1},
        )  # fmt: skip
        assert ledger.evidence("other") == []


@pytest.mark.parametrize(
    "garbage", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4000]
)
def test_a_damaged_ledger_is_an_error_with_a_hint(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "ledger.sqlite3"
    path.write_bytes(garbage)
    with pytest.raises((HostError, ConflictError)) as caught, read_ledger(path) as ledger:
        assert ledger is not None
        ledger.history()
    assert caught.value.hint
    assert path.read_bytes() == garbage


def test_a_ledger_from_a_newer_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with open_ledger(path):
        pass
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(ConflictError, match="format 99"), read_ledger(path):
        pass


@pytest.mark.parametrize(
    "damage", [(b"tableevents", b"table\x80vents"), (b"TABLE ev", b"TA\x80LE ev")]
)
def test_a_schema_that_is_no_text_is_damage_like_any_other(
    tmp_path: Path, damage: tuple[bytes, bytes]
) -> None:
    """SQLite quotes it in a message that Python cannot read."""
    path = tmp_path / "ledger.sqlite3"
    with open_ledger(path) as ledger:
        ledger.commit(Event("staged", ("one",)), HISTORY)
    path.write_bytes(path.read_bytes().replace(*damage, 1))
    with pytest.raises(HostError, match="damaged") as caught, read_ledger(path):
        pass
    assert caught.value.code == "ledger-damaged" and "--lost-ledger" in str(caught.value.hint)
