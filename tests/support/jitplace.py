"""An environment whose FlashInfer compiles: the small JIT of `jit`, sets for it, a home of its own.

Whole commands work on it, and real ninja builds in between, as a server would.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from sm120patch.caches import freshness
from sm120patch.model import sha256_hex
from sm120patch.unified import make_diff
from tests.support import jit
from tests.support.command import Ran, run
from tests.support.environments import create_venv, install_fake
from tests.support.jit import ALLREDUCE, COMM
from tests.support.manifests import head
from tests.support.place import checked

RUNNER = "sglang/srt/model_executor/runner.py"
SGLANG = {"sglang/__init__.py": b"", RUNNER: b"backends = ['cutlass']\n"}
EDITS = {
    "gates": (ALLREDUCE, "< 1200", "< 9999", ""),
    "list": (COMM, "[9, 10]", "[9, 10, 12]", ""),
    "tuned": (RUNNER, "['cutlass']", "['cutlass', 'b12x']", "tactics = true"),
}
"""Set -> path, old and new text, more lines of its change."""
OLD, NEW = "< 1200", "< 9999"


class JitPlace:
    """FlashInfer 0.6.3 in `prefix`, its workspace below `home`, and the catalogue of EDITS."""

    def __init__(self, root: Path, home: Path | None = None) -> None:
        self.prefix = root / "env"
        self.home = home or root / "home"
        self.workspace = self.home / ".cache" / "flashinfer"
        self.workspace.mkdir(parents=True, exist_ok=True)
        self.site = create_venv(self.prefix)
        sources = {path: text.encode() for path, text in jit.SOURCES.items()}
        install_fake(self.site, "flashinfer-python", "0.6.3", sources)
        install_fake(self.site, "sglang", "0.5.9", SGLANG)
        jit.install_stub(self.site)
        (self.prefix / "bin" / "ninja").symlink_to(jit.ninja())
        self.catalogue = write_catalogue(root / "catalogue")
        self.age(self.site)

    def age(self, root: Path) -> None:
        """Make the files an hour old, as those of an installation are."""
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                then = path.stat().st_mtime - 3600
                os.utime(path, (then, then))

    @property
    def options(self) -> list[str]:
        return ["--env", str(self.prefix), "--catalogue", str(self.catalogue), "--output", "json"]

    def run(self, *arguments: str | Path, **env: str) -> Ran:
        return checked(run(*arguments, *self.options, HOME=str(self.home), **env))

    def done(self, *arguments: str | Path, **env: str) -> dict[str, Any]:
        ran = self.run(*arguments, **env)
        assert ran.code == 0, ran.out + ran.err
        return ran.result

    def apply(self, *sets: str, **env: str) -> None:
        self.done("apply", *sets, "--no-verify", "--gpu", "12.0", **env)

    def build(self, module: str = "trtllm_comm") -> tuple[Path, bool]:
        """Load a module as a server would; return its library and whether ninja worked."""
        return jit.build(self.workspace, self.site, module)

    def live(self, module: str = "trtllm_comm") -> Path:
        return self.workspace / "0.6.3" / "120a" / "cached_ops" / module

    def work(self, module: str = "trtllm_comm") -> list[str] | None:
        """Names of what ninja would make now."""
        found = freshness.work_to_do(self.live(module), jit.ninja())
        return None if found is None else [Path(path).name for path in found]

    def is_absent(self, module: str = "trtllm_comm") -> bool:
        return not (self.live(module) / "build.ninja").exists()

    def caches(self, *arguments: str | Path, **env: str) -> dict[str, Any]:
        return self.done("caches", *arguments, **env)


def write_catalogue(root: Path) -> Path:
    """One set for each of EDITS."""
    (root / "manifests").mkdir(parents=True)
    originals = {**{p: t.encode() for p, t in jit.SOURCES.items()}, **SGLANG}
    for name, (path, old, new, more) in EDITS.items():
        before = originals[path]
        after = before.replace(old.encode(), new.encode())
        diff = make_diff(path, before, after).encode()
        (root / "patches" / name).mkdir(parents=True)
        (root / "patches" / name / "edit.patch").write_bytes(diff)
        target = "sglang" if path.startswith("sglang/") else "flashinfer-python"
        (root / "manifests" / f"{name}.toml").write_text(f"""{head(name)}
[[change]]
id = "edit"
target = "{target}"
summary = "Change {name}"
description = "For tests."
{more}
[[change.variant]]
versions = ">=0.5.0,<0.7"
kind = "diff"
path = "{path}"
payload = "{name}/edit.patch"
sha256 = "{sha256_hex(diff)}"
present = {{ "{new}" = 1 }}
""")
    return root


def mounted(directory: Path, size: str) -> bool:
    """Put a small file system of its own there; False where that is not allowed."""
    directory.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "sm120patch-test", str(directory)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def unmount(directory: Path) -> None:
    subprocess.run(["umount", "--lazy", str(directory)], check=True)
