"""TOML within bounds: what is refused, and that a parser's time and memory do not explode."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from sm120patch.tomltext import MAX_DOTS, decode

BOMBS = {
    "a long key": ".".join(["a"] * 100_000) + " = 1\n",
    "a long quoted key": ".".join(['"a"'] * 100_000) + " = 1\n",
    "a long table name": "[" + ".".join(["a"] * 100_000) + "]\n",
    "a long key behind escapes": 'x."\\"".' + ".".join(["a"] * 100_000) + " = 1\n",
    "no end of a string": '"' + '\\"' * 400_000,
    "quotes without end": "'\"" * 300_000,
    "one long word": "a" * 900_000,
    "many keys": "".join(f"{'.'.join(['a'] * 90)}.k{n} = 1\n" for n in range(3000)),
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=list(BOMBS))
def test_a_bomb_costs_neither_time_nor_memory(text: str) -> None:
    def bounds() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))

    program = (
        "import sys\nfrom sm120patch.tomltext import decode\n"
        "try:\n    decode(sys.stdin.read())\nexcept ValueError:\n    pass\n"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(
        words, input=text, text=True, capture_output=True, preexec_fn=bounds, check=False
    )
    assert done.returncode == 0, done.stderr


def test_dots_in_texts_are_no_bomb() -> None:
    versions = [f"0.5.4.post{n}" for n in range(200)]
    assert decode(f"known = {versions}\n") == {"known": versions}
    assert decode(".".join(["a"] * MAX_DOTS) + " = 1")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = " + "9" * 400, "64 bits"),
        ("x = [{ y = 0x" + "f" * 40_000 + " }]", "64 bits"),
        ("x = -9223372036854775809", "64 bits"),
        ("x = " + "[" * 100_000, "nested too deep"),
    ],
)
def test_what_no_document_needs_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode(text)


def test_the_greatest_integers_are_taken() -> None:
    assert decode(f"x = {2**63 - 1}\ny = {-(2**63)}") == {"x": 2**63 - 1, "y": -(2**63)}
