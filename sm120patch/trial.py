"""A trial: launch options and variables that are tried on a server without any patch. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sm120patch.errors import UsageError
from sm120patch.model import digest_of
from sm120patch.plan import Launch

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Trial:
    """What one arm of an experiment gets on top of the profile's command."""

    args: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def shown(self) -> str:
        """As it is written on a command line; values of variables included."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join([*variables, shlex.join(self.args)]).strip()

    @property
    def key(self) -> str:
        """Equal for equal trials; the order of variables does not matter, that of options may."""
        return digest_of({"args": list(self.args), "env": dict(self.env)})

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options without their values."""
        return tuple(word.partition("=")[0] for word in self.args if word.startswith("--"))


def read_trial(text: str) -> Trial:
    """Read `VAR=1 --option value`: variables first, then options. No shell is involved.

    Raises UsageError for anything else.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no list of words: {error}") from None
    env: dict[str, str] = {}
    while words and (found := _VARIABLE.fullmatch(words[0])):
        env[found[1]] = found[2]
        words.pop(0)
    if (words and not words[0].startswith("--")) or not (words or env) or "\0" in text:
        raise UsageError(
            f"{text!r} is nothing to try: it takes variables and options",
            hint="for example --try '--num-continuous-decode-steps 4' or --try 'NCCL_ALGO=Ring'",
        )
    return Trial(tuple(words), env)


def launches(
    trial: Trial, base: Launch, command: Sequence[str], environ: Mapping[str, str]
) -> tuple[Launch, Launch]:
    """Options of the trial, and of both arms, for a profile's `command`.

    `environ` holds the variables that the server would be started with: what the trial sets anew
    must stay as it is for the baseline. Where the command names an option already, the last one
    counts; raises UsageError when that would not be the trial's.
    """
    at = command.index("{set_args}") if "{set_args}" in command else len(command)
    late = [word.partition("=")[0] for word in command[at:]]
    taken = [option for option in trial.options if option in late]
    if taken:
        raise UsageError(
            f"the profile's command gives {', '.join(taken)} after {{set_args}}, so it would count",
            hint="move {set_args} to the end of the command",
            code="profile",
        )
    kept = {name: environ[name] for name in trial.env if name in environ}
    return Launch(trial.args, trial.env), base._replace(env={**base.env, **kept})
