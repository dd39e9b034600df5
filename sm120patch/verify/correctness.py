"""Is the patched text still right? The answers of both arms in, faults out. Pure.

Speed is looked at only when nothing is found here. Three classes of tolerance: a `bit-exact` set
must give the same tokens with the same log-probabilities, one of class `tolerance` may round
otherwise, and a `behaviour-change` may say something else, as long as it is right and is text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sm120patch.model import Answers
from sm120patch.verify.agreement import SURE, Agreement, agreement, common, distances
from sm120patch.verify.answers import Answer, Examination
from sm120patch.verify.probes import LONG_CONTEXT, Probe, probes

DISTANCE = 0.1
"""Mean difference of log-probability that a set of class `tolerance` may cause, in nats."""
_NOISE = 3.0  # times the baseline's distance to itself
_FEW = 16  # tokens: a mean of fewer decides nothing


@dataclass(frozen=True)
class Correctness:
    """Judgement of the patched arm against the baseline."""

    faults: tuple[str, ...]
    comparable: tuple[str, ...]
    """Probes that the baseline always answers right: on these the answers decide."""
    agreement: Mapping[str, Agreement] = field(default_factory=dict)
    """Probe -> tokens and log-probabilities of both arms, where the servers give them."""
    not_examined: tuple[str, ...] = ()
    """What could not be looked at, and why."""

    @property
    def ok(self) -> bool:
        """True when nothing speaks against the patched arm."""
        return not self.faults


def judge(
    baseline: Sequence[Examination],
    patched: Sequence[Examination],
    answers: Answers = Answers.TOLERANCE,
) -> Correctness:
    """Hold the patched answers against the baseline's.

    A probe that the baseline answers right every time must be answered right every time. On
    the others (a model that cannot do the task, random weights) the patched arm must not be
    degenerate or cut short where the baseline never is, nor contradict itself where the
    baseline never does. Then tokens and log-probabilities are compared, as `answers` demands.
    Without a baseline only degeneracy and failed requests count.
    """
    faults: list[str] = []
    comparable: list[str] = []
    for name in [probe.name for probe in probes()]:
        before = [answer for exam in baseline for answer in exam.of(name)]
        after = [answer for exam in patched for answer in exam.of(name)]
        if before and all(answer.passed for answer in before):
            comparable.append(name)
            faults += _wrong(name, after)
        elif not any(answer.flaw for answer in before):
            faults += _degenerate(name, after)
            faults += _cut_short(name, before, after)
            if before and all(e.consistent(name) for e in baseline):
                faults += _contradictory(name, patched)
    found = _agreements(baseline, patched)
    notes = list(_not_examined(baseline, patched, found))
    if answers is not Answers.BEHAVIOUR_CHANGE:
        faults += _strange(baseline, patched, found)
    if answers is Answers.TOLERANCE:
        faults += _distant(found)
    elif answers is Answers.BIT_EXACT:
        inexact, unknown = _inexact(found)
        faults += inexact
        notes += unknown
    return Correctness(tuple(dict.fromkeys(faults)), tuple(comparable), found, tuple(notes))


# --- one probe ---------------------------------------------------------------------------------


def _wrong(name: str, answers: Iterable[Answer]) -> list[str]:
    return [
        f"{name}: the baseline answers right, the patched server "
        + (f"gives {a.flaw}" if a.flaw else f"answers {a.text.strip()[:60]!r}")
        for a in answers
        if not a.passed
    ]


def _degenerate(name: str, answers: Iterable[Answer]) -> list[str]:
    return [f"{name}: the patched server gives {a.flaw}" for a in answers if a.flaw]


def _cut_short(name: str, before: Sequence[Answer], after: Iterable[Answer]) -> list[str]:
    """The baseline's own words, but fewer than half of them."""
    least = min((answer.tokens for answer in before), default=0)
    return [
        f"{name}: the patched server stops after {a.tokens} of the {least} tokens that the "
        "baseline gives"
        for a in after
        if not a.flaw and 2 * a.tokens < least and any(b.text.startswith(a.text) for b in before)
    ]


def _contradictory(name: str, patched: Iterable[Examination]) -> list[str]:
    return [
        f"{name}: the patched server answers the same greedy question differently "
        f"({', '.join(repr(a.text.strip()[:30]) for a in exam.alone(name))})"
        for exam in patched
        if not exam.consistent(name) and not _by_rounding(*exam.alone(name))
    ]


def _by_rounding(first: Answer, second: Answer) -> bool:
    """Tell whether two tokens were about equally probable where the answers part."""
    place = common(first, second)
    shorter = min(len(first.chosen), len(second.chosen))
    return place < shorter and first.chosen[place].logprob < SURE


# --- all probes together -----------------------------------------------------------------------


def _agreements(
    baseline: Sequence[Examination], patched: Sequence[Examination]
) -> dict[str, Agreement]:
    found = {probe.name: agreement(probe.name, baseline, patched) for probe in probes()}
    return {name: item for name, item in found.items() if item is not None}


def _strange(
    baseline: Sequence[Examination],
    patched: Sequence[Examination],
    found: Mapping[str, Agreement],
) -> list[str]:
    """Other words where rounding cannot be the reason: fluent garbage is found here."""
    if found:
        return [f"{name}: {item.lost}" for name, item in found.items() if item.lost]
    steady = [p.name for p in probes() if _beginning(p, baseline) is not None]
    strange = [
        name
        for probe in probes()
        if (name := probe.name) in steady
        and _beginning(probe, patched) not in (None, _beginning(probe, baseline))
    ]
    # Without probabilities one answer may differ by rounding, but not every one from its start.
    if len(steady) < 2 or len(strange) < len(steady):
        return []
    named = ", ".join(strange)
    return [f"no answer begins like the baseline's, which always answers alike ({named})"]


def _beginning(probe: Probe, examinations: Sequence[Examination]) -> str | None:
    """First word of all answers asked for alone; None when they differ, or there are none."""
    answers = [a for e in examinations for a in e.alone(probe.name)]
    words = {a.text.split()[0] if a.text.split() else "" for a in answers}
    return words.pop() if len(words) == 1 and not any(a.flaw for a in answers) else None


def _distant(found: Mapping[str, Agreement]) -> list[str]:
    distance, own, tokens = distances(list(found.values()))
    limit = max(DISTANCE, _NOISE * own)
    if distance is None or tokens < _FEW or distance <= limit:
        return []
    allowed = f"allowed {limit:.3f}; the baseline differs from itself by {own:.3f}"
    found_ = f"differ by {distance:.3f} on average over {tokens} tokens"
    return [f"the log-probabilities of equal tokens {found_} ({allowed})"]


def _inexact(found: Mapping[str, Agreement]) -> tuple[list[str], list[str]]:
    """Faults against bit-exactness, and what cannot be decided."""
    if not found:
        return [], ["bit-exactness: the servers give no log-probabilities"]
    faults = [
        f"{name}: not bit-exact: {item.agreed} of {item.tokens} tokens are equal, "
        f"log-probabilities differ by up to {max(item.gaps, default=0.0):.6f}"
        for name, item in found.items()
        if item.exact is False
    ]
    unknown = [
        f"bit-exactness of {name}: the baseline does not even repeat itself"
        for name, item in found.items()
        if item.exact is None
    ]
    return faults, unknown


def _not_examined(
    baseline: Sequence[Examination],
    patched: Sequence[Examination],
    found: Mapping[str, Agreement],
) -> Iterable[str]:
    if not baseline or not patched:
        return
    if not found:
        yield "log-probabilities: not given by both servers"
    for probe in probes():
        answers = [a for e in baseline for a in e.of(probe.name)]
        failed = next((a.flaw for a in answers if a.failed), None)
        if failed:
            yield f"{probe.name}: the baseline gives {failed}"
        known = [a.prompt_tokens for a in answers if a.prompt_tokens is not None]
        if probe.long and not failed and (not known or min(known) < LONG_CONTEXT):
            length = min(known) if known else "an unknown number of"
            yield f"{probe.name}: the server counts {length} tokens, not {LONG_CONTEXT} or more"
