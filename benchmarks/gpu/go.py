"""Two calls on the GPU machine: begin a run, and look how far it is.

    python go.py start PACK ROOT [--seconds N] [--parts NAME...] [--dry --tool PREFIX]
    python go.py wait ROOT OUT [--seconds N]      until it is done, or N seconds; copies results

What `start` begins has a session of its own and outlives the call; it ends by itself after
`--seconds`. Results are complete after each step.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

BESIDE = (
    "setup", "control", "module", "build", "kernels", "real", "tune", "warm", "warm-one", "awake",
    "drowsy", "bench",
)  # fmt: skip
"""Run first, beside one another."""
ALONE = ("fusion", "return", "trap", "null", "null-one", "killed")
"""Run then, one after the other, in the order in which they are named."""
PARTS = (*BESIDE, *ALONE)


def start(options: argparse.Namespace) -> int:
    """Install sm120patch, begin the run with it, return at once."""
    root: Path = options.root
    root.mkdir(parents=True, exist_ok=True)
    (root / "done").unlink(missing_ok=True)
    tool: Path = options.tool or install(options.pack, root / "tool")
    if not (root / "tool").exists():
        (root / "tool").symlink_to(tool)
    command = [str(tool / "bin" / "python"), str(Path(__file__).with_name("schedule.py")),
               str(options.pack.resolve()), str(root.resolve()), "--seconds", str(options.seconds),
               "--python", options.python or sys.executable, "--parts", *options.parts]  # fmt: skip
    command += ["--blocks", str(options.blocks), "--longer", str(options.longer)]
    command += [] if options.margin is None else ["--margin", str(options.margin)]
    command += ["--dry"] if options.dry else []
    with (root / "go.log").open("ab") as log:
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                         start_new_session=True)  # fmt: skip
    return 0


def install(pack: Path, tool: Path) -> Path:
    """Environment of sm120patch, from the wheels of the pack."""
    if not tool.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tool)], check=True)
    wheels = sorted(map(str, (pack / "tool").glob("*.whl")))
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(tool / "bin" / "python"), "install", "-q",
         "--no-index", "--no-deps", "--force-reinstall", *wheels],
        check=True,
    )  # fmt: skip
    return tool


def wait(options: argparse.Namespace) -> int:
    """Wait for the end or for the seconds to pass; copy what there is; print the news."""
    until = time.monotonic() + options.seconds
    while time.monotonic() < until and not (options.root / "done").exists():
        time.sleep(1)
    options.out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(options.out / "results.tar.xz", "w:xz", preset=3) as archive:
        for name in ("results", "steps", "logs", "go.log"):
            if (options.root / name).exists():
                archive.add(options.root / name, arcname=name, filter=_short)
        for ledger in options.root.glob("env-*/.sm120patch/*.db"):
            archive.add(ledger, arcname=f"ledgers/{ledger.parent.parent.name}-{ledger.name}")
        for profile in options.root.glob("*.toml"):
            archive.add(profile, arcname=f"profiles/{profile.name}")
    log = options.root / "go.log"
    print(log.read_text("utf-8", "replace")[-9000:] if log.exists() else "no log")
    print("done" if (options.root / "done").exists() else "still running", flush=True)
    return 0


def _short(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return info if info.size < 6_000_000 else None


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("start")
    one.set_defaults(action=start)
    one.add_argument("pack", type=Path)
    one.add_argument("root", type=Path)
    one.add_argument("--seconds", type=float, default=1500)
    one.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    one.add_argument("--blocks", type=int, default=4, help="most server starts an arm, fusion")
    one.add_argument("--margin", type=float, help="share of throughput a set may cost")
    one.add_argument("--longer", type=float, default=1.0, help="times the requests of a repeat")
    one.add_argument("--python", help="interpreter of the environments (default: this one)")
    one.add_argument("--tool", type=Path, help="environment that has sm120patch already")
    one.add_argument("--dry", action="store_true", help="the simulated host instead of a GPU")
    one = commands.add_parser("wait")
    one.set_defaults(action=wait)
    one.add_argument("root", type=Path)
    one.add_argument("out", type=Path)
    one.add_argument("--seconds", type=float, default=0)
    options = parser.parse_args()
    os.umask(0o022)  # as root, sm120patch refuses what others could exchange
    return int(options.action(options))


if __name__ == "__main__":
    raise SystemExit(main())
