"""An environment with build caches that can be put back as it was, and what must hold of it."""

from __future__ import annotations

import importlib._bootstrap_external
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sm120patch.caches import freshness
from tests.support.catalogue import KERNEL, SOURCE, A, write_catalogue, write_environment
from tests.support.command import Ran, run
from tests.support.environments import tree_digest
from tests.support.jit import ninja

APPLY = ("apply", "bundle", "--no-verify", "--allow-running")
REVERT = ("revert", "--all", "--allow-running")
RECOVER = ("recover",)


class Runner(Protocol):
    def __call__(self, *arguments: str | Path, before: str = "") -> Ran: ...


class World:
    """A prepared environment and build cache that can be put back as they were."""

    def __init__(self, root: Path, *before: tuple[str, ...]) -> None:
        self.root = root
        self.catalogue = write_catalogue(root / "catalogue")
        self.prefix = root / "env"
        self.workspace = Path(os.environ["HOME"]) / ".cache" / "flashinfer"
        write_environment(self.prefix)
        self.ninja = self.prefix / "bin" / "ninja"
        self.ninja.symlink_to(ninja())
        self.build()
        for command in before:
            assert run(*command, *self.options).code == 0
        if before:
            self.build()
        self.compile_unchecked()
        self.kept = root / "kept"
        self.seal()

    def seal(self) -> None:
        """Take what is there as the state to go back to."""
        shutil.rmtree(self.kept, ignore_errors=True)
        for path in (self.prefix, self.workspace):
            shutil.copytree(path, self.kept / path.name, symlinks=True)
        self.old = self.content()

    @property
    def known(self) -> Path | None:
        """Prefix of the environment, where there is one."""
        return self.prefix

    @property
    def site(self) -> Path:
        return next(self.prefix.glob("lib/*/site-packages"))

    @property
    def module(self) -> Path:
        return self.workspace / "1.0" / "120a" / "cached_ops" / "mod"

    @property
    def options(self) -> list[str]:
        return ["--env", str(self.prefix), "--catalogue", str(self.catalogue)]

    def build(self) -> None:
        """Leave a FlashInfer module that includes the header, built by a real ninja."""
        self.module.mkdir(parents=True, exist_ok=True)
        source, header = self.site / SOURCE, self.site / KERNEL
        rule = f"rule cuda_compile\n  command = cat $in {header} > $out\n"
        text = f"{rule}build mod.so: cuda_compile {source} | {header}\n"
        (self.module / "build.ninja").write_text(text)
        # A patched header carries the next whole second: what is compiled before that is old. Files
        # get the time of the kernel's last tick.
        time.sleep(max(0.0, header.stat().st_mtime - time.time() + 0.05))
        command = [self.ninja, "-C", self.module]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
        assert freshness.fresh(self.module, [str(self.ninja)]), "ninja would compile it again"

    def compile_unchecked(self) -> None:
        """Leave bytecode that Python never compares with its source (PEP 552)."""
        source = self.site / A
        code = compile(source.read_bytes(), str(source), "exec")
        data = importlib._bootstrap_external._code_to_hash_pyc(code, b"\0" * 8, False)
        self.bytecode.parent.mkdir(exist_ok=True)
        self.bytecode.write_bytes(data)
        self._code = data

    @property
    def bytecode(self) -> Path:
        tag = f"{self.prefix.joinpath('lib').iterdir().__next__().name}".replace("python3.", "")
        return (self.site / A).parent / "__pycache__" / f"a.cpython-3{tag}.pyc"

    def live(self) -> bytes | None:
        library = self.module / "mod.so"
        return library.read_bytes() if library.exists() else None

    def content(self) -> dict[str, str]:
        return tree_digest(self.site)

    def reset(self) -> None:
        for path in (self.prefix, self.workspace):
            shutil.rmtree(path)
            shutil.copytree(self.kept / path.name, path, symlinks=True)

    def litter(self) -> list[str]:
        found = [p.name for p in self.prefix.rglob(".sm120patch-*")]
        found += [p.name for p in self.workspace.rglob("*.new")]
        journal = self.prefix / ".sm120patch" / "journal.json"
        return found + ([journal.name] if journal.exists() else [])


class Judge:
    """Knows both right contents of a world and says on which one an environment has ended."""

    def __init__(self, world: World, run: Runner) -> None:
        self.world = world
        self.old = self.content()
        self.old_states = self.states(run)
        self.old_build = world.live()
        self.new: dict[str, str] = {}
        self.new_states: dict[str, str] = {}
        self.new_build: bytes | None = None

    def learn(self, run: Runner) -> None:
        """Take what the undisturbed command has left as the new side."""
        self.new, self.new_states = self.content(), self.states(run)
        self.new_build = self.world.live()

    def content(self) -> dict[str, str]:
        """Everything that must be of one side, by name."""
        return self.world.content()

    def states(self, run: Runner) -> dict[str, str]:
        """What `status` says of every set."""
        return states_of(run("status", *self.json))

    @property
    def json(self) -> list[str]:
        return [*self.world.options, "--output", "json"]

    def verdict(self, run: Runner) -> str:
        """`old` or `new` after the next commands, else what is wrong.

        `status` must work or say that something was interrupted, `recover` must settle it, and
        then files, ledger, build caches and bytecode must be of one side, without litter.
        """
        looked = run("status", *self.json)
        if looked.code not in (0, 7):
            return f"status fails: {looked.code}: {looked.out}{looked.err}"
        wrong, settled = self.settle(run)
        if wrong:
            return wrong
        # Where nothing was under way and nothing was settled, nothing can have changed since.
        after = run("status", *self.json) if settled or looked.code else looked
        if after.code != 0:
            return f"status fails after recover: {after.code}: {after.out}{after.err}"
        content = self.content()
        states = states_of(after)
        sides = [s for s, c in (("old", self.old), ("new", self.new)) if c == content]
        if not sides:
            return "mixture of contents"
        # A rejection ends on the content that it began with; the ledger tells them apart.
        side = "new" if len(sides) == 2 and states == self.new_states else sides[0]
        return self._faults(side, states) or side

    def settle(self, run: Runner) -> tuple[str, bool]:
        """Run the next commands: what is wrong with them, and whether they settled anything."""
        recovered = run("recover", *self.json)
        if recovered.code != 0:
            return f"recover fails: {recovered.code}: {recovered.out}{recovered.err}", True
        return "", recovered.result["outcome"] != "nothing"

    def _faults(self, side: str, states: dict[str, str]) -> str:
        wanted, build = (
            (self.old_states, self.old_build)
            if side == "old"
            else (self.new_states, self.new_build)
        )
        if states != wanted:
            return f"{side} content, but the ledger says {states}"
        live = self.world.live()
        if live not in (build, None):
            return f"{side} content, but a build of the other content is live"
        if side == "new" and self.stale_bytecode():
            return "new content, but bytecode of the old one would run"
        if self.world.litter():
            return f"litter: {self.world.litter()}"
        if live != build:
            return f"{side} content, but its build is lost"
        return ""

    def stale_bytecode(self) -> bool:
        """On the new side the bytecode of the world was made from another content."""
        return self.new != self.old and self.world.bytecode.exists()


def states_of(status: Ran) -> dict[str, str]:
    return {s["id"]: s["state"] for s in status.result["sets"]}


def judge(made: Judge, run: Runner, command: Callable[[], Ran]) -> Judge:
    """Run the command undisturbed to learn both sides, and put the world back."""
    done = command()
    assert done.code in (0, 1, 8), done.out + done.err
    made.learn(run)
    made.world.reset()
    return made
