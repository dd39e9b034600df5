"""The codemod engine on small files: where it edits, what it leaves alone, when it refuses."""

from __future__ import annotations

import ast
import difflib
import re
import subprocess
import sys
import warnings

import pytest

from sm120patch import codemod
from sm120patch.errors import CatalogueError
from sm120patch.model import (
    Changed,
    EditResult,
    Refused,
    Unchanged,
)

PAYLOAD = b'''
"""Open the gate, with the variable it tests and the import that needs."""
from sm120patch.codemod import *

GATE = Function("gate")
CODEMOD = Codemod(
    sites=(
        Site(GATE, widen("_sm90 or _sm100", "_sm120")),
        Site(Assignment("_sm100"), add_sibling({"_sm100": "_sm120", "is_sm100": "is_sm120"})),
        Site(FromImport("lib.utils", having="is_sm100"), add_name("is_sm120", after="is_sm100")),
    ),
    after=(
        imports("lib.utils", "is_sm120"),
        assigns("_sm120", "_cuda and is_sm120()"),
        accepts(GATE, "_sm90", "_sm100", "_sm120"),
        lacks(GATE, "_sm90 or _sm100"),
    ),
)
'''

IMPORT = """from lib.utils import (
    is_cuda,
    is_sm90,
    is_sm100,
)
"""

FILE = f'''"""A module in upstream's style."""

import os
{IMPORT}
_cuda = is_cuda()
_sm90 = _cuda and is_sm90()
_sm100 = _cuda and is_sm100()  # data centre


def other(n):
    return _sm90 or  _sm100


class Layer:
    def gate(self, n):
        return _sm90 or _sm100


def gate(n):
    return (
        # see issue 17237
        (_sm90 or _sm100)
        and n > 0
    )
'''

WIDENED = "        (_sm90 or _sm100 or _sm120)"
ADDED = ["+    is_sm120,", "+_sm120 = _cuda and is_sm120()"]
EXPECTED = [*ADDED, "-        (_sm90 or _sm100)", f"+{WIDENED}"]


def run(file: str | bytes, payload: bytes = PAYLOAD) -> EditResult:
    data = file.encode() if isinstance(file, str) else file
    return codemod.run(payload, "gate.py", data)


def changed(file: str | bytes, payload: bytes = PAYLOAD) -> bytes:
    result = run(file, payload)
    assert isinstance(result, Changed), result
    ast.parse(result.data)
    assert isinstance(run(result.data, payload), Unchanged), "twice is not the same as once"
    return result.data


def refusal(file: str | bytes, payload: bytes = PAYLOAD) -> str:
    result = run(file, payload)
    assert isinstance(result, Refused), result
    return result.reason


def edits(before: bytes, after: bytes) -> list[bytes]:
    """Lines taken away and added; line ends are part of a line."""
    lines = difflib.ndiff(
        before.decode("latin-1").splitlines(keepends=True),
        after.decode("latin-1").splitlines(keepends=True),
    )
    return [(x[0] + x[2:]).encode("latin-1") for x in lines if x[0] in "+-"]


def payload(sites: str, after: str = "lambda tree: ['never met'],", head: str = "") -> bytes:
    text = f"from sm120patch.codemod import *\n{head}\nCODEMOD = Codemod(({sites},), ({after}))\n"
    return text.encode()


# --- what changes, and what does not --------------------------------------------------------------


def test_edits_import_variable_and_gate_and_nothing_else() -> None:
    result = run(FILE)
    assert isinstance(result, Changed)
    assert result.sites == 3
    assert edits(FILE.encode(), result.data) == [f"{line}\n".encode() for line in EXPECTED]


def test_a_file_that_has_it_is_unchanged() -> None:
    data = changed(FILE)
    assert codemod.satisfied(PAYLOAD, "gate.py", data)
    assert not codemod.satisfied(PAYLOAD, "gate.py", FILE.encode())


def test_upstreams_own_wording_of_the_same_change_is_unchanged() -> None:
    data = changed(FILE).replace(b"(_sm90 or _sm100 or _sm120)", b"(_sm120 or _sm90 or (_sm100))")
    assert isinstance(run(data), Unchanged)


@pytest.mark.parametrize(
    ("encode", "newline"),
    [
        (lambda s: s.replace("\n", "\r\n").encode(), b"\r\n"),
        (lambda s: b"\xef\xbb\xbf" + s.encode(), b"\n"),
        (lambda s: b"\xef\xbb\xbf" + s.replace("import os\n", "").encode(), b"\n"),
        (lambda s: b"\xef\xbb\xbf" + s[s.index("from") :].replace("\n", "\r\n").encode(), b"\r\n"),
        (lambda s: s.rstrip("\n").encode(), b"\n"),
        (lambda s: ("# coding: latin-1\n" + s.replace("see", "sié")).encode("latin-1"), b"\n"),
        (lambda s: ("# -*- coding: gbk -*-\n" + s.replace("see", "见")).encode("gbk"), b"\n"),
        (lambda s: s.replace("see", "见").encode(), b"\n"),
        (lambda s: s.replace("\ndef gate", "\n\x0cdef gate").encode(), b"\n"),
        (lambda s: s.replace("\ndef gate", "\n\x0c\ndef gate").encode(), b"\n"),
    ],
    ids=[
        "crlf",
        "bom",
        "bom-short",
        "bom-crlf-first-line",
        "no-last-newline",
        "latin-1",
        "gbk",
        "utf-8",
        "form-feed-before-def",
        "form-feed-line",
    ],
)
def test_bytes_outside_the_edit_survive(encode, newline) -> None:
    before = encode(FILE)
    after = changed(before)
    assert edits(before, after) == [line.encode() + newline for line in EXPECTED]
    assert after.endswith(b"\n") == before.endswith(b"\n")
    assert after[:3] == before[:3]


def test_mixed_line_ends_survive_and_new_lines_take_those_of_their_statement() -> None:
    head, tail = FILE.split("_cuda = ")
    before = head.replace("\n", "\r\n").encode() + f"_cuda = {tail}".encode()
    after = changed(before)
    assert edits(before, after) == [
        b"+    is_sm120,\r\n",
        b"+_sm120 = _cuda and is_sm120()\n",
        b"-        (_sm90 or _sm100)\n",
        f"+{WIDENED}\n".encode(),
    ]


def test_tabs_survive() -> None:
    before = FILE.replace("    ", "\t").encode()
    after = changed(before)
    assert b"\tis_sm120,\n" in after
    assert b"\t\t(_sm90 or _sm100 or _sm120)\n" in after


def test_last_statement_without_a_newline_can_be_repeated() -> None:
    sibling = payload(
        'Site(Assignment("_sm100"), add_sibling({"_sm100": "_sm120"}))', 'assigns("_sm120", "1"),'
    )
    assert changed(b"x = 0\r\n_sm100 = 1", sibling) == b"x = 0\r\n_sm100 = 1\r\n_sm120 = 1"


def test_decorators_and_methods_are_part_of_the_scope() -> None:
    method = payload(
        'Site(Function("A.f"), replace("1", "2"), count=3)', 'has(Function("A.f"), "2", 3),'
    )
    file = b"@dec(1)\nclass A:\n\t@dec(1)\n\t@other\n\tasync def f(self, x=1):\n\t\treturn (1)\n"
    assert changed(file, method) == file.replace(
        b"\t@dec(1)\n\t@other\n\tasync def f(self, x=1):\n\t\treturn (1)",
        b"\t@dec(2)\n\t@other\n\tasync def f(self, x=2):\n\t\treturn (2)",
    )


def test_a_single_conditional_definition_can_be_edited() -> None:
    file = FILE.replace("\ndef gate(n):\n    return (", "\nif os:\n  def gate(n):\n    return (")
    assert f"{WIDENED}\n".encode() in changed(file)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("def gate(n)", "def gates(n)", "function gate: found 0, expected 1"),
        ("def other(n)", "def gate(n)", r"function gate: found 2 \(lines 15, 24\), expected 1"),
        ("def other(n):", "try:\n  def gate(): 0\nfinally:\n  os\ndef other(n):", "found 2"),
        (
            "        (_sm90 or _sm100)",
            "        os",
            "0 times, expected 1; it stands in other, Layer",
        ),
        ("n > 0", "(_sm90 or _sm100)", "found `_sm90 or _sm100` 2 times, expected 1"),
        ("        (_sm90 or _sm100)", "  (_sm90 or _sm100 or os)", "0 times, expected 1"),
        ("  # data centre", "; x = 1", "line 12: another statement shares"),
        ("_sm100 = _cuda", "x = 1; _sm100 = _cuda", "line 12: another statement shares"),
        ("\n_sm100 =", "\n_sm100 = 0\n_sm100 =", "assignment of _sm100: found 2"),
        ("_cuda and is_sm100()", "_cuda and bool(is_sm100)", "would not satisfy: _sm120"),
        ("    is_sm100,\n", "", "found 0, expected 1"),
        ("    is_sm100,", "    is_sm100 as x,", "found 0, expected 1"),
        ("lib.utils import", "lib.other import", "found 0, expected 1"),
        ("from lib.utils", "from .lib.utils", "found 0, expected 1"),
        (IMPORT, f"if os:\n    {IMPORT}", "found 0, expected 1"),
        (IMPORT, IMPORT + IMPORT, "found 2"),
        ("is_sm100,\n", "is_sm100,\n    is_sm120,\n", "without is_sm120 0 times"),
        ("import os", "print 'x'", r"Python 3\S+ cannot read it"),
        ("import os", "import os\x00", "cannot read it"),
        ("import os", "x = " + "(" * 300 + ")" * 300, "cannot read it"),
    ],
)
def test_a_misfit_is_refused_with_what_was_found(old: str, new: str, reason: str) -> None:
    file = FILE.replace(old, new)
    assert file != FILE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = refusal(file)
    assert re.search(reason, found), found


@pytest.mark.parametrize("half", ["import", "variable", "gate"])
def test_a_half_applied_file_is_refused(half: str) -> None:
    whole, pristine = changed(FILE).decode(), FILE
    undone = {
        "import": whole.replace("    is_sm120,\n", ""),
        "variable": whole.replace("_sm120 = _cuda and is_sm120()\n", ""),
        "gate": whole.replace("(_sm90 or _sm100 or _sm120)", "(_sm90 or _sm100)"),
    }[half]
    assert undone not in (whole, pristine)
    assert "expected 1" in refusal(undone)


def test_bytes_that_are_not_utf8_need_a_declaration() -> None:
    assert "codec can't decode byte 0xe9" in refusal(FILE.encode() + b"# caf\xe9\n")


@pytest.mark.parametrize("coding", ["rot13", "hex", "no-such", "utf-16", "utf-7", "iso-2022-jp"])
def test_odd_declarations_never_raise(coding: str) -> None:
    run(f"# coding: {coding}\n{FILE}# +AAo- \x1b$B\n")


@pytest.mark.parametrize(
    "data", [b"", b"\xef\xbb\xbf", b"\x00", b"\xff\xfe", b"x = " + b"-" * 99999]
)
def test_garbage_is_refused(data: bytes) -> None:
    assert refusal(data)
    assert not codemod.satisfied(PAYLOAD, "gate.py", data)


def test_deep_nesting_is_refused_not_a_crash() -> None:
    deep = FILE.replace("n > 0", "n" + ".a(n)" * 1500)
    assert isinstance(run(deep), Refused | Changed)


def test_classic_mac_line_ends_are_refused() -> None:
    assert "byte for byte" in refusal(FILE.replace("\n", "\r"))


def test_overlapping_sites_are_refused() -> None:
    both = payload(
        'Site(Function("A.f"), replace("1", "2")), Site(Function("A.f.g"), replace("1", "2"))'
    )
    assert "overlap" in refusal(b"class A:\n def f(s):\n  def g():\n   return 1\n", both)


def test_an_edit_that_misses_the_post_conditions_is_refused() -> None:
    wrong = payload('Site(Function("gate"), replace("n > 0", "n > 1"))')
    assert "would not satisfy: never met" in refusal(FILE, wrong)


def test_an_edit_that_breaks_the_syntax_is_refused() -> None:
    # `not` binds looser than `==`: the new operand lacks its parentheses
    broken = payload('Site(Function("f"), replace("a", "not a"))')
    assert "would not parse" in refusal(b"def f():\n    return 1 == a\n", broken)


# --- payloads -------------------------------------------------------------------------------------

LOOP = "while True: pass"
OWN_EDIT = """
def apply(module):
    {}
    return module, 1
"""
OWN_CHECK = """
def check(tree):
    {}
    return ["no"]
"""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "CODEMOD, found nothing"),
        (b"CODEMOD = 1", "CODEMOD, found int"),
        (b"def (", "is no Python"),
        (b"\x00", "is no Python"),
        (b"1 / 0", "failed: ZeroDivisionError"),
        (b"raise SystemExit(3)", "failed: SystemExit"),
        (b"from sm120patch.codemod import *\nCODEMOD = Codemod((), ())", "a site"),
        (LOOP.encode(), "does not come to an end"),
        (f"try:\n    {LOOP}\nexcept Exception: pass".encode(), "does not come to an end"),
        (payload('Site(Function("gate"), Edit("x", apply))', head=OWN_EDIT.format(LOOP)), "end"),
        (payload('Site(Function("gate"), Edit("x", apply))', head=OWN_EDIT.format("x")), "x"),
        (
            payload('Site(Function("gate"), widen("a", "b"))', "check,", OWN_CHECK.format(LOOP)),
            "end",
        ),
        (payload('Site(Function("gate"), widen("a", "b"))', "check,", OWN_CHECK.format("y")), "y"),
    ],
)
def test_a_broken_payload_is_the_catalogues_fault(source: bytes, message: str) -> None:
    previous = sys.gettrace()
    with pytest.raises(CatalogueError, match=message) as raised:
        codemod.run(source, "set/broken.py", FILE.encode())
    assert "set/broken.py" in str(raised.value)
    assert raised.value.hint
    assert sys.gettrace() is previous


def test_a_payload_may_bring_its_own_edit() -> None:
    head = """
def apply(module):
    import libcst as cst

    class Bump(cst.CSTTransformer):
        hits = 0

        def leave_Integer(self, original_node, updated_node):
            self.hits += 1
            return updated_node.with_changes(value="7")

    bump = Bump()
    return module.visit(bump), bump.hits
"""
    own = payload(
        'Site(Function("f"), Edit("a number", apply), count=2)', 'has(Function("f"), "7", 2),', head
    )
    assert changed(b"def f(a=1):\n    return  2 # two\n", own) == (
        b"def f(a=7):\n    return  7 # two\n"
    )


def test_satisfied_imports_no_libcst() -> None:
    code = (
        "import sys; from sm120patch import codemod\n"
        f"assert not codemod.satisfied({PAYLOAD!r}, 'gate.py', {FILE.encode()!r})\n"
        "assert 'libcst' not in sys.modules, 'libcst'\n"
        f"assert codemod.run({PAYLOAD!r}, 'gate.py', {FILE.encode()!r}).sites == 3\n"
        "assert 'libcst' in sys.modules and 'libcst.matchers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_files_own_warnings_are_not_ours() -> None:
    file = FILE.replace("    return (\n", "    x = '\\d'\n    return (\n").encode()
    insert = payload(
        'Site(Function("gate"), insert_after(r"x = \'\\d\'", "y = 1"))',
        'has(Function("gate"), "y = 1"),',
    )
    result = run(file, insert)
    assert isinstance(result, Changed)
    assert edits(file, result.data) == [b"+    y = 1\n"]
