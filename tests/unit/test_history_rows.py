"""What `history` says of an event: simulated evidence is labelled, and nothing stays nameless."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120patch.cli.outcome import history_rows
from sm120patch.errors import HostError
from sm120patch.evidence import Event
from sm120patch.journal import read_journal
from sm120patch.ledger import read_ledger


def row(name: str, sets: tuple[str, ...] = (), **data: object) -> tuple[str, ...]:
    return history_rows([Event(name, sets, data)])[0][2:]


def test_simulated_evidence_is_labelled() -> None:
    simulated = row("applied", ("a", "b"), verdict="improved", kind="simulated")
    assert simulated == ("applied", "a, b", "improved (simulated)")
    assert row("applied", ("a",), verdict="improved", kind="real")[-1] == "improved"


def test_an_event_without_sets_says_what_it_was_about() -> None:
    assert row("staged", requested=["a"]) == ("staged", "a", "")
    tried = row("experiment", experiment={"name": "--x 4"}, command="sm120patch bench")
    assert tried[1] == "--x 4"
    recovered = row("recovered", command="sm120patch apply a", outcome="undone")
    assert recovered == ("recovered", "sm120patch apply a", "undone")
    assert row("failed")[1] == "-"


def test_a_journal_or_ledger_that_cannot_be_read_is_no_bug_of_ours(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot read"):
        read_journal(tmp_path)
    with pytest.raises(HostError, match="cannot read"), read_ledger(tmp_path / ("x" * 300)):
        pass
