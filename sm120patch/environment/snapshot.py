"""Reads the target files as they are, and checks from a fresh interpreter what it imports.

Reads disk only, except `writable`, which creates and removes one file of its own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from sm120patch.environment.asking import ask
from sm120patch.environment.editable import Checkout, blobs
from sm120patch.environment.installation import Environment, Installation, locate_package
from sm120patch.environment.records import safe_relative
from sm120patch.errors import HostError
from sm120patch.model import (
    ABSENT,
    FileSnapshot,
    Obstacle,
    Snapshot,
    TargetSnapshot,
    sha256_hex,
)

_GET_FLAGS = 0x80086601
"""FS_IOC_GETFLAGS of linux/fs.h, where `long` has eight bytes."""
_IMMUTABLE = 0x10 | 0x20
_PROBE = ".sm120patch-probe-"
_READ = "nothing was changed; run as the owner of the environment, or mend its file system"
MAX_FILE = 64 << 20
"""Bytes of a file that is read: those that sets change have one million at most."""
Originals = Callable[[str], bytes | None]


def take_snapshot(
    environment: Environment,
    wanted: Mapping[str, Iterable[str]],
    originals: Originals,
    compute_capability: str | None = None,
    *,
    tolerant: bool = False,
) -> Snapshot:
    """Read every wanted (target, path) once; what is hashed is what was read.

    `originals` gives bytes by sha256 (the store of the ledger). Every installed target is in the
    result, with no files when none is wanted of it. Raises HostError on a file, RECORD or checkout
    that cannot be read; if `tolerant`, that is an obstacle of the file, or an unknown origin.
    """
    unknown = set(wanted) - set(environment.installations) - set(environment.missing)
    return Snapshot(
        prefix=str(environment.prefix),
        targets={
            target: _target(installation, wanted.get(target, ()), originals, tolerant)
            for target, installation in environment.installations.items()
        },
        missing={**environment.missing, **dict.fromkeys(sorted(unknown), "not a known target")},
        compute_capability=compute_capability,
    )


def _target(
    installation: Installation, paths: Iterable[str], originals: Originals, tolerant: bool
) -> TargetSnapshot:
    wanted = list(dict.fromkeys(paths))
    try:
        digests, contents, origin = _pristine(installation, wanted)
    except HostError as error:
        if not tolerant:
            raise
        digests, contents, origin = {}, {}, f"unknown: {error.message}"
    files = {}
    for path in wanted:
        why = ""
        try:
            found = read_target(installation.root, path)
        except HostError as error:
            if not tolerant:
                raise
            found, why = Obstacle.UNREADABLE, error.message
        digest = digests.get(path)
        if digest is None and _not_shipped(installation, path, origin, wanted):
            digest = ABSENT
        if isinstance(found, Obstacle):
            gone = ABSENT if found is Obstacle.MISSING else ""
            files[path] = FileSnapshot(path, b"", gone, 0, 0, 0, digest, None, found, why)
            continue
        data, status = found
        sha256 = sha256_hex(data)
        pristine = data if sha256 == digest else contents.get(path)
        if pristine is None and digest not in (None, ABSENT):
            pristine = originals(digest)
        files[path] = FileSnapshot(
            path=path,
            data=data,
            sha256=sha256,
            mode=stat.S_IMODE(status.st_mode),
            mtime_ns=status.st_mtime_ns,
            nlink=status.st_nlink,
            pristine_sha256=digest,
            pristine=pristine,
        )
    return TargetSnapshot(
        target=installation.target,
        version=installation.version,
        root=str(installation.root),
        kind=installation.kind,
        files=files,
        pristine_origin=origin,
    )


def _not_shipped(installation: Installation, path: str, origin: str, wanted: list[str]) -> bool:
    """Tell whether upstream is known not to have shipped the file, in a directory that is there.

    A line of RECORD without a usable digest says that it did.
    """
    if origin.startswith("unknown") or not safe_relative(path):
        return False
    listed = installation.kind == "wheel" and path in installation.records(wanted)
    return not listed and (installation.root / path).parent.is_dir()


def _pristine(
    installation: Installation, paths: list[str]
) -> tuple[Mapping[str, str], Mapping[str, bytes], str]:
    """Digests and, from git, contents of what upstream shipped, and where that is known from."""
    if not paths:
        return {}, {}, ""
    if installation.kind == "wheel":
        if installation.record is None:
            return {}, {}, f"unknown: {installation.metadata} holds no RECORD"
        records = installation.records(paths)
        known = {path: records[path].sha256 for path in paths if path in records}
        digests = {path: digest for path, digest in known.items() if digest is not None}
        return digests, {}, str(installation.record)
    checkout = installation.checkout()
    if not isinstance(checkout, Checkout):
        return {}, {}, f"unknown: {checkout.reason}"
    contents = blobs(checkout, paths)
    digests = {path: sha256_hex(data) for path, data in contents.items()}
    return digests, contents, f"git commit {checkout.commit} of {checkout.work_tree}"


def read_target(root: Path, path: str) -> tuple[bytes, os.stat_result] | Obstacle:
    """Read a regular file below `root` without passing any symbolic link below it."""
    if not safe_relative(path):
        return Obstacle.OUTSIDE
    current = root
    *directories, _ = path.split("/")
    try:
        for name in directories:
            current /= name
            mode = current.lstat().st_mode
            if stat.S_ISLNK(mode):
                return Obstacle.SYMLINK
        # A FIFO in place of the file must not block us.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(root / path, flags)
    except (FileNotFoundError, NotADirectoryError):
        return Obstacle.MISSING
    except OSError as error:
        if error.errno == errno.ELOOP:
            return Obstacle.SYMLINK
        if error.errno in (errno.ENXIO, errno.ENODEV):
            return Obstacle.NOT_REGULAR
        raise HostError(f"cannot read {root / path}: {error.strerror}", hint=_READ) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return Obstacle.NOT_REGULAR
        if status.st_size > MAX_FILE:
            found = f"{root / path} has {status.st_size} bytes"
            raise HostError(f"{found}, expected {MAX_FILE} at most", hint=_READ)
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read(), status
    except OSError as error:
        raise HostError(f"cannot read {root / path}: {error.strerror}", hint=_READ) from error
    finally:
        os.close(descriptor)


def read_back(environment: Environment, expected: Mapping[tuple[str, str], str]) -> list[str]:
    """Ask a fresh interpreter which files it would import and compare their sha256.

    `expected` maps (target, path) to the sha256 that must be there. Returns problems in words:
    another copy is imported, other bytes, something wins over the file, stale bytecode would run.
    """
    installations = environment.installations
    known = [key for key in expected if key[0] in installations]
    problems = [
        f"{target} is not installed" for target, _ in expected if target not in installations
    ]
    if not known:
        return problems
    packages = sorted({installations[target].package for target, _ in known})
    files = [(str(installations[target].root), path) for target, path in known]
    answer = ask(environment.python, packages, files, environment.pycache_prefix)
    for target in dict.fromkeys(target for target, _ in known):
        installation = installations[target]
        root = locate_package(answer["packages"][installation.package], installation.package)
        if root != installation.root:
            where = root if isinstance(root, str) else f"Python now imports it from {root}"
            problems.append(f"{target}: {where}, expected {installation.root}")
    for (target, path), facts in zip(known, answer["files"], strict=True):
        name = f"{target} {path}"
        if expected[target, path] == ABSENT:
            if "sha256" in facts:
                problems.append(f"{name}: is there, but was removed")
            continue
        if "sha256" in facts and facts["sha256"] != expected[target, path]:
            digest = expected[target, path]
            problems.append(f"{name}: holds sha256 {facts['sha256']}, expected {digest}")
        if "error" in facts:
            problems.append(f"{name}: {facts['error']}")
        if "shadowed_by" in facts:
            problems.append(f"{name}: Python would load {facts['shadowed_by']} in its place")
        if facts.get("stale"):
            problems.append(f"{name}: cached bytecode {facts['stale']} holds other code")
    return problems


def writable(directory: Path) -> str | None:
    """Return why no file can be created in `directory`, or None when one could.

    A file is really created: `os.access` says yes on read-only mounts, full disks and immutable
    directories, and to root it always does. The file has no name where the file system can do
    that, so that a kill leaves nothing.
    """
    try:
        descriptor = os.open(directory, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return f"{directory}: {error.strerror or error}"
        return _writable_by_name(directory)
    try:
        os.write(descriptor, b"\0")
    except OSError as error:
        return f"{directory}: {error.strerror or error}"
    finally:
        os.close(descriptor)
    return None


def immutable(path: Path) -> bool:
    """Tell whether a file carries a flag (`chattr +i`, `+a`) that keeps it from being replaced."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        answer = fcntl.ioctl(descriptor, _GET_FLAGS, b"\0" * 8)
    except OSError:
        return False  # a file system without such flags
    finally:
        os.close(descriptor)
    return bool(int.from_bytes(answer[:4], sys.byteorder) & _IMMUTABLE)


def _writable_by_name(directory: Path) -> str | None:
    probe = directory / f"{_PROBE}{os.urandom(6).hex()}"
    try:
        for left in directory.glob(f"{_PROBE}*"):
            left.unlink(missing_ok=True)
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, b"\0")
        finally:
            os.close(descriptor)
            probe.unlink(missing_ok=True)
    except OSError as error:
        return f"{directory}: {error.strerror or error}"
    return None
