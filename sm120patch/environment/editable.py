"""What git knows about an editable checkout: commit, dirty files, pristine bytes. Reads disk only.

GitPython is imported inside the functions: most environments hold wheels and never need it.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sm120patch.environment.records import Difference, safe_relative
from sm120patch.errors import HostError

if TYPE_CHECKING:
    from git import Repo


class Checkout(NamedTuple):
    """A git work tree that an import root lies in."""

    work_tree: Path
    git_dir: Path
    """Directory of this work tree's own git data (a linked work tree has its own)."""
    commit: str
    """Full hash of HEAD."""
    offset: str
    """Import root relative to the work tree: `python`, or empty when they are the same."""

    def in_tree(self, path: str) -> str:
        """Translate a path below the import root into one below the work tree."""
        return f"{self.offset}/{path}" if self.offset else path


class NoCheckout(NamedTuple):
    """Git cannot say what upstream shipped here, and why."""

    reason: str


def find_checkout(root: Path) -> Checkout | NoCheckout:
    """Find the git work tree that contains the import root."""
    try:
        with _repository(root) as repo:
            if repo.working_tree_dir is None:
                return NoCheckout(f"{repo.git_dir} is a bare repository")
            # Asked first and by itself: git's own words, where it refuses, come back only this way.
            # A refusal met while an object is read may show as a broken pipe instead.
            repo.git.rev_parse("--git-dir")
            work_tree = Path(repo.working_tree_dir)
            offset = os.path.relpath(os.path.realpath(root), os.path.realpath(work_tree))
            return Checkout(
                work_tree=work_tree,
                git_dir=Path(repo.git_dir),
                commit=repo.head.commit.hexsha,
                offset="" if offset == "." else offset,
            )
    except _GitError as error:
        return NoCheckout(str(error))


def blobs(checkout: Checkout, paths: Iterable[str]) -> Mapping[str, bytes]:
    """Bytes of regular files at HEAD, by path below the import root; unknown paths are left out.

    Raises HostError when git fails.
    """
    found: dict[str, bytes] = {}
    with _repository(checkout.work_tree) as repo:
        tree = repo.commit(checkout.commit).tree
        for path in paths:
            if not safe_relative(path):
                continue
            try:
                entry = tree / checkout.in_tree(path)
            except KeyError:
                continue
            if entry.type == "blob" and entry.mode & 0o170000 == 0o100000:
                found[path] = entry.data_stream.read()
    return found


def dirty_files(checkout: Checkout, package: str) -> tuple[Difference, ...]:
    """Files of the package that differ from HEAD: `changed`, `missing` or `added`.

    Ignored files are left out. The git index is not written. Raises HostError when git fails.
    """
    with _repository(checkout.work_tree) as repo:
        repo.git.update_environment(GIT_OPTIONAL_LOCKS="0")
        output = repo.git.execute(
            ["git", "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all",
             "--", checkout.in_tree(package)],
            stdout_as_string=False,
        )  # fmt: skip
    assert isinstance(output, bytes)
    return tuple(sorted(_parse(output, checkout.offset), key=lambda item: item.path))


def _parse(output: bytes, offset: str) -> Iterator[Difference]:
    strip = len(offset) + 1 if offset else 0
    for entry in output.split(b"\0"):
        if len(entry) > 3:
            status, path = entry[:2].decode("ascii", "replace"), os.fsdecode(entry[3:])
            kind = "missing" if "D" in status else "added" if status == "??" else "changed"
            yield Difference(path[strip:], kind)


class _GitError(HostError):
    """Git or the repository cannot be used; the text says why."""


@contextmanager
def _repository(path: Path) -> "Iterator[Repo]":
    try:
        # Without the git command this import itself fails.
        from git import GitCommandError, InvalidGitRepositoryError, NoSuchPathError, Repo
    except ImportError as error:
        raise _GitError("git is not installed on this host") from error
    try:
        with Repo(path, search_parent_directories=True) as repo:
            yield repo
    except (InvalidGitRepositoryError, NoSuchPathError) as error:
        raise _GitError(f"{path} is not in a git work tree") from error
    except GitCommandError as error:
        raise _GitError(f"git refused to read {path}: {_first_line(error.stderr)}") from error
    except (ValueError, OSError) as error:
        # An unborn HEAD and missing or damaged objects arrive as ValueError.
        raise _GitError(f"git cannot read {path}: {_first_line(str(error))}") from error


def _first_line(text: str) -> str:
    lines = [line.strip(" '") for line in text.splitlines() if line.strip(" '")]
    return lines[0] if lines else "no message"
