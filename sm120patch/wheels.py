"""Published wheels: found in a cache outside any repository, or downloaded into it by pip.

Writes below the wheel cache only. A wheel is read as it lies there, never unpacked or installed.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sm120patch import relpath, versions
from sm120patch.errors import HostError, UsageError
from sm120patch.model import IMPORT_NAMES

_WHEEL = re.compile(r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[A-Za-z0-9_.!+]+)(-[^-]+){3,4}\.whl")
_MAX_FILE = 64 << 20
"""Largest file that is read out of a wheel, in bytes."""
_TIMEOUT = 1800.0
"""Seconds that pip may take for one wheel."""


@dataclass(frozen=True)
class Published:
    """One published wheel on disk."""

    target: str
    version: str
    path: Path

    def read(self, name: str) -> bytes | None:
        """Bytes of one file of the wheel; None when it has no such file. Raises HostError."""
        with _opened(self.path) as archive:
            try:
                return _read(archive, archive.getinfo(name))
            except KeyError:
                return None

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """Yield path and bytes of every file of the package, checked against RECORD.

        Raises HostError for a wheel whose files are not what its RECORD says.
        """
        package = IMPORT_NAMES[self.target]
        with _opened(self.path) as archive:
            recorded = _record(archive)
            for info in archive.infolist():
                name = info.filename
                if info.is_dir() or not name.startswith(f"{package}/") or name.endswith(".pyc"):
                    continue
                if problem := relpath.fault(name):
                    raise HostError(f"{self.path}: {problem}")
                data = _read(archive, info)
                if recorded.get(name) != _digest(data):
                    raise HostError(
                        f"{self.path}: {name} is not what its RECORD says",
                        hint="delete the file and let it be downloaded again",
                    )
                yield name, data


def open_wheel(path: Path) -> Published:
    """Recognise a wheel of a known target by its name. Raises UsageError."""
    match = _WHEEL.fullmatch(path.name)
    target = match["name"].replace("_", "-").lower() if match else ""
    if match is None or target not in IMPORT_NAMES:
        raise UsageError(
            f"{path} is no wheel of {' or '.join(IMPORT_NAMES)}",
            hint="name a file such as sglang-0.5.9-py3-none-any.whl",
        )
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    return Published(target, match["version"], path)


def find(text: str, environ: Mapping[str, str]) -> Published:
    """Return the wheel that `text` names: a file, or `DISTRIBUTION==VERSION`."""
    target, separator, version = text.partition("==")
    if not separator or os.sep in target:
        return open_wheel(Path(text))
    return fetch(target, version, environ)


def fetch(target: str, version: str, environ: Mapping[str, str]) -> Published:
    """Return the wheel of a published release, from the cache or else downloaded by pip.

    Raises UsageError for what is no release of a known target, HostError when pip cannot get it.
    """
    if target not in IMPORT_NAMES or versions.installed(version) is None:
        raise UsageError(
            f"{target}=={version} names no release of {' or '.join(IMPORT_NAMES)}",
            hint="write for example sglang==0.5.9",
        )
    cache = wheel_cache(environ)
    found = _cached(cache, target, version)
    if found is None:
        _download(cache, target, version)
        found = _cached(cache, target, version)
    if found is None:
        raise HostError(f"pip left no wheel of {target} {version} in {cache}")
    return Published(target, version, found)


def wheel_cache(environ: Mapping[str, str]) -> Path:
    """Directory of the downloaded wheels: SM120PATCH_WHEEL_CACHE, else below XDG_CACHE_HOME."""
    if named := environ.get("SM120PATCH_WHEEL_CACHE"):
        return Path(named)
    base = environ.get("XDG_CACHE_HOME")
    home = Path(base) if base else Path.home() / ".cache"
    return home / "sm120patch" / "wheels"


def _cached(cache: Path, target: str, version: str) -> Path | None:
    stem = target.replace("-", "_")
    return next(iter(sorted(cache.glob(f"{stem}-{version}-*.whl"))), None)


def _download(cache: Path, target: str, version: str) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
               "--no-deps", "--only-binary=:all:", "--dest", str(cache),
               f"{target}=={version}"]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"downloading {target} {version}: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise HostError(
            f"pip cannot download a wheel of {target} {version}: {(lines or ['no message'])[-1]}",
            hint=f"put the wheel into {cache} yourself; a release without wheels can be taken from"
            " an environment that has it installed",
            details={"output": lines[-20:]},
        )


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise HostError(f"cannot read {path}: {error}") from error


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    if info.file_size > _MAX_FILE:
        raise HostError(f"{archive.filename}: {info.filename} has {info.file_size} bytes")
    try:
        return archive.read(info)
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise HostError(f"{archive.filename}: {info.filename}: {error}") from error


def _record(archive: zipfile.ZipFile) -> dict[str, str]:
    """Path -> digest as RECORD spells it."""
    import csv
    import io

    names = [n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", n)]
    if len(names) != 1:
        raise HostError(f"{archive.filename} has {len(names)} RECORD files, expected 1")
    text = _read(archive, archive.getinfo(names[0])).decode("utf-8", "replace")
    return {row[0]: row[1] for row in csv.reader(io.StringIO(text)) if len(row) == 3}


def _digest(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"
