"""A small catalogue and a small environment for it: two packages, five sets, real wheels' shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sm120patch.model import sha256_hex
from sm120patch.unified import make_diff
from tests.support.environments import create_venv, install_fake
from tests.support.manifests import head

A = "sglang/a.py"
B = "sglang/b.py"
SOURCE = "flashinfer/data/csrc/module.cu"
KERNEL = "flashinfer/data/include/kernel.cuh"

A_TEXT = "".join(f"line_{n} = {n}\n" for n in range(40))
B_TEXT = "value = 'upstream'\n"
KERNEL_TEXT = "#pragma once\n#if ARCH < 1200\nint gate = 1;\n#endif\n"


@dataclass(frozen=True)
class Edit:
    """One change of a set: which text of which file becomes which."""

    change: str
    path: str
    old: str
    new: str
    optional: bool = False

    @property
    def target(self) -> str:
        return "sglang" if self.path.startswith("sglang/") else "flashinfer-python"


TEXTS = {A: A_TEXT, B: B_TEXT, KERNEL: KERNEL_TEXT}
SETS: dict[str, tuple[tuple[str, ...], tuple[Edit, ...]]] = {
    "one": (
        (),
        (
            Edit("first", A, "line_3 = 3", "line_3 = 'one'"),
            Edit("extra", B, "'upstream'", "'extra'", optional=True),
        ),
    ),
    "two": ((), (Edit("far", A, "line_30 = 30", "line_30 = 'two'"),)),
    "clash": ((), (Edit("same", A, "line_3 = 3", "line_3 = 'clash'"),)),
    "kernel": ((), (Edit("gate", KERNEL, "ARCH < 1200", "ARCH < 9999"),)),
    "bundle": (("one", "kernel"), ()),
}


def _change(root: Path, set_id: str, edit: Edit) -> str:
    before = TEXTS[edit.path]
    after = before.replace(edit.old + "\n" if edit.path == A else edit.old,
                           edit.new + "\n" if edit.path == A else edit.new)  # fmt: skip
    payload = f"{set_id}/{edit.change}.patch"
    diff = make_diff(edit.path, before.encode(), after.encode()).encode()
    (root / "patches" / set_id).mkdir(parents=True, exist_ok=True)
    (root / "patches" / payload).write_bytes(diff)
    return f"""
[[change]]
id = "{edit.change}"
target = "{edit.target}"
summary = "Change {edit.change}"
description = "For tests."
optional = {str(edit.optional).lower()}
[[change.variant]]
versions = ">=1.0,<2.0"
kind = "diff"
path = "{edit.path}"
payload = "{payload}"
sha256 = "{sha256_hex(diff)}"
present = {{ "{edit.new}" = 1 }}
[[change.window]]
versions = ">=2.0,<3.0"
outcome = "upstream"
reason = "upstream since 2.0"
"""


def write_catalogue(root: Path) -> Path:
    """Write manifests/ and patches/ below `root`; return it."""
    (root / "manifests").mkdir(parents=True, exist_ok=True)
    for set_id, (depends, edits) in SETS.items():
        listed = ", ".join(f'"{name}"' for name in depends)
        text = f"""{head(set_id)}[host]
compute-capability = ["12.0", "12.1"]
[relations]
depends = [{listed}]
"""
        text += "".join(_change(root, set_id, edit) for edit in edits)
        (root / "manifests" / f"{set_id}.toml").write_text(text)
    return root


def write_environment(prefix: Path, version: str = "1.0") -> Path:
    """Create a venv with both small packages; return its site-packages."""
    site = create_venv(prefix)
    install(site, version)
    return site


def install(site: Path, version: str = "1.0") -> None:
    """Install (or reinstall) both small packages."""
    install_fake(
        site,
        "sglang",
        version,
        {"sglang/__init__.py": b"", A: A_TEXT.encode(), B: B_TEXT.encode()},
    )
    install_fake(
        site,
        "flashinfer-python",
        version,
        {
            "flashinfer/__init__.py": b"",
            "flashinfer/_build_meta.py": f'__version__ = "{version}"\n'.encode(),
            SOURCE: b"#include <kernel.cuh>\n",
            KERNEL: KERNEL_TEXT.encode(),
        },
    )
