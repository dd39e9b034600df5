"""The two arms: full command lines and variables of baseline and patched server. Pure."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from sm120patch.errors import UsageError
from sm120patch.plan import Launch
from sm120patch.policy import merge_launches
from sm120patch.redaction import redact_arguments, redact_environment
from sm120patch.verify.profile import Profile


class Arm(str, Enum):
    """Side of the comparison: A is what was there before, B is the plan."""

    BASELINE = "baseline"
    PATCHED = "patched"


@dataclass(frozen=True)
class ArmCommand:
    """What one arm runs: arguments, variables set and variables removed."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    unset: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """One line for people and evidence, secrets left out."""
        removed = [f"-u {name}" for name in self.unset]
        pairs = [f"{name}={value}" for name, value in redact_environment(self.env).items()]
        prefix = ["env", *removed, *pairs] if removed or pairs else []
        return " ".join([*prefix, shlex.join(redact_arguments(self.argv))])


@dataclass(frozen=True)
class Arms:
    """Both arms; they differ by the options and variables of the patch sets only."""

    baseline: ArmCommand
    patched: ArmCommand

    def of(self, arm: Arm) -> ArmCommand:
        """Command of one arm."""
        return self.baseline if arm is Arm.BASELINE else self.patched


def arms(profile: Profile, launch: Launch, base: Launch | None = None) -> Arms:
    """Command lines and variables of both arms; `{api_key}` stays unresolved in them.

    `launch` is what the sets under test need, `base` what other sets on disk need: both arms
    get that. All options of these sets are stripped from the copied command line first, so
    that the baseline does not hold them by accident and the patched arm not twice. Raises
    UsageError when an external server cannot be given what the sets need.
    """
    base = base or Launch()
    full = merge_launches([base, launch])
    server = profile.server
    if server.external:
        _check_external(profile, full)
    command = strip_options(server.command, full.strip)
    unset = tuple(dict.fromkeys([*full.strip_env, *full.env]))
    kept = {name: value for name, value in server.variables.items() if name not in unset}
    env = {name: _fill(value, profile) for name, value in kept.items()}

    def build(side: Launch) -> ArmCommand:
        words = _expand(command, side.args, side.env, append=not server.external)
        filled = tuple(_fill(word, profile) for word in words)
        removed = tuple(name for name in unset if name not in side.env)
        return ArmCommand(filled, {**env, **({} if server.external else side.env)}, removed)

    return Arms(baseline=build(base), patched=build(full))


def adds_nothing(launch: Launch, base: Launch) -> bool:
    """True when the patched arm is started like the baseline because `base` has all of it."""
    full = merge_launches([base, launch])
    needs = bool(launch.args or launch.env)
    return needs and (full.args, full.env) == (base.args, base.env)


def strip_options(command: Iterable[str], strip: Mapping[str, int]) -> tuple[str, ...]:
    """Remove options and their values, also when written `--option=value`."""
    kept: list[str] = []
    skip = 0
    for word in command:
        if skip:
            skip -= 1
            # A missing value must not swallow the next option or placeholder.
            if not word.startswith("--") and not re.fullmatch(r"\{set_(args|env)\}", word):
                continue
            skip = 0
        if word in strip:
            skip = strip[word]
        elif word.partition("=")[0] not in strip:
            kept.append(word)
    return tuple(kept)


def _expand(
    command: Sequence[str], args: Sequence[str], env: Mapping[str, str], *, append: bool
) -> list[str]:
    words: list[str] = []
    for word in command:
        if word == "{set_args}":
            words.extend(args)
        elif word == "{set_env}":
            words.extend(f"{name}={value}" for name, value in env.items())
        else:
            words.append(word)
    if append and "{set_args}" not in command:
        words.extend(args)
    return words


def _fill(text: str, profile: Profile) -> str:
    values = {
        "{python}": profile.python,
        "{prefix}": profile.prefix,
        "{port}": str(profile.server.port),
        "{tool_python}": sys.executable,
    }
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _check_external(profile: Profile, launch: Launch) -> None:
    command = profile.server.command
    wanted = (("{set_args}", bool(launch.args)), ("{set_env}", bool(launch.env)))
    missing = [name for name, needed in wanted if needed and name not in command]
    if missing:
        raise UsageError(
            f"the restart command of {profile.origin} cannot pass on what the patch sets need: "
            f"{' and '.join(missing)} missing from server.restart_command",
            hint="add the element where the server's options belong, for example "
            '["/usr/local/bin/restart-sglang", "{set_args}"]',
            code="profile",
            details={"args": list(launch.args), "env": dict(launch.env)},
        )
