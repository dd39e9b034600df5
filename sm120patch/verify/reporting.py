"""What a verification tells while it runs. Pure.

Nothing below this layer prints: the command line overrides what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sm120patch.verify.answers import Examination
    from sm120patch.verify.commandline import Arm, Arms
    from sm120patch.verify.effect import Interval
    from sm120patch.verify.verdict import Decision


class Reporter:
    """Listener for the steps of a verification, in the order in which they come; says nothing."""

    def on_start(self, arms: Arms, order: Sequence[Arm], seconds: float) -> None:
        """Nothing has been started yet; `seconds` is the estimate for the whole run."""

    def on_block(self, block: int, blocks: int, arm: Arm) -> None:
        """A server start begins; `block` counts from 1."""

    def on_ready(self, arm: Arm, seconds: float, info: Mapping[str, object]) -> None:
        """The server is ready after `seconds` and says `info` about itself (trimmed)."""

    def on_answers(self, arm: Arm, examination: Examination) -> None:
        """The correctness probes came back."""

    def on_warmup(self, arm: Arm, workload: str) -> None:
        """The warm-up of a workload begins."""

    def on_repeat(
        self, arm: Arm, workload: str, repeat: int, repeats: int, metrics: Mapping[str, float]
    ) -> None:
        """A measured repeat is done; `repeat` counts from 1."""

    def on_excluded(self, arm: Arm, workload: str, reason: str) -> None:
        """A repeat, or the warm-up, does not count; `reason` says why."""

    def on_pulse(self, arm: Arm, workload: str, seconds: float, tokens: int) -> None:
        """Requests are under way: `tokens` came in `seconds`; about once a second."""

    def on_telemetry(self, arm: Arm, text: str) -> None:
        """What the GPUs did while the server was measured, in words; not called without any."""

    def on_block_done(self, block: int, blocks: int, remaining: float) -> None:
        """A server start is done; `remaining` seconds are expected to follow at most."""

    def on_look(
        self, pairs: int, most: int, intervals: Mapping[str, Interval], decision: Decision
    ) -> None:
        """The data were looked at after a start; `decision` is what they would come to now."""

    def on_verdict(self, decision: Decision) -> None:
        """The last word."""
