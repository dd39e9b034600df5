"""What must hold before anything is written: nobody else is at it, and nothing stands in the way.

Takes the lock of the environment and those of its checkouts; changes no file of a package.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sm120patch.caches import flashinfer
from sm120patch.claims import checkouts_held
from sm120patch.environment import immutable, writable
from sm120patch.errors import BusyError, ConflictError, HostError
from sm120patch.operations import profiles, staging
from sm120patch.operations.site import Site
from sm120patch.ownership import refuse_strangers
from sm120patch.plan import Plan, history_digest

if TYPE_CHECKING:
    from sm120patch.verify.profile import Profile


@contextlib.contextmanager
def exclusively(site: Site, command: str) -> Iterator[None]:
    """Hold the environment and every checkout it imports."""
    with site.state.lock(command), checkouts_held(site.environment):
        yield


def require_same(site: Site, plan: Plan) -> None:
    """Look again under the lock: another process may have been quicker.

    The files themselves are hashed again when the transaction begins.
    """
    if history_digest(site.history()) != plan.based_on:
        raise ConflictError(
            "the plan is stale: another command changed the environment meanwhile",
            code="stale-plan",
            hint="run the command again to plan from the present content",
        )


def writes(site: Site, plan: Plan, environ: Mapping[str, str]) -> None:
    """Refuse before the first write what would fail half way or have no effect."""
    staging.refuse_traps(site, plan, environ)
    for path in (Path(s.root, s.path) for s in plan.files):
        if immutable(path):
            raise HostError(
                f"{path} cannot be replaced: it is immutable",
                hint=f"take the flag away (chattr -i -a {path}), then repeat",
                details={"path": str(path)},
            )
    directories = sorted({Path(s.root, s.path).parent for s in plan.files})
    refuse_strangers(directories, os.environ)
    for directory in directories:
        reason = writable(directory)
        if not reason and immutable(directory):
            reason = "nothing in it can be replaced or removed (chattr +a)"
        if reason:
            raise HostError(
                f"{directory} cannot be written: {reason}",
                hint="run as the owner of the environment, or make its file system writable",
                details={"path": str(directory)},
            )


def processes(site: Site, profile: Profile | None, *, allow: bool) -> list[str]:
    """Name the processes that use the environment or the GPUs; BusyError unless allowed.

    The server of an `external` profile is expected to run: its restart command replaces it.
    """
    from sm120patch.host.processes import processes_using

    environment = site.environment
    roots = [i.root / i.package for i in environment.installations.values()]
    homes = staging.known_homes(site)
    if profile is not None:
        homes |= set(profiles.homes_of(profile))
    found = processes_using(roots, environment.prefix, flashinfer.workspaces({}, homes))
    expected = _expected_processes(profile)
    lines = [
        f"pid {p.pid}: {_short(p.cmdline) or '(unknown)'} ({p.why})"
        for p in found
        if p.pid not in expected
    ]
    if lines and not allow:
        raise BusyError(
            "running processes use this environment or its GPUs:\n"
            + "\n".join(f"  - {line}" for line in lines),
            code="in-use",
            hint="stop them, or add --allow-running: they keep the old code until restarted",
            details={"processes": lines},
        )
    return lines


def _short(command: Sequence[str]) -> str:
    """Command line for people; a process that renamed itself leaves its old length as blanks."""
    return " ".join(" ".join(command).split())[:100]


def _expected_processes(profile: Profile | None) -> set[int]:
    if profile is None or not profile.server.external:
        return set()
    import psutil

    from sm120patch.host.processes import listening_pid

    listener = listening_pid(profile.server.port)
    if listener is None or listener.pid is None:
        return set()
    try:
        process = psutil.Process(listener.pid)
        family = [process, *process.children(recursive=True), *process.parents()]
    except psutil.Error:
        return {listener.pid}
    return {p.pid for p in family}
