"""Greedy questions to both arms, to see whether the patched text is still right.

Asks over HTTP through the load generator; the judgement itself is pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sm120patch.verify.loadgen import Request, Target, Watch, ask
from sm120patch.verify.metrics import Sample

_SAME = 16  # characters of agreement after which two greedy answers count as the same


@dataclass(frozen=True)
class Probe:
    """A question in the form of a text to continue, so that base models can answer it."""

    name: str
    prompt: str
    output_len: int
    passes: Callable[[str], bool]


@dataclass(frozen=True)
class Answer:
    """What came back for one probe."""

    probe: str
    text: str
    passed: bool
    flaw: str | None
    """Why the text is no text at all (empty, one repeated unit, ...), or that nothing came."""
    failed: bool = False
    """True when the request itself failed."""


@dataclass(frozen=True)
class Examination:
    """All answers of one server start: each probe alone, alone again, then all together."""

    answers: tuple[Answer, ...]

    def of(self, probe: str) -> list[Answer]:
        """Answers to one probe in the order asked."""
        return [answer for answer in self.answers if answer.probe == probe]

    def consistent(self, probe: str) -> bool:
        """True when the two answers given to the question alone begin alike."""
        first, second = self.of(probe)[:2]
        return first.text[:_SAME] == second.text[:_SAME]


@dataclass(frozen=True)
class Correctness:
    """Judgement of the patched arm against the baseline."""

    faults: tuple[str, ...]
    comparable: tuple[str, ...]
    """Probes that the baseline always answers right: on these the answers decide."""

    @property
    def ok(self) -> bool:
        """True when nothing speaks against the patched arm."""
        return not self.faults


def probes() -> tuple[Probe, ...]:
    """Arithmetic, copying, a long output and a long input."""
    phrase = "copper lantern seven quiet rivers"
    filler = " ".join(f"Line {n} says that the day is grey and calm." for n in range(120))
    return (
        Probe("arithmetic", "12 + 30 = 42\n25 + 14 = 39\n23 + 45 =", 8, _number_is(68)),
        Probe(
            "copy",
            f"Input: red house on a hill\nOutput: red house on a hill\nInput: {phrase}\nOutput:",
            16,
            lambda text: text.strip().lower().startswith(phrase),
        ),
        Probe("count", " ".join(map(str, range(1, 21))), 64, _counts_from(21, 20)),
        Probe(
            "recall",
            f"The access word is marigold. {filler} To repeat: the access word is",
            8,
            lambda text: text.strip(" '\"").lower().startswith("marigold"),
        ),
    )


def examine(
    target: Target, tag: str, deadline: float | None = None, watch: Watch | None = None
) -> Examination:
    """Ask every probe alone twice, then all of them at once. Failed requests are answers too."""
    questions = probes()
    answers: list[Answer] = []
    for round_, concurrency in (("a", 1), ("b", 1), ("c", len(questions))):
        requests = [
            Request(p.prompt, p.output_len, f"{tag}-{round_}-{p.name}",
                    ignore_eos=False, keep_text=True)
            for p in questions
        ]  # fmt: skip
        samples = ask(target, requests, concurrency=concurrency, deadline=deadline, watch=watch)
        answers += [_answer(p, s) for p, s in zip(questions, samples, strict=True)]
    return Examination(tuple(answers))


def judge(baseline: Sequence[Examination], patched: Sequence[Examination]) -> Correctness:
    """Hold the patched answers against the baseline's.

    A probe that the baseline answers right every time must be answered right every time. On
    the others (a model that cannot do the task, random weights) the patched arm must not be
    degenerate where the baseline never is, nor contradict itself where the baseline never
    does. Without a baseline only degeneracy and failed requests count.
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
            if before and all(e.consistent(name) for e in baseline):
                faults += _contradictory(name, patched)
    return Correctness(tuple(dict.fromkeys(faults)), tuple(comparable))


def flaw_of(text: str) -> str | None:
    """Why a text is not one: empty, replacement characters, one unit over and over."""
    body = text.strip()
    if not body:
        return "empty text"
    if body.count("\ufffd") * 10 > len(body):
        return "replacement characters"
    if len(body) >= 12 and (unit := _repeated_unit(body)) is not None:
        return f"{unit!r} repeated"
    return None


def _repeated_unit(text: str) -> str | None:
    for size in range(1, min(24, len(text) // 4) + 1):
        unit = text[:size]
        if (unit * (len(text) // size + 1))[: len(text)] == text:
            return unit
    words = text.split()
    if len(words) >= 8 and (most := max(set(words), key=words.count)):
        return most if words.count(most) * 10 >= len(words) * 9 else None
    return None


def _answer(probe: Probe, sample: Sample) -> Answer:
    if not sample.ok:
        return Answer(probe.name, "", False, f"no answer: {sample.error}", failed=True)
    flaw = flaw_of(sample.text)
    return Answer(probe.name, sample.text, flaw is None and probe.passes(sample.text), flaw)


def _wrong(name: str, answers: Iterable[Answer]) -> list[str]:
    return [
        f"{name}: the baseline answers right, the patched server "
        + (f"gives {a.flaw}" if a.flaw else f"answers {a.text.strip()[:60]!r}")
        for a in answers
        if not a.passed
    ]


def _degenerate(name: str, answers: Iterable[Answer]) -> list[str]:
    return [f"{name}: the patched server gives {a.flaw}" for a in answers if a.flaw]


def _contradictory(name: str, patched: Iterable[Examination]) -> list[str]:
    return [
        f"{name}: the patched server answers the same greedy question differently "
        f"({', '.join(repr(a.text.strip()[:30]) for a in exam.of(name)[:2])})"
        for exam in patched
        if not exam.consistent(name)
    ]


def _number_is(wanted: int) -> Callable[[str], bool]:
    def passes(text: str) -> bool:
        found = re.match(r"\s*(\d+)", text)
        return found is not None and found[1] == str(wanted)

    return passes


def _counts_from(first: int, amount: int) -> Callable[[str], bool]:
    def passes(text: str) -> bool:
        numbers = [int(word) for word in re.findall(r"\d{1,9}", text)[:amount]]
        return numbers == list(range(first, first + amount))

    return passes
