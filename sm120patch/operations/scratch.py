"""Scratch repositories of authors: upstream's files as one commit, and what was edited since.

Writes below the scratch directory only. The state that finds a scratch again is a file in its
`.git`, so that it goes where the scratch goes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from sm120patch.authoring.draft import Edited
from sm120patch.catalogue import MAX_PAYLOAD
from sm120patch.disk import write_file
from sm120patch.errors import HostError, UsageError
from sm120patch.manifest.changes import ADDED
from sm120patch.model import IMPORT_NAMES

if TYPE_CHECKING:
    from git import Repo

_STATE = "sm120patch.json"
_SCHEMA = 1
_LITTER = ("__pycache__", ".ruff_cache", ".mypy_cache", ".pytest_cache")
_LITTER_ENDS = (".pyc", "~", ".swp", ".orig", ".rej")


@dataclass(frozen=True)
class Scratch:
    """What a scratch repository is for, and the commit that holds upstream's files."""

    set_id: str
    target: str
    version: str
    source: str
    """Where the files came from, in words."""
    title: str
    capabilities: tuple[str, ...]
    commit: str


@dataclass(frozen=True)
class Edits:
    """What differs from upstream."""

    changed: tuple[Edited, ...]
    refused: tuple[str, ...]
    """What a patch set cannot hold, one reason for each file."""


def create(
    directory: Path, files: Iterable[tuple[str, bytes]], about: Scratch, *, force: bool
) -> Scratch:
    """Lay upstream's files down in a new git repository, committed; return it with its commit.

    Raises UsageError when the directory holds something; `force` replaces an earlier scratch, and
    nothing else.
    """
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        raise UsageError(f"{directory} exists and is no directory", hint="name another --scratch")
    ours = force and (directory / ".git" / _STATE).is_file()
    if directory.exists() and any(directory.iterdir()) and not ours:
        raise UsageError(
            f"{directory} is not empty",
            hint="name another --scratch; --force replaces an earlier scratch",
            code="exists",
        )
    # Built beside its place: an earlier scratch goes only once there is another.
    fresh = directory.with_name(f".{directory.name}.{os.getpid()}")
    try:
        made = _build(fresh, files, about)
        if directory.exists():
            shutil.rmtree(directory)
        fresh.rename(directory)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return made


def _build(directory: Path, files: Iterable[tuple[str, bytes]], about: Scratch) -> Scratch:
    directory.mkdir(parents=True)
    for path, data in files:
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    with _git(directory, init=True) as repo:
        # Bytes are kept as they are, whatever attributes the package or its author has.
        info = Path(repo.git_dir) / "info"
        info.mkdir(exist_ok=True)
        (info / "attributes").write_text("* -text -filter -ident -working-tree-encoding\n")
        repo.git.add("--all", "--force")
        commit = _commit(repo, f"{about.target} {about.version} as published")
    made = Scratch(**{**asdict(about), "commit": commit})
    state = {"schema": _SCHEMA, **asdict(made)}
    write_file(directory / ".git" / _STATE, json.dumps(state, indent=2).encode())
    return made


def _commit(repo: Repo, message: str) -> str:
    from git import Actor

    author = Actor("sm120patch", "sm120patch@localhost")
    return repo.index.commit(message, author=author, committer=author, skip_hooks=True).hexsha


def read(directory: Path) -> Scratch:
    """Read what a scratch repository is for. Raises UsageError when it is none."""
    file = directory / ".git" / _STATE
    try:
        state: dict[str, Any] = json.loads(file.read_bytes())
        texts = {n: state[n] for n in Scratch.__dataclass_fields__ if n != "capabilities"}
        if state["schema"] != _SCHEMA or not all(isinstance(t, str) for t in texts.values()):
            raise ValueError("not of this version")
        return Scratch(**texts, capabilities=tuple(map(str, state["capabilities"])))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{directory} is no scratch of `sm120patch new`: {file}: {error}",
            hint="start one with `sm120patch new SET --target DIST`, or name it with --scratch",
            code="no-scratch",
        ) from error


def edits(directory: Path, about: Scratch) -> Edits:
    """Compare the work tree, committed or not, with upstream's files. Raises HostError."""
    changed: list[Edited] = []
    refused: list[str] = []
    with _git(directory) as repo:
        for status, path in _differing(repo, about.commit):
            place = directory / path
            if status == "D":
                refused.append(f"{path}: deleted, and a set cannot delete a file")
            elif status == "A":
                shipped = _has_directory(repo, about.commit, path)
                after = _addition(place, f"{IMPORT_NAMES[about.target]}/", path, shipped)
                if isinstance(after, bytes):
                    changed.append(Edited(path, None, after))
                else:
                    refused.append(f"{path}: a new file, and {after}")
            elif status != "M" or place.is_symlink() or not place.is_file():
                refused.append(f"{path}: no longer a regular file")
            else:
                before = (repo.commit(about.commit).tree / path).data_stream.read()
                after = place.read_bytes()
                if before == after:
                    refused.append(f"{path}: its mode changed, and a set changes contents only")
                elif b"\0" in before or b"\0" in after:
                    refused.append(f"{path}: a binary file, and a set changes text only")
                else:
                    changed.append(Edited(path, before, after))
    return Edits(tuple(changed), tuple(refused))


def _has_directory(repo: Repo, commit: str, path: str) -> bool:
    try:
        return bool(repo.commit(commit).tree / str(PurePosixPath(path).parent))
    except KeyError:
        return False


def _addition(place: Path, package: str, path: str, shipped: bool) -> bytes | str:
    """Content of a file that a set can add, or why it cannot."""
    if not path.startswith(package):
        return f"a set adds files below {package} only"
    if not shipped:
        return "its directory is not upstream's"
    if not path.endswith(ADDED):
        return f"a set adds {' and '.join(ADDED)} only"
    if place.is_symlink() or not place.is_file():
        return "it is no regular file"
    data = place.read_bytes()
    if len(data) > MAX_PAYLOAD:
        return f"it has {len(data)} bytes; a payload has at most {MAX_PAYLOAD}"
    return data


def _differing(repo: Repo, commit: str) -> Iterator[tuple[str, str]]:
    """Yield status letter and path of everything that differs from the commit."""
    repo.git.update_environment(GIT_OPTIONAL_LOCKS="0")
    output = _raw(repo, "diff", "--name-status", "-z", "--no-renames", "--no-ext-diff", commit)
    words = output.split("\0")
    yield from zip(words[::2], words[1::2], strict=False)
    for path in _raw(repo, "ls-files", "--others", "-z").split("\0"):
        parts = path.split("/")
        if path and not path.endswith(_LITTER_ENDS) and not set(parts) & set(_LITTER):
            yield "A", path


def _raw(repo: Repo, *words: str) -> str:
    output = repo.git.execute(["git", "--literal-pathspecs", *words], stdout_as_string=False)
    assert isinstance(output, bytes)
    return os.fsdecode(output)


@contextmanager
def _git(directory: Path, *, init: bool = False) -> Iterator[Repo]:
    """Open the repository at `directory`; GIT_DIR and its like do not lead elsewhere."""
    try:
        from git import GitError, Repo
    except ImportError as error:
        raise HostError("git is not installed on this host", hint="install git") from error
    leading = [n for n in os.environ if n in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")]
    if leading:
        raise HostError(f"{', '.join(leading)} is set", hint="unset it, then repeat")
    try:
        with Repo.init(directory) if init else Repo(directory) as repo:
            yield repo
    except (GitError, ValueError, OSError) as error:
        raise HostError(f"git cannot work in {directory}: {str(error).strip()}") from error
