"""Which untracked files the rules of a checkout ignore, without running git. Reads disk only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sm120patch.audit.gittree import Commit
from sm120patch.audit.tree import Tree

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


def not_ignored(tree: Tree, commit: Commit, paths: Iterable[str]) -> list[str]:
    """Return those of `paths` (below the import root) that no rule of the checkout ignores.

    The rules are those of `.gitignore` files and of `info/exclude`; the user's own do not count.
    """
    wanted = list(paths)
    if not wanted:
        return []
    rules = _Rules(tree, commit)
    return [path for path in wanted if not rules.ignores(path)]


class _Rules:
    def __init__(self, tree: Tree, commit: Commit) -> None:
        self._tree = tree
        self._commit = commit
        self._known: dict[str, GitIgnoreSpec | None] = {}

    def ignores(self, path: str) -> bool:
        offset = self._commit.offset
        inside = f"{offset}/{path}" if offset else path
        directory = inside
        while directory:
            directory = directory.rpartition("/")[0]
            decided = self._decide(directory, inside[len(directory) :].lstrip("/"))
            if decided is not None:
                return decided
        excluded = self._spec("\0", f"{self._commit.git_dir}/info/exclude")
        return excluded is not None and bool(excluded.check_file(inside).include)

    def _decide(self, directory: str, below: str) -> bool | None:
        place = f"{self._commit.work_tree}/{directory}".rstrip("/")
        spec = self._spec(directory, f"{place}/.gitignore")
        return None if spec is None else spec.check_file(below).include

    def _spec(self, key: str, file: str) -> GitIgnoreSpec | None:
        if key not in self._known:
            text = self._tree.text(file)
            self._known[key] = None
            if text.strip():
                from pathspec import GitIgnoreSpec

                try:
                    self._known[key] = GitIgnoreSpec.from_lines(text.splitlines())
                except ValueError:
                    self._known[key] = None  # A rule that is none hides nothing.
        return self._known[key]
