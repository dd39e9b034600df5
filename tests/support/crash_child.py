"""Run one command line in this process and SIGKILL it after the N-th step that changed the disk.

usage: python -m tests.support.crash_child N sm120patch-arguments...
Prints the label of every step to stderr. N = 0 never kills.
"""

from __future__ import annotations

import os
import signal
import sys

from sm120patch import transaction
from sm120patch.cli.main import run


def main() -> int:
    limit, arguments = int(sys.argv[1]), sys.argv[2:]
    passed = 0

    def count(label: str) -> None:
        nonlocal passed
        passed += 1
        sys.stderr.write(f"step {passed}: {label}\n")
        sys.stderr.flush()
        if passed == limit:
            os.kill(os.getpid(), signal.SIGKILL)

    transaction.on_checkpoint = count
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
