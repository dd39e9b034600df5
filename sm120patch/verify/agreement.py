"""How far the patched answers are from the baseline's, token by token. Pure.

Greedy answers of one model agree until two tokens are about equally probable; small differences
of rounding decide then, and what follows says nothing. So answers are compared up to their first
difference: the log-probabilities before it, and whether the baseline was sure of its token there.

How much rounding does to a model, the baseline shows itself: asked beside other questions it adds
up the same numbers in another order. Where it parts from itself then, rounding decides, and
nothing beyond is held against anybody.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sm120patch.verify.answers import Answer, Examination

SURE = math.log(0.9)
"""A token of at least this log-probability is not lost to rounding."""


@dataclass(frozen=True)
class Agreement:
    """One probe: every other answer held against the baseline's first."""

    tokens: int
    """Length of the baseline's first answer."""
    agreed: int
    """Shortest beginning that a patched answer has in common with it."""
    own_agreed: int
    """The same among the baseline's own answers."""
    settled: int
    """Beginning that the baseline gives alone and beside others: beyond it rounding decides."""
    gaps: tuple[float, ...]
    """Absolute differences of log-probability over what is in common and settled, all patched
    answers."""
    own_gaps: tuple[float, ...]
    rounding_gaps: tuple[float, ...]
    """The same between the baseline alone and beside others."""
    lost: str | None
    """A token that the baseline was sure of and the patched server did not choose, in words."""

    @property
    def exact(self) -> bool | None:
        """Whether the patched answers equal the baseline's bit for bit.

        None when the baseline does not even equal itself.
        """
        if self.own_agreed < self.tokens or any(self.own_gaps):
            return None
        return self.agreed == self.tokens and not any(self.gaps)

    def as_dict(self) -> dict[str, object]:
        """JSON-ready form."""
        return {
            "tokens": self.tokens,
            "agreed": self.agreed,
            "own_agreed": self.own_agreed,
            "settled": self.settled,
            "rounding_distance": _mean(self.rounding_gaps),
            "logprob_distance": _mean(self.gaps),
            "own_logprob_distance": _mean(self.own_gaps),
            "worst_logprob_difference": max(self.gaps, default=None),
            "exact": self.exact,
            "lost": self.lost,
        }


def agreement(
    probe: str, baseline: Sequence[Examination], patched: Sequence[Examination]
) -> Agreement | None:
    """Compare the answers that were asked for alone; None where there are no tokens to compare."""
    own, other = list(_told(probe, baseline)), list(_told(probe, patched))
    if not own or not other:
        return None
    first, *again = own
    lengths = [common(first, answer) for answer in other]
    own_lengths = [common(first, answer) for answer in again]
    beside = [a for e in baseline for a in e.together(probe) if a.chosen]
    steady = min(own_lengths, default=len(first.chosen))
    # Where the baseline itself went another way, the way of the patched server is no fault.
    settled = min([steady, *(common(first, answer) for answer in beside)])
    lost = next(filter(None, (_lost(first, a, settled) for a in other)), None)
    return Agreement(
        tokens=len(first.chosen),
        agreed=min(lengths),
        own_agreed=steady,
        settled=settled,
        gaps=tuple(gap for answer in other for gap in _gaps(first, answer)[:settled]),
        own_gaps=tuple(gap for answer in again for gap in _gaps(first, answer)),
        rounding_gaps=tuple(gap for answer in beside for gap in _gaps(first, answer)),
        lost=lost,
    )


def distances(found: Sequence[Agreement]) -> tuple[float | None, float, int]:
    """Mean distance to the baseline, of the baseline to itself, and of how many tokens.

    The baseline's own is the larger one of those between equal questions: asked alone again, and
    asked beside others.
    """
    gaps = [gap for item in found for gap in item.gaps]
    own = [gap for item in found for gap in item.own_gaps]
    rounding = [gap for item in found for gap in item.rounding_gaps]
    return _mean(gaps), max(_mean(own) or 0.0, _mean(rounding) or 0.0), len(gaps)


def _told(probe: str, examinations: Sequence[Examination]) -> Iterator[Answer]:
    for examination in examinations:
        yield from (answer for answer in examination.alone(probe) if answer.chosen)


def common(one: Answer, other: Answer) -> int:
    """Number of tokens before the first difference; 0 where tokens are not known."""
    pairs = zip(one.chosen, other.chosen, strict=False)
    shorter = min(len(one.chosen), len(other.chosen))
    return next((n for n, (a, b) in enumerate(pairs) if a.key != b.key), shorter)


def _gaps(one: Answer, other: Answer) -> list[float]:
    length = common(one, other)
    pairs = zip(one.chosen[:length], other.chosen[:length], strict=True)
    return [abs(a.logprob - b.logprob) for a, b in pairs]


def _lost(first: Answer, other: Answer, settled: int) -> str | None:
    place = common(first, other)
    if place >= settled or place >= len(other.chosen) or first.chosen[place].logprob < SURE:
        return None
    wanted, found = first.chosen[place], other.chosen[place]
    return (
        f"at token {place + 1} of {len(first.chosen)} the baseline gives {wanted.key!r} with "
        f"probability {math.exp(min(wanted.logprob, 0.0)):.2f}, the patched server {found.key!r}"
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
