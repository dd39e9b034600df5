"""Run the command line as its users do: a process, its exit code, its JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        envelope: dict[str, Any] = json.loads(self.out)
        return envelope

    @property
    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = self.json["result"]
        return result

    @property
    def error(self) -> dict[str, Any]:
        (error,) = self.json["errors"]
        assert isinstance(error, dict)
        return error


def run(*arguments: str | Path, cwd: Path | None = None, timeout: float = 300, **env: str) -> Ran:
    """Run `sm120patch ARGUMENTS` in a new process."""
    return _run([sys.executable, "-m", "sm120patch", *map(str, arguments)], cwd, timeout, env)


def run_after(statements: str, *arguments: str | Path, **env: str) -> Ran:
    """Run it in a process that executes some Python statements first: hooks, limits."""
    command = "import sys\nfrom sm120patch.cli.main import run\nsys.exit(run(sys.argv[1:]))"
    return _run(
        [sys.executable, "-c", f"{statements}\n{command}", *map(str, arguments)], None, 300, env
    )


def run_killed_at(step: int, *arguments: str | Path) -> Ran:
    """Run it and kill it after that many steps; a negative code is the signal."""
    words = [sys.executable, "-m", "tests.support.crash_child", str(step), *map(str, arguments)]
    return _run(words, CHECKOUT, 300, {})


def _run(words: list[str], cwd: Path | None, timeout: float, env: dict[str, str]) -> Ran:
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
