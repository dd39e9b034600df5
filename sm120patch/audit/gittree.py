"""Read the commit that a checkout is at, file by file, without running git. Reads disk only.

The configuration of somebody's repository can make git run programs (filters, monitors, helpers of
partial clones), so git is not asked: the object database is read with gitdb.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sm120patch.audit.tree import Tree

if TYPE_CHECKING:
    from gitdb.db.base import CompoundDB

_DEPTH = 64
_HEX = re.compile(r"[0-9a-f]{40}")


class Commit(NamedTuple):
    """What HEAD of a checkout holds below an import root."""

    work_tree: str
    git_dir: str
    commit: str
    offset: str
    """Import root relative to the work tree; empty when they are the same."""
    blobs: Mapping[str, bytes]
    """Path below the import root -> name of its blob (20 bytes); links and submodules left out."""
    links: Mapping[str, bytes]
    """The same for symbolic links."""

    @property
    def origin(self) -> str:
        """In words."""
        return f"git commit {self.commit} of {self.work_tree}"


def read_commit(tree: Tree, root: str, package: str) -> Commit | str:
    """Read HEAD's files of `root`/`package`; in words why that cannot be done."""
    try:
        found = _find(tree, tree.real(root))
    except OSError as error:
        return f"{root}: {error.strerror}"
    if found is None:
        return f"{root} is in no git work tree, so nobody knows what upstream shipped"
    work_tree, git_dir = found
    common = _common(tree, git_dir)
    commit = _head(tree, git_dir, common)
    if commit is None:
        return f"{git_dir}: HEAD names no commit that can be read"
    objects = f"{common}/objects"
    if problem := _unsafe(tree, objects):
        return problem
    offset = tree.real(root)[len(work_tree.rstrip("/")) :].strip("/")
    blobs: dict[str, bytes] = {}
    links: dict[str, bytes] = {}
    try:
        database = _database(tree, objects)
        top = _tree_of(database, commit)
        for part in [*offset.split("/"), package] if offset else [package]:
            top = _below(database, top, part)
        for path, mode, name in _walk(database, top, package, 0):
            if mode & 0o170000 == 0o100000:
                blobs[path] = name
            elif mode & 0o170000 == 0o120000:
                links[path] = name
    except Exception as error:  # gitdb meets damage with exceptions of every kind
        return f"{git_dir} cannot be read at {commit[:12]}: {type(error).__name__}: {error}"
    return Commit(work_tree, git_dir, commit, offset, blobs, links)


def read_blob(tree: Tree, commit: Commit, name: bytes, limit: int = 16 << 20) -> bytes | None:
    """Content of a blob; None when it cannot be read or is larger than `limit` bytes."""
    try:
        stream = _database(tree, f"{_common(tree, commit.git_dir)}/objects").stream(name)
        return None if stream.size > limit else bytes(stream.read())
    except Exception:  # as above
        return None


def _find(tree: Tree, root: str) -> tuple[str, str] | None:
    """Work tree and git directory that `root` lies in."""
    directory = root
    for _ in range(_DEPTH):
        mark = f"{directory.rstrip('/')}/.git"
        if tree.is_dir(mark):
            return directory, tree.real(mark)
        text = tree.text(mark)
        if text.startswith("gitdir:"):
            target = text.partition(":")[2].strip()
            git_dir = target if target.startswith("/") else f"{directory}/{target}"
            return (directory, tree.real(git_dir)) if tree.is_dir(git_dir) else None
        if directory in ("", "/"):
            return None
        directory = directory.rpartition("/")[0] or "/"
    return None


def _common(tree: Tree, git_dir: str) -> str:
    """Directory with objects and branches: a linked work tree shares those of the main one."""
    text = tree.text(f"{git_dir}/commondir").strip()
    if not text:
        return git_dir
    common = text if text.startswith("/") else f"{git_dir}/{text}"
    return tree.real(common) if tree.is_dir(common) else git_dir


def _head(tree: Tree, git_dir: str, common: str) -> str | None:
    text = tree.text(f"{git_dir}/HEAD").strip()
    for _ in range(5):
        if _HEX.fullmatch(text):
            return text
        if not text.startswith("ref:"):
            return None
        name = text.partition(":")[2].strip()
        if not name.startswith("refs/") or ".." in name.split("/"):
            return None
        loose = tree.text(f"{git_dir}/{name}") or tree.text(f"{common}/{name}")
        text = loose.strip() or _packed(tree, common, name)
    return None


def _packed(tree: Tree, common: str, name: str) -> str:
    for line in tree.text(f"{common}/packed-refs", 64 << 20).splitlines():
        value, _, ref = line.partition(" ")
        if ref == name:
            return value
    return ""


def _unsafe(tree: Tree, objects: str) -> str | None:
    """Say why the object database must not be read with plain paths; it may not lead outside."""
    if tree.is_host:
        return None
    try:
        place = tree.outside(tree.real(objects))
        for directory in (place, f"{place}/pack", *_fans(place)):
            with os.scandir(directory) as entries:
                if any(entry.is_symlink() for entry in entries):
                    return f"{objects} holds symbolic links, which are not followed here"
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{objects}: {error.strerror}"
    if tree.text(f"{objects}/info/alternates").strip():
        return f"{objects} borrows objects from elsewhere, which is not followed here"
    return None


def _fans(place: str) -> Iterator[str]:
    with os.scandir(place) as entries:
        yield from [e.path for e in entries if len(e.name) == 2 and e.is_dir(follow_symlinks=False)]


def _database(tree: Tree, objects: str) -> "CompoundDB":
    from gitdb import GitDB

    return GitDB(tree.outside(tree.real(objects)))


def _tree_of(database: "CompoundDB", commit: str) -> bytes:
    data = _object(database, bytes.fromhex(commit), b"commit")
    found = re.match(rb"tree ([0-9a-f]{40})\n", data)
    if found is None:
        raise ValueError("a commit without a tree")
    return bytes.fromhex(found[1].decode())


def _below(database: "CompoundDB", name: bytes, wanted: str) -> bytes:
    for entry, mode, child in _entries(_object(database, name, b"tree")):
        if entry == wanted and mode & 0o170000 == 0o040000:
            return child
    raise ValueError(f"HEAD has no directory {wanted}")


def _walk(
    database: "CompoundDB", name: bytes, path: str, depth: int
) -> Iterator[tuple[str, int, bytes]]:
    if depth > _DEPTH:
        raise ValueError("directories are nested too deep")
    for entry, mode, child in _entries(_object(database, name, b"tree")):
        if mode & 0o170000 == 0o040000:
            yield from _walk(database, child, f"{path}/{entry}", depth + 1)
        else:
            yield f"{path}/{entry}", mode, child


def _object(database: Any, name: bytes, kind: bytes) -> bytes:
    stream = database.stream(name)
    if stream.type != kind:
        raise ValueError(f"{name.hex()} is no {kind.decode()}")
    return bytes(stream.read())


def _entries(data: bytes) -> Iterator[tuple[str, int, bytes]]:
    position = 0
    while position < len(data):
        space = data.index(b" ", position)
        end = data.index(b"\0", space)
        name = os.fsdecode(data[space + 1 : end])
        if name in ("", ".", "..") or "/" in name:
            raise ValueError("a tree with an impossible name")
        yield name, int(data[position:space], 8), data[end + 1 : end + 21]
        position = end + 21
