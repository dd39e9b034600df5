"""What the ledger keeps of the past: events and the evidence of verifications. Pure."""

from collections.abc import Mapping
from typing import NamedTuple


class Event(NamedTuple):
    """One line of the history; `data` is JSON-ready."""

    kind: str
    sets: tuple[str, ...]
    data: Mapping[str, object] = {}
    tx: str | None = None
    at: str = ""
    id: int = 0
    tool: str = ""


class Evidence(NamedTuple):
    """Result of one verification and what exactly it is valid for."""

    content_digest: str
    """Digest of all patched files of the environment in the patched arm."""
    baseline_digest: str
    """Digest of all patched files in the baseline arm."""
    host: str
    """Fingerprint of the host; of the declared one when the evidence is simulated."""
    profile: str
    kind: str
    verdict: str
    passed: bool
    sets: tuple[str, ...]
    """Closure of the request that was verified."""
    baseline_sets: tuple[str, ...]
    """Sets that were on disk in both arms."""
    data: Mapping[str, object]
    at: str = ""
    id: int = 0
