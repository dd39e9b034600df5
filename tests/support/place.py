"""The small environment of `tests.support.catalogue`, its commands, and what must hold of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import catalogue as small
from tests.support.catalogue import A_TEXT, KERNEL_TEXT, A
from tests.support.command import Ran, run
from tests.support.environments import commit_all, create_venv, install_editable

ONE = ("line_3 = 3\n", "line_3 = 'one'\n")
A_WITH_ONE = A_TEXT.replace(*ONE)
KERNEL_OPEN = KERNEL_TEXT.replace("ARCH < 1200", "ARCH < 9999")


class Place:
    """A small environment and catalogue below a temporary directory."""

    def __init__(self, root: Path, version: str = "1.0") -> None:
        self.root = root
        self.catalogue = small.write_catalogue(root / "catalogue")
        self.prefix = root / "env"
        self.site = small.write_environment(self.prefix, version)
        self.before = self.facts()

    def facts(self) -> dict[str, tuple[bytes, int, int]]:
        """Every file and link of site-packages: content, mode, time; bytecode left out."""
        found = {}
        for path in sorted(self.site.rglob("*")):
            status = path.lstat()
            if "__pycache__" in path.parts or (path.is_dir() and not path.is_symlink()):
                continue
            data = str(path.readlink()).encode() if path.is_symlink() else b""
            data = path.read_bytes() if path.is_file() else data
            name = path.relative_to(self.site).as_posix()
            found[name] = (data, status.st_mode, status.st_mtime_ns)
        return found

    def seal(self) -> None:
        """Take what the test has prepared as the state that must survive."""
        self.before = self.facts()

    def contents(self) -> dict[str, bytes]:
        return {path: fact[0] for path, fact in self.facts().items()}

    def changed(self) -> set[str]:
        """Paths whose content is not what it was before."""
        now = self.contents()
        old = {path: fact[0] for path, fact in self.before.items()}
        return {path for path in now.keys() | old.keys() if now.get(path) != old.get(path)}

    def read(self, path: str) -> str:
        return (self.site / path).read_bytes().decode()

    def write(self, path: str, text: str) -> None:
        (self.site / path).write_bytes(text.encode())

    @property
    def state(self) -> Path:
        return self.prefix / ".sm120patch"

    @property
    def options(self) -> list[str]:
        return ["--env", str(self.prefix), "--catalogue", str(self.catalogue), "--output", "json"]

    def run(self, *arguments: str | Path) -> Ran:
        return checked(run(*arguments, *self.options))

    def done(self, *arguments: str | Path) -> dict[str, Any]:
        """Run a command that must succeed; return its result."""
        ran = self.run(*arguments)
        assert ran.code == 0, ran.out + ran.err
        return ran.result

    def stage(self, *sets: str) -> dict[str, Any]:
        result = self.done("apply", *sets, "--no-verify")
        assert result["outcome"] == "staged"
        return result

    def states(self) -> dict[str, str]:
        return {s["id"]: s["state"] for s in self.done("status")["sets"]}

    def findings(self) -> set[tuple[str, str]]:
        ran = self.run("audit")
        found = {(f["kind"], f["path"]) for f in ran.result["findings"]}
        assert ran.code == (1 if found else 0)
        return found

    def assert_nothing_written(self) -> None:
        assert self.facts() == self.before
        assert not self.state.exists()
        assert self.litter() == []

    def litter(self) -> list[str]:
        found = [str(path) for path in self.prefix.rglob(".sm120patch-*")]
        journal = self.state / "journal.json"
        return found + ([str(journal)] if journal.exists() else [])


class Checkout(Place):
    """SGLang from a git checkout, as the official images have it; FlashInfer from a wheel."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.source = root / "checkout" / "python"
        shutil.move(self.site / "sglang", self.source / "sglang")
        shutil.rmtree(self.site / "sglang-1.0.dist-info")
        commit_all(root / "checkout")
        install_editable(self.site, "sglang", "1.0", self.source)
        self.seal()

    @property
    def a(self) -> Path:
        return self.source / A

    def git_status(self) -> str:
        words = ["git", "-C", self.source, "status", "--porcelain"]
        return subprocess.check_output(words, text=True)

    def claim(self) -> Path:
        return self.source.parent / ".git" / "sm120patch-claim.json"

    def second(self) -> list[str]:
        """Options for another environment that imports the same checkout."""
        site = create_venv(self.root / "second")
        install_editable(site, "sglang", "1.0", self.source)
        return ["--env", str(self.root / "second"), *self.options[2:]]


def checked(ran: Ran) -> Ran:
    """What holds for every answer: one envelope, no traceback, a next step with each error."""
    assert "Traceback" not in ran.err + ran.out, ran.err + ran.out
    assert ran.json["exit_code"] == ran.code
    for error in ran.json["errors"]:
        assert error["message"] and error["hint"], error
    return ran


def refused(ran: Ran, code: int, *texts: str) -> dict[str, Any]:
    """It ended with that exit code, and the error says all of `texts`."""
    assert ran.code == code, ran.out + ran.err
    error = ran.error
    for text in texts:
        assert text in error["message"] + (error["hint"] or ""), error
    return error


def reinstall(place: Place, version: str, *targets: str) -> None:
    """What `pip install` does: the old files and metadata go, new ones come."""
    fresh = place.root / f"fresh-{version}"
    small.install(fresh, version)
    for target in targets or ("sglang", "flashinfer_python"):
        uninstall(place, target)
        for entry in (f"{target}-{version}.dist-info", target.removesuffix("_python")):
            shutil.copytree(fresh / entry, place.site / entry)
    shutil.rmtree(fresh)


def uninstall(place: Place, target: str) -> None:
    for metadata in place.site.glob(f"{target}-*.dist-info"):
        shutil.rmtree(metadata)
    shutil.rmtree(place.site / target.removesuffix("_python"))


def slow(value: object) -> Any:
    """One more case of a kind, for the long run."""
    return pytest.param(value, marks=pytest.mark.slow)
