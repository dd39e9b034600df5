"""Order of the server starts and a rough estimate of how long they take. Pure."""

from __future__ import annotations

from sm120patch.model import EvidenceKind, VerificationPolicy
from sm120patch.verify.commandline import Arm
from sm120patch.verify.profile import Profile, Workload

_REAL_START = 180.0  # seconds until a real server has loaded a large model
_SIMULATED_START = 2.0
_PROBE_TOKENS = 500  # generated one after the other by the questions of one server start
_TYPICAL = ((1, 11.0), (64, 210.0), (512, 1867.0))
"""Published output tok/s of an 8-GPU SM120 host at 1, 64 and 512 concurrent requests."""


def order_of(blocks: int) -> tuple[Arm, ...]:
    """Order of the server starts: A B B A A B ..., so that a drift hits both arms alike."""
    pairs = [(Arm.BASELINE, Arm.PATCHED), (Arm.PATCHED, Arm.BASELINE)]
    return tuple(arm for number in range(blocks) for arm in pairs[number % 2])


def estimate(profile: Profile, policy: VerificationPolicy) -> float:
    """Rough seconds for a whole verification, from typical figures: printed before it starts."""
    blocks, _, workloads = profile.with_policy(policy)
    simulated = profile.server.kind is EvidenceKind.SIMULATED
    start = _SIMULATED_START if simulated else _REAL_START + _PROBE_TOKENS / _TYPICAL[0][1]
    measuring = sum(_expected(w, policy, simulated=simulated) for w in workloads)
    return 2 * blocks * (start + measuring)


def _expected(workload: Workload, policy: VerificationPolicy, *, simulated: bool) -> float:
    repeats = (workload.repeats or policy.repeats) + workload.warmup_requests / workload.prompts
    if simulated:
        return repeats * (0.1 + workload.prompts / 500)
    speed = next((tps for limit, tps in _TYPICAL if workload.concurrency <= limit), 1867.0)
    return repeats * workload.prompts * workload.output_len / speed
