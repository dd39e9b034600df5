"""Plans of the small catalogue, for packages that are values."""

from __future__ import annotations

from sm120patch.catalogue import Catalogue
from sm120patch.model import FileSnapshot, Obstacle, Snapshot, TargetSnapshot, sha256_hex
from sm120patch.plan import History, Plan
from sm120patch.planner import Refusal, Request, make_plan
from tests.support.catalogue import TEXTS


def snapshot(
    contents: dict[str, bytes] | None = None,
    *,
    version: str = "1.0",
    capability: str | None = "12.0",
    obstacles: dict[str, Obstacle] | None = None,
) -> Snapshot:
    """Both packages as they were published, but for `contents` and `obstacles` by path."""
    found = {path: text.encode() for path, text in TEXTS.items()} | (contents or {})
    targets: dict[str, dict[str, FileSnapshot]] = {"sglang": {}, "flashinfer-python": {}}
    for path, data in found.items():
        target = "sglang" if path.startswith("sglang") else "flashinfer-python"
        pristine = TEXTS[path].encode()
        targets[target][path] = FileSnapshot(
            path, data, sha256_hex(data), 0o644, 1, 1, sha256_hex(pristine), pristine,
            (obstacles or {}).get(path),
        )  # fmt: skip
    return Snapshot(
        "/env",
        {n: TargetSnapshot(n, version, "/env/site", "wheel", f) for n, f in targets.items()},
        compute_capability=capability,
    )


def plan(known: Catalogue, request: Request, at: Snapshot, past: History | None = None) -> Plan:
    """The plan of a request that is not refused."""
    result = make_plan(known, at, past or History(), request)
    assert isinstance(result, Plan), result
    return result


def refusal(
    known: Catalogue, request: Request, at: Snapshot, past: History | None = None
) -> Refusal:
    """Why a request is refused."""
    result = make_plan(known, at, past or History(), request)
    assert isinstance(result, Refusal), result
    return result
