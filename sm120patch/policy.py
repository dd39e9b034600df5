"""Merge what several sets demand: launch options and verification policies. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from sm120patch.model import Answers, Goal, VerificationPolicy
from sm120patch.plan import Launch


def merge_launches(launches: Iterable[Launch]) -> Launch:
    """Join launch options; an argument group that an earlier set already gives is not repeated."""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    strip: dict[str, int] = {}
    strip_env: list[str] = []
    for launch in launches:
        if not _contains(args, launch.args):
            args += launch.args
        env.update(launch.env)
        strip.update(launch.strip)
        strip_env += [name for name in launch.strip_env if name not in strip_env]
    return Launch(args, env, strip, tuple(strip_env))


def _contains(args: tuple[str, ...], group: tuple[str, ...]) -> bool:
    width = len(group)
    return any(args[i : i + width] == group for i in range(len(args) - width + 1))


_STRICTNESS = (
    Goal.SPEED,
    Goal.NO_REGRESSION,
    Goal.CORRECTNESS,
    Goal.CAPACITY,
    Goal.CRASH_FIX,
)

_LOOSENESS = (Answers.BIT_EXACT, Answers.TOLERANCE, Answers.BEHAVIOUR_CHANGE)


def merge_policies(policies: Iterable[VerificationPolicy]) -> VerificationPolicy:
    """Return the strictest of several policies: what each of them demands is demanded.

    Only of the answers no more can be demanded than the loosest of them promises.
    """
    merged: VerificationPolicy | None = None
    for policy in policies:
        if merged is None:
            merged = policy
            continue
        merged = merged._replace(
            goal=min(merged.goal, policy.goal, key=_STRICTNESS.index),
            margin=min(merged.margin, policy.margin),
            repeats=max(merged.repeats, policy.repeats),
            blocks=max(merged.blocks, policy.blocks),
            # One set that changes what is said changes it for all of them.
            answers=max(merged.answers, policy.answers, key=_LOOSENESS.index),
        )
    return merged or VerificationPolicy()
