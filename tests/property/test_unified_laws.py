from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from sm120patch import diffparse
from sm120patch.model import Changed, Refused, Unchanged
from sm120patch.unified import apply, faults, make_diff

PATH = "pkg/file.cuh"
NAMED_STRICTNESS = ("is ambiguous", "fits forwards and backwards", "could not be turned back")
"""Refusals of content that a patch tool which takes the nearest place would edit."""

# --- strategies --------------------------------------------------------------------------------

contents = st.binary(max_size=6).map(lambda data: data.replace(b"\n", b""))
endings = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n"])
mixed_lines = st.lists(st.tuples(contents, endings).map(b"".join), max_size=30)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Arbitrary bytes in lines: mixed endings, with and without a last newline, with a BOM."""
    data = b"".join(draw(mixed_lines)) + draw(st.one_of(st.just(b""), contents))
    return draw(st.sampled_from([b"", b"", diffparse.BOM])) + data


def edited(draw: st.DrawFn, lines: list[bytes], fresh: st.SearchStrategy[bytes]) -> list[bytes]:
    """Insert, replace and delete a few lines."""
    result = list(lines)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(result)))
        kind = draw(st.sampled_from("idr"))
        result[at : at + (kind != "i")] = [] if kind == "d" else [draw(fresh)]
    return result


@st.composite
def edits(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A file and an edited version of it."""
    lines = draw(files()).split(b"\n")
    return b"\n".join(lines), b"\n".join(edited(draw, lines, contents))


@st.composite
def texts_and_targets(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """Old and new version of a text, and what is found on disk: either of them or a neighbour.

    Most lines are unique, as in code, and some are not; all files end in a newline.
    """
    size = draw(st.integers(8, 60))
    fresh = st.sampled_from([b"#endif", b"}", b"  return;", b"new 1", b"new 2", b"new 3"])
    old = [draw(fresh) if draw(st.integers(0, 3)) == 0 else b"line %d" % n for n in range(size)]
    new = edited(draw, old, fresh)
    found = draw(st.sampled_from([old, old, new]))
    target = edited(draw, found, fresh) if draw(st.booleans()) else found
    before, after, data = (b"".join(line + b"\n" for line in part) for part in (old, new, target))
    return before, after, data


def diff_of(before: bytes, after: bytes) -> bytes:
    return make_diff(PATH, before, after).encode("utf-8", "surrogateescape")


def endings_of(data: bytes) -> set[bytes]:
    return {line[-2:] if line.endswith(b"\r\n") else b"\n" for line in data.splitlines(True)}


# --- laws --------------------------------------------------------------------------------------


@given(edits())
def test_a_diff_made_from_two_contents_turns_one_into_the_other(pair: tuple[bytes, bytes]) -> None:
    before, after = pair
    assume(before != after)
    patch = diff_of(before, after)
    assert faults(patch) == []
    result = apply(patch, PATH, before)
    event(type(result).__name__)
    if isinstance(result, Refused):
        assert any(word in result.reason for word in NAMED_STRICTNESS), result.reason
    else:
        assert isinstance(result, Changed)
        assert result.data == after


@given(st.integers(1, 60), st.integers(0, 59), st.booleans(), st.booleans())
def test_with_unique_lines_nothing_is_refused(
    size: int, at: int, crlf: bool, terminated: bool
) -> None:
    lines = [b"line %d" % n for n in range(size)]
    changed = [*lines[: at % size], b"new", *lines[at % size + 1 :]]
    newline = b"\r\n" if crlf else b"\n"
    end = newline if terminated else b""
    before, after = (newline.join(part) + end for part in (lines, changed))
    assert apply(diff_of(before, after), PATH, before) == Changed(after, 1)


@given(texts_and_targets(), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_whatever_was_changed_can_be_reversed_and_is_never_applied_twice(
    versions: tuple[bytes, bytes, bytes], newline: bytes, terminated: bool
) -> None:
    before, after, target = versions
    assume(before != after)
    target = target.replace(b"\n", newline) if terminated else target.removesuffix(b"\n")
    patch = diff_of(before, after)
    result = apply(patch, PATH, target)
    event(type(result).__name__)
    if not isinstance(result, Changed):
        return
    assert apply(patch, PATH, result.data, reverse=True) == Changed(target, result.sites)
    assert isinstance(apply(patch, PATH, result.data), Unchanged)
    if target:
        assert endings_of(result.data) <= endings_of(target)


@given(edits(), files())
def test_content_is_kept_or_changed_as_a_whole(pair: tuple[bytes, bytes], other: bytes) -> None:
    """On content the diff does not know, there is a value and no exception."""
    assume(pair[0] != pair[1])
    assert isinstance(apply(diff_of(*pair), PATH, other), Changed | Unchanged | Refused)


HEADERS = st.sampled_from(
    ["--- a/pkg/file.cuh", "+++ b/pkg/file.cuh", "@@ -1,3 +1,3 @@", "@@ -0,0 +1 @@",
     "@@ -1 +0,0 @@", "@@ -1,0 +1,0 @@",
     "diff --git a/x b/y", "Binary files a/x and b/y differ", "GIT binary patch", "rename from x",
     "\\ No newline at end of file", "--- /dev/null", "deleted file mode 1", "new file mode 1",
     "old mode 1", "index 1..2 3", " a", "-b", "+c", "", "\r", "\0"]
)  # fmt: skip


@given(st.one_of(st.binary(), st.lists(HEADERS).map(lambda lines: "\n".join(lines).encode())))
def test_garbage_is_a_fault_or_a_diff_but_never_an_exception(patch: bytes) -> None:
    problems = faults(patch)
    result = apply(patch, PATH, b"a\nb\n")
    assert isinstance(result, Refused) or problems == []


# --- referees ----------------------------------------------------------------------------------


def run(*command: str, cwd: Path) -> int:
    environment = {"PATH": "/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(cwd.parent)}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, check=False)
    return done.returncode


@pytest.mark.skipif(not shutil.which("patch"), reason="GNU patch is the referee")
@settings(deadline=None, max_examples=60)
@given(texts_and_targets())
def test_gnu_patch_without_fuzz_agrees(versions: tuple[bytes, bytes, bytes]) -> None:
    """We change what GNU patch changes, in the same way, or refuse for a named reason.

    Deliberately stricter: a place is taken only when it is the only one, content that fits in
    both directions is refused, so is a result that could not be turned back, and a diff without
    any context on one side (which our own `make_diff` makes of whole small files) is bound to
    that end of the file.
    """
    before, after, target = versions
    assume(before != after)
    patch = diff_of(before, after)
    ours = apply(patch, PATH, target)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "pkg").mkdir()
        (root / PATH).write_bytes(target)
        (root / "p.patch").write_bytes(patch)
        status = run("patch", "-p1", "--fuzz=0", "--forward", "--silent", "-i", "p.patch", cwd=root)
        theirs = (root / PATH).read_bytes() if status == 0 else None
    event(f"{type(ours).__name__}, patch {status}")
    if isinstance(ours, Changed):
        assert ours.data == theirs
    elif theirs is not None:
        assert isinstance(ours, Refused)
        one_sided = "does not fit the" in ours.reason
        assert one_sided or any(word in ours.reason for word in NAMED_STRICTNESS), ours.reason


@pytest.mark.skipif(not shutil.which("git"), reason="git apply is the referee")
@settings(deadline=None, max_examples=60)
@given(texts_and_targets())
def test_git_apply_agrees(versions: tuple[bytes, bytes, bytes]) -> None:
    """Git refuses more than we do in one case only: it binds a hunk that is stated at line 1.

    We bind it when its context shows it, as GNU patch does, and GNU patch binds a hunk with less
    context behind than before to the end of the file, where git does not.
    """
    before, after, target = versions
    assume(before != after)
    patch = diff_of(before, after)
    ours = apply(patch, PATH, target)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "pkg").mkdir()
        (root / PATH).write_bytes(target)
        (root / "p.patch").write_bytes(patch)
        accepted = run("git", "apply", "--check", "p.patch", cwd=root) == 0
    event(f"{type(ours).__name__}, git {accepted}")
    if isinstance(ours, Changed):
        assert accepted or b"@@ -1," in patch
    elif accepted:
        assert isinstance(ours, Refused)
        bound = "end of the file" in ours.reason
        assert bound or any(word in ours.reason for word in NAMED_STRICTNESS), ours.reason
