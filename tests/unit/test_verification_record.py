from __future__ import annotations

from sm120patch.model import EvidenceKind
from sm120patch.verify.commandline import Arm
from sm120patch.verify.record import Block, Record, trimmed


def server_info(**last: object) -> dict[str, object]:
    """As SGLang answers: its options, what they are nested in again, and last its version."""
    options: dict[str, object] = {f"option_{n}": n for n in range(500)}
    return {**options, "internal_states": [dict(options)], **last}


def test_what_a_server_says_after_hundreds_of_options_is_kept():
    kept = trimmed(server_info(version="0.5.18", fusion="trtllm"))
    assert (kept["version"], kept["fusion"], kept["option_499"]) == ("0.5.18", "trtllm", 499)
    assert "internal_states" not in kept


def test_what_a_server_says_is_bounded_and_without_secrets():
    hostile = {f"option_{n}": n for n in range(100_000)}
    assert len(trimmed(hostile)) == 2000
    kept = trimmed({"api_key": "s3cret", "note": "x" * 9000, "nan": float("nan"), "tp_size": 8})
    assert kept == {"note": "x" * 300, "nan": None, "tp_size": 8}


def test_the_option_that_differs_between_the_arms_is_named():
    record = Record(["w"], seed=1, kind=EvidenceKind.REAL)
    for arm, fusion in ((Arm.BASELINE, False), (Arm.PATCHED, True)):
        block = Block(arm)
        record.note_info(block, server_info(fusion=fusion, random_seed=hash(arm)))
        record.blocks.append(block)
    assert record.summary()["server_differences"] == {"fusion": [False, True]}
