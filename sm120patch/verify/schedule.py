"""Order of the server starts, which of them are looked at, and how long they take. Pure.

A null run opens where the noise of this host and workload is not on record: the baseline is
started twice, against itself. Then pairs of a baseline and a patched start follow, in turn A B
and B A where a restart is dear (the content is swapped half as often, and what it compiled stays
in place), always A B where it is cheap. Either way a drift of the host hits both arms alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sm120patch.model import EvidenceKind, VerificationPolicy
from sm120patch.verify.commandline import Arm
from sm120patch.verify.effect import Look
from sm120patch.verify.profile import Profile, Workload

Style = Literal["ABBA", "ABAB"]
MOST = 5
"""Times the starts a set asks for that are made at most, where the profile does not say."""

_REAL_START = 180.0  # seconds until a real server has loaded a large model
_SIMULATED_START = 2.0
_PROBE_TOKENS = 500  # generated one after the other by the questions of one server start
_PREFILL = 4000.0  # prompt tokens a second of such a host, where prompts are long
_TYPICAL = ((1, 11.0), (64, 210.0), (512, 1867.0))
"""Published output tok/s of an 8-GPU SM120 host at 1, 64 and 512 concurrent requests."""


@dataclass(frozen=True)
class Schedule:
    """How many pairs of starts, in what order, and with a null run before them or not."""

    least: int
    """Pairs that must be there before the sets can pass."""
    most: int
    null: bool
    style: Style = "ABBA"

    @property
    def order(self) -> tuple[Arm, ...]:
        """Arms of all starts, should none of the looks decide."""
        pair = (Arm.BASELINE, Arm.PATCHED)
        swapped = (Arm.PATCHED, Arm.BASELINE) if self.style == "ABBA" else pair
        opening = (Arm.BASELINE,) if self.null else ()
        return opening + tuple(a for n in range(self.most) for a in (pair, swapped)[n % 2])

    def pairs(self, done: Sequence[Arm]) -> int:
        """Pairs that are complete after the starts `done`."""
        return min(max(done.count(Arm.BASELINE) - self.null, 0), done.count(Arm.PATCHED))

    def look(self, pairs: int, workloads: int) -> Look:
        """Look after so many pairs; one before its time shares no error with the others."""
        number = pairs - self.least + 1
        return Look(max(number, 0), self.most - self.least + 1, workloads)


def schedule_for(profile: Profile, policy: VerificationPolicy, *, known: bool) -> Schedule:
    """Schedule of a verification; `known`: the noise of host and workloads is on record."""
    most = profile.blocks or MOST * policy.blocks
    null = not known if profile.null_run is None else profile.null_run
    return Schedule(min(policy.blocks, most), most, null)


def style_for(ready: float, measuring: float) -> Style:
    """Order by what a restart costs, in seconds, beside the measuring after it."""
    return "ABAB" if ready < measuring / 4 else "ABBA"


def estimate(profile: Profile, policy: VerificationPolicy, starts: int) -> float:
    """Rough seconds for so many starts, from typical figures: printed before the first."""
    _, _, workloads = profile.with_policy(policy)
    simulated = profile.server.kind is EvidenceKind.SIMULATED
    start = _SIMULATED_START if simulated else _REAL_START + _PROBE_TOKENS / _TYPICAL[0][1]
    measuring = sum(_expected(w, policy, simulated=simulated) for w in workloads)
    return starts * (start + measuring)


def _expected(workload: Workload, policy: VerificationPolicy, *, simulated: bool) -> float:
    repeats = (workload.repeats or policy.repeats) + workload.warmup_requests / workload.prompts
    if simulated:
        return repeats * (0.1 + workload.prompts / 500)
    speed = next((tps for limit, tps in _TYPICAL if workload.concurrency <= limit), 1867.0)
    prefill = workload.input_len / _PREFILL
    return repeats * workload.prompts * (workload.output_len / speed + prefill)
