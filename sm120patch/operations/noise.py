"""What the ledger knows about the noise of workloads on this host. Reads the ledger only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone

from sm120patch.errors import Sm120PatchError
from sm120patch.evidence import Evidence
from sm120patch.host import machine
from sm120patch.ledger import read_ledger
from sm120patch.operations.site import Site
from sm120patch.verify.effect import Floor, pooled
from sm120patch.verify.profile import Profile

KEPT_FOR = timedelta(days=30)
"""Drivers, neighbours and cooling change: older noise is measured anew."""
_MOST = 6  # verifications


def recorded(site: Site, profile: Profile) -> dict[str, Floor]:
    """Noise floor of the profile's workloads, from verifications of this server on this host.

    A ledger that cannot be read knows nothing: then the noise is measured.
    """
    try:
        with read_ledger(site.state.ledger) as ledger:
            known = ledger.evidence() if ledger is not None else []
    except Sm120PatchError:
        return {}
    if not known:
        return {}
    fingerprint = machine.probe().fingerprint
    kind = profile.server.kind.value
    fitting = [e for e in known if e.kind == kind and _fits(e, fingerprint)][:_MOST]
    floors = {
        workload.name: pooled(list(_found(fitting, profile.noise_key(workload))))
        for workload in profile.workloads
    }
    return {name: floor for name, floor in floors.items() if floor is not None}


def _fits(evidence: Evidence, fingerprint: str) -> bool:
    described = evidence.data.get("host")
    if not isinstance(described, Mapping) or described.get("fingerprint") != fingerprint:
        return False
    try:
        age = datetime.now(timezone.utc) - datetime.fromisoformat(evidence.at)
    except (ValueError, TypeError):
        return False
    return age < KEPT_FOR


def _found(evidence: list[Evidence], key: str) -> Iterator[tuple[float, int]]:
    for entry in evidence:
        keys, noise = entry.data.get("noise_keys"), entry.data.get("noise")
        if not isinstance(keys, Mapping) or not isinstance(noise, Mapping):
            continue
        for name, found in keys.items():
            known = noise.get(name)
            if found == key and isinstance(known, Mapping):
                variance, freedom = known.get("variance"), known.get("df")
                if isinstance(variance, float) and isinstance(freedom, int) and freedom > 0:
                    yield variance, freedom
