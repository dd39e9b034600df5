"""`new`: begin a patch set in a scratch repository, and turn the author's edit into its files.

Writes the scratch directory, the wheel cache, and the catalogue directory that is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sm120patch import manifest, versions
from sm120patch.authoring.draft import Brief, Draft, Made, compose
from sm120patch.environment import Installation, discover, locate
from sm120patch.errors import ConflictError, HostError, Sm120PatchError, UsageError
from sm120patch.model import IMPORT_NAMES, sha256_hex
from sm120patch.operations import scratch
from sm120patch.operations.scratch import Scratch
from sm120patch.operations.writing import check_name, write_new
from sm120patch.published import Shelf
from sm120patch.store import StateDirectory, Store


@dataclass(frozen=True)
class Request:
    """What `new SET --target DIST` was asked to begin."""

    set_id: str
    target: str
    from_env: str | None
    version: str | None
    title: str
    capabilities: tuple[str, ...]


@dataclass(frozen=True)
class Begun:
    """A scratch repository that waits for its author."""

    directory: Path
    about: Scratch
    files: int


@dataclass(frozen=True)
class Finished:
    """A patch set as it was written."""

    catalogue: Path
    about: Scratch
    written: tuple[str, ...]
    """Paths below the catalogue."""
    made: tuple[Made, ...]


def default_scratch(set_id: str) -> Path:
    """Where a scratch lies when nothing is said."""
    return Path(f"{set_id}.scratch")


def begin(
    request: Request,
    directory: Path,
    shelf: Shelf,
    environ: Mapping[str, str],
    *,
    force: bool = False,
) -> Begun:
    """Copy upstream's files into a scratch repository. Raises when they are not upstream's."""
    _check_names(request)
    version, source, files = _pristine(request, shelf, environ)
    about = Scratch(
        set_id=request.set_id,
        target=request.target,
        version=version,
        source=source,
        title=request.title,
        capabilities=request.capabilities,
        commit="",
    )
    counted = _Counted(files)
    made = scratch.create(directory, counted, about, force=force)
    return Begun(directory, made, counted.count)


class _Counted:
    """Passes files on and counts them."""

    def __init__(self, files: Iterable[tuple[str, bytes]]) -> None:
        self._files = files
        self.count = 0

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        for item in self._files:
            self.count += 1
            yield item


def _check_names(request: Request) -> None:
    check_name(request.set_id)
    if request.target not in IMPORT_NAMES:
        raise UsageError(f"unknown target {request.target!r}; known: {', '.join(IMPORT_NAMES)}")
    for capability in request.capabilities:
        if not re.fullmatch(r"[0-9]{1,2}\.[0-9]", capability):
            raise UsageError(f"{capability!r} is no compute capability such as 12.0")
    if request.version is not None and versions.installed(request.version) is None:
        raise UsageError(f"{request.version!r} is no version", hint="write for example 0.5.9")
    if (request.from_env is None) == (request.version is None):
        raise UsageError(
            "say where upstream's files come from: --version V (a published wheel), or"
            " --from-env PREFIX (what is installed there)"
        )


def _pristine(
    request: Request, shelf: Shelf, environ: Mapping[str, str]
) -> tuple[str, str, Iterable[tuple[str, bytes]]]:
    """Version, origin in words, and upstream's files."""
    if request.version is not None:
        package = shelf.get(request.target, request.version)
        contents = package.contents(IMPORT_NAMES[request.target])
        return package.version, package.path.name, contents
    environment = discover(locate(request.from_env, None, environ), environ)
    installation = environment.installations.get(request.target)
    if installation is None:
        raise HostError(
            f"{request.target} is not installed in {environment.prefix}:"
            f" {environment.missing.get(request.target, 'not found')}",
            hint="name the environment that has it, or take a published wheel with --version V",
        )
    store = Store(StateDirectory.of(environment.prefix))
    files = _installed(installation, store)
    return installation.version, f"installed in {environment.prefix}", files


def _installed(installation: Installation, store: Store) -> list[tuple[str, bytes]]:
    """Upstream's files of an installed wheel; our own patches are taken off on the way."""
    if installation.record is None:
        raise HostError(
            f"{installation.target} in {installation.root} has no RECORD, so nobody knows what"
            " upstream shipped",
            hint="take the published wheel instead: --version V",
        )
    files: list[tuple[str, bytes]] = []
    foreign: list[str] = []
    for path, record in installation.records().items():
        if not path.startswith(f"{installation.package}/") or path.endswith(".pyc"):
            continue
        data = _original(installation.root / path, record.sha256, store)
        if data is None:
            foreign.append(path)
        else:
            files.append((path, data))
    if foreign:
        shown = ", ".join(foreign[:5]) + (" ..." if len(foreign) > 5 else "")
        raise ConflictError(
            f"{len(foreign)} files are not what RECORD says, and no copy of upstream's is kept:"
            f" {shown}",
            code="foreign-edit",
            hint="reinstall the package, or take the published wheel instead: --version V",
            details={"paths": foreign},
        )
    return files


def _original(path: Path, digest: str | None, store: Store) -> bytes | None:
    try:
        data = path.read_bytes()
    except OSError:
        data = b""
    if digest is not None and sha256_hex(data) == digest:
        return data
    return store.get(digest) if digest is not None else None


# --- finishing ---------------------------------------------------------------------------------


def finish(
    set_id: str, directory: Path, catalogue: Path, today: str, *, force: bool = False
) -> Finished:
    """Write payloads, tests and, last of all, the manifest for what was edited in a scratch.

    `today` is the ISO date that the manifest says its windows were checked on. Raises UsageError
    when nothing was edited or a file exists already, ConflictError when a set cannot hold the edit.
    """
    about = scratch.read(directory)
    if about.set_id != set_id:
        raise UsageError(
            f"{directory} is the scratch of {about.set_id}, not of {set_id}",
            hint=f"finish it with `sm120patch new {about.set_id} --finish`",
        )
    found = scratch.edits(directory, about)
    if not found.changed and not found.refused:
        raise UsageError(
            f"nothing was edited in {directory}",
            hint=f"edit files below {directory / IMPORT_NAMES[about.target]}, then repeat",
            code="nothing-edited",
        )
    brief = Brief(set_id, about.target, about.version, about.title, about.capabilities, today)
    draft = compose(brief, found.changed)
    refused = [*found.refused, *(draft if isinstance(draft, list) else [])]
    if refused or isinstance(draft, list):
        raise _refusal(directory, refused)
    _check(draft, set_id)
    write_new(draft.files, catalogue, force=force)
    return Finished(catalogue, about, tuple(sorted(draft.files)), draft.made)


def _refusal(directory: Path, refused: list[str]) -> Sm120PatchError:
    return ConflictError(
        "a patch set cannot hold this edit:\n" + "\n".join(f"  - {r}" for r in refused),
        code="not-expressible",
        hint=f"nothing was written; undo those in {directory} (`git checkout -- PATH`) and repeat",
        details={"refused": refused},
    )


def _check(draft: Draft, set_id: str) -> None:
    """The manifest must be valid by our own rules before anybody gets to see it."""

    def payload(name: str) -> bytes:
        return draft.files[f"patches/{name}"]

    manifest.parse(draft.files[f"manifests/{set_id}.toml"], f"{set_id}.toml", payload)
