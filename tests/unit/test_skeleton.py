"""What an author's edit becomes: codemods that work, or that say that they do not."""

from __future__ import annotations

import pytest

from sm120patch import codemod
from sm120patch.authoring import skeleton, textdiff
from sm120patch.authoring.draft import change_ids
from sm120patch.model import Changed, Refused, Unchanged
from sm120patch.unified import apply

BEFORE = '''\
"""A module."""

from pkg.utils import is_cuda, is_sm90, is_sm100

_is_sm90 = is_cuda() and is_sm90()
_is_sm100 = is_cuda() and is_sm100()


class Runner:
    """Runs."""

    limit = 4

    def fused(self, x):
        size = 2048
        if (_is_sm90 or _is_sm100) and x < size:
            return build(supported_major_versions=[9, 10])
        for item in range(10):
            log("no", item)
        return None


def other(x):
    return _is_sm90 or _is_sm100
'''


def made(old: str, new: str, count: int = 1) -> skeleton.Skeleton:
    assert BEFORE.count(old) >= count
    return skeleton.write(
        "pkg/m.py", BEFORE.encode(), BEFORE.replace(old, new, count).encode(), "t"
    )


@pytest.mark.parametrize(
    ("old", "new", "edit"),
    [
        ("(_is_sm90 or _is_sm100)", "(_is_sm90 or _is_sm100 or _is_sm120)", "widen("),
        ("[9, 10]", "[9, 10, 12]", "append("),
        ("size = 2048", "size = 4096", "replace("),
        ('log("no", item)', 'log("no", item, x)', "replace("),
        ("range(10)", "range(12)", "replace("),
        ("is_sm90, is_sm100", "is_sm90, is_sm100, is_sm120", "add_name("),
        ("size = 2048\n", "size = 2048\n        # why\n        y = 1\n", "insert_after("),
        ("_is_sm100 = is_cuda() and is_sm100()\n",
         "_is_sm100 = is_cuda() and is_sm100()\n_is_sm120 = is_cuda()\n", "insert_after("),
        ("_is_sm100 = is_cuda() and", "_is_sm100 = is_hip() and", "Assignment("),
    ],
)  # fmt: skip
def test_edits_of_the_engine_are_found_and_give_the_authors_bytes(
    old: str, new: str, edit: str
) -> None:
    result = made(old, new)
    assert result.works and edit in result.source.decode(), result.source.decode()
    run = codemod.run(result.source, "x", BEFORE.encode())
    assert isinstance(run, Changed) and run.data == BEFORE.replace(old, new, 1).encode()
    small = codemod.run(result.source, "x", result.before)
    assert isinstance(small, Changed) and small.data == result.after
    assert len(result.before) < len(BEFORE)
    assert isinstance(codemod.run(result.source, "x", result.after), Unchanged)


def test_several_edits_of_one_file_become_several_sites() -> None:
    after = (
        BEFORE.replace("is_sm90, is_sm100", "is_sm90, is_sm100, is_sm120")
        .replace("is_sm100()\n", "is_sm100()\n_is_sm120 = is_cuda() and is_sm120()\n", 1)
        .replace("(_is_sm90 or _is_sm100)", "(_is_sm90 or _is_sm100 or _is_sm120)")
    )
    result = skeleton.write("pkg/m.py", BEFORE.encode(), after.encode(), "t")
    assert result.works and result.source.count(b"Site(") == 3
    run = codemod.run(result.source, "x", BEFORE.encode())
    assert isinstance(run, Changed) and run.data == after.encode()


def test_a_place_that_stands_twice_is_told_apart_by_what_is_around_it() -> None:
    before = b"def f(a):\n    if g(1, a):\n        x(1)\n    return h(1, a)\n"
    after = before.replace(b"h(1, a)", b"h(2, a)")
    result = skeleton.write("pkg/m.py", before, after, "t")
    assert result.works and b'"h(1, a)"' in result.source


def test_the_same_replacement_at_every_place_is_one_site_with_a_count() -> None:
    before = b"def f(a):\n    x = g(a)\n    return h(g(a))\n"
    after = before.replace(b"g(a)", b"g(b)")
    result = skeleton.write("pkg/m.py", before, after, "t")
    assert result.works and b"count=2" in result.source


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("        return None\n", "", "removed"),
        ("    limit = 4", "    limit = 5", "body of a class"),
        ("        size = 2048\n", "        go()\n        size = 2048\n", "head of a block"),
        ("def other(x)", "def other(x, y)", "arg"),
        ("class Runner:\n", "class Runner(Base):\n", "head"),
        ("size = 2048", "size = 2048  # big", "only comments"),
        ("size = 2048", "size = = 2048", "invalid syntax"),
    ],
)
def test_what_no_edit_expresses_becomes_a_skeleton_that_refuses(
    old: str, new: str, why: str
) -> None:
    result = made(old, new)
    assert not result.works and why in result.note, result.note
    run = codemod.run(result.source, "x", BEFORE.encode())
    assert isinstance(run, Refused) and "write the edit" in run.reason
    assert codemod.unwritten(result.source, "x")
    edited = next(line for line in (new or old).splitlines() if line.strip())
    comments = [line for line in result.source.decode().splitlines() if line.startswith("#")]
    assert any(line.startswith(("# +", "# -")) and edited.strip() in line for line in comments)


def test_a_file_that_is_not_utf8_becomes_a_skeleton() -> None:
    before = b"# -*- coding: latin-1 -*-\nx = '\xe9'\n"
    result = skeleton.write("pkg/m.py", before, before + b"y = 1\n", "t")
    assert not result.works
    assert isinstance(codemod.run(result.source, "x", before), Refused)


# --- other text files ----------------------------------------------------------------------------

HEADER = "".join(f"#if ARCH < 1200\n  wait();\n#endif\nint f{n};\n" for n in range(9)).encode()


def test_a_diff_takes_as_much_context_as_makes_it_fit_one_place() -> None:
    lines = HEADER.split(b"\n")
    lines[16] = b"#if ARCH < 1300"
    after = b"\n".join(lines)
    result = textdiff.write("pkg/a.cuh", HEADER, after)
    assert isinstance(result, textdiff.TextDiff)
    assert result.present == {"#if ARCH < 1300": 1}
    run = apply(result.payload, "pkg/a.cuh", HEADER)
    assert isinstance(run, Changed) and run.data == after


def test_a_removed_line_is_a_post_condition() -> None:
    result = textdiff.write("pkg/a.h", b"a\nb\nc\n", b"a\nc\n")
    assert isinstance(result, textdiff.TextDiff)
    assert result.present == {} and result.absent == ("b",)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (b"a\0", b"b\0", "binary"),
        (b"a\nb\n", b"b\na\n", "no line tells"),
        (b"a\nb\n", b"a\nb\n\n", "no line tells"),
    ],
)
def test_diffs_that_could_not_be_known_again_are_refused(
    before: bytes, after: bytes, why: str
) -> None:
    result = textdiff.write("pkg/a.h", before, after)
    assert isinstance(result, Refused) and why in result.reason


def test_changes_are_named_after_as_much_of_their_path_as_they_need() -> None:
    assert change_ids(["p/jit/comm.py"]) == ["comm"]
    assert change_ids(["p/jit/comm.py", "p/x/comm.py"]) == ["jit-comm", "x-comm"]
    assert change_ids(["p/__init__.py"]) == ["init"]
    assert len(set(change_ids(["p/a.h", "p/a.py"]))) == 2
