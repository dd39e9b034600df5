"""Real virtual environments for the tests, filled from published or home-made wheels."""

from __future__ import annotations

import base64
import hashlib
import json
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.wheels import wheel


def create_venv(prefix: Path) -> Path:
    """Create a virtual environment without pip; return its site-packages."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(prefix)
    scheme = sysconfig.get_path("purelib", "posix_prefix", vars={"base": str(prefix)})
    return Path(scheme)


def install_wheel(site: Path, distribution: str, version: str) -> None:
    """Unpack a published wheel as pip would for a pure wheel; its RECORD stays as published."""
    with zipfile.ZipFile(wheel(distribution, version)) as archive:
        archive.extractall(site)


def record_line(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


def install_fake(site: Path, distribution: str, version: str, files: Mapping[str, bytes]) -> None:
    """Lay down a distribution with a true RECORD from literal file contents."""
    info = f"{distribution.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n".encode()
    contents = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": b"Wheel-Version: 1.0\n"}
    record = "".join(record_line(path, data) for path, data in contents.items())
    for path, data in contents.items():
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    (site / info / "RECORD").write_text(record + f"{info}/RECORD,,\n")


def real_environment(prefix: Path, sglang: str, flashinfer: str) -> Path:
    """Create a venv with both published wheels; return its site-packages."""
    site = create_venv(prefix)
    install_wheel(site, "sglang", sglang)
    install_wheel(site, "flashinfer-python", flashinfer)
    return site


def tree_digest(root: Path) -> dict[str, str]:
    """Relative path -> sha256 of every regular file below `root`, bytecode left out."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def install_editable(
    site: Path, distribution: str, version: str, source: Path, *, finder: bool = False
) -> None:
    """Register a source directory as `pip install -e` does: a `.pth` line, or an import hook."""
    stem = distribution.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    url = json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}})
    contents = {
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\n",
        f"{info}/direct_url.json": url.encode(),
    }
    if finder:
        hook = f"__editable___{stem}_finder"
        contents[f"{hook}.py"] = _FINDER.format(source=str(source)).encode()
        contents[f"__editable__.{stem}-{version}.pth"] = (
            f"import {hook}; {hook}.install()\n".encode()
        )
    else:
        contents[f"__editable__.{stem}-{version}.pth"] = f"{source}\n".encode()
    record = "".join(record_line(path, data) for path, data in contents.items())
    contents[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    for path, data in contents.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)


_FINDER = """\
import sys
from importlib.machinery import PathFinder

class Finder:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return PathFinder.find_spec(fullname, [{source!r}]) if "." not in fullname else None

def install():
    sys.meta_path.append(Finder)
"""


def commit_all(work_tree: Path) -> str:
    """Make `work_tree` a git repository whose HEAD holds everything in it; return the commit."""
    from git import Actor, Repo

    with Repo.init(work_tree) as repo:
        repo.git.add("--all")
        author = Actor("Test", "test@example.org")
        return repo.index.commit("Content", author=author, committer=author).hexsha
