"""Recognise a Python environment by what lies in it; nothing is started. Reads disk only."""

import re
from typing import NamedTuple

from sm120patch.audit.tree import Tree

SITES = ("site-packages", "dist-packages")
_VERSION = re.compile(r"python(3\.[0-9]+)t?$")
_METADATA = re.compile(r"(sglang|flashinfer[_.-]python)-[^/]*\.(dist|egg)-info$", re.IGNORECASE)


class Place(NamedTuple):
    """One environment; paths as the inside spells them, without links where that is known."""

    prefix: str
    kind: str
    """As in `findings.EnvironmentReport`."""
    python: str
    """`3.11`, or empty."""
    sites: tuple[str, ...]
    """Directories of installed packages, in the order in which Python looks."""
    names: tuple[str, ...] = ()
    """Other paths that lead here."""


def of_prefix(tree: Tree, prefix: str) -> Place | None:
    """Describe the environment with that prefix; None when it holds no packages for any Python."""
    real = tree.resolved(prefix)
    names = (prefix,) if real != prefix else ()
    if tree.is_file(f"{real}/pyvenv.cfg"):
        return _virtual(tree, real, names)
    if tree.is_dir(f"{real}/conda-meta"):
        python, sites = _sites(tree, real)
        return Place(real, "conda", python, sites, names)
    if real == "/usr" or real == "/":
        return _system(tree, names)
    python, sites = _sites(tree, real)
    if sites:
        kind = "system" if real == "/usr/local" else "python"
        if real.endswith("/.local"):
            kind = "user"
        return Place(real, kind, python, sites, names)
    if has_target(tree.names(real)):
        return Place(real, "directory", "", (real,), names)
    return None


def of_site(tree: Tree, site: str) -> Place | None:
    """Describe the environment that a `site-packages` or `dist-packages` directory belongs to."""
    above, _, _name = site.rpartition("/")
    prefix, _, lib = above.rpartition("/lib")
    if lib not in ("", "64") and not lib.startswith(("/python", "64/python")):
        return Place(site, "directory", "", (site,))
    prefix = prefix or "/"
    # Debian's Python puts what its administrator installs below /usr/local.
    if site.endswith("/dist-packages") and prefix in ("/usr", "/usr/local"):
        prefix = "/usr"
    found = of_prefix(tree, prefix)
    if found is not None and site in found.sites:
        return found
    return Place(site, "directory", "", (site,))


def has_target(names: list[str]) -> bool:
    """Tell whether a directory listing shows metadata of a target."""
    return any(_METADATA.match(name) for name in names)


def of_checkout(tree: Tree, directory: str) -> Place | None:
    """Describe a git checkout of a target that may be imported by PYTHONPATH alone."""
    for below in ("/python", "/src", ""):
        for package in ("sglang", "flashinfer"):
            if tree.is_file(f"{directory}{below}/{package}/__init__.py"):
                return Place(directory, "checkout", "", (f"{directory}{below}",))
    return None


def _virtual(tree: Tree, prefix: str, names: tuple[str, ...]) -> Place:
    settings = settings_of(tree, prefix)
    stated = settings.get("version_info") or settings.get("version", "")
    python, sites = _sites(tree, prefix, ".".join(stated.split(".")[:2]))
    if settings.get("include-system-site-packages", "").lower() == "true":
        home = settings.get("home", "")
        base = of_prefix(tree, home.rpartition("/")[0] or "/usr") if home else None
        if base is not None and base.prefix != prefix:
            sites += tuple(s for s in base.sites if s not in sites)
    kind = "venv"
    if "/uv/tools/" in prefix:
        kind = "uv-tool"
    elif "/pipx/" in prefix:
        kind = "pipx"
    return Place(prefix, kind, python, sites, names)


def settings_of(tree: Tree, prefix: str) -> dict[str, str]:
    """Read `pyvenv.cfg`."""
    lines = (line.partition("=") for line in tree.text(f"{prefix}/pyvenv.cfg").splitlines())
    return {key.strip().lower(): value.strip() for key, _, value in lines}


def _system(tree: Tree, names: tuple[str, ...]) -> Place | None:
    """Debian's layout: packages of the distribution and of its administrator, one prefix."""
    sites: list[str] = []
    versions: list[str] = []
    for lib in ("/usr/local/lib", "/usr/lib", "/usr/lib64"):
        for directory, version in _pythons(tree, lib):
            for name in SITES:
                # What /usr/local holds as site-packages belongs to a Python that was built there.
                if lib == "/usr/local/lib" and name == "site-packages":
                    continue
                if tree.is_dir(f"{directory}/{name}"):
                    sites.append(f"{directory}/{name}")
                    versions.append(version)
    if not sites:
        return None
    return Place("/usr", "system", max(versions, key=_order), tuple(_real(tree, sites)), names)


def _sites(tree: Tree, prefix: str, wanted: str = "") -> tuple[str, tuple[str, ...]]:
    """Python version and package directories of a prefix with one Python."""
    found: list[tuple[str, str]] = []
    for lib in ("lib", "lib64"):
        for directory, version in _pythons(tree, f"{prefix}/{lib}"):
            found += [
                (version, f"{directory}/{name}")
                for name in SITES
                if tree.is_dir(f"{directory}/{name}")
            ]
    if not found:
        return wanted, ()
    exact = [entry for entry in found if entry[0] == wanted]
    version = wanted if exact else max((v for v, _ in found), key=_order)
    return version, tuple(_real(tree, [site for v, site in found if v == version]))


def _pythons(tree: Tree, lib: str) -> list[tuple[str, str]]:
    """Directories `python3.11` (and Debian's `python3`) with the version that each names."""
    found = []
    for name in tree.names(lib):
        match = _VERSION.match(name)
        if match or name == "python3":
            found.append((f"{lib}/{name}", match[1] if match else ""))
    return found


def _real(tree: Tree, sites: list[str]) -> list[str]:
    """Resolve links and leave repetitions out: lib64 is often a link to lib."""
    return list(dict.fromkeys(tree.resolved(site) for site in sites))


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
