"""Two starts that fail alike say nothing about what differs between them."""

from __future__ import annotations

import pytest

from sm120patch.verify.deadstart import same_failure

ENDED = "the server ended before it was ready (exit status 1); its log ends with:\n"
LAUNCHER = "RuntimeError: Initialization failed. Please see the error messages above."
NUMPY = "ModuleNotFoundError: No module named 'numpy'"
KERNEL = "RuntimeError: No supported CUDA architectures"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (ENDED + NUMPY, ENDED + NUMPY, True),
        (ENDED + f"pid 17\n{NUMPY}", ENDED + f"pid 4711\n{NUMPY}", True),
        (ENDED + f"[12:01 TP0] {KERNEL}", ENDED + f"[12:09 TP1] {KERNEL}", True),
        (ENDED + NUMPY, ENDED + KERNEL, False),
        (ENDED + NUMPY, ENDED.replace("status 1", "status 139") + NUMPY, False),
        (ENDED + f"{KERNEL}\n{LAUNCHER}", ENDED + f"{NUMPY}\n{LAUNCHER}", False),
        (ENDED + f"{KERNEL}\n{LAUNCHER}", ENDED + f"{LAUNCHER}\n{KERNEL}", True),
        (ENDED + "loading\nKilled", ENDED + "loading weights\nKilled", True),
        (ENDED + "Killed", ENDED + "Terminated", False),
        (ENDED, ENDED, True),
    ],
)
def test_two_starts_fail_alike_when_exit_and_errors_agree(one: str, other: str, same: bool) -> None:
    assert same_failure(one, other) is same
    assert same_failure(other, one) is same
