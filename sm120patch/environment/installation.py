"""Which copy of each target the environment imports, and what describes it. Reads disk only."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sm120patch.disk import read_file
from sm120patch.distributions import describes, editable_url, version_in
from sm120patch.environment.asking import Question
from sm120patch.environment.editable import Checkout, NoCheckout, dirty_files, find_checkout
from sm120patch.environment.records import (
    Difference,
    Record,
    RecordTable,
    differences,
    read_record,
)
from sm120patch.model import IMPORT_NAMES

_MAX_METADATA = 16 << 20
"""Bytes of a METADATA that are looked at: a long description is a few hundred thousand."""


class Installation(NamedTuple):
    """The copy of one distribution that the environment's Python imports."""

    target: str
    package: str
    version: str
    root: Path
    """Import root: the directory that holds the package, spelled as Python spells it."""
    kind: str
    """`wheel` or `editable`, as in `model.TargetSnapshot`."""
    metadata: Path
    """The `.dist-info` or `.egg-info` that names the version."""
    record: Path | None
    """RECORD that lists the files below `root`; None when there is none."""
    other_copies: tuple[Path, ...] = ()
    """Package directories on `sys.path` or in the user site besides this one."""
    other_metadata: tuple[Path, ...] = ()
    """Further metadata of the same name: traces of a half-finished upgrade."""

    def table(self) -> RecordTable:
        """Read RECORD; empty, with a fault, when the installation has none."""
        if self.record is None:
            return RecordTable({}, (f"{self.metadata} holds no RECORD",))
        return read_record(self.record)

    def records(self, only: Collection[str] | None = None) -> Mapping[str, Record]:
        """Path relative to `root` -> (sha256 in hex or None when unknown, size).

        `only` names the paths that are asked for; RECORD lists thousands.
        """
        if only is None or self.record is None or any(c in p for p in only for c in ',"'):
            return self.table().entries
        return read_record(self.record, only).entries

    def checkout(self) -> Checkout | NoCheckout:
        """Find the git work tree of an editable installation. Imports GitPython."""
        return find_checkout(self.root)


class Environment(NamedTuple):
    """A Python environment as its interpreter describes itself."""

    python: Path
    prefix: Path
    base_prefix: Path
    version: str
    cache_tag: str
    """`cpython-311`: part of the names of cached bytecode."""
    pycache_prefix: Path | None
    """PYTHONPYCACHEPREFIX of whoever starts the server, when known."""
    path: tuple[Path, ...]
    """`sys.path` in isolated mode."""
    site: tuple[Path, ...]
    """purelib and platlib, without repetition."""
    installations: Mapping[str, Installation] = {}
    missing: Mapping[str, str] = {}
    """Target -> why there is no installation of it."""


def start(python: Path) -> Question:
    """Start the environment's interpreter for `discover`; other work can be done meanwhile."""
    return Question(python, sorted(IMPORT_NAMES.values()))


def discover(
    python: Path, environ: Mapping[str, str] | None = None, started: Question | None = None
) -> Environment:
    """Ask the interpreter what it would import, and read the metadata beside it.

    Isolated mode is used: PYTHONPATH, the user site and the working directory play no part.
    `environ` is the environment of the serving user, for PYTHONPYCACHEPREFIX. `started` is
    the question of `start`, without it one is asked. Raises HostError.
    """
    facts = (started or start(python)).answer()
    pycache = (environ or {}).get("PYTHONPYCACHEPREFIX")
    path = tuple(Path(entry) for entry in facts["path"])
    installations: dict[str, Installation] = {}
    missing: dict[str, str] = {}
    for target, package in IMPORT_NAMES.items():
        found = _installation(target, package, facts["packages"][package], path, facts)
        if isinstance(found, str):
            missing[target] = found
        else:
            installations[target] = found
    return Environment(
        python=python,
        prefix=Path(facts["prefix"]),
        base_prefix=Path(facts["base_prefix"]),
        version=facts["version"],
        cache_tag=facts["cache_tag"],
        pycache_prefix=Path(pycache).absolute() if pycache else None,
        path=path,
        site=tuple(dict.fromkeys(Path(entry) for entry in facts["site"])),
        installations=installations,
        missing=missing,
    )


def verify_records(installation: Installation, skip: Collection[str] = ()) -> Iterator[Difference]:
    """Compare the installation with what upstream shipped: RECORD, or HEAD of its checkout.

    `skip` are paths (below the import root) that the ledger answers for. Hashes every file that
    RECORD lists. Yields nothing for a checkout that git cannot read: ask `checkout()` first.
    """
    if installation.record is not None:
        yield from differences(installation.root, installation.package, installation.table(), skip)
    elif isinstance(checkout := installation.checkout(), Checkout):
        for difference in dirty_files(checkout, installation.package):
            if difference.path not in skip:
                yield difference


def locate_package(facts: Mapping[str, Any], package: str) -> Path | str:
    """Import root of a package from the interpreter's answer, or why there is none."""
    if "error" in facts:
        return f"an import hook fails while looking for {package}: {facts['error']}"
    locations = facts.get("locations")
    if not facts:
        return (
            f"Python finds no package {package} (isolated mode, without PYTHONPATH and user site)"
        )
    if locations is None:
        return f"{package} is a single module ({facts['origin']}), expected a package"
    origin = facts.get("origin")
    if origin is None:
        return (
            f"{package} is a namespace package without __init__.py in {', '.join(locations)}: "
            "remains of an uninstalled copy"
        )
    directory = Path(origin).parent
    if directory.name != package or not directory.is_dir():
        return f"{package} is imported from {origin}, which is not a directory named {package}"
    return directory.parent


def _installation(
    target: str,
    package: str,
    facts: Mapping[str, Any],
    path: Sequence[Path],
    environment: Mapping[str, Any],
) -> Installation | str:
    metadata = list(_metadata(target, path))
    root = locate_package(facts, package)
    if isinstance(root, str):
        listed = f"; but {metadata[0]} says it is installed" if metadata else ""
        return root + listed + _user_copy(package, environment)
    metadata += [entry for entry in _metadata(target, [root]) if entry not in metadata]
    chosen = _describing(root, package, metadata)
    if chosen is None:
        return f"{root / package} has no metadata ({target}.dist-info), so its version is unknown"
    version = _version(chosen)
    if version is None:
        return f"{chosen} names no version"
    # `.egg-info` beside the package is a source tree, linked in by `setup.py develop`.
    beside = _same_directory(chosen.parent, root) and chosen.suffix == ".dist-info"
    wheel = beside and not _is_editable(chosen)
    record = chosen / "RECORD"
    return Installation(
        target=target,
        package=package,
        version=version,
        root=root,
        kind="wheel" if wheel else "editable",
        metadata=chosen,
        record=record if wheel and record.is_file() else None,
        other_copies=tuple(_other_copies(package, root, path, environment)),
        other_metadata=tuple(entry for entry in metadata if entry != chosen),
    )


def _metadata(target: str, path: Sequence[Path]) -> Iterator[Path]:
    """Metadata directories of a distribution, in the order of `path`."""
    for directory in path:
        try:
            with os.scandir(directory) as scan:
                names = sorted(entry.name for entry in scan if describes(entry.name, target))
        except OSError:
            continue
        for name in names:
            yield directory / name


def _describing(root: Path, package: str, metadata: Sequence[Path]) -> Path | None:
    """The metadata that belongs to the imported copy.

    Metadata beside the package comes first, then that of an editable installation. Of two beside
    it the one written last wins, and the other is reported.
    """
    beside = [entry for entry in metadata if _same_directory(entry.parent, root)]
    editable = [entry for entry in metadata if _is_editable(entry)]
    linked = [entry for entry in metadata if entry not in beside and _lists_nothing(entry, package)]
    for group in (editable if not beside else [], beside, linked):
        if group:
            return max(group, key=lambda entry: entry.stat().st_mtime_ns)
    return None


def _lists_nothing(metadata: Path, package: str) -> bool:
    """True for an editable installation of an older kind: RECORD holds no file of the package."""
    record = metadata / "RECORD"
    if not record.is_file():
        return True
    return not any(path.startswith(f"{package}/") for path in read_record(record).entries)


def _is_editable(metadata: Path) -> bool:
    try:
        return editable_url(read_file(metadata / "direct_url.json", _MAX_METADATA)) is not None
    except OSError:
        return False


def _version(metadata: Path) -> str | None:
    for name in ("METADATA", "PKG-INFO", ""):
        try:
            data = read_file(metadata / name, _MAX_METADATA)
        except OSError:
            continue
        return version_in(data.decode("utf-8", "replace"))
    return None


def _same_directory(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _other_copies(
    package: str, root: Path, path: Sequence[Path], environment: Mapping[str, Any]
) -> Iterator[Path]:
    seen = {os.path.realpath(root / package)}
    for directory in (*path, Path(environment["user_site"])):
        copy = directory / package
        real = os.path.realpath(copy)
        if real not in seen and (copy / "__init__.py").is_file():
            seen.add(real)
            yield copy


def _user_copy(package: str, environment: Mapping[str, Any]) -> str:
    copy = Path(environment["user_site"]) / package
    return f"; a copy in the user site ({copy}) is not looked at" if copy.is_dir() else ""
