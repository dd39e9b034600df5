"""A fault at any file-system call, SQLite's included: the environment is old or new, never else."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.faults import seam as seams
from tests.support.faults.lossy import Disk
from tests.support.faults.matrix import (
    Trial,
    failing_everywhere,
    interrupted_everywhere,
    killed_everywhere,
    outcomes,
)
from tests.support.faults.seam import Call
from tests.support.faults.trials import FAULTS, TRIALS
from tests.support.faults.world import APPLY, World

pytestmark = pytest.mark.skipif(seams.library() is None, reason="needs a C compiler")


@pytest.fixture
def apply(tmp_path: Path) -> Iterator[Trial]:
    world = World(tmp_path)
    with seams.seam(world.prefix, world.workspace) as seam:
        yield Trial(world, seam, APPLY)


@pytest.mark.slow
@pytest.mark.parametrize("fault", sorted(FAULTS))
@pytest.mark.parametrize("command", sorted(TRIALS))
def test_whatever_happens_at_a_call_it_is_old_or_new(
    tmp_path: Path, command: str, fault: str
) -> None:
    """Every third call; `benchmarks/faults.py` takes every one and writes the table."""
    world, make = TRIALS[command](tmp_path / "world")
    with seams.seam(world.prefix, world.workspace) as seam:
        trial = make(seam)
        judged = trial.judge()
        counted = outcomes(FAULTS[fault](trial, judged, 3))
    assert counted and set(counted) <= {"old", "new"}, counted


@pytest.mark.parametrize("command", sorted(set(TRIALS) - {"apply --no-verify", "revert --all"}))
def test_each_command_is_put_to_a_few_faults(tmp_path: Path, command: str) -> None:
    """Killed at its last rename and right before the end; one call in the middle fails."""
    world, make = TRIALS[command](tmp_path / "world")
    with seams.seam(world.prefix, world.workspace) as seam:
        trial = make(seam)
        judged = trial.judge()
        calls = trial.calls
        renames = [call for call in calls if call.op == "rename"]
        trial.calls = [renames[-1], calls[-1]]
        found = outcomes(killed_everywhere(trial, judged))
        trial.calls = [calls[len(calls) // 2]]
        found += outcomes(failing_everywhere(trial, judged, errno.EIO))
    assert found and set(found) <= {"old", "new"}, found


def test_originals_are_no_rubbish_while_the_ledger_is_made_anew(tmp_path: Path) -> None:
    """An empty ledger in between would let the next `recover` drop them."""
    world, make = TRIALS["recover --lost-ledger"](tmp_path / "world")
    with seams.seam(world.prefix, world.workspace) as seam:
        trial = make(seam)
        judged = trial.judge()
        made = [c for c in trial.calls if c.op == "rename" and c.other.endswith("ledger.sqlite3")]
        begins = trial.calls.index(made[0])
        trial.calls = trial.calls[begins : begins + 12 : 4]
        assert set(outcomes(killed_everywhere(trial, judged))) == {"new"}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EXDEV])
def test_a_call_that_fails_where_most_is_at_stake(apply: Trial, code: int) -> None:
    judged = apply.judge()
    apply.calls = moments(apply)[:3]
    assert set(outcomes(failing_everywhere(apply, judged, code))) <= {"old", "new"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_where_most_is_at_stake(apply: Trial, number: int) -> None:
    judged = apply.judge()
    apply.calls = [*apply.calls[:1], *moments(apply)[:2]]
    assert set(outcomes(interrupted_everywhere(apply, judged, number))) <= {"old", "new"}


def moments(trial: Trial) -> list[Call]:
    """The calls at which most is at stake: renames over targets, the commit, the end."""
    found = [c for c in trial.calls if c.op == "rename" and "site-packages" in c.other]
    found += [c for c in trial.calls if c.op == "unlink" and c.path.endswith("-journal")][-1:]
    found += [c for c in trial.calls if c.op == "unlink" and c.path.endswith("journal.json")]
    return found


def test_killed_where_most_is_at_stake_it_is_old_or_new(apply: Trial) -> None:
    judged = apply.judge()
    at_stake = moments(apply)
    assert len(at_stake) >= 4
    apply.calls = at_stake
    assert set(outcomes(killed_everywhere(apply, judged))) == {"old", "new"}


def test_power_lost_where_most_is_at_stake_it_is_old_or_new(apply: Trial) -> None:
    judged = apply.judge()
    numbers = {call.number for call in moments(apply)[1:3]}
    disk, found = apply.disk, []
    assert disk is not None

    for call in apply.calls:
        disk.replay(call)
        if call.number in numbers:
            for image in disk.crashes(Random(1), selections=1):
                image.lay_down()
                found.append((call.label, judged.verdict(apply.next)))
    assert {outcome for _, outcome in found} == {"old", "new"}, found


def test_the_model_of_lost_writes_finds_what_was_not_synced(tmp_path: Path) -> None:
    """The simulation can fail: a rename without any sync may leave an empty file, or none."""
    root = tmp_path / "disk"
    root.mkdir()
    (root / "a").write_bytes(b"old")
    disk = Disk(root)
    calls = [("create", "b", ""), ("write", "b", ""), ("rename", "b", "a")]
    for number, (op, path, other) in enumerate(calls, start=1):
        full = str(root / other) if other else ""
        data = b"new" if op == "write" else b""
        disk.replay(Call(number, op, str(root / path), full, 10**9, 0, data))

    left = set()
    for image in disk.crashes(Random(0), selections=3):
        image.lay_down()
        left.add((root / "a").read_bytes())
    assert left == {b"old", b"", b"new"}
