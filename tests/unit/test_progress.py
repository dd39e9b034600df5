from __future__ import annotations

import io

import pytest

from sm120patch.cli.liveline import LiveLine
from sm120patch.cli.progress import Progress, duration
from sm120patch.model import Goal
from sm120patch.verify.commandline import Arm
from sm120patch.verify.effect import Interval
from sm120patch.verify.verdict import Decision, Verdict


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")


def undecided(advice: str) -> Decision:
    return Decision(Verdict.INCONCLUSIVE, (), advice, Goal.NO_REGRESSION, 0.03)


def test_the_last_line_says_arm_speed_interval_and_what_is_needed():
    said: list[str] = []
    terminal = Terminal()
    progress = Progress(said.append, LiveLine(terminal))
    progress.on_block(4, 21, Arm.PATCHED)
    progress.on_ready(Arm.PATCHED, 141.0, {})
    progress.on_look(1, 10, {"c64": Interval(1.02, 0.97, 1.07)}, undecided("about 5 server starts"))
    progress.on_warmup(Arm.PATCHED, "c64")
    progress.on_repeat(Arm.PATCHED, "c64", 1, 3, {"output_throughput": 211.0})
    progress.on_pulse(Arm.PATCHED, "c64", 10.0, 2124)
    last = terminal.getvalue().split("\r\x1b[K")[-1]
    assert last.startswith("[4/21] patched: c64 2/3: 212.4 tok/s for 10 s")
    assert "c64 +2.0 % (-3.0 .. +7.0)" in last and "1 of 10 pairs" in last
    assert any("still needed: about 5 server starts" in line for line in said)
    progress.on_verdict(undecided("x"))
    assert terminal.getvalue().endswith("\r\x1b[K"), "it is gone before anything is printed"


def test_before_its_time_a_look_shows_the_ratio_and_no_interval():
    said: list[str] = []
    progress = Progress(said.append, LiveLine(io.StringIO()))
    early = {"c64": Interval(1.05, 0.6, 1.8, unit="bound"), "w": Interval(1.0, 0, float("inf"))}
    progress.on_look(1, 10, early, undecided("about 2 server starts an arm"))
    assert said[0] == "      so far: c64 +5.0 %: too early for an interval"
    assert "still needed: about 2 server starts an arm" in said[1] and len(said) == 2


def test_the_last_line_counts_down_by_the_pace_so_far():
    now = [1000.0]
    terminal = Terminal()
    progress = Progress([].append, LiveLine(terminal), clock=lambda: now[0])
    progress.on_block(1, 6, Arm.BASELINE)
    assert "left" not in terminal.getvalue(), "nothing is known yet"
    progress.on_block_done(1, 6, 1500.0)
    now[0] += 300
    progress.on_block(2, 6, Arm.PATCHED)
    assert terminal.getvalue().endswith("waiting for the server | at most 20 min left")
    progress.on_pulse(Arm.PATCHED, "c64", 10.0, 2124)
    assert "212.4 tok/s for 10 s | at most 20 min left" in terminal.getvalue()
    now[0] += 9000
    progress.on_pulse(Arm.PATCHED, "c64", 11.0, 2124)
    assert terminal.getvalue().endswith("| at most 0 s left")


def test_a_log_gets_no_live_line():
    log = io.StringIO()
    progress = Progress(lambda line: None, LiveLine(log))
    progress.on_block(1, 2, Arm.BASELINE)
    progress.on_pulse(Arm.BASELINE, "c64", 10.0, 2124)
    assert log.getvalue() == ""


def test_a_line_is_cut_to_the_terminal_and_control_characters_are_not_sent(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    LiveLine(terminal).show("a\nb \x1b[2J" + "x" * 100)
    shown = terminal.getvalue().removeprefix("\r\x1b[K")
    assert len(shown) == 39 and "\n" not in shown and "\x1b" not in shown


def test_durations_are_for_people():
    assert [duration(s) for s in (45, 600, 9000)] == ["45 s", "10 min", "2.5 h"]


def test_power_is_that_of_the_arm_that_is_named() -> None:
    said: list[str] = []
    progress = Progress(said.append, other="variant")
    progress.on_telemetry(Arm.PATCHED, "2 GPUs: 300 W")
    assert said == ["      variant: 2 GPUs: 300 W"]
