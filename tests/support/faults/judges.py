"""What must hold after commands that do not leave one of two contents of an environment behind."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import Ran
from tests.support.environments import tree_digest
from tests.support.faults.world import Judge, Runner, World

PRUNE = ("caches", "--prune", "--max-size", "0", "--yes")
LOST = ("recover", "--lost-ledger")


class Salvage(Judge):
    """The ledger is gone: whatever happens on the way, upstream's content can be had back."""

    def states(self, run: Runner) -> dict[str, str]:
        return {name: s for name, s in super().states(run).items() if name != "lost-ledger"}

    def verdict(self, run: Runner) -> str:
        looked = run("status", *self.json)
        if looked.code not in (0, 7):
            return f"status fails: {looked.code}: {looked.out}{looked.err}"
        if wrong := self._again(run):
            return wrong
        if self.content() != self.new:
            return "mixture of contents"
        return self._faults("new", self.states(run)) or "new"

    def _again(self, run: Runner) -> str:
        """Do what each answer names as the next step."""
        recovered = run("recover", *self.json)
        if recovered.code not in (0, 10):
            return f"recover fails: {recovered.code}: {recovered.out}{recovered.err}"
        if recovered.code == 10 and "--lost-ledger" not in recovered.error["hint"]:
            return f"recover does not say how: {recovered.out}"
        salvaged = run(*LOST, *self.json)
        if salvaged.code == 2 and "revert --all" in salvaged.error["hint"]:
            salvaged = run("revert", "--all", "--allow-running", *self.json)
        if salvaged.code != 0:
            return f"nothing helps: {salvaged.code}: {salvaged.out}{salvaged.err}"
        return ""


class Pruned(Judge):
    """A build that is put away is whole or gone; the live one and the files are not touched."""

    def content(self) -> dict[str, str]:
        shelf = self.world.workspace / ".sm120patch"
        return {**self.world.content(), **(tree_digest(shelf) if shelf.is_dir() else {})}

    def settle(self, run: Runner) -> tuple[str, bool]:
        wrong, settled = super().settle(run)
        if not wrong and self.content() not in (self.old, self.new):
            # Half of it is gone: it stands there as rubbish, and goes with the next prune.
            listed = run("caches", *self.json)
            if listed.code != 0 or any(s["can_come_back"] for s in listed.result["stored"]):
                return f"half a build could come back: {listed.code}: {listed.out}", True
            again = run(*PRUNE, *self.json)
            if again.code != 0:
                return f"prune fails: {again.code}: {again.out}{again.err}", True
        return wrong, settled

    def stale_bytecode(self) -> bool:
        return False


class Papers(World):
    """Files that a command writes for people: no environment, no ledger, no build."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.prefix, self.workspace, self.kept = root / "papers", root / "none", root / "kept"
        self.prefix.mkdir(parents=True)
        self.workspace.mkdir()
        self.seal()

    @property
    def options(self) -> list[str]:
        return ["--output", "json"]

    @property
    def known(self) -> Path | None:
        return None

    def content(self) -> dict[str, str]:
        found = tree_digest(self.prefix)
        return {name: digest for name, digest in found.items() if ".sm120patch-" not in name}

    def live(self) -> bytes | None:
        return None


class Written(Judge):
    """A file, or a set, is the earlier one or the new one, and the command can be repeated."""

    catalogue = Path("local")
    command: tuple[str, ...] = ()
    before = ""

    def content(self) -> dict[str, str]:
        """What counts: a profile, manifests, and the payloads that they name."""
        found = self.world.content()
        manifests = self.world.prefix.glob(f"{self.catalogue}/manifests/*.toml")
        named = "".join(path.read_text() for path in manifests)
        return {
            name: digest
            for name, digest in found.items()
            if name.endswith(".toml") or ("/patches/" in name and Path(name).name in named)
        }

    def states(self, run: Runner) -> dict[str, str]:
        return {}

    def verdict(self, run: Runner) -> str:
        listed = self._listed(run)
        if listed is not None and listed.code != 0:
            return f"the catalogue is broken: {listed.out}{listed.err}"
        sides = [s for s, c in (("old", self.old), ("new", self.new)) if c == self.content()]
        if not sides:
            return f"neither: {sorted(self.content())}"
        again = run(*self.command, *self.world.options, before=self.before)
        if again.code != 0 or self.content() != self.new:
            return f"cannot be repeated: {again.code}: {again.out}{again.err}"
        return f"litter: {self.world.litter()}" if self.world.litter() else sides[0]

    def _listed(self, run: Runner) -> Ran | None:
        where = self.world.prefix / self.catalogue
        return run("list", "--catalogue", where, "--output", "json") if where.is_dir() else None


def repeating(*command: str, before: str = "") -> type[Written]:
    """A judge that repeats this command; `before` is Python that its process runs first."""
    return type("Repeating", (Written,), {"command": command, "before": before})


def forget_ledger(world: World) -> None:
    """Take the ledger away, and take that as the state to go back to."""
    (world.prefix / ".sm120patch" / "ledger.sqlite3").unlink()
    world.seal()
