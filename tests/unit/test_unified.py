from __future__ import annotations

import pytest

from sm120patch import diffparse
from sm120patch.model import (
    Changed,
    EditResult,
    Refused,
    Unchanged,
)
from sm120patch.unified import apply, faults, make_diff, quoted

PATH = "flashinfer/data/a.cuh"
BEFORE = b"one\ntwo\nthree\ngate\nfive\nsix\nseven\n"
AFTER = BEFORE.replace(b"gate\n", b"open\n")
PATCH = make_diff(PATH, BEFORE, AFTER).encode()


def changed(result: EditResult) -> bytes:
    assert isinstance(result, Changed), result
    return result.data


def refusal(result: EditResult) -> str:
    assert isinstance(result, Refused), result
    return result.reason


def diff(body: str, *, old: str = f"a/{PATH}", new: str = f"b/{PATH}") -> bytes:
    return f"--- {old}\n+++ {new}\n{body}".encode()


# --- where a hunk fits -------------------------------------------------------------------------


def test_applies_and_reverses_to_the_byte() -> None:
    assert apply(PATCH, PATH, BEFORE) == Changed(AFTER, 1)
    assert apply(PATCH, PATH, AFTER, reverse=True) == Changed(BEFORE, 1)


def test_applied_and_taken_back_are_noticed() -> None:
    assert isinstance(apply(PATCH, PATH, AFTER), Unchanged)
    assert isinstance(apply(PATCH, PATH, BEFORE, reverse=True), Unchanged)


def test_lines_elsewhere_in_the_file_move_the_hunk() -> None:
    moved = b"".join(b"// %d\n" % n for n in range(500)) + BEFORE + b"// end\n"
    assert changed(apply(PATCH, PATH, moved)) == moved.replace(b"gate", b"open")


@pytest.mark.parametrize("line", [b"one", b"three", b"five", b"seven"])
def test_every_context_line_counts_there_is_no_fuzz(line: bytes) -> None:
    assert "was not found" in refusal(apply(PATCH, PATH, BEFORE.replace(line, b"else")))


def test_two_places_are_refused_even_when_one_is_the_stated_one() -> None:
    assert "ambiguous" in refusal(apply(PATCH, PATH, BEFORE + b"gap\n" + BEFORE))


def test_a_later_hunk_is_searched_after_the_earlier_one() -> None:
    """Of two equal places, one before the first hunk, only the other can be meant."""
    body = (
        "@@ -8,7 +8,7 @@\n u\n v\n w\n-first\n+1st\n x\n y\n z\n"
        "@@ -16,7 +16,7 @@\n one\n two\n three\n-gate\n+open\n five\n six\n seven\n"
    )
    middle = b"u\nv\nw\nfirst\nx\ny\nz\n"
    result = apply(diff(body), PATH, BEFORE + middle + b"\n" + BEFORE)
    assert result == Changed(BEFORE + middle.replace(b"first", b"1st") + b"\n" + AFTER, 2)


def test_all_hunks_or_none() -> None:
    before = b"".join(b"%d\n" % n for n in range(60))
    after = before.replace(b"\n5\n", b"\nV\n").replace(b"\n30\n", b"\nXXX\n")
    after = after.replace(b"\n50\n", b"\nL\n")
    patch = make_diff(PATH, before, after).encode()
    reason = refusal(apply(patch, PATH, before.replace(b"\n31\n", b"\nforeign\n")))
    assert reason == "hunk 2 of 3 was not found: '30'"


def test_half_applied_content_is_refused_both_ways() -> None:
    before = b"".join(b"%d\n" % n for n in range(60))
    half = before.replace(b"\n5\n", b"\nV\n")
    patch = make_diff(PATH, before, half.replace(b"\n50\n", b"\nL\n")).encode()
    refusal(apply(patch, PATH, half))
    refusal(apply(patch, PATH, half, reverse=True))


def test_a_hunk_from_the_start_of_a_file_fits_no_other_place() -> None:
    patch = diff("@@ -1,4 +1,4 @@\n-a\n+A\n b\n c\n d\n")
    assert changed(apply(patch, PATH, b"a\nb\nc\nd\ne\n")) == b"A\nb\nc\nd\ne\n"
    assert "start of the file" in refusal(apply(patch, PATH, b"x\na\nb\nc\nd\ne\n"))


def test_a_hunk_from_the_end_of_a_file_fits_no_other_place() -> None:
    patch = diff("@@ -2,4 +2,4 @@\n b\n c\n d\n-e\n+E\n")
    assert changed(apply(patch, PATH, b"a\nb\nc\nd\ne\n")) == b"a\nb\nc\nd\nE\n"
    assert "end of the file" in refusal(apply(patch, PATH, b"a\nb\nc\nd\ne\nf\n"))


def test_content_that_fits_both_directions_is_refused() -> None:
    """An inserted copy of a neighbour could otherwise be inserted for ever."""
    patch = diff("@@ -2,2 +2,3 @@\n a\n+a\n b\n")
    assert "turned back" in refusal(apply(patch, PATH, b"x\na\nb\ny\n"))
    assert "forwards and backwards" in refusal(apply(patch, PATH, b"x\na\na\nb\ny\n"))


def test_a_result_that_cannot_be_told_from_its_neighbourhood_is_refused() -> None:
    block = b"u\n%s\nw\n"
    patch = diff("@@ -1,3 +1,3 @@\n u\n-one\n+two\n w\n")
    data = b"-\n" + block % b"one" + b"-\n" + block % b"two"
    # Backwards the diff fits the second block, so nobody can say which of the two was ours.
    refusal(apply(patch, PATH, data))


def test_sites_count_groups_of_edited_lines() -> None:
    patch = diff("@@ -1,7 +1,7 @@\n a\n-b\n-c\n+B\n d\n+e\n f\n-g\n+G\n h\n")
    assert apply(patch, PATH, b"a\nb\nc\nd\nf\ng\nh\n") == Changed(b"a\nB\nd\ne\nf\nG\nh\n", 3)


def test_the_path_must_be_the_one_the_diff_names() -> None:
    assert "is for flashinfer/data/a.cuh" in refusal(apply(PATCH, "flashinfer/b.cuh", BEFORE))


def test_search_time_is_linear_on_periodic_content() -> None:
    """Quadratic matching of this pair would take minutes."""
    context = " a\n" * 20_000
    body = f"@@ -9,40001 +9,40001 @@\n{context}-b\n+c\n{context}"
    assert "not found" in refusal(apply(diff(body), PATH, b"a\n" * 100_000))


# --- bytes -------------------------------------------------------------------------------------


def crlf(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


def test_lf_diff_on_a_crlf_file_keeps_crlf() -> None:
    assert apply(PATCH, PATH, crlf(BEFORE)) == Changed(crlf(AFTER), 1)
    assert apply(PATCH, PATH, crlf(AFTER), reverse=True) == Changed(crlf(BEFORE), 1)


def test_crlf_diff_on_an_lf_file_keeps_lf() -> None:
    patch = make_diff(PATH, crlf(BEFORE), crlf(AFTER)).encode()
    assert apply(patch, PATH, BEFORE) == Changed(AFTER, 1)


def test_mixed_endings_are_kept_per_line_and_new_lines_follow_their_neighbour() -> None:
    patch = diff("@@ -1,6 +1,8 @@\n a\n-b\n+B\n c\n+new\n d\n e\n+more\n f\n")
    result = apply(patch, PATH, b"a\nb\r\nc\r\nd\ne\nf\r\n")
    assert changed(result) == b"a\nB\r\nc\r\nnew\r\nd\ne\nmore\nf\r\n"


def test_a_deletion_that_would_lose_an_odd_ending_is_refused() -> None:
    patch = diff("@@ -1,3 +1,2 @@\n a\n-b\n c\n")
    assert "turned back" in refusal(apply(patch, PATH, b"a\nb\r\nc\n"))
    assert changed(apply(patch, PATH, b"a\r\nb\r\nc\r\n")) == b"a\r\nc\r\n"


def test_a_diff_that_changes_endings_must_match_exactly() -> None:
    patch = make_diff(PATH, BEFORE, BEFORE.replace(b"gate\n", b"gate\r\n")).encode()
    assert changed(apply(patch, PATH, BEFORE)) == BEFORE.replace(b"gate\n", b"gate\r\n")
    refusal(apply(patch, PATH, crlf(BEFORE)))


def test_a_missing_last_newline_stays_missing() -> None:
    tail = diff("@@ -5,3 +5,4 @@\n five\n six\n seven\n+eight\n")
    assert changed(apply(tail, PATH, BEFORE[:-1])) == BEFORE + b"eight"
    assert changed(apply(tail, PATH, BEFORE + b"", reverse=False)) == BEFORE + b"eight\n"
    assert changed(apply(PATCH, PATH, BEFORE[:-1])) == AFTER[:-1]


def test_a_diff_may_add_or_drop_the_last_newline() -> None:
    patch = make_diff(PATH, BEFORE[:-1], BEFORE).encode()
    assert b"\\ No newline at end of file" in patch
    assert apply(patch, PATH, BEFORE[:-1]) == Changed(BEFORE, 1)
    assert isinstance(apply(patch, PATH, BEFORE), Unchanged)
    assert apply(patch, PATH, BEFORE, reverse=True) == Changed(BEFORE[:-1], 1)


def test_a_diff_that_lost_its_own_last_newline_is_read() -> None:
    assert apply(PATCH.removesuffix(b"\n"), PATH, BEFORE) == Changed(AFTER, 1)


def test_a_byte_order_mark_survives() -> None:
    patch = make_diff(PATH, b"one\ntwo\n", b"one\n2\n").encode()
    assert changed(apply(patch, PATH, diffparse.BOM + b"one\ntwo\n")) == (
        diffparse.BOM + b"one\n2\n"
    )


def test_a_diff_may_remove_the_byte_order_mark() -> None:
    marked = diffparse.BOM + BEFORE
    patch = make_diff(PATH, marked, BEFORE).encode()
    assert changed(apply(patch, PATH, marked)) == BEFORE
    assert isinstance(apply(patch, PATH, BEFORE), Unchanged)


def test_bytes_that_are_no_utf8_survive() -> None:
    before, after = b"\xff\xfe\x00a\n\x0c\x85b\x0b\n", b"\xff\xfe\x00A\n\x0c\x85b\x0b\n"
    patch = make_diff(PATH, before, after).encode("utf-8", "surrogateescape")
    assert changed(apply(patch, PATH, before)) == after


def test_empty_files_can_be_filled_and_emptied() -> None:
    patch = make_diff(PATH, b"", b"a\nb\n").encode()
    assert apply(patch, PATH, b"") == Changed(b"a\nb\n", 1)
    assert apply(patch, PATH, b"a\nb\n", reverse=True) == Changed(b"", 1)
    assert "empty file only" in refusal(apply(patch, PATH, b"other\n"))


def test_lines_that_look_like_headers_are_content() -> None:
    before = b"x\n-- a/evil\n++ b/evil\ndiff --git a/x b/y\ny\n"
    after = before.replace(b"-- a/evil\n", b"rename from x\n")
    patch = make_diff(PATH, before, after).encode()
    assert apply(patch, PATH, before) == Changed(after, 1)


def test_equal_contents_make_no_diff() -> None:
    assert make_diff(PATH, BEFORE, BEFORE) == ""


# --- faults ------------------------------------------------------------------------------------

HUNK = "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"
GIT = f"diff --git a/{PATH} b/{PATH}\n"

FAULTY = {
    "absolute path": (diff(HUNK, old="a//etc/passwd", new="b//etc/passwd"), "is absolute"),
    "no prefix": (diff(HUNK, old="/etc/passwd", new="/etc/passwd"), "does not start with"),
    "parent": (diff(HUNK, old="a/x/../../y", new="b/x/../../y"), "'..' component"),
    "backslash": (diff(HUNK, old="a/x\\y", new="b/x\\y"), "backslash"),
    "NUL": (diff(HUNK, old="a/x\0y", new="b/x\0y"), "control character"),
    "two files": (diff(HUNK) + diff(HUNK, old="a/z", new="b/z"), "changes 2 files"),
    "creation": (diff("@@ -0,0 +1 @@\n+x\n", old="/dev/null"), "creates or deletes"),
    "deletion": (diff("@@ -1 +0,0 @@\n-x\n", new="/dev/null"), "creates or deletes"),
    "renamed by name": (diff(HUNK, new="b/other"), "renames"),
    "git rename": (
        f"{GIT}rename from {PATH}\nrename to z\n".encode() + diff(HUNK),
        "renames or copies",
    ),
    "git copy": (f"{GIT}copy from {PATH}\ncopy to z\n".encode() + diff(HUNK), "renames or copies"),
    "git mode": (f"{GIT}old mode 100644\nnew mode 100755\n".encode() + diff(HUNK), "mode"),
    "git new file": (f"{GIT}new file mode 120000\n".encode() + diff(HUNK), "creates or deletes"),
    "git binary": (f"{GIT}GIT binary patch\nliteral 0\n".encode(), "is binary"),
    "binary": (f"Binary files a/{PATH} and b/{PATH} differ\n".encode(), "is binary"),
    "counts too large": (diff("@@ -1,9 +1,9 @@\n a\n-b\n+B\n"), "shorter than expected"),
    "counts too small": (diff("@@ -1,2 +1,2 @@\n a\n-b\n+B\n c\n"), "does not count it"),
    "counts absurd": (diff("@@ -1,999999999999 +1 @@\n a\n"), "malformed hunk header"),
    "counts huge": (diff("@@ -1,999999999 +1,999999999 @@\n a\n"), "shorter than expected"),
    "combined diff": (diff("@@@ -1 -1 +1 @@@\n  a\n"), "malformed hunk header"),
    "no hunk": (diff(""), "no hunk"),
    "empty": (b"", "no hunk"),
    "prose": (b"this is no diff\n", "no hunk"),
    "garbage in a hunk": (diff("@@ -1,3 +1,3 @@\n a\n?b\n+B\n c\n"), "not a unified diff"),
    "no change": (diff("@@ -1,2 +1,2 @@\n a\n b\n"), "changes nothing"),
    "same line": (diff("@@ -1,2 +1,2 @@\n a\n-b\n+b\n"), "changes nothing"),
    "overlap": (diff(HUNK + "@@ -2,3 +2,3 @@\n b\n-c\n+C\n d\n"), "overlaps"),
    "bare second hunk": (diff(HUNK + "@@ -9 +9 @@\n-x\n+y\n"), "hunk 2 lacks context"),
    "marker inside": (
        diff("@@ -1,3 +1,3 @@\n a\n\\ No newline at end of file\n-b\n+B\n c\n"),
        "marker is not at the end",
    ),
    "marker first": (
        diff("@@ -1,2 +1,2 @@\n\\ No newline at end of file\n-b\n+B\n c\n"),
        "marker follows no line",
    ),
    "CRLF headers": (diff(HUNK).replace(b"\n", b"\r\n"), "end in CRLF"),
    "long header": (b"x" * 10_000 + b"\n" + diff(HUNK), "longer than 4096"),
    "too large": (b"x" * (diffparse.MAX_BYTES + 1), "at most"),
}


@pytest.mark.parametrize(("patch", "expected"), FAULTY.values(), ids=FAULTY.keys())
def test_a_faulty_diff_says_what_is_wrong_and_changes_nothing(patch: bytes, expected: str) -> None:
    assert any(expected in fault for fault in faults(patch)), faults(patch)
    assert refusal(apply(patch, PATH, b"a\nb\nc\n")).startswith("the diff cannot be used")


def test_every_fault_is_listed_at_once() -> None:
    headers = b"old mode 100644\nnew mode 100755\n"
    patch = headers + diff(HUNK, old="a/../x", new="b/x\\y") + b"+stray\n"
    found = "; ".join(faults(patch))
    for expected in ("mode", "does not count it", "'..'", "backslash", "renames"):
        assert expected in found


@pytest.mark.parametrize("extra", ["", "-- \n2.43.0\n\n", "From: someone\n\n"])
def test_a_mailed_patch_is_read(extra: str) -> None:
    patch = f"Subject: open the gate\n\nwhy it is safe\n---\n{GIT}index 1234..5678 100644\n"
    assert faults(patch.encode() + PATCH + extra.encode()) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a/x y.py", "a/x y.py"),
        ('a/"é\\.py', 'a/"é\\.py'),
        ("a/x\n+++ b", r'"a/x\n+++ b"'),
        ('a/\x1b"\\é', r'"a/\033\"\\é"'),
        ("a/\u202e\udcff", r'"a/\342\200\256\377"'),
    ],
)
def test_a_name_stays_in_its_line(name: str, line: str) -> None:
    assert quoted(name) == line


def test_a_diff_quotes_names_that_would_not_stay_in_their_line() -> None:
    lines = make_diff("x\n@@", b"", b"a\n").splitlines()
    assert lines == [r'--- "a/x\n@@"', r'+++ "b/x\n@@"', "@@ -0,0 +1 @@", "+a"]
