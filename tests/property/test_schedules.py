"""Random schedules of commands against a model that knows the truth.

The machine stacks and takes off sets, edits files from outside, reinstalls packages, kills commands
at random calls and loses the ledger, in any order; it lets a command stand still before a random
call while another one, or an installation, runs to its end. After every step the files must be what
the model says: upstream's content with exactly the model's sets, plus what others wrote.

SM120PATCH_SEED=N takes other schedules than the usual ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.catalogue import A_TEXT, B_TEXT, KERNEL, KERNEL_TEXT, SETS, A, B
from tests.support.command import Ran
from tests.support.faults import seam as seams
from tests.support.place import Place, reinstall

TEXTS = {A: A_TEXT, B: B_TEXT, KERNEL: KERNEL_TEXT}
NAMES = ("one", "two", "kernel", "bundle")
CONTENT = {"one": {A}, "two": {A}, "kernel": {KERNEL}}
MINE = "mine = True\n"


def expected(active: set[str]) -> dict[str, str]:
    """Upstream's content with the changes of the sets, optional ones left out."""
    texts = dict(TEXTS)
    for name in active:
        for edit in SETS[name][1]:
            if not edit.optional:
                end = "\n" if edit.path == A else ""
                texts[edit.path] = texts[edit.path].replace(edit.old + end, edit.new + end)
    return texts


Command = tuple[str, str]
"""Verb and set; the set is empty where none is meant."""
CHANGES = [*((verb, name) for verb in ("apply", "revert") for name in NAMES), ("revert", "--all")]
LOOKS = [("status", ""), ("audit", ""), ("history", "")]


def words(command: Command) -> tuple[str, ...]:
    """The command line of a command."""
    verb, name = command
    options = {"apply": ("--no-verify", "--allow-running"), "revert": ("--allow-running",)}
    cascade = ("--cascade",) if verb == "revert" and name != "--all" else ()
    return (verb, *filter(None, [name]), *cascade, *options.get(verb, ()))


def after(requested: frozenset[str], command: Command) -> frozenset[str]:
    """What is requested once a command has succeeded."""
    verb, name = command
    if verb == "apply":
        return requested | {name}
    if name == "--all":
        return frozenset()
    return requested - {name} - ({"bundle"} if name in ("one", "kernel") else set())


def active(requested: Iterable[str]) -> set[str]:
    """Sets that are on disk: a bundle brings its members."""
    return {*requested, *(("one", "kernel") if "bundle" in requested else ())}


class Truth:
    """What must be on disk: sets that were asked for, and files that somebody else wrote."""

    def __init__(self) -> None:
        self.requested: set[str] = set()
        self.foreign: set[str] = set()
        self.lost: set[str] = set()
        """Files that a reinstallation gave back to upstream behind our back."""

    @property
    def active(self) -> set[str]:
        return active(self.requested)

    def text(self, path: str) -> str:
        if path in self.foreign:
            return MINE
        return TEXTS[path] if path in self.lost else expected(self.active)[path]

    def clean(self) -> bool:
        return not self.foreign and not self.lost


class Schedule(RuleBasedStateMachine):
    """One environment; every rule is a command or something that happens to it."""

    @initialize()
    def start(self) -> None:
        self.cleanup = contextlib.ExitStack()
        root = Path(self.cleanup.enter_context(tempfile.TemporaryDirectory()))
        os.environ["HOME"] = str(root)
        self.place = Place(root)
        self.seam = self.cleanup.enter_context(seams.seam(self.place.prefix))
        self.truth = Truth()

    def teardown(self) -> None:
        if hasattr(self, "cleanup"):
            self.cleanup.close()

    def run(self, *words: str, **fault: Any) -> Ran:
        ran = self.seam.run(*words, *self.place.options, **fault)
        assert "Traceback" not in ran.err and ran.code != 70, ran.err
        return ran

    @rule(name=st.sampled_from(NAMES))
    def apply(self, name: str) -> None:
        ran = self.run("apply", name, "--no-verify", "--allow-running")
        if self.truth.clean():
            assert ran.code == 0, ran.out
        if ran.code == 0:
            paths = {p for s in self._closure(name) for p in CONTENT.get(s, ())}
            assert not paths & self.truth.foreign
            self.truth.requested.add(name)
            self._settle(ran)
        else:
            assert ran.code == 5, ran.out

    @staticmethod
    def _closure(name: str) -> tuple[str, ...]:
        return ("one", "kernel", "bundle") if name == "bundle" else (name,)

    def _settle(self, ran: Ran) -> None:
        """Files that the plan wrote are no longer lost."""
        for step in json.loads(ran.out)["result"]["plan"]["files"]:
            self.truth.lost.discard(step["path"])

    @rule(name=st.sampled_from(NAMES))
    def revert(self, name: str) -> None:
        ran = self.run("revert", name, "--cascade", "--allow-running")
        if ran.code == 0:
            self.truth.requested.discard(name)
            if name in ("one", "kernel"):
                self.truth.requested.discard("bundle")
            self._settle(ran)
            self._forget()
        else:
            assert ran.code in (2, 5), ran.out

    @rule()
    def revert_all(self) -> None:
        ran = self.run("revert", "--all", "--allow-running")
        if self.truth.clean():
            assert ran.code == 0, ran.out
        if ran.code == 0:
            self.truth.requested.clear()
            self._forget()
        else:
            assert ran.code == 5, ran.out

    def _forget(self) -> None:
        """A file that no active set shapes is upstream's, lost or not."""
        shaped = {p for name in self.truth.active for p in CONTENT.get(name, ())}
        self.truth.lost &= shaped

    @rule(path=st.sampled_from([A, B, KERNEL]))
    def somebody_edits(self, path: str) -> None:
        self.place.write(path, MINE)
        self.truth.foreign.add(path)

    @rule()
    def pip_installs_again(self) -> None:
        reinstall(self.place, "1.0")
        self.truth.foreign.clear()
        self.truth.lost = {p for n in self.truth.active for p in CONTENT.get(n, ())}

    @rule(
        name=st.sampled_from(["one", "two", "kernel"]),
        at=st.integers(min_value=1, max_value=190),
        verb=st.sampled_from(["apply", "revert"]),
    )
    @precondition(lambda self: self.truth.clean())
    def killed(self, name: str, at: int, verb: str) -> None:
        """Killed anywhere, then recovered: the ledger says which side it is."""
        options = ["--no-verify"] if verb == "apply" else ["--cascade"]
        words = [verb, name, *options, "--allow-running"]
        self.run(*words, at=at, action=seams.KILL)
        assert self.run("recover").code == 0
        states = self._states()
        requested = {n for n in NAMES if states[n] == "staged"}
        self.truth.requested = requested
        for path, text in expected(self.truth.active).items():
            assert self.place.read(path) == text, "the ledger and the files disagree"

    @rule(
        first=st.sampled_from(CHANGES),
        second=st.sampled_from([*CHANGES, *LOOKS]),
        at=st.integers(min_value=1, max_value=190),
    )
    @precondition(lambda self: self.truth.clean())
    def at_once(self, first: Command, second: Command, at: int) -> None:
        """The second runs while the first stands still: one after the other, or refused."""
        paused = self.seam.pause(*words(first), *self.place.options, at=at)
        inner = self.run(*words(second))
        outer = self.seam.resume(paused)
        for ran in (outer, inner):
            assert "Traceback" not in ran.err and ran.code in (0, 1, 2, 5, 9), ran.out + ran.err
        if second == ("audit", ""):
            kinds = {finding["kind"] for finding in inner.result["findings"]}
            # The carrier is the library that counts our calls.
            assert kinds <= {"unverified", "interrupted", "carrier"}, "nobody has edited anything"
        done = [c for c, ran in ((first, outer), (second, inner)) if ran.code == 0]
        changes = [command for command in done if command in CHANGES]
        staged = {name for name, state in self._states().items() if state == "staged"}
        for order in (changes, changes[::-1]):
            requested = frozenset(self.truth.requested)
            for command in order:
                requested = after(requested, command)
            if active(requested) == staged:
                break
        else:
            raise AssertionError(f"{changes} in no order lead to {staged}")
        self.truth.requested = set(requested)

    @rule(name=st.sampled_from(NAMES), at=st.integers(min_value=1, max_value=190))
    @precondition(lambda self: self.truth.clean())
    def pip_installs_during_an_apply(self, name: str, at: int) -> None:
        """Files are upstream's or the set's, the ledger says which, and it can be put right."""
        paused = self.seam.pause(*words(("apply", name)), *self.place.options, at=at)
        reinstall(self.place, "1.0")
        ran = self.seam.resume(paused)
        assert "Traceback" not in ran.err and ran.code in (0, 5, 6, 7, 10), ran.out + ran.err
        if (self.place.state / "journal.json").exists():
            assert ran.code == 7 and self.run("recover").code == 0
        wholly = expected(active({*self.truth.requested, name}))
        partly = expected(self.truth.active)
        for path, text in TEXTS.items():
            assert self.place.read(path) in (text, partly[path], wholly[path])
        assert self.place.litter() == []
        reinstall(self.place, "1.0")
        assert self.run("revert", "--all", "--allow-running").code == 0
        self.truth.requested.clear()

    @rule()
    @precondition(lambda self: self.truth.clean())
    def ledger_is_lost(self) -> None:
        ledger = self.place.state / "ledger.sqlite3"
        if not ledger.exists():
            return
        ledger.unlink()
        ran = self.run("recover", "--lost-ledger")
        # Where no change was ever completed there is nothing to put back, and that is said.
        assert ran.code == 0 or (ran.code == 2 and not self.truth.active), ran.out
        self.truth.requested.clear()

    def _states(self) -> dict[str, str]:
        ran = self.run("status")
        assert ran.code == 0, ran.out
        return {s["id"]: s["state"] for s in ran.result["sets"]}

    @invariant()
    def files_are_what_the_model_says(self) -> None:
        if not hasattr(self, "truth"):
            return
        for path in TEXTS:
            assert self.place.read(path) == self.truth.text(path), path
        assert self.place.litter() == []

    @invariant()
    def states_are_what_the_model_says(self) -> None:
        if not hasattr(self, "truth") or not self.truth.clean():
            return
        staged = {n for n, state in self._states().items() if state == "staged"}
        assert staged == self.truth.active


def schedules(examples: int, steps: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    number = os.environ.get("SM120PATCH_SEED")
    machine = seed(int(number))(Schedule) if number else Schedule
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=checks,
            derandomize=not number,
            database=None,
        ),
    )


needs_compiler = pytest.mark.skipif(seams.library() is None, reason="needs a C compiler")


@needs_compiler
def test_a_few_random_schedules_follow_the_model() -> None:
    schedules(examples=3, steps=8)


@needs_compiler
@pytest.mark.slow
def test_two_hundred_random_schedules_follow_the_model() -> None:
    schedules(examples=200, steps=7)
