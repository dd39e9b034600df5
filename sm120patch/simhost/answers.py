"""What the simulated model says: right answers to simple greedy questions, words otherwise.

Pure. The same prompt always gives the same text.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Sequence

_TEXT = (
    "the server counts every token and the river runs under a bridge of quiet stones while "
    "paper boats carry copper signals past winter gardens"
)
_WORDS = tuple(_TEXT.split())


def tokens_for(prompt: object, limit: int, *, stop: bool, garbage: bool) -> list[str]:
    """Pieces of text, one per token; with `stop` an answer ends where it is complete."""
    if garbage:
        return ["!"] * limit
    answer = _answer(prompt) if isinstance(prompt, str) else None
    pieces = answer or []
    if answer is None or not stop:
        pieces = pieces + _prose(prompt, limit - len(pieces))
    return pieces[:limit]


def babble(prompt: object, limit: int) -> list[str]:
    """Words that have nothing to do with the question."""
    return _prose(f"babble about {prompt}", limit)


def logprobs_for(pieces: Sequence[str], shift: float) -> list[list[object]]:
    """`output_token_logprobs` as SGLang gives them: log-probability, token id, no text.

    The simulated model is rather sure of everything: all are between -0.05 and 0, plus `shift`.
    """
    numbers = [zlib.crc32(f"{n}{piece}".encode()) for n, piece in enumerate(pieces)]
    return [[shift - number % 1000 / 20_000, number % 150_000, None] for number in numbers]


def _answer(prompt: str) -> list[str] | None:
    """Continuation of a sum, a copying pattern, a count or a repeated fact."""
    if found := re.search(r"(\d{1,6}) \+ (\d{1,6}) =\s*$", prompt):
        return [f" {int(found[1]) + int(found[2])}", "\n"]
    if found := re.search(r"Input: ([^\n]*)\nOutput:\s*$", prompt):
        return [f" {word}" for word in found[1].split()] + ["\n"]
    if found := re.search(r"(\d{1,6}) (\d{1,6})\s*$", prompt):
        last = int(found[2])
        if last == int(found[1]) + 1:
            return [f" {number}" for number in range(last + 1, last + 2000)]
    if found := re.search(r"the access word is\s*$", prompt):
        fact = re.search(r"The access word is (\w+)\.", prompt)
        return [f" {fact[1]}", "."] if fact else None
    return None


def _prose(prompt: object, count: int) -> list[str]:
    start = random.Random(str(prompt)).randrange(len(_WORDS))
    return [" " + _WORDS[(start + i * i + i) % len(_WORDS)] for i in range(max(count, 0))]
