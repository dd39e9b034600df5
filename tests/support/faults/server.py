"""Runs command lines in forked copies of one warm process, each with a fault armed.

usage: LD_PRELOAD=seam.so python -m tests.support.faults.server ROOT...
Reads one JSON request a line, writes one JSON answer a line. A command that stops itself stands
still while others run, until it is resumed.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, Any

from sm120patch import catalogue
from sm120patch.cli import main as entry
from sm120patch.environment import locate, start
from sm120patch.host import processes
from sm120patch.operations import site

LOADED_ONCE = (
    "click", "packaging.version", "sm120patch.caches.switch", "sm120patch.cli.adopting",
    "sm120patch.cli.auditing", "sm120patch.cli.authoring", "sm120patch.cli.caching",
    "sm120patch.cli.changing", "sm120patch.cli.group", "sm120patch.cli.initialising",
    "sm120patch.cli.looking", "sm120patch.cli.outcome", "sm120patch.cli.recovering",
    "sm120patch.cli.showing", "sm120patch.host",
    "sm120patch.manifest", "sm120patch.operations.adopting", "sm120patch.operations.auditing",
    "sm120patch.operations.caching", "sm120patch.operations.changing",
    "sm120patch.operations.fixing", "sm120patch.operations.initialising",
    "sm120patch.operations.inspecting", "sm120patch.operations.known",
    "sm120patch.operations.places", "sm120patch.operations.salvaging",
    "sm120patch.operations.tuning", "sm120patch.operations.verifying", "sm120patch.recovery",
    "sm120patch.recorded", "sm120patch.verify.profile", "sm120patch.verify.runner",
    "psutil", "unidiff",
)  # fmt: skip
"""What the commands load: here, before the children that are killed by the thousand."""


FACTS: dict[str, Mapping[str, Any]] = {}
"""What interpreters say of themselves, by prefix; no fault changes that."""


class Known:
    """Answers as the interpreter of a prefix did when it was asked once."""

    def __init__(self, prefix: str) -> None:
        if prefix not in FACTS:
            FACTS[prefix] = start(locate(prefix, None, {})).answer()
        self.prefix = prefix

    def answer(self) -> Mapping[str, Any]:
        return FACTS[self.prefix]

    def close(self) -> None:
        return None


PAUSED: dict[int, tuple[IO[bytes], IO[bytes]]] = {}
"""Commands that stand still, by process id, with what they have said."""


def answer(library: Any, request: dict[str, Any]) -> dict[str, Any]:
    if "resume" in request:
        pid = int(request["resume"])
        streams = PAUSED.pop(pid)
        os.kill(pid, signal.SIGCONT)
    else:
        # They outlive this call where the command stands still.
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        streams = (out, err)
        known = Known(request["known"]) if request.get("known") else None
        pid = os.fork()
        if pid == 0:
            if known:
                site.start = lambda _python: known
            child(library, request, streams[0].fileno(), streams[1].fileno())
    _pid, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        PAUSED[pid] = streams
        return {"paused": pid}
    texts = []
    for stream in streams:
        with stream:
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "replace"))
    return {"code": os.waitstatus_to_exitcode(status), "out": texts[0], "err": texts[1]}


def child(library: Any, request: dict[str, Any], out: int, err: int) -> None:
    code = 99
    gc.disable()  # it would write to every page of the parent's
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.setpgid(0, 0)
        # A background job ignores ^C, and so would its children.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["sm120patch", *request["arguments"]]
        if statements := request.get("before"):
            exec(compile(statements, "before", "exec"), {"request": request})
        trace = (request.get("trace") or "").encode()
        library.seam_arm(request["at"], request["action"], request["code"], trace)
        try:
            entry.main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:
        os.write(2, f"escaped: {error!r}\n".encode())
    finally:
        os._exit(code)


def main() -> None:
    library = ctypes.CDLL(None)
    library.seam_arm.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_char_p]
    for root in sys.argv[1:]:
        library.seam_root(root.encode())
    for name in LOADED_ONCE:
        importlib.import_module(name)
    catalogue.load(None)  # and with it every expression that reads one
    # What else runs on this machine neither matters nor changes: reading /proc takes the longest.
    processes.processes_using = lambda *_arguments: []
    gc.freeze()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(library, json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
