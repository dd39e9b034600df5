"""What this host has already said against a request: rejections of exactly the same content.

Reads the ledger only, and probes the host when there is something to compare.
"""

from typing import TYPE_CHECKING, NamedTuple

from sm120patch.errors import ConflictError
from sm120patch.evidence import Evidence
from sm120patch.ledger import read_ledger
from sm120patch.operations import inspecting, staging
from sm120patch.operations.site import Site
from sm120patch.plan import Plan
from sm120patch.recorded import texts
from sm120patch.state import UNDECIDED

if TYPE_CHECKING:
    from sm120patch.verify.profile import Profile


class Rejection(NamedTuple):
    """A verification that the request would repeat."""

    sets: tuple[str, ...]
    evidence: Evidence
    same_profile: bool
    """It was measured with the server and the workloads that it would be measured with now."""

    @property
    def shown(self) -> str:
        """In words: what was rejected, when, how, and why."""
        seen = self.evidence
        kind = "" if seen.kind == "real" else f" ({seen.kind})"
        other = "" if self.same_profile else " with another profile"
        why = "; ".join(texts(seen.data, "reasons"))
        return (
            f"{', '.join(self.sets)} was rejected here{other} on {seen.at}, with exactly this"
            f" content: {seen.verdict}{kind}" + (f": {why}" if why else "")
        )


def rejected_before(site: Site, plan: Plan, profile: "Profile | None") -> Rejection | None:
    """Return the newest word of this host on the content that `plan` leads to, if it is a no.

    A pass since then takes a rejection back. Evidence of another kind than the profile's (a
    simulated no for a real server) says nothing.
    """
    if plan.action != "apply" or plan.is_noop:
        return None
    with read_ledger(site.state.ledger) as ledger:
        if ledger is None:
            return None
        history = staging.after_history(ledger.history(), plan)
        entries = ledger.evidence(history.content(plan.versions))
    kind = None if profile is None else profile.server.kind.value
    valid = inspecting.here()
    for seen in entries:
        about = set(plan.requested) <= set(seen.sets) and kind in (None, seen.kind)
        if about and seen.verdict not in UNDECIDED and valid(seen):
            same = profile is not None and seen.profile == profile.digest
            return None if seen.passed else Rejection(plan.requested, seen, same)
    return None


def refuse_again(found: Rejection | None) -> None:
    """Raise ConflictError for what would only be measured once more."""
    if found is not None and found.same_profile:
        raise ConflictError(
            found.shown,
            code="rejected-before",
            hint=f"`sm120patch report {found.sets[0]}` shows what was measured; add --yes to"
            " measure it once more",
            details={"at": found.evidence.at, "verdict": found.evidence.verdict},
        )
