"""What changes packages from outside: start-up code, plug-ins, variables, mounts. Reads disk only.

Start-up code that an installed distribution answers for in its RECORD is no finding by itself; what
speaks of the targets is one whoever installed it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping

from sm120patch.audit import places
from sm120patch.audit.findings import Finding, Kind
from sm120patch.audit.layout import Copy, Layout
from sm120patch.audit.mounts import Mount
from sm120patch.audit.places import Place
from sm120patch.audit.tree import Tree
from sm120patch.model import IMPORT_NAMES

_TARGETS = re.compile(rb"\b(?:sglang|flashinfer)(?:[._ \"'/,:)\]]|$)")
_CUSTOM = ("sitecustomize", "usercustomize")
_COMPILED = (".pyc", ".so")
_MODULES = 200
"""Files of a package that are looked into."""
_GROUPS = ("sglang.srt.plugins", "sglang.srt.platforms", "sglang.serve_backends")
"""Entry point groups from which SGLang loads code of other distributions."""
_HARMLESS = frozenset(("import _virtualenv",))
"""Lines that tools write without a RECORD: virtualenv and uv."""
_APPORT = b"apport_python_hook"
"""Ubuntu's own sitecustomize reports crashes and does nothing else."""

VARIABLES = {
    "PYTHONPATH": "is searched before the installed packages",
    "LD_PRELOAD": "is loaded into every process",
    "SGLANG_PLUGINS": "chooses the plug-ins that SGLang loads",
    "SGLANG_EXTERNAL_MODEL_PACKAGE": "adds or replaces models of SGLang",
    "SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE": "adds or replaces processors of SGLang",
    "SGLANG_MOE_CONFIG_DIR": "lays fused-MoE configurations over those of SGLang",
    "SGLANG_LORA_MOE_CONFIG_DIR": "lays LoRA configurations over those of SGLang",
    "SGLANG_LORA_DENSE_CONFIG_DIR": "lays LoRA configurations over those of SGLang",
    "SGLANG_HTTP_SERVER_APP_PATH": "replaces the HTTP application of SGLang",
    "FLASHINFER_EXTRA_CFLAGS": "changes how FlashInfer's modules are compiled",
    "FLASHINFER_EXTRA_CUDAFLAGS": "changes how FlashInfer's modules are compiled",
    "FLASHINFER_NVCC": "is the compiler of FlashInfer's modules",
    "CPATH": "is searched before FlashInfer's headers",
    "FLASHINFER_CUBIN_DIR": "replaces FlashInfer's binaries",
    "FLASHINFER_AOT_DIR": "replaces FlashInfer's prebuilt modules",
}
"""Variables that overlay code, binaries or configurations, and what they do."""


def in_environment(tree: Tree, place: Place, layout: Layout) -> Iterator[Finding]:
    """Find what runs or overlays at every start of one environment."""
    owners = _Owners(tree, place.sites)
    for directory in dict.fromkeys((*layout.path, *_libraries(tree, place))):
        for name in _CUSTOM:
            compiled = [p for p in tree.matching(directory, f"{name}.") if p.endswith(_COMPILED)]
            for path in (f"{directory}/{name}.py", f"{directory}/{name}/__init__.py", *compiled):
                yield from _custom(tree, path, owners)
    for pth, line in layout.code:
        yield from _line(tree, pth, line, layout, owners)
    for site in place.sites:
        yield from _plugins(tree, site)


def _libraries(tree: Tree, place: Place) -> Iterator[str]:
    """Directories of the standard library: `sitecustomize` may lie there as well.

    That of a virtual environment is the one of the Python that it was made with.
    """
    for site in place.sites:
        above, _, name = site.rpartition("/")
        if name in places.SITES:
            yield above
    base = places.settings_of(tree, place.prefix).get("home", "").rpartition("/")[0]
    if base and place.python:
        yield from (f"{base}/{lib}/python{place.python}" for lib in ("lib", "lib64"))


def _custom(tree: Tree, path: str, owners: _Owners) -> Iterator[Finding]:
    data = tree.read(path, 1 << 24)
    if data is None and tree.is_file(path):
        detail = "is executed at every start of Python, and cannot be looked into"
        yield Finding(Kind.CARRIER, "-", path, detail)
    if data is None or not _has_code(data):
        return
    speaks = _TARGETS.search(data)
    if not speaks and (owners.answer_for(path, data) or _APPORT in data):
        return
    said = "and speaks of the packages" if speaks else "and no distribution answers for it"
    yield Finding(Kind.CARRIER, "-", path, f"is executed at every start of Python, {said}")


def _has_code(data: bytes) -> bool:
    lines = (line.strip() for line in data.splitlines())
    return any(line and not line.startswith(b"#") for line in lines)


def _line(tree: Tree, pth: str, line: str, layout: Layout, owners: _Owners) -> Iterator[Finding]:
    if line in _HARMLESS:
        return
    data = tree.read(pth, 1 << 20) or b""
    owned = owners.answer_for(pth, data)
    editable = pth.rpartition("/")[2].startswith("__editable__")
    speaks = None
    if not (owned and editable):
        speaks = _TARGETS.search(line.encode()) or _module_speaks(tree, line, layout)
    if owned and not speaks:
        return
    said = "it speaks of the packages" if speaks else "no distribution answers for it"
    shown = line if len(line) <= 80 else f"{line[:77]}..."
    yield Finding(Kind.CARRIER, "-", pth, f"executes {shown!r} at every start of Python; {said}")


def _module_speaks(tree: Tree, line: str, layout: Layout) -> bool:
    """Look into the modules that the line names, and into what lies in their packages."""
    for name in dict.fromkeys(re.findall(r"[A-Za-z_][\w.]*", line)):
        first, *below = name.split(".")
        for directory in layout.path if first not in IMPORT_NAMES.values() else ():
            package = f"{directory}/{first}"
            files = [f"{package}.py", *tree.matching(package, "", ".py")]
            files += [
                f"{'/'.join((package, *below[:depth]))}.py" for depth in range(len(below), 0, -1)
            ]
            texts = (tree.read(file, 1 << 20) for file in files[:_MODULES])
            if any(text is not None and _TARGETS.search(text) for text in texts):
                return True
    return False


def _plugins(tree: Tree, site: str) -> Iterator[Finding]:
    for name in tree.names(site):
        if not name.endswith((".dist-info", ".egg-info")):
            continue
        path = f"{site}/{name}/entry_points.txt"
        text = tree.text(path)
        own = name.split("-", 1)[0].lower().replace("_", "-") in IMPORT_NAMES
        groups = [g for g in _GROUPS if re.search(rf"^\[{re.escape(g)}\]", text, re.MULTILINE)]
        if groups and not own:
            detail = f"is loaded by SGLang at its start as a plug-in ({', '.join(groups)})"
            yield Finding(Kind.CARRIER, "sglang", path, detail)


class _Owners:
    """Which files an installed distribution answers for, by RECORD; read when first asked."""

    def __init__(self, tree: Tree, sites: tuple[str, ...]) -> None:
        self._tree = tree
        self._sites = sites

    def answer_for(self, path: str, data: bytes) -> bool:
        """Tell whether some RECORD lists the file with exactly this content."""
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        for site in self._sites:
            if not path.startswith(f"{site}/"):
                continue
            wanted = f"{path[len(site) + 1 :]},sha256={digest},".encode()
            for name in self._tree.names(site):
                if name.endswith(".dist-info"):
                    record = self._tree.read(f"{site}/{name}/RECORD", 64 << 20) or b""
                    if record.startswith(wanted) or b"\n" + wanted in record:
                        return True
        return False


# --- variables and mounts ----------------------------------------------------------------------


def in_variables(
    tree: Tree, environ: Mapping[str, str], where: str, here: str = "/"
) -> Iterator[Finding]:
    """Find overlays that variables name.

    `where` says whose variables they are, `here` is what relative paths in them start from.
    """
    for name, does in VARIABLES.items():
        value = environ.get(name, "")
        if not value:
            continue
        if name == "PYTHONPATH":
            yield from _python_path(tree, value, where, here)
        elif name == "CPATH":
            held = [d for d in value.split(":") if d and tree.is_dir(f"{d}/flashinfer")]
            for directory in held:
                said = f"{where}: {name} names {directory}, which holds flashinfer, and {does}"
                yield Finding(Kind.CARRIER, "-", name, said)
        else:
            yield Finding(Kind.CARRIER, "-", name, f"{where}: {name}={value[:200]} {does}")


def _python_path(tree: Tree, value: str, where: str, here: str) -> Iterator[Finding]:
    for entry in filter(None, value.split(":")):
        directory = entry if entry.startswith("/") else f"{here.rstrip('/')}/{entry}"
        held = [
            name
            for name in (*IMPORT_NAMES.values(), *(f"{n}.py" for n in _CUSTOM))
            if tree.status(f"{directory}/{name}") is not None
        ]
        if held:
            said = f"{where}: PYTHONPATH names {directory}, which holds {', '.join(held)}"
            yield Finding(Kind.CARRIER, "-", "PYTHONPATH", f"{said} and {VARIABLES['PYTHONPATH']}")


def settings(tree: Tree) -> dict[str, str]:
    """Variables that `/etc/environment` sets for every login."""
    found = {}
    for line in tree.text("/etc/environment").splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and not name.startswith("#"):
            found[name.strip()] = value.strip().strip("\"'")
    return found


def in_mounts(tree: Tree, copy: Copy, mounts: Mapping[str, Mount]) -> Iterator[Finding]:
    """Find file systems, most often single files, that are mounted over a package."""
    start = tree.outside(f"{copy.root}/{copy.package}")
    for path, mount in sorted(mounts.items()):
        if path == start or path.startswith(f"{start}/"):
            relative = path[len(start) - len(copy.package) :]
            detail = f"is mounted over the package ({mount.kind} of {mount.source})"
            yield Finding(Kind.CARRIER, copy.target, relative, detail)
