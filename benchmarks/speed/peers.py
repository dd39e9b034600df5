"""Tools that do a part of the same: how they are installed and what they are told to do."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.speed.measuring import Case
from benchmarks.speed.trees import PAIR, ROOT, Trees

REQUIREMENTS = {
    "p12y": ("patch-package-py==0.2.1", (3, 9)),
    "makepatch": ("makepatch==0.3.0", (3, 13)),
    "socket-patch": ("socket-patch==4.0.0", (3, 9)),
    "ast-grep": ("ast-grep-cli==0.51.1", (3, 9)),
}
"""Program -> the requirement that brings it, and the oldest Python that it runs with."""
SYSTEM = ("git", "patch")
LEFT_OUT = {
    "venv-patcher": "imports the packages it patches, hence torch",
    "npm patch-package": "works on `node_modules` only",
    "comby, quilt, git am": "nothing in common with installed packages beyond the diff itself",
}
GATE = "sglang/srt/layers/communicator.py"


class Peers:
    """Programs by name; those that are not to be had, with the reason."""

    def __init__(self, cache: Path, say: Callable[[str], None]) -> None:
        self.missing = dict(LEFT_OUT)
        self.programs: dict[str, Path] = {}
        for name in SYSTEM:
            found = shutil.which(name)
            if found is None:
                self.missing[name] = "not installed on this machine"
            else:
                self.programs[name] = Path(found)
        for name, (requirement, version) in REQUIREMENTS.items():
            say(f"installing {requirement}")
            reason = self._install(cache / name, name, requirement, version)
            if reason:
                self.missing[name] = reason

    def _install(
        self, place: Path, name: str, requirement: str, version: tuple[int, ...]
    ) -> str | None:
        program = place / "bin" / name
        if not program.exists():
            python = interpreter(version)
            if python is None:
                return f"needs Python {'.'.join(map(str, version))}, which is not on this machine"
            shutil.rmtree(place, ignore_errors=True)
            pip = [str(place / "bin" / "pip"), "install", "--quiet", requirement]
            for command in ([python, "-m", "venv", str(place)], pip):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    shutil.rmtree(place, ignore_errors=True)
                    return f"cannot be installed: {(done.stderr.strip() or '?').splitlines()[-1]}"
        self.programs[name] = program
        return None


def interpreter(version: tuple[int, ...]) -> str | None:
    """A Python of that version or a newer one: ours, one on PATH, or one of pyenv."""
    if sys.version_info >= version:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(version[1], version[1] + 4)]
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob("3.*/bin/python3"), reverse=True)
    for candidate in [*filter(None, map(shutil.which, names)), *map(str, pyenv)]:
        test = f"import sys; sys.exit(sys.version_info < {version!r})"
        if (
            subprocess.run([candidate, "-c", test], capture_output=True, check=False).returncode
            == 0
        ):
            return candidate
    return None


def version_cases(peers: Peers, trees: Trees) -> list[Case]:
    """How long each takes to say who it is."""
    found = []
    for name in ("p12y", "makepatch", "socket-patch"):
        if name in peers.programs:
            words = [str(peers.programs[name]), "--version"]
            found.append(_case(f"{name} --version", "", words, trees.work, trees))
    return found


def change_cases(peers: Peers, trees: Trees) -> list[Case]:
    """The plan's diff put on and, where the tool can, looked at and taken off again."""
    diff = trees.work / "plan.diff"
    diff.write_text(trees.diffs())
    found: list[Case] = []
    for name, options in (("git", ["apply"]), ("patch", ["-p1", "-s", "-i"])):
        if name in peers.programs:
            place = trees.copy_files(f"tree-{name}", trees.files)
            words = [str(peers.programs[name]), *options, str(diff)]
            does = "the same diff on bare files; no package, version, state or sync"
            title = "git apply" if name == "git" else "GNU patch"
            case = _case(title, does, words, place, trees)
            case.after = trees.restore(place, trees.files)
            found.append(case)
    for name, add in (("p12y", _p12y), ("makepatch", _makepatch), ("socket-patch", _socket_patch)):
        if name in peers.programs:
            found += add(peers.programs[name], trees)
    return found


def _p12y(program: Path, trees: Trees) -> list[Case]:
    place = trees.copy_environment("tree-p12y")
    project = trees.work / "project-p12y"
    (project / "patches").mkdir(parents=True)
    for target, version in PAIR.items():
        (project / "patches" / f"{target}+{version}.patch").write_text(trees.diffs(target))
    words = [str(program), "apply", "-e", str(trees.work / "tree-p12y")]
    does = "asks `patch --dry-run`, then `patch`; no state, no sync, no revert"
    case = _case("p12y apply", does, words, project, trees)
    case.after = trees.restore(place, trees.files)
    return [case]


def _makepatch(program: Path, trees: Trees) -> list[Case]:
    """In an environment of its own, as ours is: it asks the interpreter of the target, too."""
    trees.copy_environment("tree-makepatch")
    project = trees.work / "project-makepatch"
    (project / "patches" / "packages").mkdir(parents=True)
    (project / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\n')
    for target, version in PAIR.items():
        (project / "patches/packages" / f"{target}@{version}.patch").write_text(trees.diffs(target))
    python = trees.work / "tree-makepatch" / "bin" / "python"
    words = [str(program), "--project", str(project), "pkg", "--python", str(python)]
    both = [f"{' '.join(words)} revert {target}" for target in PAIR]
    cases = (
        (
            "makepatch apply",
            "`git apply` in a copy, renames, RECORD rewritten; no sync",
            "apply",
        ),
        ("makepatch status", "compares a marker with the patch; no file is read", "status"),
    )
    found = [_case(n, does, [*words, verb], project, trees) for n, does, verb in cases]
    revert = ["/bin/sh", "-c", " && ".join(both)]
    found.append(
        _case("makepatch revert", "two commands: it takes one package", revert, project, trees)
    )
    return found


def _socket_patch(program: Path, trees: Trees) -> list[Case]:
    """Its manifest is made by hand: content before and after by git's kind of sha256."""
    # The console script would start a Python to start it.
    (binary,) = program.parents[1].glob("lib/*/site-packages/socket_patch/bin/socket-patch")
    place = trees.copy_environment("tree-socket")
    project = trees.work / "project-socket"
    blobs = project / ".socket" / "blobs"
    blobs.mkdir(parents=True)
    after = trees.copy_files("tree-after", trees.files)
    diff = trees.work / "plan.diff"
    subprocess.run(["git", "apply", str(diff)], cwd=after, check=True)
    patches: dict[str, dict[str, object]] = {}
    for number, (target, version) in enumerate(PAIR.items()):
        files = {}
        for entry in (f for f in trees.plan["files"] if f["target"] == target):
            path = entry["path"]
            pair = [(root / path).read_bytes() for root in (place, after)]
            names = [hashlib.sha256(b"blob %d\0" % len(data) + data).hexdigest() for data in pair]
            for name, data in zip(names, pair, strict=True):
                (blobs / name).write_bytes(data)
            files[path] = dict(zip(("beforeHash", "afterHash"), names, strict=True))
        patches[f"pkg:pypi/{target}@{version}"] = {
            "uuid": f"00000000-0000-4000-8000-00000000000{number}",
            "exportedAt": "2026-01-01T00:00:00Z", "files": files, "vulnerabilities": {},
            "description": "", "license": "", "tier": "free",
        }  # fmt: skip
    (project / ".socket" / "manifest.json").write_text(json.dumps({"patches": patches}))
    common = ["--offline", "--cwd", str(project)]
    cases = (
        (
            "socket-patch apply",
            "whole files by digest, synced; no versions, no history",
            ["apply", "--strict"],
        ),
        ("status", "`apply --dry-run`: every file hashed", ["apply", "--dry-run"]),
        ("rollback", "", ["rollback"]),
    )
    found = [
        _case(f"socket-patch {name}", does, [str(binary), *words, *common], project, trees)
        for name, does, words in cases
    ]
    for case in found:
        case.environ = {**case.environ, "VIRTUAL_ENV": str(trees.work / "tree-socket")}
    return found


def rewriter_cases(peers: Peers, trees: Trees) -> list[Case]:
    """The three edits of one Python file, by tools that know Python but nothing of packages."""
    place = trees.copy_files("tree-libcst", [GATE])
    words = [sys.executable, "-m", "libcst.tool", "codemod", "-x", "libcst_gate.GateCommand"]
    words += ["--no-format", "--hide-progress", "-j", "1", str(place / GATE)]
    case = _case("libcst.tool codemod", "the same three edits of one file", words, place, trees)
    case.environ = {**case.environ, "PYTHONPATH": str(ROOT / "benchmarks" / "speed")}
    case.after = trees.restore(place, [GATE])
    case.repeat = 2
    found = [case]
    if "ast-grep" in peers.programs:
        place = trees.copy_files("tree-ast-grep", [GATE])
        rules = str(ROOT / "benchmarks" / "speed" / "gate.yml")
        words = [str(peers.programs["ast-grep"]), "scan", "-r", rules, "-U", str(place / GATE)]
        found.append(
            _case("ast-grep scan", "the same three edits of one file", words, place, trees)
        )
        found[-1].after = trees.restore(place, [GATE])
    return found


def git_status_case(peers: Peers, trees: Trees) -> list[Case]:
    """`git status` of a repository that holds the same files, its index warm."""
    if "git" not in peers.programs:
        return []
    place = trees.copy_environment("tree-status")
    git = [str(peers.programs["git"]), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"], ["status"]):
        subprocess.run(
            [*git, *words], cwd=place, check=True, capture_output=True, env=trees.environ
        )
    does = "size and times of every file of the same packages"
    return [_case("git status", does, [*git, "status"], place, trees)]


def _case(name: str, does: str, words: list[str], cwd: Path, trees: Trees) -> Case:
    environ = {k: v for k, v in trees.environ.items() if k != "PYTHONPATH"}
    return Case(name, does, words, cwd, environ={**environ, "PATH": os.environ["PATH"]})
