"""The greedy questions of a verification, and which answers to them are right. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

LONG_CONTEXT = 8192
"""Tokens that the prompt of the long question must have before it counts as asked."""
_LONG_LINES = 1000  # of 11 to 13 tokens each: more than 8192 with every tokenizer in use
_PHRASE = "copper lantern seven quiet rivers"


@dataclass(frozen=True)
class Probe:
    """A question in the form of a text to continue, so that base models can answer it."""

    name: str
    prompt: str
    output_len: int
    passes: Callable[[str], bool]
    long: bool = False
    """True when it is about a context of more than `LONG_CONTEXT` tokens."""


def probes() -> tuple[Probe, ...]:
    """Arithmetic, copying, a long output, a fact some way back, and one far back."""
    return (
        Probe("arithmetic", "12 + 30 = 42\n25 + 14 = 39\n23 + 45 =", 8, _number_is(68)),
        Probe(
            "copy",
            f"Input: red house on a hill\nOutput: red house on a hill\nInput: {_PHRASE}\nOutput:",
            16,
            lambda text: text.strip().lower().startswith(_PHRASE),
        ),
        Probe("count", " ".join(map(str, range(1, 21))), 64, _counts_from(21, 20)),
        Probe("recall", _recall("marigold", 120), 8, _begins_with("marigold")),
        Probe("long-recall", _recall("tamarind", _LONG_LINES), 32, _begins_with("tamarind"), True),
    )


def _recall(word: str, lines: int) -> str:
    filler = " ".join(f"Line {n} says that the day is grey and calm." for n in range(lines))
    return f"The access word is {word}. {filler} To repeat: the access word is"


def _begins_with(word: str) -> Callable[[str], bool]:
    return lambda text: text.strip(" '\"").lower().startswith(word)


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
