"""Every command that changes something as a trial, and every fault that it is put to."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.support.audited import FILES, publish
from tests.support.catalogue import KERNEL, A
from tests.support.command import run
from tests.support.faults import seam as seams
from tests.support.faults.judges import (
    LOST,
    PRUNE,
    Papers,
    Pruned,
    Salvage,
    forget_ledger,
    repeating,
)
from tests.support.faults.matrix import (
    Trial,
    failing_everywhere,
    interrupted_everywhere,
    killed_everywhere,
    lost_everywhere,
)
from tests.support.faults.rejecting import REJECT, STAND_IN, write_profile
from tests.support.faults.world import APPLY, RECOVER, REVERT, Judge, World
from tests.support.place import A_WITH_ONE, KERNEL_OPEN
from tests.support.tuning import write_record

Found = Iterator[tuple[str, str]]
FAULTS: Mapping[str, Callable[[Trial, Judge, int], Found]] = {
    "SIGKILL before every call, and within every write": killed_everywhere,
    "power lost after every call": lambda t, j, step: lost_everywhere(t, j, 2, step),
    "one call fails: EIO": lambda t, j, s: failing_everywhere(t, j, errno.EIO, step=s),
    "one call fails: EACCES": lambda t, j, s: failing_everywhere(t, j, errno.EACCES, step=s),
    "one call fails: ESTALE (NFS)": lambda t, j, s: failing_everywhere(t, j, errno.ESTALE, step=s),
    "this call and all later ones fail: ENOSPC": lambda t, j, s: failing_everywhere(
        t, j, errno.ENOSPC, seams.FAIL_FROM, s
    ),
    "this call and all later ones fail: EDQUOT": lambda t, j, s: failing_everywhere(
        t, j, errno.EDQUOT, seams.FAIL_FROM, s
    ),
    "SIGINT at every call": lambda t, j, s: interrupted_everywhere(t, j, signal.SIGINT, s),
    "SIGTERM at every call": lambda t, j, s: interrupted_everywhere(t, j, signal.SIGTERM, s),
}


Make = Callable[[seams.Seam], Trial]


def apply(root: Path) -> tuple[World, Make]:
    world = _world(root)
    return world, lambda seam: Trial(world, seam, APPLY)


def revert(root: Path) -> tuple[World, Make]:
    world = _world(root, APPLY)
    return world, lambda seam: Trial(world, seam, REVERT)


def reject(root: Path) -> tuple[World, Make]:
    world = _world(root)
    profile = str(write_profile(root / "profile.toml"))
    return world, lambda seam: Trial(world, seam, (*REJECT, profile), STAND_IN)


def adopt(root: Path) -> tuple[World, Make]:
    """What was applied by hand is taken over: the files stay, the ledger learns of them."""
    world = _world(root)
    for path, text in ((A, A_WITH_ONE), (KERNEL, KERNEL_OPEN)):
        (world.site / path).write_text(text)
    world.seal()
    for target, files in FILES.items():
        publish(root / "wheels", target, "1.0", files)
    words = ("adopt", "bundle", "--wheel-dir", str(root / "wheels"), "--offline", "--gpu", "12.0")
    return world, lambda seam: Trial(world, seam, words)


def recover(root: Path) -> tuple[World, Make]:
    world = _world(root)
    return world, lambda seam: _recovering(world, seam)


def reject_verify(root: Path) -> tuple[World, Make]:
    """Sets that are on disk are measured, found wanting and taken off."""
    world = _world(root, APPLY)
    words = ("verify", "bundle", *REJECT[2:], str(write_profile(root / "profile.toml")))
    return world, lambda seam: Trial(world, seam, words, STAND_IN)


def fix(root: Path) -> tuple[World, Make]:
    """The audit deletes stale bytecode and takes over what was applied by hand."""
    world = _world(root)
    for path, text in ((A, A_WITH_ONE), (KERNEL, KERNEL_OPEN)):
        (world.site / path).write_text(text)
    world.seal()
    for target, files in FILES.items():
        publish(root / "home" / ".cache" / "sm120patch" / "wheels", target, "1.0", files)
    return world, lambda seam: Trial(world, seam, ("audit", "--fix", "--yes"))


def salvage(root: Path) -> tuple[World, Make]:
    world = _world(root, APPLY)
    forget_ledger(world)
    return world, lambda seam: Trial(world, seam, LOST, court=Salvage, repeated=True)


def prune(root: Path) -> tuple[World, Make]:
    world = _world(root, APPLY)
    return world, lambda seam: Trial(world, seam, PRUNE, court=Pruned)


def tune(root: Path) -> tuple[World, Make]:
    """A local set takes the place of an earlier one of the same name."""
    world = Papers(root)
    earlier, later = (write_record(root / f"{n}.json", max_tokens=n) for n in (4096, 8192))
    into = ("--into", str(world.prefix / "local"), "--force")
    assert run("tune", "my-moe", "--record", earlier, *into).code == 0
    world.seal()
    words = ("tune", "my-moe", "--record", str(later), *into)
    return world, lambda seam: Trial(world, seam, words, court=repeating(*words), repeated=True)


NO_SERVERS = """
from sm120patch.operations import initialising
initialising.running_sglang_servers = lambda: ()
"""
"""Whatever else runs on this machine."""


def init(root: Path) -> tuple[World, Make]:
    world = Papers(root)
    profile = world.prefix / "sm120patch.toml"
    profile.write_text("# an earlier one\n")
    world.seal()
    words = ("init", "--force", "--profile", str(profile))
    court = repeating(*words, before=NO_SERVERS)
    return world, lambda seam: Trial(world, seam, words, NO_SERVERS, court=court, repeated=True)


TRIALS: Mapping[str, Callable[[Path], tuple[World, Make]]] = {
    "apply --no-verify": apply,
    "revert --all": revert,
    "apply, rejected after A B B A": reject,
    "verify, rejected after A B B A": reject_verify,
    "adopt": adopt,
    "audit --fix": fix,
    "recover of a killed apply": recover,
    "recover --lost-ledger": salvage,
    "caches --prune": prune,
    "tune over an earlier set": tune,
    "init over an earlier profile": init,
}


def _world(root: Path, *before: tuple[str, ...]) -> World:
    """A world with a home of its own: build caches lie below it."""
    (root / "home").mkdir(parents=True)
    os.environ["HOME"] = str(root / "home")
    return World(root, *before)


def _recovering(world: World, seam: seams.Seam) -> Trial:
    """Recover an apply that was killed between its two files."""
    first = Trial(world, seam, APPLY)
    first.judge()
    at = [c.number for c in first.calls if c.op == "rename" and c.other.endswith("kernel.cuh")]
    first.again()
    seam.run(*APPLY, *world.options, at=at[0] + 1, action=seams.KILL)
    content = world.content()
    world.seal()
    assert content == world.old
    return Trial(world, seam, RECOVER, repeated=True)
