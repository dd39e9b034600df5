"""Search a file system for Python environments, breadth first and bounded. Reads disk only."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sm120patch.audit import places
from sm120patch.audit.findings import Skipped
from sm120patch.audit.mounts import KERNEL, NETWORK, Mount
from sm120patch.audit.places import Place
from sm120patch.audit.tree import Tree, kind_of
from sm120patch.model import IMPORT_NAMES

DIRECTORIES = 400_000
"""Directories that a search looks into at most; the rest is named as not looked at."""
DEPTH = 32
_SHOWN = 20
"""Places that are named one by one; of more the number is said."""

_NAMES = frozenset((".git", "__pycache__", "node_modules", ".snapshot", ".snapshots", "lost+found"))
"""Directories that hold no environment whatever is above them."""
_PLACES = frozenset((
    "/proc", "/sys", "/dev", "/boot", "/usr/share", "/usr/include", "/usr/bin",
    "/usr/sbin", "/usr/libexec", "/var/log", "/var/cache", "/var/spool", "/var/mail",
    "/var/lib/dpkg", "/var/lib/apt", "/var/lib/rpm", "/etc/ssl", "/etc/alternatives",
    "/lib/modules", "/usr/lib/modules", "/lib/firmware", "/usr/lib/firmware",
))  # fmt: skip
_ENGINES = {
    "/var/lib/docker": "container layers of Docker",
    "/var/lib/containerd": "container layers of containerd",
    "/var/lib/containers": "container layers of Podman",
    "/var/lib/kubelet": "volumes of Kubernetes",
    "/var/snap": "snaps",
    "/snap": "snaps",
}
"""Other file systems in directories: the same files many times. `--root` looks into one."""
_CACHES = (".cache/uv", ".cache/pip")
_CACHED = ("archive-v", "environments-v")
"""Directories in uv's cache that hold environments (of `uvx`, `uv run`) begin like this."""
_KERNEL_SOURCES = "/usr/src/linux"
_VENV = frozenset(("bin", "lib", "lib64", "include", "share", "etc", "man"))
"""What is in every virtual environment; what else is there somebody has put beside it."""
_PACKAGES = frozenset(IMPORT_NAMES.values())


class Limits(NamedTuple):
    """How far a search goes."""

    directories: int = DIRECTORIES
    depth: int = DEPTH
    network: bool = False
    """Look into network mounts too."""


@dataclass
class Search:
    """One search; iterate `places`, then read what else is known."""

    tree: Tree
    limits: Limits = field(default_factory=Limits)
    mounts: Mapping[str, Mount] = field(default_factory=dict)
    progress: Callable[[int, str], None] = lambda _count, _path: None
    directories: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    unfinished: list[Skipped] = field(default_factory=list)
    """Places that should have been looked into: what is in them is unknown."""
    installer_caches: list[str] = field(default_factory=list)
    """Directories of uv's cache that were met."""
    links: dict[str, list[str]] = field(default_factory=dict)
    """Real path of an environment -> links that lead to it."""

    def places(self, start: str = "/") -> Iterator[Place]:
        """Yield every environment below `start`, each once, as the search meets it."""
        queue: deque[tuple[str, int]] = deque([(start.rstrip("/") or "/", 0)])
        seen: set[str] = set()
        left = 0
        while queue:
            directory, depth = queue.popleft()
            if self.directories >= self.limits.directories:
                left = len(queue) + 1
                self.unfinished.append(
                    Skipped(directory, f"the search ended after {self.directories} directories,"
                            f" {left} were waiting; look there with a search of its own")
                )  # fmt: skip
                return
            self.directories += 1
            self.progress(self.directories, directory)
            for place in self._look(directory, depth, queue):
                if place.prefix not in seen:
                    seen.add(place.prefix)
                    yield place

    def _look(self, directory: str, depth: int, queue: deque[tuple[str, int]]) -> Iterator[Place]:
        try:
            entries = self._entries(directory)
        except OSError as error:
            self._missed(directory, error.strerror or str(error))
            return
        names = {name for name, _kind in entries}
        found = self._place(directory, names)
        if found is not None:
            yield found
        children = _children(directory, names, found)
        for name, kind in entries:
            path = f"{directory.rstrip('/')}/{name}"
            if kind == "l":
                yield from self._link(path)
            elif kind == "d" and (children is None or name in children):
                self._enqueue(path, name, depth, queue)

    def _entries(self, directory: str) -> list[tuple[str, str]]:
        # `Tree.entries` forgives errors; a search must not.
        fd = self.tree.open_directory(directory)
        try:
            with os.scandir(fd) as found:
                return sorted((e.name, kind_of(e)) for e in found)
        finally:
            os.close(fd)

    def _place(self, directory: str, names: set[str]) -> Place | None:
        if "pyvenv.cfg" in names or "conda-meta" in names:
            return places.of_prefix(self.tree, directory)
        if directory.rpartition("/")[2] in places.SITES:
            return places.of_site(self.tree, directory)
        if places.has_target(list(names)):
            return Place(directory, "directory", "", (directory,))
        if ".git" in names:
            return places.of_checkout(self.tree, directory)
        return None

    def _link(self, path: str) -> Iterator[Place]:
        """Name a link to an environment, and find the environment if nothing else leads to it."""
        # Not even a look at what lies behind a link may wait for a file server.
        if self._leads_to_network(path) or not self.tree.is_dir(path):
            return
        marks = ("pyvenv.cfg", "conda-meta")
        if any(self.tree.status(f"{path}/{mark}") is not None for mark in marks):
            real = self.tree.real(path)
            self.links.setdefault(real, []).append(path)
            place = places.of_prefix(self.tree, real)
            if place is not None:
                yield place

    def _leads_to_network(self, path: str) -> bool:
        if self.limits.network or not self._network:
            return False
        try:
            target = Path(self.tree.outside(path)).readlink()
        except OSError:
            return True
        above = path.rpartition("/")[0] or "/"
        leads = os.path.normpath(os.path.join(above, target))  # noqa: PTH118 - text only
        outside = self.tree.outside(leads)
        return any(outside == m or outside.startswith(f"{m}/") for m in self._network)

    @property
    def _network(self) -> list[str]:
        return [path for path, mount in self.mounts.items() if mount.kind in NETWORK]

    def _enqueue(self, path: str, name: str, depth: int, queue: deque[tuple[str, int]]) -> None:
        if name in _NAMES or path in _PLACES or path.startswith(_KERNEL_SOURCES):
            return
        if path.endswith(_CACHES):
            if path.endswith("/uv"):
                self.installer_caches.append(path)
                queue.extend((environment, depth + 1) for environment in self._cached(path))
            return
        mount = self.mounts.get(self.tree.outside(path))
        reason = _ENGINES.get(path) if self.tree.is_host else None
        if mount is not None and mount.kind in KERNEL:
            return
        if mount is not None and mount.kind in NETWORK and not self.limits.network:
            reason = f"a network mount ({mount.kind}); look into it with --network"
        if reason is not None:
            self.skipped.append(Skipped(path, reason))
        elif depth >= self.limits.depth:
            self._missed(path, f"deeper than {self.limits.depth} directories")
        else:
            queue.append((path, depth + 1))

    def _cached(self, cache: str) -> Iterator[str]:
        """Environments that uv keeps in its cache, beside the packages there."""
        for shelf in filter(lambda name: name.startswith(_CACHED), self.tree.names(cache)):
            for name, kind in self.tree.entries(f"{cache}/{shelf}"):
                place = f"{cache}/{shelf}/{name}"
                if kind == "d" and self.tree.is_file(f"{place}/pyvenv.cfg"):
                    yield place

    def _missed(self, path: str, reason: str) -> None:
        if len(self.unfinished) < _SHOWN:
            self.unfinished.append(Skipped(path, reason))
        elif len(self.unfinished) == _SHOWN:
            self.unfinished.append(Skipped("-", "and more places that were not looked into"))


def _children(directory: str, names: set[str], found: Place | None) -> set[str] | None:
    """Which directories to go on into; None: all of them."""
    if found is None:
        if directory in ("/usr/lib", "/usr/lib64"):
            return {name for name in names if name.startswith("python3")}
        if directory.rpartition("/")[2].startswith("python3") and "os.py" in names:
            return set(places.SITES)  # A standard library.
        return None
    if found.kind == "conda":
        return {"envs"}
    if found.kind == "directory" and directory.rpartition("/")[2] not in places.SITES:
        # Packages may have been put into any directory, beside anything.
        return {n for n in names if n not in _PACKAGES and not n.endswith("-info")}
    if found.kind in ("venv", "uv-tool", "pipx") and directory == found.prefix:
        return names - _VENV  # A whole project, or a home, may lie in its environment.
    return set() if found.kind != "checkout" else None


def ticking(
    say: Callable[[str], None], what: str, every: float = 1.0
) -> Callable[[int, str], None]:
    """Return a progress function that says something at most once in `every` seconds."""
    last = time.monotonic()

    def tick(count: int, path: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= every:
            last = now
            say(f"{what}: {count} so far, now {path}")

    return tick
