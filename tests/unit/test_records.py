from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import pytest

from sm120patch.environment.records import (
    Difference,
    Record,
    RecordTable,
    differences,
    read_record,
    safe_relative,
)
from sm120patch.errors import HostError


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def table_of(tmp_path: Path, text: str | bytes) -> RecordTable:
    path = tmp_path / "RECORD"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_record(path)


def test_a_line_gives_hex_digest_and_size(tmp_path: Path) -> None:
    table = table_of(tmp_path, f"pkg/a.py,sha256={encoded(b'x')},1\n")
    assert table.entries == {"pkg/a.py": Record(digest(b"x"), 1)}
    assert table.faults == ()


def test_quoted_paths_and_missing_size_are_read(tmp_path: Path) -> None:
    table = table_of(tmp_path, f'"pkg/a,b.py",sha256={encoded(b"x")},\n')
    assert table.entries == {"pkg/a,b.py": Record(digest(b"x"), None)}


@pytest.mark.parametrize("line", ["pkg/a.pyc,,", "pkg-1.dist-info/RECORD,,"])
def test_a_line_without_digest_is_known_but_proves_nothing(tmp_path: Path, line: str) -> None:
    table = table_of(tmp_path, line + "\n")
    assert list(table.entries.values()) == [Record(None, None)]
    assert table.faults == ()


def test_scripts_outside_the_import_root_are_left_out_silently(tmp_path: Path) -> None:
    table = table_of(tmp_path, f"../../../bin/sglang,sha256={encoded(b'x')},1\n")
    assert table == RecordTable({}, ())


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "pkg/../../x", "pkg/./a.py", "pkg//a.py", "", "pkg/a\0.py"]
)
def test_a_path_that_could_lead_elsewhere_is_a_fault(tmp_path: Path, path: str) -> None:
    table = table_of(tmp_path, f"{path},sha256={encoded(b'x')},1\nok.py,,\n")
    assert "ok.py" in table.entries or table.faults
    assert path not in table.entries
    assert table.faults


@pytest.mark.parametrize(
    "value", ["md5=AAAA", "sha256=AAAA", "sha256=!!!", "sha512=" + "A" * 86, "nonsense"]
)
def test_an_unusable_digest_is_unknown_and_reported(tmp_path: Path, value: str) -> None:
    table = table_of(tmp_path, f"pkg/a.py,{value},1\n")
    assert table.entries == {"pkg/a.py": Record(None, 1)}
    assert "pkg/a.py" in table.faults[0]


def test_contradicting_lines_make_the_file_unknown(tmp_path: Path) -> None:
    lines = f"a.py,sha256={encoded(b'x')},1\na.py,sha256={encoded(b'y')},1\n"
    table = table_of(tmp_path, lines)
    assert table.entries["a.py"] == Record(None, None)
    assert "twice" in table.faults[0]


@pytest.mark.parametrize(
    "garbage", [b"\0\0\0", b"\xff\xfe\x00", b"a,b\n", b'"unterminated', b"," * 9, b"x" * 200_000]
)
def test_garbage_is_a_fault_not_a_traceback(tmp_path: Path, garbage: bytes) -> None:
    table = table_of(tmp_path, garbage)
    assert all(record.sha256 is None for record in table.entries.values())
    assert table.faults


def test_an_unreadable_record_is_a_host_error(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot read"):
        read_record(tmp_path / "RECORD")


@pytest.mark.parametrize("path", ["a", "a/b.py", "a b/c", "..a/b", "a..b"])
def test_plain_relative_paths_are_safe(path: str) -> None:
    assert safe_relative(path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("pkg/a.py", "pkg/sub/b.py", "pkg-1.dist-info/METADATA"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def recorded(*names: str) -> RecordTable:
    return RecordTable({name: Record(digest(name.encode()), None) for name in names})


ALL = ("pkg/a.py", "pkg/sub/b.py", "pkg-1.dist-info/METADATA")


def test_an_untouched_tree_has_no_differences(tree: Path) -> None:
    (tree / "pkg/__pycache__").mkdir()
    (tree / "pkg/__pycache__/a.cpython-311.pyc").write_bytes(b"x")
    (tree / "other.py").write_bytes(b"not of this package")
    assert list(differences(tree, "pkg", recorded(*ALL))) == []


def test_changed_missing_and_added_files_are_named(tree: Path) -> None:
    (tree / "pkg/a.py").write_bytes(b"edited")
    (tree / "pkg/sub/b.py").unlink()
    (tree / "pkg/sub/c.py").write_bytes(b"new")
    assert list(differences(tree, "pkg", recorded(*ALL))) == [
        Difference("pkg/a.py", "changed", digest(b"pkg/a.py"), digest(b"edited")),
        Difference("pkg/sub/b.py", "missing", digest(b"pkg/sub/b.py"), None),
        Difference("pkg/sub/c.py", "added", None, digest(b"new")),
    ]


def test_skipped_paths_are_neither_changed_nor_added(tree: Path) -> None:
    (tree / "pkg/a.py").write_bytes(b"edited")
    (tree / "pkg/new.py").write_bytes(b"ours")
    assert list(differences(tree, "pkg", recorded(*ALL), {"pkg/a.py", "pkg/new.py"})) == []


def test_a_directory_or_fifo_in_place_of_a_file_is_unreadable(tree: Path) -> None:
    (tree / "pkg/a.py").unlink()
    (tree / "pkg/a.py").mkdir()
    (tree / "pkg/sub/b.py").unlink()
    os.mkfifo(tree / "pkg/sub/b.py")
    found = list(differences(tree, "pkg", recorded(*ALL)))
    assert [(d.path, d.kind) for d in found] == [
        ("pkg/a.py", "unreadable"),
        ("pkg/sub/b.py", "unreadable"),
    ]


def test_a_missing_package_directory_is_all_missing(tmp_path: Path) -> None:
    kinds = [d.kind for d in differences(tmp_path, "pkg", recorded(*ALL))]
    assert kinds == ["missing"] * 3


def test_links_with_the_recorded_content_are_no_difference(tree: Path) -> None:
    target = tree / "elsewhere.py"
    (tree / "pkg/a.py").rename(target)
    (tree / "pkg/a.py").symlink_to(target)
    assert list(differences(tree, "pkg", recorded(*ALL))) == []
