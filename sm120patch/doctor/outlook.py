"""What each set of the catalogue comes to on this host, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from sm120patch.catalogue import Catalogue
from sm120patch.doctor.checks import Check, Status
from sm120patch.host.machine import Host
from sm120patch.known import Place, fits
from sm120patch.model import KnownResult, PatchSet, State
from sm120patch.state import SetStatus
from sm120patch.variants import advice_for


class Outlook(str, Enum):
    """What is to be expected of a set here, before anything is measured."""

    WORKS = "works"
    """Fits these GPUs, versions and tools; whether it helps is for a verification to say."""
    HARMFUL = "harmful"
    """Works, but is known to do harm on hosts like this one."""
    BLOCKED = "blocked"
    """Fits, but cannot take effect until something else is mended."""
    NOT_APPLICABLE = "not-applicable"
    UPSTREAM = "upstream"
    ADVICE = "advice"
    """Nothing to patch: a variable or option does it."""
    REFUSED = "refused"
    """What people ask for is known to be wrong."""
    UNKNOWN = "unknown"
    """There is no GPU to judge by, or the versions or a file cannot be read."""


@dataclass(frozen=True)
class SetOutlook:
    """The outlook of one set, with every reason."""

    id: str
    outlook: Outlook
    state: str
    reasons: tuple[str, ...]
    known: tuple[KnownResult, ...]
    """Published results of hosts like this one."""


_OPEN = (Outlook.WORKS, Outlook.HARMFUL, Outlook.BLOCKED, Outlook.ADVICE)
NEEDS_BUILD = ("toolkit", "nvcc", "arch-list", "jit", "build-tools", "build-memory", "disk-builds")
"""Checks that must not end in a problem for patched FlashInfer sources to be compiled."""


def judge(
    catalogue: Catalogue,
    statuses: Sequence[SetStatus],
    host: Host,
    capability: str | None,
    versions: Mapping[str, str],
    checks: Sequence[Check],
    traps: Mapping[str, Sequence[str]],
    tp: int | None = None,
) -> tuple[SetOutlook, ...]:
    """Outlook of every set. `traps`: set -> prebuilt modules that would win over its sources.

    `capability` is the one named by the user, which stands in for GPUs that are not there. `tp` is
    the tensor parallel size of the server that is looked at; without one all GPUs are taken.
    """
    states = {status.id: status for status in statuses}
    problems = [c for c in checks if c.id in NEEDS_BUILD and c.status is Status.PROBLEM]
    # How it will serve nobody may have said: most use all their GPUs.
    place = Place(host.topology, tp or len(host.gpus) or None)
    judges = _Judge(host, place, capability, versions, problems)
    return tuple(
        judges.outlook(catalogue, catalogue.get(name), states[name], traps.get(name, ()))
        for name in catalogue.ids
        if name in states
    )


@dataclass(frozen=True)
class _Judge:
    host: Host
    place: Place
    capability: str | None
    versions: Mapping[str, str]
    problems: Sequence[Check]

    def outlook(
        self, catalogue: Catalogue, patch_set: PatchSet, status: SetStatus, traps: Sequence[str]
    ) -> SetOutlook:
        outlook, reasons = self._decide(catalogue, patch_set, status, traps)
        known: tuple[KnownResult, ...] = ()
        if outlook in _OPEN:
            known = tuple(k for k in patch_set.known_results if fits(k, self.place))
        if outlook is Outlook.WORKS and any(k.harmful for k in known):
            outlook = Outlook.HARMFUL
        return SetOutlook(patch_set.id, outlook, status.label, tuple(reasons), known)

    def _decide(
        self, catalogue: Catalogue, patch_set: PatchSet, status: SetStatus, traps: Sequence[str]
    ) -> tuple[Outlook, list[str]]:
        if status.state is State.UPSTREAM:
            return Outlook.UPSTREAM, [status.reason]
        if unfit := list(self._unfit(patch_set)):
            return Outlook.NOT_APPLICABLE, unfit
        if patch_set.only_advice:
            return self._advice(patch_set)
        if status.state is State.NOT_APPLICABLE:
            return Outlook.NOT_APPLICABLE, [status.reason]
        if status.state is State.UNKNOWN:
            return Outlook.UNKNOWN, [status.reason]
        if self.host.gpus == () and self.capability is None:
            return Outlook.UNKNOWN, ["fits the versions; there is no GPU to judge by"]
        blocked = [status.reason] if status.state is State.EDITED else []
        blocked += traps
        if self._builds(catalogue, patch_set):
            blocked += [problem.summary for problem in self.problems]
        if blocked:
            return Outlook.BLOCKED, blocked
        return Outlook.WORKS, list(self._why(patch_set))

    def _unfit(self, patch_set: PatchSet) -> Iterator[str]:
        wanted = patch_set.compute_capability
        named = (self.capability,) if self.capability else ()
        found = named or self.host.compute_capabilities
        if wanted and found and not set(wanted) & set(found):
            yield f"is for compute capability {' or '.join(wanted)}, found {' and '.join(found)}"
        elif self.host.gpus and len(self._fitting(patch_set)) < patch_set.min_gpus:
            count = len(self._fitting(patch_set))
            yield f"is about {patch_set.min_gpus} GPUs or more, found {count} that fits"
        names = {gpu.name for gpu in self.host.gpus}
        if patch_set.devices and names and not names & set(patch_set.devices):
            yield f"was measured for {' or '.join(patch_set.devices)}, found {min(names)}"

    def _fitting(self, patch_set: PatchSet) -> list[int]:
        wanted = patch_set.compute_capability
        return [g.index for g in self.host.gpus if not wanted or g.compute_capability in wanted]

    def _advice(self, patch_set: PatchSet) -> tuple[Outlook, list[str]]:
        advice, reason = advice_for(patch_set, self.versions)
        if advice is None:
            return Outlook.NOT_APPLICABLE, [reason]
        if advice.outcome == "refused":
            return Outlook.REFUSED, [advice.reason]
        return Outlook.ADVICE, [reason]

    def _builds(self, catalogue: Catalogue, patch_set: PatchSet) -> bool:
        members = [catalogue.get(name) for name in catalogue.closure([patch_set.id])]
        return any(c.target == "flashinfer-python" for m in members for c in m.changes)

    def _why(self, patch_set: PatchSet) -> Iterator[str]:
        gpus, fitting = self.host.gpus, self._fitting(patch_set)
        if gpus and len(fitting) < len(gpus):
            yield f"for GPU {', '.join(map(str, fitting))} only"
        elsewhere = [k for k in patch_set.known_results if k.harmful and not fits(k, self.place)]
        if elsewhere:
            yield f"known to do harm elsewhere ({'; '.join(k.topology for k in elsewhere)})"
