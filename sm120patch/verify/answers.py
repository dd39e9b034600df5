"""Answers to the greedy questions, asked over HTTP, and what is no answer at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sm120patch.verify.loadgen import Request, Target, Watch, ask
from sm120patch.verify.metrics import Sample, Token
from sm120patch.verify.probes import Probe, probes

_SAME = 16  # characters of agreement after which two greedy answers count as the same
ALONE = 2
"""The first answers to a probe in an examination were asked for one at a time."""


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
    tokens: int = 0
    chosen: tuple[Token, ...] = ()
    """Its tokens with their log-probabilities, where the server gives them."""
    prompt_tokens: int | None = None


@dataclass(frozen=True)
class Examination:
    """All answers of one moment: each probe alone, alone again, then all together."""

    answers: tuple[Answer, ...]

    def of(self, probe: str) -> list[Answer]:
        """Answers to one probe in the order asked."""
        return [answer for answer in self.answers if answer.probe == probe]

    def alone(self, probe: str) -> list[Answer]:
        """Answers to the question asked alone; they say the same where the server is steady."""
        return self.of(probe)[:ALONE]

    def together(self, probe: str) -> list[Answer]:
        """Answers to the question asked beside the others: the same sums in another order."""
        return self.of(probe)[ALONE:]

    def consistent(self, probe: str) -> bool:
        """True when the answers given to the question alone begin alike."""
        return len({answer.text[:_SAME] for answer in self.alone(probe)}) <= 1


def examine(
    target: Target, tag: str, deadline: float | None = None, watch: Watch | None = None
) -> Examination:
    """Ask every probe alone twice, then all of them at once. Failed requests are answers too.

    Log-probabilities are asked for as well, if the server has any to give.
    """
    questions = probes()
    logprobs = _gives_logprobs(target, questions[0], tag, deadline, watch)
    answers: list[Answer] = []
    for round_, concurrency in (("a", 1), ("b", 1), ("c", len(questions))):
        requests = [
            Request(p.prompt, p.output_len, f"{tag}-{round_}-{p.name}", ignore_eos=False,
                    keep_text=True, logprobs=logprobs)
            for p in questions
        ]  # fmt: skip
        samples = ask(target, requests, concurrency=concurrency, deadline=deadline, watch=watch)
        answers += [_answer(p, s) for p, s in zip(questions, samples, strict=True)]
    return Examination(tuple(answers))


def _gives_logprobs(
    target: Target, probe: Probe, tag: str, deadline: float | None, watch: Watch | None
) -> bool:
    """Some servers refuse to give them (with some speculative decoders), and answer otherwise."""
    if not target.logprobs:
        return False
    request = Request(probe.prompt, 2, f"{tag}-logprobs", ignore_eos=False, logprobs=True)
    (sample,) = ask(target, [request], deadline=deadline, watch=watch)
    return sample.ok and bool(sample.chosen)


def _answer(probe: Probe, sample: Sample) -> Answer:
    if not sample.ok:
        return Answer(probe.name, "", False, f"no answer: {sample.error}", failed=True)
    flaw = flaw_of(sample.text)
    return Answer(
        probe.name,
        sample.text,
        flaw is None and probe.passes(sample.text),
        flaw,
        tokens=sample.output_tokens,
        chosen=sample.chosen,
        prompt_tokens=sample.prompt_tokens,
    )


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
    words: Sequence[str] = text.split()
    if len(words) >= 8 and (most := max(set(words), key=words.count)):
        return most if words.count(most) * 10 >= len(words) * 9 else None
    return None
