"""Home-made published packages: a wheel, or a source distribution laid out as FlashInfer's."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.catalogue import A_TEXT, B_TEXT, KERNEL, KERNEL_TEXT, SOURCE, A, B


def metadata(name: str, version: str, requires: Iterable[str] = ()) -> bytes:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {r}" for r in requires), "", "text"]).encode()


def write_wheel(
    directory: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes],
    requires: Iterable[str] = (),
) -> Path:
    stem = f"{name.replace('-', '_')}-{version}"
    path = directory / f"{stem}-py3-none-any.whl"
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in files.items():
            archive.writestr(member, data)
        archive.writestr(f"{stem}.dist-info/METADATA", metadata(name, version, requires))
    return path


def write_sdist(directory: Path, name: str, version: str, tree: Mapping[str, bytes]) -> Path:
    """Write `NAME-VERSION.tar.gz`; `tree` maps paths of the source tree to contents."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = directory / f"{stem}.tar.gz"
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for member, data in {**tree, "PKG-INFO": metadata(name, version)}.items():
            info = tarfile.TarInfo(f"{stem}/{member}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


PYPROJECT = b"""
[tool.setuptools.package-dir]
"flashinfer.data" = "."
"flashinfer.data.cutlass" = "3rdparty/cutlass"
[tool.setuptools.package-data]
"flashinfer.data" = ["csrc/**", "include/**", "version.txt"]
"flashinfer.data.cutlass" = ["include/**"]
"""


def publish(directory: Path, sglang: str, pin: str, a_text: str = A_TEXT) -> None:
    """Publish a release of both small packages: SGLang as a wheel, FlashInfer as its source."""
    files = {"sglang/__init__.py": b"", A: a_text.encode(), B: B_TEXT.encode()}
    requires = [f'flashinfer_python[cu13]=={pin}; extra == "x"']
    write_wheel(directory, "sglang", sglang, files, requires)
    tree = {
        "pyproject.toml": PYPROJECT,
        "flashinfer/__init__.py": b"",
        SOURCE.removeprefix("flashinfer/data/"): b"#include <kernel.cuh>\n",
        KERNEL.removeprefix("flashinfer/data/"): KERNEL_TEXT.encode(),
    }
    write_sdist(directory, "flashinfer-python", pin, tree)
