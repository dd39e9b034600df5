"""Compare one copy of a package with what upstream shipped: RECORD, or HEAD of its checkout.

Reads disk; writes the stat cache only.
"""

import contextlib
import io
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from sm120patch.audit import gittree, ignored
from sm120patch.audit.files import (
    UNREADABLE,
    Digest,
    Listing,
    is_bytecode,
    list_named,
    list_package,
)
from sm120patch.audit.gittree import Commit
from sm120patch.audit.hashing import Hasher
from sm120patch.audit.layout import Copy
from sm120patch.audit.statcache import Cached, StatCache, now_ns
from sm120patch.audit.tree import Tree
from sm120patch.environment.records import Difference, RecordTable, parse_record, safe_relative
from sm120patch.model import sha256_hex

_MAX_RECORD = 64 << 20
_PROBES = 4


class Means(NamedTuple):
    """What comparing works with."""

    tree: Tree
    hasher: Hasher
    cache: StatCache | None = None
    quick: bool = False
    """Believe the stat cache."""


class Comparison(NamedTuple):
    """How a copy differs from what upstream shipped."""

    origin: str
    compared: int
    bytes: int
    differences: tuple[Difference, ...]
    digests: Mapping[str, str]
    """sha256 of the files that were asked for and are there."""
    problems: tuple[str, ...] = ()
    """What could not be told, in words."""
    commit: Commit | None = None
    linked: int = 0
    """Files that have further names on the file system."""
    probes: tuple[tuple[int, int], ...] = ()
    """Device and inode of the first few of them: a copy by hard links has the same."""
    bytecode: tuple[str, ...] = ()
    """Directories of cached bytecode that are to be looked through, as the inside spells them."""
    newest: float = 0.0
    """When the youngest file that HEAD has was written, in seconds; 0 for wheels."""


def begin(means: Means, copy: Copy, asked: Collection[str]) -> Callable[[], Comparison]:
    """List the copy and begin to hash its files; what is returned waits for them and compares.

    `asked` are paths whose digests the caller wants whatever they hold.
    """
    started = now_ns()
    listing = list_package(means.tree, copy.root, copy.package, asked)
    if means.quick:
        listing.bytecode.clear()  # There is more of it than of sources.
    if copy.kind == "editable":
        return partial(_checkout, means, copy, asked, listing, started)
    if copy.record is None:
        reason = f"{copy.metadata} holds no RECORD: upstream's content is unknown"
        return partial(_unknown, means, copy, asked, listing, reason)
    data = means.tree.read(copy.record, _MAX_RECORD)
    if data is None:
        return partial(_unknown, means, copy, asked, listing, f"{copy.record} cannot be read")
    return _wheel(means, copy, asked, listing, data, started)


def _unknown(
    means: Means, copy: Copy, asked: Collection[str], listing: Listing, reason: str
) -> Comparison:
    wanted = [i for i, path in enumerate(listing.paths) if path in set(asked)]
    digests = means.hasher.digests(means.tree, copy.root, listing, wanted)
    named = {listing.paths[i]: d.sha256.hex() for i, d in digests.items() if d.sha256}
    return Comparison(reason, 0, 0, (), named, (reason, *listing.problems))


# --- wheels ------------------------------------------------------------------------------------


class _Wheel(NamedTuple):
    """A copy with a RECORD whose files are being hashed."""

    means: Means
    copy: Copy
    asked: Collection[str]
    listing: Listing
    record: bytes
    basis: str
    """Digest of RECORD."""
    place: str
    """Name in the stat cache."""
    started: int
    known: Mapping[int, Digest]
    """Digests that the stat cache had."""
    hashed: Callable[[], dict[int, Digest]]
    """Waits for those of the files of the package."""


def _wheel(
    means: Means, copy: Copy, asked: Collection[str], listing: Listing, data: bytes, started: int
) -> Callable[[], Comparison]:
    assert copy.record is not None
    basis = sha256_hex(data)
    place = f"{means.tree.root}:{copy.root}:{copy.target}"
    cached = means.cache.read(place) if means.cache is not None and means.quick else None
    _add_metadata(means.tree, copy, listing)
    if cached is not None and cached.basis == basis and cached.differences is not None:
        whole = _with_rest(means.tree, copy, listing, cached)
        if cached.same(whole):
            digests = {i: cached.digest(i) for _path, i in _places(whole.paths, asked)}
            found = cached.differences
            same = _comparison(copy.record, whole, digests, asked, found, (), cached.compared)
            return lambda: same
    known = {} if cached is None else cached.known(listing, blobs=False)
    inside = f"{copy.package}/"
    # RECORD is read while others hash what it is about.
    lists = b"sha256=" in data
    wanted = [
        i
        for i, path in enumerate(listing.paths)
        if lists and path.startswith(inside) and not listing.is_huge(i)
    ]
    hashed = _digests(means, copy.root, listing, wanted, known)
    wheel = _Wheel(means, copy, asked, listing, data, basis, place, started, known, hashed)
    return partial(_against_wheel, wheel)


def _against_wheel(wheel: _Wheel) -> Comparison:
    means, copy, listing = wheel.means, wheel.copy, wheel.listing
    assert copy.record is not None
    text = wheel.record.decode("utf-8", "surrogateescape")
    table = parse_record(io.StringIO(text, newline=""))
    if not any(record.sha256 for record in table.entries.values()):
        reason = f"{copy.record} lists nothing: upstream's content is unknown"
        found_nothing = _unknown(means, copy, wheel.asked, listing, reason)
        return found_nothing._replace(problems=(*found_nothing.problems, *table.faults))
    inside = f"{copy.package}/"
    paths = set(listing.paths)
    behind = set(listing.below_leads(table.entries))
    rest = [
        path
        for path in table.entries
        if path not in paths and (path in behind or not path.startswith(inside))
    ]
    listing.extend(list_named(means.tree, copy.root, rest))
    beside = [
        i
        for i, path in enumerate(listing.paths)
        if (path in behind or not path.startswith(inside) or listing.is_huge(i))
        and ((entry := table.entries.get(path)) is not None and entry.sha256 is not None)
        # What is larger than it was need not be hashed to differ.
        and not (listing.is_huge(i) and entry.size not in (None, listing.sign(i)[0]))
    ]
    digests = _digests(means, copy.root, listing, beside, wheel.known)()
    digests.update(wheel.hashed())
    differing = _against_record(table, listing, digests, inside)
    compared = sum(
        record.sha256 is not None and not is_bytecode(path)
        for path, record in table.entries.items()
    )
    faults = (*table.faults, *_without_digest(table, inside))
    # What RECORD does wrong has to be said every time: then nothing is repeated from the cache.
    result = None if faults else (compared, differing)
    if means.cache is not None and not listing.problems:
        means.cache.write(wheel.place, wheel.basis, listing, digests, result, wheel.started)
    return _comparison(copy.record, listing, digests, wheel.asked, differing, faults, compared)


def _without_digest(table: RecordTable, inside: str) -> Iterator[str]:
    """Say of which files of the package RECORD has a line and no digest; bytecode needs none."""
    said = "\n".join(table.faults)
    bare = [
        path
        for path, record in table.entries.items()
        if record.sha256 is None
        and path.startswith(inside)
        and not path.endswith(".pyc")
        and f" {path}: " not in said
    ]
    if bare:
        others = f" and {len(bare) - 1} more" if len(bare) > 1 else ""
        yield f"{bare[0]}{others}: listed without a digest, so upstream's content is unknown"


def _add_metadata(tree: Tree, copy: Copy, listing: Listing) -> None:
    directory, _, name = copy.metadata.rpartition("/")
    metadata = list_package(tree, directory, name)
    if directory != copy.root:
        metadata.real.update({p: f"{directory}/{p}" for p in metadata.paths})
    listing.extend(metadata)


def _with_rest(tree: Tree, copy: Copy, listing: Listing, cached: Cached) -> Listing:
    """Add what else RECORD lists, as the cache knows it; RECORD itself is the same."""
    whole = Listing(device=listing.device)
    whole.extend(listing)
    count = cached.names.count(b"\0") + 1 - len(listing.paths)
    if count > 0:
        names = cached.names.rsplit(b"\0", count)[1:]
        paths = [name.decode("utf-8", "surrogateescape") for name in names]
        whole.extend(list_named(tree, copy.root, filter(safe_relative, paths)))
    return whole


def _against_record(
    table: RecordTable, listing: Listing, digests: Mapping[int, Digest], inside: str
) -> list[Difference]:
    places = {path: index for index, path in enumerate(listing.paths)}
    found = []
    for path, record in table.entries.items():
        if record.sha256 is None or is_bytecode(path):
            continue
        index = places.get(path)
        if index is None:
            found.append(Difference(path, "missing", record.sha256))
            continue
        digest = digests.get(index, UNREADABLE).sha256.hex()
        if digest != record.sha256:
            kind = "changed" if digest or index not in digests else "unreadable"
            found.append(Difference(path, kind, record.sha256, digest or None))
    for path, index in places.items():
        if path.startswith(inside) and path not in table.entries:
            found.append(_added(path, listing, digests.get(index, UNREADABLE)))
    return found


def _added(path: str, listing: Listing, digest: Digest) -> Difference:
    leads_to = listing.leads.get(path, "")
    return Difference(path, "added", None, digest.sha256.hex() or None, leads_to)


# --- checkouts ---------------------------------------------------------------------------------


def _checkout(
    means: Means, copy: Copy, asked: Collection[str], listing: Listing, started: int
) -> Comparison:
    commit = gittree.read_commit(means.tree, copy.root, copy.package)
    if isinstance(commit, str):
        return _unknown(means, copy, asked, listing, commit)
    listed = set(listing.paths)
    behind = [path for path in listing.below_leads(commit.blobs) if path not in listed]
    listing.extend(list_named(means.tree, copy.root, behind))
    place = f"{means.tree.root}:{copy.root}:{copy.target}"
    cached = means.cache.read(place) if means.cache is not None and means.quick else None
    wanted = [i for i, p in enumerate(listing.paths) if p in commit.blobs or not listing.is_huge(i)]
    known = {} if cached is None else cached.known(listing, blobs=True)
    digests = _digests(means, copy.root, listing, wanted, known, blobs=True)()
    if means.cache is not None and not listing.problems:
        means.cache.write(place, commit.commit, listing, digests, None, started)
    found = _against_commit(means.tree, commit, listing, digests)
    count = sum(not is_bytecode(path) for path in commit.blobs)
    whole = _comparison(commit.origin, listing, digests, asked, found, (), count, commit)
    written = (listing.sign(i)[1] for i, path in enumerate(listing.paths) if path in commit.blobs)
    return whole._replace(newest=max(written, default=0) / 1e9)


def _against_commit(
    tree: Tree, commit: Commit, listing: Listing, digests: Mapping[int, Digest]
) -> list[Difference]:
    places = {path: index for index, path in enumerate(listing.paths)}
    found = []
    for path, blob in commit.blobs.items():
        if is_bytecode(path):
            continue
        index = places.get(path)
        if index is None:
            found.append(Difference(path, "missing", _shipped(tree, commit, blob)))
        elif not digests[index].sha256:
            found.append(Difference(path, "unreadable", _shipped(tree, commit, blob)))
        elif digests[index].blob != blob:
            changed = _changed(tree, commit, path, digests[index], blob)
            found += [changed] if changed is not None else []
    untracked = [
        path
        for path in places
        if path not in commit.blobs
        and not any(f"{path}/".startswith(f"{link}/") for link in commit.links)
    ]
    for path in ignored.not_ignored(tree, commit, untracked):
        found.append(_added(path, listing, digests.get(places[path], UNREADABLE)))
    return found


def _shipped(tree: Tree, commit: Commit, blob: bytes) -> str | None:
    data = gittree.read_blob(tree, commit, blob)
    return None if data is None else sha256_hex(data)


def _changed(
    tree: Tree, commit: Commit, path: str, digest: Digest, blob: bytes
) -> Difference | None:
    """Tell a real difference from what git's own conversions make of a content."""
    data = gittree.read_blob(tree, commit, blob)
    if data is None:
        return Difference(path, "changed", None, digest.sha256.hex())
    found = digest.sha256.hex()
    if data.startswith(b"version https://git-lfs") and f"oid sha256:{found}".encode() in data:
        return None
    if found == sha256_hex(data.replace(b"\n", b"\r\n")):
        return None  # Checked out with the line ends of another system.
    return Difference(path, "changed", sha256_hex(data), found)


# --- both --------------------------------------------------------------------------------------


def _digests(
    means: Means,
    root: str,
    listing: Listing,
    wanted: Collection[int],
    known: Mapping[int, Digest],
    *,
    blobs: bool = False,
) -> Callable[[], dict[int, Digest]]:
    """Begin with the wanted files that are not known; what is returned waits for all digests."""
    found = {index: known[index] for index in wanted if index in known}
    rest = [index for index in wanted if index not in found]
    hashed = means.hasher.begin(means.tree, root, listing, rest, blobs=blobs)
    return lambda: {**found, **hashed()}


def _places(paths: list[str], asked: Collection[str]) -> list[tuple[str, int]]:
    """Positions of the few files that are asked for."""
    found = []
    for path in asked:
        with contextlib.suppress(ValueError):
            found.append((path, paths.index(path)))
    return found


def _comparison(
    origin: str,
    listing: Listing,
    digests: Mapping[int, Digest],
    asked: Collection[str],
    differences: Collection[Difference],
    faults: Collection[str],
    compared: int,
    commit: Commit | None = None,
) -> Comparison:
    named = {
        path: digests[index].sha256.hex()
        for path, index in _places(listing.paths, asked)
        if index in digests and digests[index].sha256
    }
    return Comparison(
        origin=origin,
        compared=compared,
        bytes=listing.size,
        differences=tuple(sorted(differences, key=lambda d: d.path)),
        digests=named,
        problems=(*faults, *listing.problems),
        commit=commit,
        bytecode=tuple(listing.bytecode),
        linked=len(listing.linked),
        probes=tuple(
            (listing.device, listing.sign(i)[3]) for i in sorted(listing.linked)[:_PROBES]
        ),
    )
