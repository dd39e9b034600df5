"""A verification that ends in a rejection: real swaps, ledger and evidence; no server."""

from __future__ import annotations

from pathlib import Path

REJECT = ("apply", "bundle", "--allow-running", "--profile")

STAND_IN = """
from sm120patch.model import EvidenceKind, Goal
from sm120patch.operations import verifying
from sm120patch.verify.commandline import Arm
from sm120patch.verify.runner import Outcome
from sm120patch.verify.verdict import Decision, Verdict

def run(profile, duty, swap, *arguments, **options):
    for arm in (Arm.BASELINE, Arm.PATCHED, Arm.PATCHED, Arm.BASELINE):
        swap(arm)
    decision = Decision(Verdict.REGRESSED, ("it stands in",), None, Goal.NO_REGRESSION, 0.03)
    return Outcome(decision, EvidenceKind.SIMULATED, {"server": "stand-in"})

verifying.run = run
"""
"""Takes the place of the servers and the load; everything that is written is written for real."""


def write_profile(path: Path) -> Path:
    path.write_text(
        '[server]\nkind = "simulated"\n'
        'command = ["{tool_python}", "-m", "sm120patch.simhost", "--prefix", "{prefix}",'
        ' "--scenario", "sm120-tp2", "--port", "{port}", "{set_args}"]\n'
        'url = "http://127.0.0.1:39999"\n'
        "[workload.tiny]\ninput_len = 16\noutput_len = 24\nconcurrency = 4\nprompts = 8\n"
        "repeats = 3\nwarmup = 2\n[verify]\n"
    )
    return path
