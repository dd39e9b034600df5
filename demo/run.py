"""The main job on real packages: apply, verify, reject or keep, revert. No GPU is needed.

Creates `.demo/tool` (sm120patch, installed as a user would) and `.demo/env` (the published wheels
of SGLang 0.5.9 and FlashInfer 0.6.3), then runs the command line against two simulated hosts and
checks every exit code. Exit 0 means that all of it happened as described.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".demo"
TARGETS = ("sglang==0.5.9", "flashinfer-python==0.6.3")
VM = ROOT / "demo" / "8-gpus-in-a-vm.toml"
ROOT_COMPLEX = ROOT / "demo" / "2-gpus-on-one-root-complex.toml"


def say(text: str) -> None:
    print(f"\n=== {text}", flush=True)


def run(*words: str | Path, expect: int = 0, quiet: bool = False) -> str:
    """Run a command, show it and its output, insist on its exit code."""
    line = [str(word) for word in words]
    if not quiet:
        print(f"$ {shlex.join([Path(line[0]).name, *line[1:]])}", flush=True)
    # One stream, so that talk and data stand in the order in which they were said.
    done = subprocess.run(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=WORK
    )
    if not quiet or done.returncode != expect:
        print(done.stdout, end="", flush=True)
        print(f"(exit {done.returncode})", flush=True)
    if done.returncode != expect:
        sys.exit(f"the demo expected exit {expect}")
    return done.stdout


def insist(truth: bool, claim: str) -> None:
    if not truth:
        sys.exit(f"the demo expected: {claim}")
    print(f"checked: {claim}", flush=True)


def prepare(name: str, *packages: str | Path, options: tuple[str, ...] = ()) -> Path:
    """Create a fresh virtual environment below .demo and install packages into it."""
    prefix = WORK / name
    shutil.rmtree(prefix, ignore_errors=True)
    venv.EnvBuilder(with_pip=True).create(prefix)
    pip = [prefix / "bin" / "python", "-m", "pip", "install", "--quiet", *options, *packages]
    run(*pip, quiet=True)
    return prefix


def differing(prefix: Path) -> list[str]:
    """Files of both packages that are not as their RECORD says: a check of its own."""
    site = next(prefix.glob("lib/*/site-packages"))
    wrong = []
    for record in site.glob("*.dist-info/RECORD"):
        if record.parent.name.startswith(("sglang-", "flashinfer_python-")):
            with record.open(newline="") as rows:
                for path, digest, _size in csv.reader(rows):
                    if digest and not path.startswith(".."):
                        found = hashlib.sha256((site / path).read_bytes()).digest()
                        if (
                            digest
                            != "sha256=" + base64.urlsafe_b64encode(found).rstrip(b"=").decode()
                        ):
                            wrong.append(path)
    return sorted(wrong)


def main() -> None:
    WORK.mkdir(exist_ok=True)
    os.environ.pop("VIRTUAL_ENV", None)
    say(f"Set-up: sm120patch in one environment, {' and '.join(TARGETS)} in another")
    tool = prepare("tool", ROOT)
    env = prepare("env", *TARGETS, options=("--no-deps",))
    sm120patch = tool / "bin" / "sm120patch"
    here = ("--env", env)
    insist(differing(env) == [], "both packages are as published")

    say("What is there, and what would change?")
    run(sm120patch, "list")
    run(sm120patch, "status", *here)

    say("A host where the fusion is known to collapse: 8 GPUs in a VM without peer-to-peer")
    run(sm120patch, "apply", "allreduce-fusion", *here, "--profile", VM, expect=5)
    insist(differing(env) == [], "a published regression on such a host: nothing is done unasked")
    say("The same with --yes: the published result is to be seen here, and what becomes of it")
    run(sm120patch, "apply", "allreduce-fusion", *here, "--profile", VM, "--yes", expect=8)
    insist(differing(env) == [], "the rejected set left every file as published")

    say("A host where it helps: 2 GPUs on one root complex")
    run(sm120patch, "apply", "allreduce-fusion", *here, "--profile", ROOT_COMPLEX)
    changed = differing(env)
    insist(len(changed) == 4, f"4 files are patched: {', '.join(changed)}")
    status = run(sm120patch, "status", *here)
    insist("applied (simulated)" in status, "the evidence is labelled as simulated")
    run(sm120patch, "history", *here)

    say("Back to upstream")
    run(sm120patch, "revert", "--all", *here)
    insist(differing(env) == [], "every file of both packages equals its RECORD again")
    run(sm120patch, "audit", *here)


if __name__ == "__main__":
    main()
