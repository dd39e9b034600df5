"""What can be tried on a server without a patch, and how it comes into the two command lines."""

from __future__ import annotations

import pytest

from sm120patch.errors import UsageError
from sm120patch.plan import Launch
from sm120patch.trial import Trial, launches, read_trial
from sm120patch.verify.commandline import arms
from sm120patch.verify.profile import Profile, parse


@pytest.mark.parametrize(
    ("text", "args", "env"),
    [
        ("--steps 4", ("--steps", "4"), {}),
        ("A=1 B='x y' --steps=4", ("--steps=4",), {"A": "1", "B": "x y"}),
        ("NCCL_ALGO=Ring", (), {"NCCL_ALGO": "Ring"}),
        ("EMPTY= --x", ("--x",), {"EMPTY": ""}),
        ("--json '{\"a\": [1, 2]}'", ("--json", '{"a": [1, 2]}'), {}),
        ("--x $(id) ; rm", ("--x", "$(id)", ";", "rm"), {}),
    ],
)
def test_variables_come_first_and_no_shell_is_asked(
    text: str, args: tuple[str, ...], env: dict[str, str]
) -> None:
    trial = read_trial(text)
    assert (trial.args, trial.env) == (args, env)
    assert read_trial(trial.shown).key == trial.key


@pytest.mark.parametrize("text", ["", "  ", "steps 4", "'unclosed", "1A=2", "--x\0"])
def test_what_is_nothing_to_try_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_trial(text)


def test_equal_trials_have_equal_keys() -> None:
    assert read_trial("A=1 B=2 --x 1").key == read_trial("B=2  A='1' --x  1").key
    different = {read_trial(t).key for t in ("--x 1", "--x 2", "A=1 --x 1", "--x 1 --y")}
    assert len(different) == 4


def profile(*command: str, env: str = "") -> Profile:
    words = ", ".join(f'"{word}"' for word in ("serve", *command))
    text = f"[server]\ncommand = [{words}]\n[server.env]\n{env}\n"
    return parse(text, origin="test", python="/p/bin/python", prefix="/p")


def both(
    trial: Trial, found: Profile, base: Launch | None = None, environ: dict[str, str] | None = None
) -> tuple[str, str]:
    launch, own = launches(
        trial, base or Launch(), found.server.command, environ or dict(found.server.env)
    )
    made = arms(found, launch, own)
    return made.baseline.shown, made.patched.shown


def test_the_baseline_keeps_what_it_has_and_the_variant_comes_last() -> None:
    found = profile("--backend", "triton", "{set_args}", env='A = "old"')
    baseline, variant = both(read_trial("A=new --backend cutlass"), found)
    assert baseline == "env A=old serve --backend triton"
    assert variant == "env A=new serve --backend triton --backend cutlass"


def test_a_variable_of_the_shell_stays_for_the_baseline() -> None:
    found = profile("{set_args}")
    baseline, variant = both(read_trial("A=new"), found, environ={"A": "shell"})
    assert (baseline, variant) == ("env A=shell serve", "env A=new serve")
    baseline, variant = both(read_trial("A=new"), found)
    assert (baseline, variant) == ("env -u A serve", "env A=new serve")


def test_sets_on_disk_keep_their_options_in_both_arms() -> None:
    base = Launch(("--fusion",), {"F": "1"}, {"--fusion": 0}, ("F",))
    baseline, variant = both(read_trial("--steps 4"), profile("{set_args}"), base)
    assert baseline == "env F=1 serve --fusion"
    assert variant == "env F=1 serve --fusion --steps 4"


def test_an_option_that_would_win_over_the_trial_is_refused() -> None:
    with pytest.raises(UsageError, match="--backend after"):
        both(read_trial("--backend cutlass"), profile("{set_args}", "--backend=triton"))
