"""Rules of the house: imports point downward, the core is pure, modules stay small."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sm120patch"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("__init__", "errors", "model", "plaintext", "plan", "relpath", "tomltext", "userdirs"),
    (
        "planner", "catalogue", "manifest", "unified", "codemod", "contents", "diffparse",
        "variants", "versions", "known", "trial", "policy", "state", "evidence", "recorded",
        "redaction", "render", "tables", "_conditions", "_edits", "_scopes", "_slices",
        "precompiled", "distributions", "authoring", "linting", "fingerprints", "shadowing",
    ),
    ("environment", "host", "store", "ledger", "caches", "disk", "journal", "claims", "signals",
     "signing", "ownership",
     "packages", "published", "tuning"),
    ("transaction", "recovery", "exchange", "verify", "simhost", "audit", "report", "doctor",
     "exports", "compiling", "fleet"),
    ("operations",),
    ("cli", "__main__"),
)  # fmt: skip
"""From the bottom up; a module imports from its own layer and from those below."""
PURE = LAYERS[1]
IMPURE = {
    "subprocess", "sqlite3", "socket", "time", "threading", "multiprocessing",
    "asyncio", "signal", "tempfile", "shutil", "fcntl", "http", "urllib", "ssl", "logging",
}  # fmt: skip
WRITING = {
    "write_text", "write_bytes", "unlink", "mkdir", "makedirs", "rmdir", "rmtree", "touch", "chmod",
    "chown", "utime", "symlink_to", "hardlink_to", "rename", "remove", "removedirs", "truncate",
    "mkstemp", "system", "popen", "fork", "kill", "now", "today", "utcnow",
}  # fmt: skip
"""Calls that change something, or that ask the clock."""
READING = {"read_text", "read_bytes", "iterdir", "glob", "rglob", "listdir", "scandir"}
READERS = {"catalogue", "fingerprints"}
"""The pure modules that may read files: those of the catalogue, and the index made from it."""


@dataclass(frozen=True)
class Import:
    module: str
    line: int
    top: bool
    """Executed when the importing module is loaded."""


@dataclass(frozen=True)
class Module:
    name: str
    """Dotted, without the leading `sm120patch.`."""
    path: Path
    tree: ast.Module

    @property
    def part(self) -> str:
        """What LAYERS calls it: module or package right below `sm120patch`."""
        return self.name.split(".")[0]

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.tree) or ""


@cache
def modules() -> tuple[Module, ...]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] in ("_data", "collections"):  # the latter is Ansible's: tests/fleet
            continue
        name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        found.append(Module(name, path, ast.parse(path.read_bytes())))
    return tuple(found)


def imports(node: ast.AST, top: bool = True) -> Iterator[Import]:
    """Every import, those inside functions included; those for type checkers left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, top) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            assert child.module is not None
            yield Import(child.module, child.lineno, top)
            if child.module == "sm120patch" or child.module.startswith("sm120patch."):
                for alias in child.names:
                    yield Import(f"{child.module}.{alias.name}", child.lineno, top)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for branch in child.orelse:
                yield from imports(branch, top)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(child, top and not inside)


def layer_of(part: str) -> int:
    (level,) = [level for level, names in enumerate(LAYERS) if part in names]
    return level


def own(found: Import) -> str | None:
    """Part of sm120patch that an import is about; None for the names of `sm120patch` itself."""
    head, _, rest = found.module.partition(".")
    part = rest.split(".")[0]
    return part if head == "sm120patch" and part in {m.part for m in modules()} else None


def cases() -> list[Any]:
    """One case a module."""
    return [pytest.param(m, id=m.name) for m in modules()]


def test_every_part_has_its_layer() -> None:
    placed = [part for names in LAYERS for part in names]
    assert sorted(placed) == sorted(set(placed)), "no part twice"
    assert set(placed) == {module.part for module in modules()}


@pytest.mark.parametrize("module", cases())
def test_imports_point_downward(module: Module) -> None:
    level = layer_of(module.part)
    upward = [
        f"line {found.line}: {found.module}"
        for found in imports(module.tree)
        if (part := own(found)) is not None and layer_of(part) > level
    ]
    assert upward == []


@pytest.mark.parametrize("module", [m for m in modules() if m.part in PURE], ids=lambda m: m.name)
def test_the_core_touches_nothing(module: Module) -> None:
    loaded = {found.module.split(".")[0] for found in imports(module.tree)}
    assert loaded & IMPURE == set()
    forbidden = WRITING if module.name in READERS else WRITING | READING
    touched = {
        f"line {node.lineno}: {ast.unparse(node.func)}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Attribute) and node.func.attr in forbidden)
            or (isinstance(node.func, ast.Name) and node.func.id == "open")
        )
    }
    assert touched == set()


@pytest.mark.parametrize(
    "module", [m for m in modules() if "Pure." in m.docstring], ids=lambda m: m.name
)
def test_a_module_that_calls_itself_pure_is(module: Module) -> None:
    loaded = {found.module.split(".")[0] for found in imports(module.tree)}
    assert loaded & IMPURE == set()


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_reader_reads_files_in_one_function(name: str) -> None:
    (reader,) = [m for m in modules() if m.name == name]
    readers = {
        function.name
        for function in ast.walk(reader.tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr in ("read_text", "read_bytes")
    }
    assert len(readers) <= 1, readers


@pytest.mark.parametrize("module", cases())
def test_third_party_packages_are_loaded_late(module: Module) -> None:
    known = sys.stdlib_module_names | {"sm120patch", "__future__"}
    foreign = [f for f in imports(module.tree) if f.module.split(".")[0] not in known]
    early = {f.module.split(".")[0] for f in foreign if f.top}
    assert early <= ({"click"} if module.part == "cli" else set())
    if module.part != "cli":
        assert "click" not in {f.module.split(".")[0] for f in foreign}


@pytest.mark.parametrize("module", cases())
def test_modules_stay_small_and_say_what_they_are_for(module: Module) -> None:
    assert len(module.path.read_text().splitlines()) <= 500
    assert module.docstring or not module.tree.body


@pytest.mark.parametrize("module", cases())
def test_named_tuples_do_not_have_their_annotations_compiled_again(module: Module) -> None:
    """`typing` compiles each annotation that is text: half of what defining them takes."""
    bases = [b for c in ast.walk(module.tree) if isinstance(c, ast.ClassDef) for b in c.bases]
    if any(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in bases):
        assert "__future__" not in {found.module for found in imports(module.tree)}


def test_nothing_is_imported_that_is_not_declared() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    extras = [word for name in optional if name != "dev" for word in optional[name]]
    declared = {
        re.split(r"[\[>;]", word)[0].strip().lower() for word in [*project["dependencies"], *extras]
    }
    names = {
        "git": "gitpython", "pynvml": "nvidia-ml-py", "cyclonedx": "cyclonedx-python-lib",
        # What cyclonedx-python-lib takes package addresses as.
        "packageurl": "cyclonedx-python-lib",
    }  # fmt: skip
    known = sys.stdlib_module_names | {"sm120patch", "__future__"}
    used = {
        names.get(package, package)
        for module in modules()
        for found in imports(module.tree)
        if (package := found.module.split(".")[0]) not in known
    }
    assert used <= declared
