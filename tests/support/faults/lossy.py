"""Every disk that a power failure may leave: what was not synced may be lost, in part or whole.

A trace is replayed over a model of the tree. A change of a directory survives once every directory
that it touches was synced after it; bytes, mode and time of a file survive once the file was. Of
the rest a crash keeps nothing, everything, a beginning, or any selection. A rename is atomic.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.faults.seam import Call


@dataclass
class Data:
    """Bytes, mode and time of a file at one moment."""

    content: bytes = b""
    mode: int = 0o600
    mtime_ns: int | None = None


@dataclass(eq=False)
class File:
    now: Data
    durable: Data
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    """Writes since the last sync."""
    resized: bool = False

    def write(self, offset: int, data: bytes) -> None:
        self.now.content = _patched(self.now.content, offset, data)
        self.writes.append((offset, data))

    def sync(self) -> None:
        self.durable = Data(self.now.content, self.now.mode, self.now.mtime_ns)
        self.writes, self.resized = [], False

    def torn(self, chance: random.Random) -> Data:
        """Some of the writes that were not synced, in no order."""
        if self.resized:
            return chance.choice([self.now, self.durable])
        content = self.durable.content
        for offset, data in self.writes:
            if chance.random() < 0.5:
                content = _patched(content, offset, data)
        return Data(content, chance.choice([self.now, self.durable]).mode, self.now.mtime_ns)


def _patched(content: bytes, offset: int, data: bytes) -> bytes:
    padded = content.ljust(offset, b"\0")
    return padded[:offset] + data + padded[offset + len(data) :]


@dataclass(eq=False)
class Link:
    target: str


@dataclass(eq=False)
class Directory:
    entries: dict[str, Node] = field(default_factory=dict)
    mode: int = 0o755


Node = File | Link | Directory


@dataclass
class Change:
    """One operation on names; the disk has all of it or nothing."""

    edits: tuple[tuple[Directory, str, Node | None], ...]
    unsynced: set[int]
    """Directories (by id) that were not synced since."""


class Disk:
    """The roots as they are, replayed call by call."""

    def __init__(self, *roots: Path) -> None:
        self._inodes: dict[int, Node] = {}
        self._roots = {root: self._load(root) for root in roots}
        self._base = {id(d): dict(d.entries) for d in self._directories()}
        self._changes: list[Change] = []
        self._kept: list[Node] = []

    def _load(self, path: Path) -> Directory:
        made = Directory(mode=path.stat().st_mode & 0o7777)
        self._inodes[path.stat().st_ino] = made
        for entry in path.iterdir():
            status = entry.lstat()
            if entry.is_symlink():
                made.entries[entry.name] = Link(str(entry.readlink()))
            elif entry.is_dir():
                made.entries[entry.name] = self._load(entry)
            else:
                data = (entry.read_bytes(), status.st_mode & 0o7777, status.st_mtime_ns)
                known = self._inodes.get(status.st_ino)
                file = known if isinstance(known, File) else File(Data(*data), Data(*data))
                self._inodes[status.st_ino] = made.entries[entry.name] = file
        return made

    def _directories(self) -> Iterator[Directory]:
        waiting: list[Directory] = list(self._roots.values())
        while waiting:
            one = waiting.pop()
            yield one
            waiting += [n for n in one.entries.values() if isinstance(n, Directory)]

    def _at(self, path: str) -> tuple[Directory, str]:
        for root, directory in self._roots.items():
            if path.startswith(f"{root}/"):
                *parents, name = path[len(str(root)) + 1 :].split("/")
                for part in parents:
                    inner = directory.entries[part]
                    assert isinstance(inner, Directory), path
                    directory = inner
                return directory, name
        raise AssertionError(f"{path} is outside")

    def _node(self, path: str) -> Node:
        for root, directory in self._roots.items():
            if path == str(root):
                return directory
        directory, name = self._at(path)
        return directory.entries[name]

    def _edit(self, *edits: tuple[str, Node | None]) -> None:
        places = []
        for path, node in edits:
            directory, name = self._at(path)
            places.append((directory, name, node))
            if node is None:
                self._kept.append(directory.entries.pop(name))
            else:
                directory.entries[name] = node
        self._changes.append(Change(tuple(places), {id(d) for d, _, _ in places}))

    def replay(self, call: Call) -> None:
        """Let one call happen."""
        if call.path.endswith(" (deleted)"):  # a file that never had a name
            return
        if call.op == "create":
            file = File(Data(mode=call.value & ~0o022), Data(mode=call.value & ~0o022))
            self._inodes[call.inode] = file
            self._edit((call.path, file))
        elif call.op == "mkdir":
            made = Directory(mode=call.value & ~0o022)
            self._inodes[call.inode] = made
            self._base[id(made)] = {}
            self._kept.append(made)
            self._edit((call.path, made))
        elif call.op in ("unlink", "rmdir"):
            self._edit((call.path, None))
        elif call.op == "rename":
            node = self._node(call.path)
            self._edit((call.path, None), (call.other, node))
        elif call.op == "link":
            self._edit((call.other, self._node(call.path)))
        elif call.op != "killed-before":
            self._replay_data(call)

    def _replay_data(self, call: Call) -> None:
        node = self._inodes.get(call.inode)
        if isinstance(node, Directory):
            if call.op == "fsync":
                for change in self._changes:
                    change.unsynced.discard(id(node))
            return
        assert isinstance(node, File), call
        if call.op == "write":
            node.write(call.value, call.data)
        elif call.op == "truncate":
            node.now.content = node.now.content.ljust(call.value, b"\0")[: call.value]
            node.resized = True
        elif call.op == "chmod":
            node.now.mode = call.value
        elif call.op == "utime":
            node.now.mtime_ns = int(call.other)
        elif call.op == "fsync":
            node.sync()

    def crashes(self, chance: random.Random, selections: int) -> Iterator[Image]:
        """Disks that a power failure at this moment may leave."""
        pending = [c for c in self._changes if c.unsynced]
        for length in range(len(pending) + 1):
            yield self._image(pending[:length], None)
        yield self._image(pending, chance, everything=True)
        yield self._image([], chance, everything=True)
        for _ in range(selections):
            yield self._image([c for c in pending if chance.random() < 0.5], chance)

    def _image(
        self, kept: Sequence[Change], chance: random.Random | None, everything: bool = False
    ) -> Image:
        chosen = {id(c) for c in kept}
        entries = {key: dict(base) for key, base in self._base.items()}
        for change in self._changes:
            if change.unsynced and id(change) not in chosen:
                continue
            for directory, name, node in change.edits:
                if node is None:
                    entries[id(directory)].pop(name, None)
                else:
                    entries[id(directory)][name] = node
        data: dict[int, Data] = {}

        def frozen(node: Node) -> object:
            if isinstance(node, Directory):
                return {n: frozen(x) for n, x in sorted(entries[id(node)].items())}
            if isinstance(node, Link):
                return node.target
            if id(node) not in data:
                shown = node.durable if chance is None else node.torn(chance)
                data[id(node)] = node.now if everything else shown
            return id(node)

        tree = {str(root): frozen(node) for root, node in self._roots.items()}
        return Image(tree, {k: Data(d.content, d.mode, d.mtime_ns) for k, d in data.items()})


@dataclass(frozen=True)
class Image:
    """A tree of names, and what the files hold."""

    tree: dict[str, object]
    data: dict[int, Data]

    @property
    def digest(self) -> str:
        """Equal for equal disks; times that nobody set do not count."""

        def shown(value: object) -> object:
            if isinstance(value, dict):
                return {name: shown(inner) for name, inner in value.items()}
            return repr(self.data[value]) if isinstance(value, int) else value

        return repr(shown(self.tree))

    def lay_down(self) -> None:
        """Put the real directories into this state."""
        made: dict[int, Path] = {}
        for root, tree in self.tree.items():
            shutil.rmtree(root)
            assert isinstance(tree, dict)
            self._lay(Path(root), tree, made)

    def _lay(self, path: Path, tree: dict[str, object], made: dict[int, Path]) -> None:
        path.mkdir()
        for name, inner in tree.items():
            place = path / name
            if isinstance(inner, dict):
                self._lay(place, inner, made)
            elif isinstance(inner, str):
                place.symlink_to(inner)
            elif isinstance(inner, int):
                if inner in made:
                    place.hardlink_to(made[inner])
                    continue
                data = self.data[inner]
                place.write_bytes(data.content)
                place.chmod(data.mode)
                if data.mtime_ns is not None:
                    os.utime(place, ns=(data.mtime_ns, data.mtime_ns))
                made[inner] = place
