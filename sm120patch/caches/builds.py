"""Names and looks of cached builds: which is live, which are put away, under which key.

Reads disk only. The meaning of keys, markers and the shelf is told in `shelf`.
"""

import contextlib
import errno
import json
import os
import re
from collections.abc import Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from sm120patch.errors import HostError
from sm120patch.model import digest_of

MARKER = ".sm120patch-build.json"
TVM_LOCK = "lock"
OURS = {MARKER, f"{MARKER}.new"}
SHELF = ".sm120patch"
LOCKS = "locks"
"""Directory on a shelf with locks of ours, where a builder has none."""
COPY = ".copy-"
"""Begin of the name of a copy that is being made; one that a kill left can go."""
UNOWNED = "unowned"
PRISTINE = "pristine"

_COMPONENT = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+~=-]{0,254}")


class Kind(str, Enum):
    """Whose cache a build stands in; decides the layout, the lock and what may be copied."""

    FLASHINFER = "flashinfer"
    SGLANG = "sglang-jit"
    """SGLang's own kernels, built by tvm-ffi: one directory a module, right below the cache."""
    AUTOTUNE = "autotune"
    """Tactics that FlashInfer measured for SGLang: one directory a FlashInfer version."""


class Entry(NamedTuple):
    """A module of one workspace that depends on changed files."""

    workspace: Path
    """`.../.cache/flashinfer`, or the directory of another kind of cache; a real path."""
    version: str
    """FlashInfer's own `__version__`, which names the directory; empty in other caches."""
    arch: str
    """Directory of the architectures; empty in other caches."""
    module: str
    root: Path
    """Import root of the installation whose files changed."""
    paths: tuple[str, ...]
    """Changed files (below `root`) that it depends on, sorted."""
    reason: str
    built_from: str | None = None
    """A file of another installation that the live build was made from, if one was seen."""
    kind: Kind = Kind.FLASHINFER
    roots: tuple[tuple[str, Path], ...] = ()
    """Import root of each package, where `paths` lie below several."""

    def file(self, path: str) -> Path:
        """Where one of `paths` is."""
        return dict(self.roots).get(path.partition("/")[0], self.root) / path

    @property
    def cached_ops(self) -> Path:
        """Directory that holds the live builds and, in FlashInfer's `tmp`, their locks."""
        if self.kind is not Kind.FLASHINFER:
            return self.workspace
        return self.workspace / self.version / self.arch / "cached_ops"

    @property
    def live(self) -> Path:
        """The build that is used."""
        return self.cached_ops / self.module

    @property
    def lock(self) -> Path:
        """File that whoever builds the module holds a `flock` of."""
        if self.kind is Kind.FLASHINFER:
            return self.cached_ops / "tmp" / f"{self.module}.lock"
        if self.kind is Kind.SGLANG:
            return self.live / TVM_LOCK
        return self.workspace / SHELF / LOCKS / f"{self.module}.lock"

    def slot(self, key: str) -> Path:
        """Where the build of content `key` stands while another one is live."""
        return self.workspace.joinpath(SHELF, key, *self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """What names the build below a workspace or a shelf, from the outside in."""
        return tuple(name for name in (self.version, self.arch, self.module) if name)


class Move(NamedTuple):
    """A directory that was renamed, or would be."""

    source: Path
    destination: Path


class Build(NamedTuple):
    """What a directory holds: nothing, our marker only, or a build."""

    built: bool
    owner: str | None
    """Key in its marker, None without one."""
    seeded: bool = False
    """It began as our copy of another content's build; ninja has to renew a part of it."""
    inputs: str = ""
    """Identity of everything else that it was built from (see `freshness.identity`)."""


NOTHING = Build(False, None)


def plain_name(text: str) -> bool:
    """Tell whether a key, version, arch or module name is one harmless path component."""
    return _COMPONENT.fullmatch(text) is not None


def build_key(entry: Entry, patched: Mapping[str, str]) -> str:
    """Key of the build that goes with a content.

    `patched` maps every file that does not hold upstream's bytes (path below the import root) to
    its sha256. Only those the module depends on count, so that a change elsewhere keeps its build.
    """
    concerned = {path: patched[path] for path in entry.paths if path in patched}
    return digest_of(concerned)[:32] if concerned else PRISTINE


def inspect(directory: Path, entry: Entry) -> Build:
    """Look at a live or stored directory of the entry. A symbolic link is a HostError."""
    try:
        names = {child.name for child in directory.iterdir()}
    except FileNotFoundError:
        return NOTHING
    except OSError as error:
        raise refused("read", directory, error) from error
    if directory.is_symlink():
        raise HostError(
            f"{directory} is a symbolic link; builds are moved by rename within one file system",
            hint="link the whole workspace (~/.cache/flashinfer) instead of a part of it",
        )
    marker = read_marker(directory) if MARKER in names else {}
    owner = marker.get("key")
    known = isinstance(owner, str) and plain_name(owner) and marker.get("module") == entry.module
    ignored = {*OURS, TVM_LOCK} if entry.kind is Kind.SGLANG else OURS
    inputs = marker.get("inputs")
    return Build(
        built=bool(names - ignored),
        owner=str(owner) if known else None,
        seeded=known and marker.get("seeded") is True,
        inputs=inputs if isinstance(inputs, str) else "",
    )


def stored(entry: Entry, key: str) -> bool:
    """Tell whether the shelf holds a build of that content."""
    found = inspect(entry.slot(key), entry)
    return found.built and found.owner == key


def label_of(live: Build, key: str, trusted: Collection[str]) -> str | None:
    """Key under which `park` puts the live build away; None when there is no build.

    Without a marker it is the content on disk, `key`. A marker that names another content is
    believed only if `trusted`: the build may have been redone since.
    """
    if not live.built:
        return None
    owner = live.owner or key
    return owner if owner == key or owner in trusted else UNOWNED


def settled(live: Build, from_key: str, to_key: str) -> bool:
    """The live build is that of `to_key` already: a swap was done before, or nothing changes."""
    return live.built and (live.owner or from_key) == to_key


def pending_moves(
    entry: Entry, from_key: str, to_key: str, trusted: Collection[str] = ()
) -> tuple[Move, ...]:
    """Moves that `swap` would make now; nothing is touched."""
    live = inspect(entry.live, entry)
    if settled(live, from_key, to_key):
        return ()
    label = label_of(live, from_key, trusted)
    moves = [] if label is None else [Move(entry.live, free_slot(entry, label))]
    if stored(entry, to_key):
        moves.append(Move(entry.slot(to_key), entry.live))
    return tuple(moves)


def directories_in(parent: Path, problems: list[str]) -> list[Path]:
    """Real sub-directories with harmless names, sorted; a link that could lead out is a problem."""
    if parent.is_symlink():
        problems.append(f"{parent} is a symbolic link and was not followed")
        return []
    try:
        with os.scandir(parent) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        problems.append(f"cannot read {parent}: {error.strerror}")
        return []
    found = []
    for entry in entries:
        if entry.is_symlink():
            if entry.is_dir():
                problems.append(f"{entry.path} is a symbolic link and was not followed")
        elif entry.is_dir() and plain_name(entry.name):
            found.append(Path(entry.path))
    return found


def size_of(directory: Path) -> int:
    """Bytes on disk below a directory; links are not followed, what cannot be read is left out."""
    total, pending = 0, [directory]
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as scan:
            for child in scan:
                total += child.stat(follow_symlinks=False).st_blocks * 512
                if child.is_dir(follow_symlinks=False):
                    pending.append(Path(child.path))
    return total


def free_slot(entry: Entry, key: str) -> Path:
    """Slot of `key`, or the first numbered one beside it: nothing on the shelf is overwritten."""
    slot = entry.slot(key)
    number = 0
    while os.path.lexists(slot):
        number += 1
        slot = slot.with_name(f"{entry.module}~{number}")
    return slot


def kept_mtimes(entry: Entry, key: str) -> Mapping[str, int]:
    """Modification times (ns) that the files had when the build of `key` was put away.

    Written again with these times, the files find that build up to date: ninja compares times.
    """
    found = read_marker(entry.slot(key)).get("mtimes_ns")
    if not stored(entry, key) or not isinstance(found, dict):
        return {}
    return {path: time for path, time in found.items() if isinstance(time, int)}


def read_marker(directory: Path) -> Mapping[str, object]:
    """Content of the marker in `directory`; empty when there is none or it is garbage."""
    try:
        with open(directory / MARKER, "rb", opener=_no_follow) as stream:
            marker = json.loads(stream.read(65536))
    except (OSError, ValueError, RecursionError):
        return {}
    return marker if isinstance(marker, dict) else {}


def _no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def refused(doing: str, path: Path, error: OSError) -> HostError:
    """Build the error for a cache directory that the disk would not let us read or change."""
    why = error.strerror
    if why is None and error.args and isinstance(error.args[0], list):
        why = str(error.args[0][0][-1])  # of a tree that was copied in part: (from, to, why)
    full = any(os.strerror(code) in (why or "") for code in (errno.ENOSPC, errno.EDQUOT))
    return HostError(
        f"cannot {doing} {path}: {why or error}",
        hint="make room on that file system, then repeat"
        if full
        else "run as the owner of the cache, or mend its permissions",
    )
