"""Published releases for the tests: downloaded once into a cache outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from functools import lru_cache
from pathlib import Path

PAIRS = {
    "0.5.8": "0.6.1",
    "0.5.9": "0.6.3",
    "0.5.10.post1": "0.6.7.post3",
    "0.5.12.post1": "0.6.11.post1",
}
"""The pairs of the fast run: SGLang release -> the FlashInfer release its metadata pins."""

PINS = {
    "0.5.0rc0": "0.2.10", "0.5.0rc1": "0.2.11.post1", "0.5.0rc2": "0.2.11.post3",
    "0.5.1": "0.2.11.post3", "0.5.1.post1": "0.2.11.post3", "0.5.1.post2": "0.2.14.post1",
    "0.5.1.post3": "0.2.14.post1", "0.5.2rc0": "0.3.0", "0.5.2rc1": "0.3.0", "0.5.2rc2": "0.3.0",
    "0.5.2": "0.3.1", "0.5.3rc0": "0.3.1", "0.5.3rc2": "0.4.0rc3", "0.5.3": "0.4.0rc3",
    "0.5.3.post1": "0.4.0", "0.5.3.post2": "0.4.0", "0.5.3.post3": "0.4.0", "0.5.4": "0.4.1",
    "0.5.4.post1": "0.4.1", "0.5.4.post2": "0.4.1", "0.5.4.post3": "0.5.0", "0.5.5": "0.5.0",
    "0.5.5.post1": "0.5.0", "0.5.5.post2": "0.5.0", "0.5.5.post3": "0.5.2", "0.5.6": "0.5.3",
    "0.5.6.post1": "0.5.3", "0.5.6.post2": "0.5.3", "0.5.7": "0.5.3", "0.5.8": "0.6.1",
    "0.5.8.post1": "0.6.1", "0.5.9": "0.6.3", "0.5.10rc0": "0.6.6", "0.5.10": "0.6.7.post2",
    "0.5.10.post1": "0.6.7.post3", "0.5.11": "0.6.8.post1", "0.5.12": "0.6.11.post1",
    "0.5.12.post1": "0.6.11.post1", "0.5.13": "0.6.12", "0.5.13.post1": "0.6.12",
    "0.5.14": "0.6.12", "0.5.15": "0.6.12", "0.5.15.post1": "0.6.12", "0.5.16": "0.6.14",
    "0.5.17": "0.6.15.post1", "0.5.18": "0.6.17", "0.5.19": "0.6.18", "0.5.20": "0.6.18",
    "0.5.21": "0.6.18", "0.5.22": "0.7.1", "0.5.23": "0.7.2",
}  # fmt: skip
"""Every SGLang release from 0.5.0rc0 to 0.5.23, pre-releases included, with its pin, in order."""

_LAST_SDIST = "0.4.1"
"""FlashInfer has no wheel on the index up to this release."""
_ANY_HOST = (
    "--only-binary=:all:", "--python-version=3.11", "--implementation=cp",
    "--platform=manylinux_2_34_x86_64",
)  # fmt: skip
"""The wheels do not depend on the interpreter that runs the tests."""
_SDIST_LAYOUT = (
    ("flashinfer/data/cutlass/", "3rdparty/cutlass/"),
    ("flashinfer/data/spdlog/", "3rdparty/spdlog/"),
    ("flashinfer/data/", ""),
)
"""Installed directory -> where the source distribution keeps it (`tool.setuptools.package-dir`)."""


def cache_dir() -> Path:
    override = os.environ.get("SM120PATCH_WHEEL_CACHE")
    if override:
        return Path(override)
    return Path(os.environ["SM120PATCH_TEST_REAL_HOME"]) / ".cache" / "sm120patch" / "wheels"


def wheel(distribution: str, version: str) -> Path:
    """Path of the published wheel; downloads it when the cache lacks it."""
    stem = distribution.replace("-", "_")
    return _cached(f"{stem}-{version}-*.whl", distribution, version, *_ANY_HOST)


def sdist(distribution: str, version: str) -> Path:
    """Path of the published source distribution; downloads it when the cache lacks it.

    The client asks the package for its metadata, whose build must not want what is no longer
    published: no build isolation.
    """
    stem = distribution.replace("-", "_")
    options = ("--no-build-isolation", f"--no-binary={distribution}")
    return _cached(f"{stem}-{version}.tar.gz", distribution, version, *options)


def published(distribution: str, version: str, path: str) -> bytes | None:
    """Content of a file by its path in the installed tree; None when the release lacks it."""
    if distribution == "flashinfer-python" and _only_as_sdist(version):
        return _members(sdist(distribution, version)).get(_in_sdist(path))
    with zipfile.ZipFile(wheel(distribution, version)) as archive:
        return archive.read(path) if path in archive.NameToInfo else None


def shipped(path: str, version: str) -> bytes:
    """Content of a file of SGLang or FlashInfer that the release must have."""
    distribution = "sglang" if path.startswith("sglang/") else "flashinfer-python"
    data = published(distribution, version, path)
    assert data is not None, f"{distribution} {version} has no {path}"
    return data


def _only_as_sdist(version: str) -> bool:
    from packaging.version import Version

    return Version(version) <= Version(_LAST_SDIST)


def _in_sdist(path: str) -> str:
    for installed, source in _SDIST_LAYOUT:
        if path.startswith(installed):
            return source + path.removeprefix(installed)
    return path


@lru_cache(maxsize=2)
def _members(archive: Path) -> dict[str, bytes]:
    """Read what the catalogue can touch: a compressed tar has no index, one pass for all of it."""
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.partition("/")[2]
            wanted = name.startswith(("flashinfer/", "include/", "csrc/"))
            if wanted and (stream := tar.extractfile(member) if member.isfile() else None):
                found[name] = stream.read()
    return found


def _cached(pattern: str, distribution: str, version: str, *options: str) -> Path:
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    if not (found := sorted(cache.glob(pattern))):
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options,
             "--dest", str(cache), f"{distribution}=={version}"],
            check=True,
            env={**os.environ, "HOME": os.environ["SM120PATCH_TEST_REAL_HOME"]},
        )  # fmt: skip
        found = sorted(cache.glob(pattern))
    return found[0]
