"""Reads published packages, wheel or source distribution, as if they were installed.

Reads disk only. Archives are hostile input: nothing is unpacked, sizes are bounded, and a member is
found by the path that is asked for, never by the path that it names.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sm120patch import relpath
from sm120patch.distributions import normalized
from sm120patch.environment.records import parse_record
from sm120patch.errors import HostError
from sm120patch.model import (
    FileSnapshot,
    Obstacle,
    TargetSnapshot,
    sha256_hex,
)
from sm120patch.tables import Table
from sm120patch.tomltext import decode

MAX_MEMBER = 64 << 20
"""Largest file that is read out of a package, in bytes."""
MAX_SOURCE = 512 << 20
"""Largest source distribution, unpacked, in bytes."""
_BATCH = 200
"""Files that are held in memory at a time when all are read; opening an archive costs most."""
_NO_SOURCE = (".pyc", ".so", "/")

_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?\s*==\s*([0-9][\w.!+]*)")
_BROKEN = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
    tarfile.TarError,
)


@dataclass(frozen=True)
class Package:
    """One published package: what it is, what it pins, and its files as an installer lays them."""

    path: Path
    name: str
    """Normalized name of the distribution (`flashinfer-python`)."""
    version: str
    pins: Mapping[str, str]
    """Distribution -> the one version that `Requires-Dist: name==version` asks for."""
    _read: Callable[[Iterable[str]], dict[str, bytes]] = field(repr=False, compare=False)
    _names: Callable[[], list[str]] | None = field(default=None, repr=False, compare=False)
    """Paths of all files, as an installer lays them; None for a source distribution."""

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of those paths, relative to the import root, that the package has.

        Raises HostError on a damaged archive and on a file of more than `MAX_MEMBER` bytes.
        """
        try:
            return self._read(paths)
        except _BROKEN as error:
            raise _unreadable(self.path, str(error)) from error

    def contents(self, below: str) -> Iterator[tuple[str, bytes]]:
        """Yield path and bytes of every file below `below`, checked against the wheel's RECORD.

        Bytecode and compiled modules are left out. Raises HostError for a source distribution,
        and for a wheel whose files are not what its RECORD says.
        """
        names = [] if self._names is None else self._names()
        records = [name for name in names if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)]
        if len(records) != 1:
            raise HostError(
                f"{self.path} has {len(records)} RECORD files, expected 1",
                hint="take the files from an environment that has the release installed",
                code="no-record",
            )
        text = self.read(records)[records[0]].decode("utf-8", "surrogateescape")
        listed = parse_record(io.StringIO(text, newline="")).entries
        wanted = [n for n in names if n.startswith(f"{below}/") and not n.endswith(_NO_SOURCE)]
        if problem := next(filter(None, map(relpath.fault, wanted)), None):
            raise _unreadable(self.path, problem)
        for start in range(0, len(wanted), _BATCH):
            for name, data in self.read(wanted[start : start + _BATCH]).items():
                entry = listed.get(name)
                if entry is None or entry.sha256 != sha256_hex(data):
                    raise HostError(
                        f"{self.path}: {name} is not what its RECORD says",
                        hint="delete the file and let it be downloaded again",
                    )
                yield name, data


def named(path: Path) -> tuple[str, str] | None:
    """Return (name, version) that a package's file name states; None when it is no package."""
    if path.suffix == ".whl":
        parts = path.name.split("-")
        return (normalized(parts[0]), parts[1]) if len(parts) >= 5 else None
    stem, dash, version = path.name.removesuffix(".tar.gz").rpartition("-")
    return (normalized(stem), version) if dash and path.name.endswith(".tar.gz") else None


def open_package(path: Path) -> Package:
    """Read the metadata of a wheel or sdist. Raises HostError when it is neither."""
    try:
        if zipfile.is_zipfile(path):
            return _wheel(path)
        if path.name.endswith(".tar.gz") and path.is_file():
            return _source(path)
    except _BROKEN as error:
        raise _unreadable(path, str(error)) from error
    found = "a wheel or .tar.gz was expected" if path.exists() else "there is no such file"
    raise _unreadable(path, found)


def target_snapshot(package: Package, paths: Iterable[str]) -> TargetSnapshot:
    """Return what an environment would show right after this package was installed."""
    wanted = list(dict.fromkeys(paths))
    contents = package.read(wanted)
    return TargetSnapshot(
        target=package.name,
        version=package.version,
        root=str(package.path),
        kind="wheel",
        files={path: _file(path, contents.get(path)) for path in wanted},
        pristine_origin=str(package.path),
    )


def _file(path: str, data: bytes | None) -> FileSnapshot:
    if data is None:
        return FileSnapshot(path, b"", "", 0, 0, 0, None, None, Obstacle.MISSING)
    digest = sha256_hex(data)
    return FileSnapshot(path, data, digest, 0o644, 0, 1, digest, data)


def _unreadable(path: Path, what: str) -> HostError:
    return HostError(
        f"cannot read {path} as a published package: {what}",
        hint="name a wheel (.whl) or source distribution (.tar.gz) as published",
        code="no-package",
    )


def _package(
    path: Path,
    metadata: bytes,
    read: Callable[[Iterable[str]], dict[str, bytes]],
    names: Callable[[], list[str]] | None = None,
) -> Package:
    head = metadata.decode("utf-8", "replace").replace("\r\n", "\n").partition("\n\n")[0]
    fields = [line.partition(":")[::2] for line in head.splitlines()]
    first = {key.lower(): value.strip() for key, value in reversed(fields)}
    if not (first.get("name") and first.get("version")):
        raise ValueError("its metadata names no distribution or no version")
    pins: dict[str, str] = {}
    for key, value in fields:
        pin = _REQUIREMENT.match(value.strip()) if key.lower() == "requires-dist" else None
        if pin:
            pins.setdefault(normalized(pin[1]), pin[2])
    return Package(path, normalized(first["name"]), first["version"], pins, read, names)


# --- wheels ------------------------------------------------------------------------------------


def _wheel(path: Path) -> Package:
    with zipfile.ZipFile(path) as archive:
        heads = [n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)]
        if len(heads) != 1:
            raise ValueError(f"{len(heads)} METADATA files, expected 1")
        metadata = _member(archive, heads[0])
    data = heads[0].partition(".dist-info/")[0] + ".data"

    def read(paths: Iterable[str]) -> dict[str, bytes]:
        with zipfile.ZipFile(path) as opened:
            members = set(opened.namelist())
            found = {}
            for wanted in paths:
                # Files below NAME.data/{purelib,platlib} are installed beside the others.
                spellings = (wanted, f"{data}/purelib/{wanted}", f"{data}/platlib/{wanted}")
                member = next((s for s in spellings if s in members), None)
                if member is not None:
                    found[wanted] = _member(opened, member)
            return found

    def names() -> list[str]:
        inner = re.compile(rf"{re.escape(data)}/(?:purelib|platlib)/")
        with zipfile.ZipFile(path) as opened:
            return [inner.sub("", name) for name in opened.namelist()]

    return _package(path, metadata, read, names)


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as stream:
        return _bounded(stream.read(MAX_MEMBER + 1), name)


def _bounded(data: bytes, name: str) -> bytes:
    if len(data) > MAX_MEMBER:
        raise ValueError(f"{name} has more than {MAX_MEMBER} bytes")
    return data


# --- source distributions ----------------------------------------------------------------------


def _source(path: Path) -> Package:
    archive = _unzipped(path)
    top = next((n.split("/", 1)[0] for n in archive.getnames()), "")
    metadata = _extract(archive, f"{top}/PKG-INFO")
    if metadata is None:
        raise ValueError("it has no PKG-INFO")
    places = _places(_extract(archive, f"{top}/pyproject.toml") or b"")

    def read(paths: Iterable[str]) -> dict[str, bytes]:
        found = {}
        for wanted in paths:
            for installed, directory in places:
                if wanted.startswith(installed):
                    data = _extract(archive, f"{top}/{directory}{wanted[len(installed) :]}")
                    if data is not None:
                        found[wanted] = data
                        break
        return found

    return _package(path, metadata, read)


def _unzipped(path: Path) -> tarfile.TarFile:
    """Unzip once into memory: members are wanted in any order, and gzip cannot seek."""
    with gzip.open(path, "rb") as stream:
        data = stream.read(MAX_SOURCE + 1)
    if len(data) > MAX_SOURCE:
        raise ValueError(f"it unpacks to more than {MAX_SOURCE} bytes")
    return tarfile.open(fileobj=io.BytesIO(data), mode="r:")


def _extract(archive: tarfile.TarFile, name: str) -> bytes | None:
    try:
        member = archive.getmember(name)
    except KeyError:
        return None
    stream = archive.extractfile(member) if member.isreg() else None
    return None if stream is None else _bounded(stream.read(MAX_MEMBER + 1), name)


def _places(pyproject: bytes) -> list[tuple[str, str]]:
    """Where files of the tree are installed, as (installed prefix, prefix in the tree) pairs.

    Reads setuptools' `package-dir` and `package-data` patterns, of which FlashInfer up to 0.4.1
    uses `directory/**` and plain names; the most specific package comes first.
    """
    # What is not as setuptools wants it is passed over.
    tool = Table(decode(pyproject.decode("utf-8")), "", []).table("tool").table("setuptools")
    directories, data = tool.mapping("package-dir", str), tool.table("package-data")
    places = []
    for package in sorted(directories, key=len, reverse=True):
        base = PurePosixPath(directories[package])
        inside = package.replace(".", "/")
        for pattern in data.texts(package):
            prefix = pattern.removesuffix("**")
            places.append((f"{inside}/{prefix}", (base / "x").as_posix()[:-1] + prefix))
    return [*places, ("", "")]
