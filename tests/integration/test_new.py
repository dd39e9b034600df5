"""`new`: from upstream's files to a patch set that applies, and everything it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sm120patch import catalogue as catalogues
from tests.support.catalogue import A_TEXT, KERNEL, A, B, write_catalogue, write_environment
from tests.support.command import CHECKOUT, run
from tests.support.environments import record_line


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    write_environment(tmp_path / "env")
    return tmp_path / "env"


def begin(tmp_path: Path, prefix: Path, *more: str, target: str = "sglang") -> Path:
    done = run("new", "mine", "--target", target, "--from-env", prefix, *more, cwd=tmp_path)
    assert done.code == 0, done.err
    return tmp_path / "mine.scratch"


def test_a_set_made_from_an_environment_is_valid_and_applies_there(
    tmp_path: Path, prefix: Path
) -> None:
    scratch = begin(tmp_path, prefix, "--title", "Mine")
    (scratch / A).write_text(A_TEXT.replace("line_3 = 3\n", "line_3 = 33\n"))
    done = run("new", "mine", "--finish", "--output", "json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.result["changes"] == [
        {"change": "a", "path": A, "kind": "codemod", "payload": "mine/a.py", "note": ""}
    ]
    found = catalogues.load(tmp_path / "catalogue").get("mine")
    assert found.title == "Mine" and found.changes[0].variants[0].versions == ">=1.0,<1.0.post0"
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path / "catalogue", capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )  # fmt: skip
    assert "1 passed" in tests.stdout
    here = ("--env", prefix, "--extra-catalogue", tmp_path / "catalogue", "--allow-running")
    assert run("apply", "mine", "--no-verify", *here).code == 0
    assert "line_3 = 33" in next(prefix.rglob("a.py")).read_text()
    assert run("revert", "--all", *here).code == 0
    assert next(prefix.rglob("a.py")).read_text() == A_TEXT


def test_a_header_becomes_a_diff(tmp_path: Path, prefix: Path) -> None:
    scratch = begin(tmp_path, prefix, target="flashinfer-python")
    kernel = scratch / KERNEL
    kernel.write_text(kernel.read_text().replace("1200", "1300"))
    assert run("new", "mine", "--finish", cwd=tmp_path).code == 0
    (change,) = catalogues.load(tmp_path / "catalogue").get("mine").changes
    assert change.variants[0].kind.value == "diff"
    assert change.variants[0].present == {"#if ARCH < 1300": 1}
    assert not (tmp_path / "catalogue" / "tests").exists()


def test_committed_edits_count_like_others(tmp_path: Path, prefix: Path) -> None:
    scratch = begin(tmp_path, prefix)
    (scratch / B).write_text("value = 'mine'\n")
    subprocess.run(
        [
            "git",
            "-C",
            scratch,
            "-c",
            "user.name=x",
            "-c",
            "user.email=x@y.z",
            "commit",
            "-qam",
            "x",
        ],
        check=True,
    )
    done = run("new", "mine", "--finish", "--output", "json", cwd=tmp_path)
    assert [c["path"] for c in done.result["changes"]] == [B]


def test_what_a_set_cannot_hold_is_refused_all_at_once(tmp_path: Path, prefix: Path) -> None:
    scratch = begin(tmp_path, prefix)
    (scratch / A).unlink()
    (scratch / B).write_bytes(b"\0binary")
    (scratch / "sglang" / "fresh.cu").write_text("x = 1\n")
    (scratch / "sglang" / "__init__.py").chmod(0o755)
    done = run("new", "mine", "--finish", "--output", "json", cwd=tmp_path)
    assert done.code == 5
    reasons = "\n".join(done.error["details"]["refused"])
    assert len(done.error["details"]["refused"]) == 4
    for path, why in ((A, "deleted"), (B, "binary"), ("fresh.cu", "new file"), ("init", "mode")):
        assert path in reasons and why in reasons
    assert not (tmp_path / "catalogue").exists()


def test_a_new_file_becomes_one_that_the_set_adds(tmp_path: Path, prefix: Path) -> None:
    scratch = begin(tmp_path, prefix)
    (scratch / B).write_text("value = 'mine'\n")
    (scratch / "sglang" / "mine.json").write_text('{"a": 1}\n')
    (scratch / "sglang" / "mine.py").write_text("x = 1\n")
    assert run("new", "mine", "--finish", cwd=tmp_path).code == 0
    found = catalogues.load(tmp_path / "catalogue").get("mine")
    kinds = {c.variants[0].path: c.variants[0].kind.value for c in found.changes}
    assert kinds == {
        B: "codemod",
        "sglang/mine.json": "file",
        "sglang/mine.py": "file",
    }
    here = ("--catalogue", tmp_path / "catalogue", "--env", prefix, "--gpu", "12.0")
    done = run("apply", "mine", "--no-verify", *here)
    assert done.code == 0, done.err
    (added,) = prefix.rglob("mine.json")
    assert added.read_text() == '{"a": 1}\n'
    assert run("revert", "--all", *here[:-2]).code == 0
    assert not added.exists() and not list(prefix.rglob("sglang/mine.py"))


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("loose.py", "below sglang/ only"),
        ("sglang/mine.so", ".py and .json only"),
        ("sglang/new/mine.py", "its directory is not upstream's"),
    ],
)
def test_a_new_file_elsewhere_or_of_another_kind_is_refused(
    tmp_path: Path, prefix: Path, path: str, why: str
) -> None:
    scratch = begin(tmp_path, prefix)
    (scratch / path).parent.mkdir(exist_ok=True)
    (scratch / path).write_text("x = 1\n")
    done = run("new", "mine", "--finish", cwd=tmp_path)
    assert done.code == 5 and why in done.err


def test_bytecode_and_editor_litter_is_no_new_file(tmp_path: Path, prefix: Path) -> None:
    scratch = begin(tmp_path, prefix)
    (scratch / B).write_text("value = 'mine'\n")
    (scratch / "sglang" / "__pycache__").mkdir()
    (scratch / "sglang" / "__pycache__" / "b.pyc").write_bytes(b"x")
    (scratch / "sglang" / "b.py~").write_bytes(b"x")
    assert run("new", "mine", "--finish", cwd=tmp_path).code == 0


def test_nothing_is_overwritten_without_force(tmp_path: Path, prefix: Path) -> None:
    scratch = begin(tmp_path, prefix)
    again = ("new", "mine", "--target", "sglang", "--from-env", prefix)
    assert run(*again, cwd=tmp_path).code == 2
    assert run("new", "mine", "--finish", cwd=tmp_path).code == 2  # nothing edited
    (scratch / B).write_text("value = 'mine'\n")
    assert run("new", "mine", "--finish", cwd=tmp_path).code == 0
    manifest = tmp_path / "catalogue" / "manifests" / "mine.toml"
    manifest.write_text("kept")
    refused = run("new", "mine", "--finish", "--output", "json", cwd=tmp_path)
    assert refused.code == 2 and str(manifest.relative_to(tmp_path)) in refused.error["message"]
    assert manifest.read_text() == "kept"
    assert run("new", "mine", "--finish", "--force", cwd=tmp_path).code == 0
    assert manifest.read_text() != "kept"
    assert run(*again, "--force", cwd=tmp_path).code == 0
    assert (scratch / B).read_text() == "value = 'upstream'\n"


def test_force_removes_nothing_but_an_earlier_scratch(tmp_path: Path, prefix: Path) -> None:
    (tmp_path / "mine.scratch").mkdir()
    (tmp_path / "mine.scratch" / "thesis").write_text("mine")
    done = run("new", "mine", "--target", "sglang", "--from-env", prefix, "--force", cwd=tmp_path)
    assert done.code == 2 and (tmp_path / "mine.scratch" / "thesis").read_text() == "mine"


def test_our_own_patches_are_taken_off_the_copy_and_foreign_edits_refused(
    tmp_path: Path, prefix: Path
) -> None:
    catalogue = write_catalogue(tmp_path / "c")
    here = ("--env", prefix, "--catalogue", catalogue, "--allow-running")
    assert run("apply", "one", "--no-verify", *here).code == 0
    assert (begin(tmp_path, prefix) / A).read_text() == A_TEXT
    next(prefix.rglob("b.py")).write_text("value = 'sed'\n")
    done = run("new", "other", "--target", "sglang", "--from-env", prefix, "--output", "json",
               cwd=tmp_path)  # fmt: skip
    assert done.code == 5 and done.error["details"]["paths"] == [B]
    assert not (tmp_path / "other.scratch").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("Mine", "--target", "sglang", "--version", "1.0"),
        ("mine", "--target", "torch", "--version", "1.0"),
        ("mine", "--target", "sglang"),
        ("mine", "--target", "sglang", "--version", "--index-url=x"),
        ("mine", "--target", "sglang", "--version", "1.0", "--capability", "sm120"),
        ("mine", "--version", "1.0"),
        ("mine", "--finish"),
    ],
)
def test_wrong_requests_are_usage_errors(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run("new", *arguments, "--output", "json", cwd=tmp_path)
    assert done.code == 2, done.out
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_of_another_set_or_with_a_broken_state_is_refused(
    tmp_path: Path, prefix: Path
) -> None:
    scratch = begin(tmp_path, prefix)
    assert run("new", "other", "--finish", "--scratch", scratch).code == 2
    (scratch / ".git" / "sm120patch.json").write_text("{}")
    assert run("new", "mine", "--finish", "--scratch", scratch).code == 2
    (scratch / ".git" / "sm120patch.json").write_text("[]")
    assert run("new", "mine", "--finish", "--scratch", scratch).code == 2


def _wheel(cache: Path, record: str) -> None:
    cache.mkdir()
    with zipfile.ZipFile(cache / "sglang-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(A, A_TEXT)
        archive.writestr("sglang-1.0.dist-info/METADATA", "Name: sglang\nVersion: 1.0\n\n")
        archive.writestr("sglang-1.0.dist-info/RECORD", record)


def test_a_cached_wheel_is_used_offline_and_checked(tmp_path: Path) -> None:
    _wheel(tmp_path / "good", record_line(A, A_TEXT.encode()))
    _wheel(tmp_path / "bad", record_line(A, b"other"))
    new = ("new", "mine", "--target", "sglang", "--version", "1.0", "--output", "json")
    good = run(*new, cwd=tmp_path, SM120PATCH_WHEEL_CACHE=str(tmp_path / "good"))
    assert good.code == 0 and good.result["source"] == "sglang-1.0-py3-none-any.whl"
    state = json.loads((tmp_path / "mine.scratch" / ".git" / "sm120patch.json").read_bytes())
    assert state["version"] == "1.0"
    bad = run(*new, "--force", cwd=tmp_path, SM120PATCH_WHEEL_CACHE=str(tmp_path / "bad"))
    assert bad.code == 10 and "RECORD" in bad.error["message"]
    assert (tmp_path / "mine.scratch" / A).read_text() == A_TEXT
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad", "good", "mine.scratch"]
