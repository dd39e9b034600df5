"""Which copy of each target an environment imports, told from its files alone. Reads disk only.

The rules are those of `site` and of installers: directories in order, the lines of `.pth` files
after each, then what an import hook of an editable installation maps. No code is run for it.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from sm120patch.audit.places import SITES, Place
from sm120patch.audit.tree import Tree
from sm120patch.distributions import describes, editable_url, version_in
from sm120patch.model import IMPORT_NAMES


class Copy(NamedTuple):
    """The copy of one target that is imported; paths as the inside spells them."""

    target: str
    package: str
    version: str
    kind: str
    """`wheel` or `editable`."""
    root: str
    metadata: str
    record: str | None
    others: tuple[str, ...] = ()
    """Package directories besides this one."""
    other_metadata: tuple[str, ...] = ()


class Layout(NamedTuple):
    """What an environment's start puts together."""

    path: tuple[str, ...]
    """Directories that are searched for packages, in order."""
    code: tuple[tuple[str, str], ...]
    """`.pth` file and a line of code in it, executed at every start."""
    copies: tuple[Copy, ...]
    problems: tuple[tuple[str, str], ...] = ()
    """Target and why its copy cannot be told, though something of it is there."""


def read_layout(tree: Tree, place: Place, written: Mapping[str, str] | None = None) -> Layout:
    """Tell what the environment at `place` imports.

    `written` is where the ledger's changes went: target -> import root, as the interpreter named it
    then. It decides where code in a `.pth` file may have put another copy first, which files alone
    cannot tell.
    """
    path, code = _search_path(tree, place.sites)
    copies: list[Copy] = []
    problems: list[tuple[str, str]] = []
    listed = {directory: tree.names(directory) for directory in path}
    for target, package in IMPORT_NAMES.items():
        first = _placed_first(listed, code, (written or {}).get(target))
        found = _copy(tree, target, package, listed, first)
        if isinstance(found, Copy):
            copies.append(found)
        elif found:
            problems.append((target, found))
    return Layout(tuple(path), tuple(code), tuple(copies), tuple(problems))


def _placed_first(
    listed: Collection[str], code: Collection[tuple[str, str]], written: str | None
) -> str | None:
    """Where changes went, if start-up code may have put that place first.

    A ledger that was copied with its environment names the other environment's packages: those are
    imported only where the code speaks of them.
    """
    if written is None or not code:
        return None
    of_an_environment = written.rpartition("/")[2] in SITES and written not in listed
    spoken_of = any(written in line for _pth, line in code)
    return written if spoken_of or not of_an_environment else None


def _search_path(tree: Tree, sites: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    path: list[str] = []
    code: list[tuple[str, str]] = []
    for site in sites:
        if site not in path:
            path.append(site)
        for pth in tree.matching(site, "", ".pth"):
            for line in _lines(tree.text(pth)):
                if line.startswith(("import ", "import\t")):
                    code.append((pth, line.strip()))
                    continue
                line = line.rstrip()
                directory = line if line.startswith("/") else f"{site}/{line}"
                directory = directory.rstrip("/")
                if directory not in path and tree.is_dir(directory):
                    path.append(directory)
    return path, code


def _lines(text: str) -> Iterator[str]:
    """Lines of a `.pth` file that `site` looks at; they end where `open` has them end."""
    for line in re.split(r"\r\n|\r|\n", text.removeprefix("\ufeff")):
        if line.strip() and not line.startswith("#"):
            yield line


def _copy(
    tree: Tree, target: str, package: str, listed: dict[str, list[str]], first: str | None
) -> Copy | str | None:
    metadata = list(_metadata(target, listed))
    roots = _roots(tree, package, listed, first, metadata)
    if not roots:
        if not metadata:
            return None
        return f"{metadata[0]} says that it is installed, but there is no {package}"
    root = roots[0]
    if root not in listed:
        metadata += list(_metadata(target, {root: tree.names(root)}))
    chosen = _describing(tree, root, metadata)
    if chosen is None and _in_checkout(tree, root):
        stated = _stated(tree, root, package) or "unknown"
        return Copy(target, package, stated, "editable", root, root, None)
    if chosen is None:
        return f"{root}/{package} has no metadata, so its version is unknown"
    version = _version(tree, chosen)
    if version is None:
        return f"{chosen} names no version"
    beside = _parent(tree, chosen) == tree.resolved(root) and chosen.endswith(".dist-info")
    wheel = beside and _editable_url(tree, chosen) is None
    record = f"{chosen}/RECORD"
    own = tree.resolved(f"{root}/{package}")
    return Copy(
        target=target,
        package=package,
        version=version,
        kind="wheel" if wheel else "editable",
        root=root,
        metadata=chosen,
        record=record if wheel and tree.is_file(record) else None,
        others=tuple(f"{r}/{package}" for r in roots if tree.resolved(f"{r}/{package}") != own),
        other_metadata=tuple(m for m in metadata if m != chosen),
    )


def _roots(
    tree: Tree,
    package: str,
    listed: dict[str, list[str]],
    first: str | None,
    metadata: Sequence[str],
) -> list[str]:
    """Directories that hold the package, that from which it is imported first."""
    roots = [
        directory
        for directory, names in listed.items()
        if package in names and tree.is_file(f"{directory}/{package}/__init__.py")
    ]
    for entry in metadata:
        roots += [r for r in _editable_roots(tree, entry, package, listed) if r not in roots]
    if first is not None and tree.is_file(f"{first}/{package}/__init__.py"):
        roots = [first, *(root for root in roots if root != first)]
    return roots


def _metadata(target: str, listed: dict[str, list[str]]) -> Iterator[str]:
    for directory, names in listed.items():
        for name in names:
            if describes(name, target):
                yield f"{directory}/{name}"


def _describing(tree: Tree, root: str, metadata: Sequence[str]) -> str | None:
    """As `environment.installation` chooses: beside the package, then editable; newest wins."""
    real = tree.resolved(root)
    beside = [entry for entry in metadata if _parent(tree, entry) == real]
    editable = [entry for entry in metadata if _editable_url(tree, entry) is not None]
    for group in (editable if not beside else [], beside, list(metadata)):
        if group:
            return max(group, key=lambda entry: _mtime(tree, entry))
    return None


def _editable_url(tree: Tree, metadata: str) -> str | None:
    return editable_url(tree.text(f"{metadata}/direct_url.json"))


def _editable_roots(
    tree: Tree, metadata: str, package: str, listed: dict[str, list[str]]
) -> Iterator[str]:
    """Import roots that an editable installation names: by its hook, by its URL, by a link file."""
    stated = _editable_url(tree, metadata)
    if stated is None and not metadata.endswith(".egg-info"):
        return
    site = metadata.rpartition("/")[0]
    for name in listed.get(site, ()):
        if name.startswith("__editable___") and name.endswith("_finder.py"):
            mapped = _mapping(tree.text(f"{site}/{name}")).get(package, "")
            above, _, last = mapped.rpartition("/")
            if last == package and tree.is_file(f"{mapped}/__init__.py"):
                yield above
    from urllib.parse import unquote, urlsplit

    try:
        url = urlsplit(stated or "")
    except ValueError:
        return
    directory = unquote(url.path).rstrip("/")
    if url.scheme == "file" and directory.startswith("/"):
        for root in (directory, f"{directory}/src", f"{directory}/python"):
            if tree.is_file(f"{root}/{package}/__init__.py"):
                yield root


def _mapping(source: str) -> dict[str, str]:
    """Read the MAPPING that setuptools writes into its import hook."""
    import ast

    found = re.search(r"^MAPPING(?:: *[^=\n]+)? *= *(\{.*?\})\s*$", source, re.MULTILINE)
    try:
        value = ast.literal_eval(found[1]) if found else {}
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {k: v for k, v in value.items() if isinstance(k, str) and isinstance(v, str)}


def _version(tree: Tree, metadata: str) -> str | None:
    names = ("METADATA", "PKG-INFO") if tree.is_dir(metadata) else ("",)
    for name in names:
        if version := version_in(tree.text(f"{metadata}/{name}".rstrip("/"))):
            return version
    return None


def _in_checkout(tree: Tree, root: str) -> bool:
    """Tell whether a git work tree starts at an import root or right above it."""
    above = root.rpartition("/")[0]
    return any(tree.status(f"{place}/.git") is not None for place in (root, above))


def _stated(tree: Tree, root: str, package: str) -> str | None:
    """Version that a source tree states of itself: nobody has installed it."""
    for name in ("version.py", "_version.py"):
        text = tree.text(f"{root}/{package}/{name}")
        found = re.search(r"^(?:__)?version(?:__)? *= *[\"']([^\"'\n]+)[\"']", text, re.MULTILINE)
        if found:
            return found[1]
    return tree.text(f"{root}/version.txt").strip() or None


def _parent(tree: Tree, path: str) -> str:
    return tree.resolved(path.rpartition("/")[0])


def _mtime(tree: Tree, path: str) -> int:
    status = tree.status(path)
    return 0 if status is None else status.st_mtime_ns
