"""The profile that a command measures by: which file, whose homes, and what its evidence is worth.

Reads the profile only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from sm120patch.caches import flashinfer
from sm120patch.errors import UsageError
from sm120patch.model import EvidenceKind, is_rehearsal
from sm120patch.operations.site import Site

if TYPE_CHECKING:  # what measures is loaded where there is a profile
    from sm120patch.verify.profile import Profile

NAME = "sm120patch.toml"
"""File of the working directory that counts where no other is named."""
SIMULATED = "sm120patch.simhost"
"""Module in the command of a profile whose server is a simulated one."""


def find(path: Path | None, site: Site, directory: Path) -> Profile | None:
    """Load `--profile`, else `sm120patch.toml` of the working directory; None without either."""
    chosen = path or directory / NAME
    if path is None and not chosen.exists():
        return None
    from sm120patch.verify.profile import load

    environment = site.environment
    found = load(chosen, python=str(environment.python), prefix=str(environment.prefix))
    return weighed(site, found)


def missing(directory: Path, *, stageable: bool = False) -> UsageError:
    """Error for a measurement that nobody said how to do; nothing has been written.

    `stageable`: the command is one that takes --no-verify.
    """
    absent = (
        "there is no profile that says how to start your server:"
        f" no --profile, no {NAME} in {directory}"
    )
    if not stageable:
        hint = "write one with `sm120patch init`"
        return UsageError(absent, code="no-profile", hint=hint)
    return UsageError(
        f"a set counts as applied only after a verification, and {absent}",
        code="no-profile",
        hint="write one with `sm120patch init`, or stage without verification: --no-verify",
    )


def weighed(site: Site, profile: Profile) -> Profile:
    """Profile whose evidence is worth what the environment is: copies are no real packages."""
    from dataclasses import replace

    copies = any(is_rehearsal(version) for version in site.versions.values())
    if not copies or profile.server.kind is not EvidenceKind.REAL:
        return profile
    return replace(profile, server=replace(profile.server, kind=EvidenceKind.REHEARSAL))


def homes_of(profile: Profile) -> list[Path]:
    """Homes and workspace bases of the serving user: there FlashInfer keeps its builds."""
    server = profile.server
    named = [Path(text) for text in (server.home, server.workspace) if text]
    return [*named, *flashinfer.bases(server.env)]


def scenario_of(command: Sequence[str]) -> str | None:
    """Name of the declared host whose simulated server a command starts; None for any other."""
    if SIMULATED not in command:
        return None
    from sm120patch.simhost import scenario_names

    named = [value for option, value in pairwise(command) if option == "--scenario"]
    return named[0] if named and named[0] in scenario_names() else None


def declared_capability(profile: Profile | None) -> str | None:
    """Compute capability that a simulated host declares, when the profile starts one."""
    scenario = None if profile is None else scenario_of(profile.server.command)
    if scenario is None:
        return None
    from sm120patch.simhost import scenario_facts

    return scenario_facts(scenario).compute_capability
