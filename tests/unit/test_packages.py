"""Published packages are read as an installer would lay them down, whatever is in the archive."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import pytest

from sm120patch import packages
from sm120patch.errors import HostError
from sm120patch.model import Obstacle
from sm120patch.packages import named, open_package, target_snapshot
from tests.support.packages import PYPROJECT, metadata, write_sdist, write_wheel


def test_a_wheel_tells_name_version_pins_and_contents(tmp_path: Path) -> None:
    requires = [
        'flashinfer_python[cu13]==0.6.12; extra == "srt"',
        "torch (==2.9.1)",
        "numpy",
        "click>=8",
        "packaging==24.*",
    ]
    wheel = write_wheel(tmp_path, "sglang", "0.5.9", {"sglang/a.py": b"a"}, requires)
    package = open_package(wheel)
    assert (package.name, package.version) == ("sglang", "0.5.9")
    assert package.pins["flashinfer-python"] == "0.6.12" and package.pins["torch"] == "2.9.1"
    assert not {"numpy", "click"} & set(package.pins)
    assert package.read(["sglang/a.py", "sglang/none.py"]) == {"sglang/a.py": b"a"}


def test_files_of_a_data_directory_are_where_they_are_installed(tmp_path: Path) -> None:
    files = {
        "sglang-1.0.data/purelib/sglang/p.py": b"pure",
        "sglang-1.0.data/platlib/sglang/q.py": b"plat",
        "sglang-1.0.data/scripts/sglang/s.py": b"script",
    }
    package = open_package(write_wheel(tmp_path, "sglang", "1.0", files))
    found = package.read(["sglang/p.py", "sglang/q.py", "sglang/s.py"])
    assert found == {"sglang/p.py": b"pure", "sglang/q.py": b"plat"}


def test_a_source_distribution_is_laid_out_as_its_package_directories_say(tmp_path: Path) -> None:
    tree = {
        "pyproject.toml": PYPROJECT,
        "flashinfer/jit.py": b"jit",
        "include/x.cuh": b"header",
        "version.txt": b"1",
        "3rdparty/cutlass/include/c.h": b"cutlass",
        "tests/t.py": b"test",
    }
    package = open_package(write_sdist(tmp_path, "flashinfer-python", "0.4.1", tree))
    assert (package.name, package.version) == ("flashinfer-python", "0.4.1")
    installed = {
        "flashinfer/jit.py": b"jit",
        "flashinfer/data/include/x.cuh": b"header",
        "flashinfer/data/version.txt": b"1",
        "flashinfer/data/cutlass/include/c.h": b"cutlass",
    }
    assert package.read([*installed, "flashinfer/data/tests/t.py"]) == installed


@pytest.mark.parametrize(
    "pyproject",
    [b"tool = 3", b"[tool]\nsetuptools = []", b'[tool.setuptools]\npackage-dir = "x"',
     b'[tool.setuptools]\npackage-data = 1\npackage-dir = { flashinfer = 2 }'],
)  # fmt: skip
def test_a_source_distribution_with_odd_settings_is_read_all_the_same(
    tmp_path: Path, pyproject: bytes
) -> None:
    tree = {"pyproject.toml": pyproject, "flashinfer/jit.py": b"jit"}
    package = open_package(write_sdist(tmp_path, "flashinfer-python", "0.4.1", tree))
    assert package.read(["flashinfer/jit.py"]) == {"flashinfer/jit.py": b"jit"}


def test_a_snapshot_of_a_package_is_pristine_and_names_what_is_missing(tmp_path: Path) -> None:
    package = open_package(write_wheel(tmp_path, "sglang", "1.0", {"sglang/a.py": b"a"}))
    files = target_snapshot(package, ["sglang/a.py", "sglang/b.py"]).files
    assert files["sglang/a.py"].pristine == files["sglang/a.py"].data == b"a"
    assert files["sglang/a.py"].sha256 == files["sglang/a.py"].pristine_sha256
    assert files["sglang/b.py"].obstacle is Obstacle.MISSING


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a-1.0-py3-none-any.whl", b"no archive"),
        ("a-1.0.tar.gz", b"no archive"),
        ("a-1.0.tar.gz", gzip.compress(b"no archive inside", mtime=0)),
        ("a.txt", b"text"),
        ("a-1.0-py3-none-any.whl", None),
    ],
)
def test_garbage_is_a_host_error_with_a_hint(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(HostError) as caught:
        open_package(tmp_path / name)
    assert caught.value.hint and name in caught.value.message


@pytest.mark.parametrize("header", [b"Name: a\n", b"Version: 1\n", b"\xff\xfe\0"])
def test_metadata_without_name_or_version_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "a-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a-1.0.dist-info/METADATA", header)
    with pytest.raises(HostError, match="names no"):
        open_package(path)


def test_two_packages_in_one_wheel_are_refused(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, "a", "1.0", {"b-2.0.dist-info/METADATA": metadata("b", "2.0")})
    with pytest.raises(HostError, match="2 METADATA"):
        open_package(path)


def test_a_damaged_member_and_a_huge_one_are_host_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_wheel(tmp_path, "a", "1.0", {"a/x.py": b"x" * 4096, "a/y.py": b"y"})
    package = open_package(path)
    monkeypatch.setattr(packages, "MAX_MEMBER", 1024)
    with pytest.raises(HostError, match="more than 1024 bytes"):
        package.read(["a/x.py"])
    assert package.read(["a/y.py"]) == {"a/y.py": b"y"}
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(HostError, match="cannot read"):
        package.read(["a/y.py"])


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("flashinfer_python-0.6.3-py3-none-any.whl", ("flashinfer-python", "0.6.3")),
        ("sglang-0.5.11-cp311-cp311-manylinux_2_34_x86_64.whl", ("sglang", "0.5.11")),
        ("flashinfer_python-0.2.11.post3.tar.gz", ("flashinfer-python", "0.2.11.post3")),
        ("README.md", None),
        ("x.whl", None),
        ("x.tar.gz", None),
    ],
)
def test_file_names_state_name_and_version(file: str, expected: tuple[str, str] | None) -> None:
    assert named(Path(file)) == expected
