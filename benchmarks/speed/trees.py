"""The environments that are measured, and the plan that all tools carry out on copies of them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("SM120PATCH_TEST_REAL_HOME", str(Path.home()))

from tests.support.environments import real_environment

PAIR = {"sglang": "0.5.9", "flashinfer-python": "0.6.3"}
SET = "allreduce-fusion"
GPU = ("--gpu", "12.0")


class Trees:
    """A directory with one environment as published, one of another build, and copies for peers."""

    def __init__(self, work: Path) -> None:
        self.work = work
        home = work / "home"
        home.mkdir()
        unwanted = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "VIRTUAL_ENV", "CONDA_PREFIX")
        self.environ = {k: v for k, v in os.environ.items() if k not in unwanted}
        # Bytecode is there, as on a user's machine, and not in the tree that others edit.
        self.environ |= {"PYTHONPYCACHEPREFIX": str(work / "bytecode"), "HOME": str(home)}
        self.environ["PYTHONPATH"] = str(ROOT)
        self.known = real_environment(work / "known", *PAIR.values())
        self.plan = self.ask("plan", SET, *GPU, *self.env("known"))
        self.files = [f["path"] for f in self.plan["files"]]
        self.catalogue = self._catalogue()
        whole = self.ask("plan", *self.catalogue, *GPU, *self.env("known"))
        self.whole = [f["path"] for f in whole["files"]]
        self.unknown = self._another_build()

    def tool(self, *arguments: str) -> list[str]:
        """Command line of ours."""
        script = Path(sys.executable).with_name("sm120patch")
        start = [str(script)] if script.exists() else [sys.executable, "-m", "sm120patch"]
        return [*start, *arguments]

    def env(self, name: str) -> tuple[str, str]:
        """Option that names one of the environments."""
        return "--env", str(self.work / name)

    def ask(self, *arguments: str) -> dict[str, Any]:
        """Result of a command of ours; ValueError with its answer when it fails."""
        done = subprocess.run(
            self.tool(*arguments, "--output", "json"),
            env=self.environ, cwd=self.work, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ValueError(done.stdout + done.stderr)
        result: dict[str, Any] = json.loads(done.stdout)["result"]
        return result

    def revert(self, name: str) -> Callable[[], object]:
        """Take everything off an environment again."""
        return lambda: self.ask("revert", "--all", "--allow-running", *self.env(name))

    def diffs(self, target: str = "") -> str:
        """The plan as one diff, of one package or of all."""
        wanted = [f for f in self.plan["files"] if target in ("", f["target"])]
        return "".join(f["diff"] for f in wanted)

    def copy_environment(self, name: str) -> Path:
        """Copy the environment as published; return the site-packages of the copy."""
        shutil.copytree(self.work / "known", self.work / name, symlinks=True)
        return self.work / name / self.known.relative_to(self.work / "known")

    def copy_files(self, name: str, paths: Iterable[str]) -> Path:
        """Copy files alone, below a directory of that name."""
        for path in paths:
            target = self.work / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.known / path, target)
        return self.work / name

    def restore(self, place: Path, paths: Iterable[str]) -> Callable[[], object]:
        """Put upstream's content back into copied files, after a look whether anything was done."""

        def put_back() -> None:
            changed = [p for p in paths if (place / p).read_bytes() != self._upstream(p)]
            if not changed:
                raise SystemExit(f"nothing was changed in {place}")
            for path in changed:
                (place / path).write_bytes(self._upstream(path))

        return put_back

    def _upstream(self, path: str) -> bytes:
        return (self.known / path).read_bytes()

    def _catalogue(self) -> list[str]:
        """Every set of the catalogue that is for this pair and goes together with the others."""
        chosen: list[str] = []
        for entry in self.ask("status", *GPU, *self.env("known"))["sets"]:
            if entry["state"] != "absent":
                continue
            try:
                self.ask("plan", *chosen, entry["id"], *GPU, *self.env("known"))
            except ValueError:
                continue
            chosen.append(entry["id"])
        return chosen

    def _another_build(self) -> Path:
        """An environment whose files end in one more line each, as its RECORD says."""
        site = self.copy_environment("unknown")
        for record in site.glob("*.dist-info/RECORD"):
            lines = record.read_text().splitlines()
            for number, line in enumerate(lines):
                path = line.split(",")[0]
                if path in self.whole:
                    mark = b"# another build\n" if path.endswith(".py") else b"// another build\n"
                    data = (site / path).read_bytes() + mark
                    (site / path).write_bytes(data)
                    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
                    lines[number] = f"{path},sha256={digest.rstrip(b'=').decode()},{len(data)}"
            record.write_text("\n".join(lines) + "\n")
        return site
