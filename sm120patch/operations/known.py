"""What is known of a request on this host before it is measured: published results that match.

Asks the driver for the topology; writes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm120patch.errors import ConflictError
from sm120patch.known import Match, Place, matches, tp_of
from sm120patch.operations import gpus, profiles
from sm120patch.operations.site import Site
from sm120patch.plan import Plan

if TYPE_CHECKING:
    from sm120patch.verify.profile import Profile


def place_of(profile: Profile | None) -> Place | None:
    """Where the server of a profile runs; this host without a profile, None without GPUs."""
    command = profile.server.command if profile is not None else ()
    tp = tp_of(command)
    if profiles.SIMULATED in command:
        return _declared(command, tp)
    found = gpus.probe()
    if found is None or not found.gpus:
        return None
    # SGLang's own default is one GPU; a restart command may hold anything.
    known = tp or (1 if profile is not None and not profile.server.external else None)
    return Place(found.topology, known)


def _declared(command: tuple[str, ...], tp: int | None) -> Place | None:
    scenario = profiles.scenario_of(command)
    if scenario is None:
        return None
    from sm120patch.simhost import scenario_words

    words, gpus = scenario_words(scenario)
    return Place(words, tp or gpus)


def known_here(site: Site, plan: Plan, profile: Profile | None) -> tuple[Match, ...]:
    """Known results of the sets of a plan that are for the place where it would be measured."""
    if plan.action != "apply" or not any(n in site.catalogue.ids for n in plan.states):
        return ()
    place = place_of(profile)
    if place is None:
        return ()
    # The requested sets first: a bundle answers for its members.
    names = [n for n in dict.fromkeys([*plan.requested, *plan.states]) if n in site.catalogue.ids]
    return matches([(n, site.catalogue.get(n).known_results) for n in names], place)


def refuse_harm(found: tuple[Match, ...]) -> None:
    """Raise ConflictError for the harmful ones among the results found."""
    harmful = [match for match in found if match.result.harmful]
    if harmful:
        raise ConflictError(
            "this is known to do harm on a host like this one:\n"
            + "\n".join(f"  - {match.shown}" for match in harmful),
            code="known-harmful",
            hint="add --yes to measure it here all the same; a regression is put back",
            details={"known_results": [match.as_dict() for match in harmful]},
        )
