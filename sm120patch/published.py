"""Finds published packages: which are known, and where their files are kept.

Writes below the wheel cache only. Downloads go through pip of the running interpreter, so indexes,
proxies and credentials are those that the user has set up for pip. For a source distribution
(FlashInfer up to 0.4.1) pip asks the release's own build backend for its metadata, which takes a
while; it is neither built nor installed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sm120patch import versions
from sm120patch.catalogue import shipped
from sm120patch.distributions import normalized
from sm120patch.errors import CatalogueError, HostError, UsageError
from sm120patch.model import IMPORT_NAMES
from sm120patch.packages import Package, named, open_package
from sm120patch.redaction import redact_text
from sm120patch.tomltext import decode
from sm120patch.userdirs import user_directory

FILE = "releases.toml"
"""Beside `manifests/`: the releases that a catalogue was compared with."""

_TIMEOUT = 600
_FOREIGN = (
    "--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp",
    "--platform", "manylinux_2_34_x86_64", "--platform", "manylinux_2_28_x86_64",
)  # fmt: skip
"""What is asked for when no file fits this interpreter: sources are alike in all wheels."""


def known(catalogue: Path | None = None) -> dict[str, tuple[str, ...]]:
    """Return distribution -> versions, oldest first, that the catalogue was compared with.

    A catalogue without a list of its own was compared with the shipped one's releases. Raises
    CatalogueError when the list is broken.
    """
    own = None if catalogue is None else catalogue / FILE
    file = own if own is not None and own.is_file() else shipped() / FILE
    try:
        listed = decode(file.read_text(encoding="utf-8"))["releases"]
        found = {normalized(name): tuple(map(str, entries)) for name, entries in listed.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        message = f"the list of releases {file} is broken: {error}"
        raise CatalogueError(message, hint="reinstall sm120patch", details={}) from error
    return found


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where packages are kept: SM120PATCH_WHEEL_CACHE, else the user's cache."""
    if named_place := environ.get("SM120PATCH_WHEEL_CACHE"):
        return Path(named_place)
    return user_directory("XDG_CACHE_HOME", environ) / "wheels"


@dataclass(frozen=True)
class Shelf:
    """A directory of published packages; what it lacks is downloaded once, unless `offline`."""

    directory: Path
    say: Callable[[str], None]
    offline: bool = False

    def find(self, name: str, version: str) -> Path | None:
        """Return the file of that release that is here, a wheel before a source distribution."""
        wanted = versions.installed(version)
        found = []
        if self.directory.is_dir():
            for path in sorted(self.directory.iterdir()):
                stated = named(path)
                if stated and stated[0] == name and versions.installed(stated[1]) == wanted:
                    found.append(path)
        return min(found, key=lambda p: (p.suffix != ".whl", p.name), default=None)

    def get(self, name: str, version: str) -> Package:
        """Open that release, downloaded if need be. Raises HostError when it cannot be had."""
        path = self.find(name, version)
        if path is None:
            if self.offline:
                raise HostError(
                    f"{name} {version} is not in {self.directory}, and nothing may be downloaded",
                    hint="leave out --offline, or put the wheel there",
                    code="no-package",
                )
            self.say(f"downloading {name} {version}")
            self._download(name, version)
            path = self.find(name, version)
        if path is None:
            raise HostError(f"pip downloaded no file of {name} {version}", code="no-package")
        return open_package(path)

    def resolve(self, text: str, leading: str) -> Package:
        """Open what a person names: a file, `NAME==VERSION`, or a version of `leading`.

        Raises UsageError for what is none of these and for no target of ours, HostError when it
        cannot be had.
        """
        name, equals, version = text.partition("==")
        if text.endswith((".whl", ".tar.gz")) or Path(text).is_file():
            package = open_package(Path(text).expanduser())
        elif versions.installed(version if equals else text) is not None:
            package = self.get(name if equals else leading, version if equals else text)
        else:
            raise UsageError(
                f"{text!r} is neither a package file nor a version",
                hint="write a path, 0.5.10, or flashinfer-python==0.6.7",
            )
        if package.name not in IMPORT_NAMES:
            raise UsageError(f"{package.name} is not a target of patch sets")
        return package

    def _download(self, name: str, version: str) -> None:
        """Let pip write beside the cache, then move in what is complete."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".download-", dir=self.directory) as work:
                said = _pip(name, version, Path(work), ())
                if said is not None and _pip(name, version, Path(work), _FOREIGN) is not None:
                    raise HostError(
                        f"pip cannot download {name} {version}: {said}",
                        hint="download it elsewhere and name its directory with --wheel-dir",
                        code="no-package",
                    )
                for path in sorted(Path(work).iterdir()):
                    path.replace(self.directory / path.name)
        except OSError as error:
            raise HostError(f"cannot keep packages in {self.directory}: {error}") from error


def _pip(name: str, version: str, directory: Path, options: tuple[str, ...]) -> str | None:
    """Run `pip download`; return the last line of what went wrong, or None."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-input", "--no-deps", "--dest", str(directory), *options, f"{name}=={version}",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return None if done.returncode == 0 else redact_text(lines[-1])
