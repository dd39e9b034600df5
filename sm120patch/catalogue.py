"""The known patch sets: loading, lookup, relations, order.

Pure but for `load`, which reads catalogue files and nothing else. What a set means for installed
versions is told by `variants`, whose functions can be had from here.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

from sm120patch import precompiled
from sm120patch.errors import CatalogueError, UsageError
from sm120patch.model import PatchSet, PayloadKind, Variant, sha256_hex
from sm120patch.variants import (
    advice_for,
    choose,
    edit,
    engagement_for,
    launch_for,
    satisfied,
)

__all__ = [
    "SHIPPED",
    "Catalogue",
    "Collected",
    "Places",
    "advice_for",
    "choose",
    "collect",
    "edit",
    "engagement_for",
    "launch_for",
    "lint",
    "load",
    "payload_faults",
    "relation_faults",
    "satisfied",
    "shipped",
]

T = TypeVar("T")

MAX_PAYLOAD = 1 << 20
"""Largest payload that is read, in bytes."""
SHIPPED = "shipped"
"""Origin of the sets that came with the program; others are named by their directory."""


class Places(NamedTuple):
    """Where catalogues lie: `base` (None: what is shipped) and directories that add sets to it."""

    base: Path | None = None
    extra: tuple[Path, ...] = ()


class Catalogue(NamedTuple):
    """All known sets, checked as a whole: relations name known sets and form no cycle."""

    sets: Mapping[str, PatchSet]
    origins: Mapping[str, str] = {}
    """Set -> `SHIPPED`, or the directory that it comes from."""

    @property
    def ids(self) -> tuple[str, ...]:
        """All set names, sorted."""
        return tuple(sorted(self.sets))

    def get(self, set_id: str) -> PatchSet:
        """Return the set of that name; an unknown name is a UsageError with the closest ones."""
        if set_id in self.sets:
            return self.sets[set_id]
        import difflib

        close = difflib.get_close_matches(set_id, self.sets, n=3, cutoff=0.5)
        raise UsageError(
            f"no patch set is named {set_id!r}; known: {', '.join(self.ids) or 'none'}",
            hint=f"did you mean {' or '.join(close)}?"
            if close
            else "see `sm120patch list`; a set of your own needs --extra-catalogue DIRECTORY",
            code="unknown-set",
            details={"name": set_id, "close": close, "known": list(self.ids)},
        )

    def optional(self, ids: Iterable[str]) -> str:
        """Name every change that `--with` can select, in words."""
        changes = ((name, c) for name in self.closure(ids) for c in self.get(name).changes)
        found = [f"{name}/{c.id}" for name, c in changes if c.optional]
        return f"there are {', '.join(found)}" if found else "there is none"

    def closure(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Return the named sets and all they depend on, dependencies first, each once."""
        order: list[str] = []
        seen: set[str] = set()

        def visit(set_id: str) -> None:
            if set_id not in seen:
                seen.add(set_id)
                for dependency in self.get(set_id).depends:
                    visit(dependency)
                order.append(set_id)

        for set_id in ids:
            visit(set_id)
        return tuple(order)


# --- loading -----------------------------------------------------------------------------------


def load(where: Path | Places | None = None) -> Catalogue:
    """Read `manifests/*.toml` and `patches/` below the places, by default what is shipped.

    A bundle, a set without changes of its own, takes over the launch options of the sets it
    depends on, and adds their engagement probes and known results to its own: they are what it
    is. Raises CatalogueError that lists the faults of all manifests, and every name that is used
    twice.
    """
    places = where if isinstance(where, Places) else Places(where)
    found = collect(places)
    faults = [fault for listed in found.faults.values() for fault in listed]
    faults = faults or relation_faults(found.sets)
    if faults:
        from sm120patch import manifest

        raise manifest.broken(f"the catalogue in {', '.join(found.roots)}", faults)
    return Catalogue(_with_bundles(found.sets), found.origins)


class Collected(NamedTuple):
    """What was found in all places, before it is known whether it fits together."""

    roots: tuple[str, ...]
    sets: Mapping[str, PatchSet]
    origins: Mapping[str, str]
    files: Mapping[str, Path]
    """Set (by the name of its manifest, which may be broken) -> manifest."""
    faults: Mapping[str, tuple[str, ...]]
    """Set -> what is wrong with it by itself, each with the manifest it stands in."""


def collect(places: Places) -> Collected:
    """Read every manifest of the places. Raises CatalogueError for a place without manifests."""
    base = shipped() if places.base is None else places.base
    sets: dict[str, PatchSet] = {}
    origins: dict[str, str] = {}
    files: dict[str, Path] = {}
    faults: dict[str, tuple[str, ...]] = {}
    for root in (base, *places.extra):
        # Only of what came with the program: elsewhere nobody knows who compiled it.
        ready = _compiled(root) if root is base and places.base is None else {}
        for file in _manifests(root):
            name = file.stem
            if name in files:
                twice = f"{name}.toml: the name is used twice: {files[name]} and {file}"
                faults[name] = (*faults.get(name, ()), twice)
                continue
            files[name] = file
            origins[name] = SHIPPED if root is base and places.base is None else str(root)
            shown = file.name if root is base else str(file)
            patch_set, listed = _examine(file, root / "patches", ready)
            if listed:
                faults[name] = tuple(f"{shown}: {fault}" for fault in listed)
            if patch_set is not None:
                sets[name] = patch_set
    roots = tuple(dict.fromkeys(map(str, (base, *places.extra))))
    return Collected(roots, sets, origins, files, faults)


def _manifests(root: Path) -> list[Path]:
    files = sorted((root / "manifests").glob("*.toml"))
    if not files:
        raise CatalogueError(
            f"no manifests in {root / 'manifests'}",
            hint="name a directory that holds `manifests/` and `patches/`",
        )
    return files


def shipped() -> Path:
    """Return the data inside the package (wheel), else the checkout around it."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "_data", package.parent):
        if (candidate / "manifests").is_dir():
            return candidate
    raise CatalogueError(
        f"the catalogue is missing: neither {package / '_data'} nor a checkout holds it",
        hint="reinstall sm120patch",
    )


def _compiled(root: Path) -> Mapping[str, PatchSet]:
    try:
        return precompiled.read(_read(root / precompiled.FILE, MAX_PAYLOAD))
    except (OSError, ValueError):
        return {}


def _examine(
    file: Path, patches: Path, ready: Mapping[str, PatchSet]
) -> tuple[PatchSet | None, list[str]]:
    try:
        text = _read(file, MAX_PAYLOAD)
    except (OSError, ValueError) as error:
        return None, [f"cannot be read: {error}"]
    reader = _payload_reader(patches)
    entry = ready.get(sha256_hex(text))
    patch_set = None if entry is None else precompiled.restore(entry, reader)
    if patch_set is not None:
        return patch_set, []
    from sm120patch import manifest

    patch_set, faults = manifest.examine(text, reader)
    if patch_set is not None and patch_set.id != file.stem:
        return None, [f"patch-set.id: {patch_set.id!r} is not the name of the file"]
    return patch_set, faults


def _payload_reader(patches: Path) -> Callable[[str], bytes]:
    """Return a reader of payloads that follows no link out of `patches`."""
    root = os.path.realpath(patches)
    directories: dict[str, str] = {}

    def read(payload: str) -> bytes:
        directory, name = os.path.split(payload)
        if directory not in directories:
            directories[directory] = os.path.realpath(f"{root}/{directory}")
        path = f"{directories[directory]}/{name}"
        if Path(path).is_symlink() or name in ("", ".", ".."):
            path = os.path.realpath(path)
        if not path.startswith(f"{root}/"):
            raise ValueError(f"it leads out of {root}")
        return _read(path, MAX_PAYLOAD)

    return read


def _read(path: str | Path, limit: int) -> bytes:
    with Path(path).open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        data = stream.read(min(size, limit) + 1)  # a buffer of the limit would be cleared first
    if len(data) > limit:
        raise ValueError(f"it has more than {limit} bytes")
    if len(data) > size:
        raise ValueError("it grows while it is read")
    return data


def relation_faults(sets: Mapping[str, PatchSet]) -> list[str]:
    """List relations that name no set, form a cycle, or contradict each other."""
    faults = []
    for patch_set in sets.values():
        for kind, names in (("depends", patch_set.depends), ("conflicts", patch_set.conflicts)):
            faults += [
                f"{patch_set.id}.toml: relations.{kind}: no set is named {name!r}"
                for name in names
                if name not in sets
            ]
    faults += [
        f"{patch_set.id}.toml: relations.depends: {name!r} is an advice, which nothing can apply"
        for patch_set in sets.values()
        for name in patch_set.depends
        if name in sets and sets[name].only_advice
    ]
    if faults:
        return faults
    for patch_set in sets.values():
        needed = set(Catalogue(sets).closure(patch_set.depends))
        where = f"{patch_set.id}.toml: relations"
        if patch_set.id in needed:
            faults.append(f"{where}.depends: {patch_set.id!r} depends on itself in the end")
        faults += [
            f"{where}.conflicts: {name!r} is needed as well"
            for name in patch_set.conflicts
            if name in needed or name == patch_set.id
        ]
    return faults


def _with_bundles(sets: Mapping[str, PatchSet]) -> dict[str, PatchSet]:
    known = Catalogue(sets)
    done: dict[str, PatchSet] = {}
    for set_id in known.closure(known.ids):
        patch_set = sets[set_id]
        members = [done[name] for name in patch_set.depends if not patch_set.changes]
        done[set_id] = patch_set._replace(
            launch=patch_set.launch or tuple(x for m in members for x in m.launch),
            engagement=_joined(patch_set.engagement, (m.engagement for m in members)),
            known_results=_joined(patch_set.known_results, (m.known_results for m in members)),
        )
    return done


def _joined(own: tuple[T, ...], others: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    """What a bundle says itself, and what its members say."""
    found = list(own)
    for items in others:
        found += [item for item in items if item not in found]
    return tuple(found)


def lint(catalogue: Catalogue) -> list[str]:
    """List what loading does not look at: diffs that do not parse, codemods that do not load."""
    return [fault for name in catalogue.ids for fault in payload_faults(catalogue.get(name))]


def payload_faults(patch_set: PatchSet) -> list[str]:
    """List what is wrong with the payloads of one set by themselves."""
    from sm120patch import codemod, diffparse

    faults = []
    variants = {v.payload: v for c in patch_set.changes for v in c.variants}
    for payload, variant in sorted(variants.items()):
        if variant.kind is PayloadKind.CODEMOD:
            try:
                if codemod.unwritten(variant.data, payload):
                    faults.append(f"{payload}: is a skeleton; write the edit")
            except CatalogueError as error:
                faults.append(error.message)
            continue
        if variant.kind is PayloadKind.FILE:
            faults += [f"{payload}: {fault}" for fault in _added_faults(variant)]
            continue
        diff, problems = diffparse.read(variant.data)
        faults += [f"{payload}: {problem}" for problem in problems]
        if diff is not None and diff.path != variant.path:
            faults.append(f"{payload}: is for {diff.path}, the manifest says {variant.path}")
    return faults


def _added_faults(variant: Variant) -> list[str]:
    """List what keeps a file that is added from being read by what it is for."""
    try:
        if variant.path.endswith(".py"):
            import ast

            ast.parse(variant.data)
        else:
            json.loads(variant.data)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        return [f"cannot be read as {PurePosixPath(variant.path).suffix}: {error}"]
    return []
