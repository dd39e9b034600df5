"""What a change has come to is asked of an interpreter that started after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Ran, run_after
from tests.support.environments import install_fake
from tests.support.place import Place, checked, refused

HOOK = """
import pathlib
from sm120patch import transaction

def at(label):
    if label == "purge bytecode":
        pathlib.Path({path!r}).write_text({text!r})

transaction.on_checkpoint = at
"""


def while_it_writes(place: Place, name: str, text: str, *words: str) -> Ran:
    """Run a command; a start-up file appears once the files are exchanged."""
    hook = HOOK.format(path=str(place.site / name), text=text)
    return checked(run_after(hook, *words, *place.options))


@pytest.mark.parametrize("command", [("apply", "bundle", "--no-verify"), ("revert", "--all")])
def test_the_read_back_starts_a_fresh_interpreter(
    place: Place, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """One from before the change cannot know that the next server imports another copy."""
    other = tmp_path / "other"
    install_fake(other, "sglang", "1.0", {"sglang/__init__.py": b""})
    if command[0] == "revert":
        place.stage("bundle")
    before, state = place.facts(), place.states()["bundle"]

    hook = f"import sys; sys.path.insert(0, {str(other)!r})\n"
    ran = while_it_writes(place, "first.pth", hook, *command)
    refused(ran, 6, f"now imports it from {other}", "rolled back")

    (place.site / "first.pth").unlink()
    assert place.facts() == before and place.litter() == []
    assert place.states()["bundle"] == state
    assert while_it_writes(place, "harmless.pth", "\n", *command).code == 0


def test_an_interpreter_that_does_not_start_any_more_is_no_proof(place: Place) -> None:
    ran = while_it_writes(
        place, "broken.pth", "import os; os._exit(3)\n", "apply", "one", "--no-verify"
    )
    assert ran.code == 10 and "exit status 3" in ran.error["message"], ran.out
    (place.site / "broken.pth").unlink()
    assert place.changed() == set() and place.litter() == []
    assert place.states()["one"] == "absent"
