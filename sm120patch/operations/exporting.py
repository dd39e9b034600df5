"""Write an audit for other tools: CycloneDX, Prometheus textfile, SARIF.

Reads edited files and what upstream shipped; writes the files that were named, each at once.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import os
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sm120patch.audit.findings import EnvironmentReport, FileReport, HostReport, PackageReport
from sm120patch.audit.tree import Tree
from sm120patch.disk import write_file
from sm120patch.errors import HostError, UsageError
from sm120patch.model import PatchSet, sha256_hex
from sm120patch.published import Shelf, cache_directory
from sm120patch.store import StateDirectory

_MOST_BYTES = 1 << 22
"""Largest file that a diff is made of."""

_NEEDS = {
    "cyclonedx": ("cyclonedx", "packageurl", "jsonschema"),
    "prometheus": ("prometheus_client",),
}
"""Format -> modules without which it cannot be written; the extra has the name of the format."""


@dataclass(frozen=True)
class Exports:
    """Files that an audit is to be written to; None: not asked for."""

    cyclonedx: Path | None = None
    prometheus: Path | None = None
    sarif: Path | None = None

    def __bool__(self) -> bool:
        return any((self.cyclonedx, self.prometheus, self.sarif))


@dataclass(frozen=True)
class Timing:
    """When the audit ended (seconds since the epoch), and how long it took."""

    ended: float
    seconds: float

    @classmethod
    def since(cls, started: float) -> Timing:
        """Timing of what began at `started` by the monotonic clock, and ends now."""
        return cls(time.time(), time.monotonic() - started)


def check(exports: Exports) -> None:
    """Raise before the work is done, not after: a library or a directory is missing."""
    for name, modules in _NEEDS.items():
        if getattr(exports, name) is None:
            continue
        missing = [m for m in modules if importlib.util.find_spec(m) is None]
        if missing:
            raise UsageError(
                f"--{name} needs {', '.join(missing)}; not installed beside sm120patch",
                hint=f"{shlex.quote(sys.executable)} -m pip install 'sm120patch[{name}]'; with pipx"
                f" or uv install the tool again, as 'sm120patch[{name}]'",
                code="missing-extra",
            )
    for path in (exports.cyclonedx, exports.prometheus, exports.sarif):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(
                f"cannot write {path}: there is no directory {path.absolute().parent}",
                hint="make the directory first, or name another file",
            )


def write(
    exports: Exports,
    report: HostReport,
    catalogue: Mapping[str, PatchSet],
    timing: Timing,
) -> tuple[Path, ...]:
    """Write what was asked for, return the files. Raises HostError when one cannot be written."""
    written = []
    if exports.cyclonedx is not None:
        from sm120patch.exports import cyclonedx

        now = datetime.datetime.fromtimestamp(int(timing.ended), tz=datetime.timezone.utc)
        shelf = Shelf(cache_directory(os.environ), lambda _text: None, offline=True)
        text = cyclonedx.document(report, catalogue, diffs(report, shelf), now)
        written.append(_write(exports.cyclonedx, text))
    if exports.prometheus is not None:
        from sm120patch.exports import prometheus

        text = prometheus.text(report, timing.ended, timing.seconds)
        written.append(_write(exports.prometheus, text))
    if exports.sarif is not None:
        from sm120patch.exports import sarif

        written.append(_write(exports.sarif, sarif.document(report)))
    return tuple(written)


def _write(path: Path, text: str) -> Path:
    try:
        write_file(path.absolute(), text.encode("utf-8", "backslashreplace"), tag="export")
    except OSError as error:
        raise HostError(
            f"cannot write {path}: {error.strerror}",
            hint="name another file, or mend its directory",
        ) from error
    return path


def diffs(report: HostReport, shelf: Shelf | None = None) -> dict[tuple[str, str], str]:
    """Unified diffs from upstream's content by (import root, path), where both ends are known.

    Upstream's is from the environment's store, or from a published package on this host.
    """
    tree = Tree(report.root)
    found = {}
    for environment in report.environments:
        for package in environment.packages:
            for file in package.files:
                diff = _diff(tree, environment, package, file, shelf)
                if diff:
                    found[package.root, file.path] = diff
    return found


def _diff(
    tree: Tree,
    environment: EnvironmentReport,
    package: PackageReport,
    file: FileReport,
    shelf: Shelf | None,
) -> str:
    from sm120patch.unified import make_diff

    if file.sha256 is None:
        return ""
    after = tree.read(f"{package.root}/{file.path}", _MOST_BYTES)
    before = _pristine(tree, environment, package, file, shelf)
    if before is None or after is None or sha256_hex(after) != file.sha256:
        return ""
    return make_diff(file.path, before, after)


def _pristine(
    tree: Tree,
    environment: EnvironmentReport,
    package: PackageReport,
    file: FileReport,
    shelf: Shelf | None,
) -> bytes | None:
    """What upstream shipped, by digest; empty for a file that it did not ship."""
    digest = file.pristine_sha256
    if digest is None:
        return b""
    stored = StateDirectory.of(Path(environment.prefix)).content(digest)
    kept = tree.read(str(stored), _MOST_BYTES)
    if kept is None and shelf is not None:
        with contextlib.suppress(HostError):
            kept = shelf.get(package.target, package.version).read([file.path]).get(file.path)
    if kept is None or sha256_hex(kept) != digest:
        return None
    return kept
