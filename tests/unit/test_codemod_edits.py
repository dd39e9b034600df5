"""Single edits and single conditions of the codemod engine: layout kept, control flow followed."""

from __future__ import annotations

import ast

import pytest

from sm120patch import codemod
from sm120patch.model import Changed
from tests.unit.test_codemod import changed, payload, refusal, run

# --- single edits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from m import b, a9, a10\n", "from m import b, a9, a10, a12\n"),
        ("from m import a9, a10, b\n", "from m import a9, a10, a12, b\n"),
        ("from m import A, B, a10, a100\n", "from m import A, B, a10, a12, a100\n"),
        ("from m import (a10)\n", "from m import (a10, a12)\n"),
        ("from m import (a10,)\n", "from m import (a10, a12,)\n"),
        ("from m import a9, \\\n    a10\n", "from m import a9, \\\n    a10, \\\n    a12\n"),
        ("from m import (\n    a10,\n)\n", "from m import (\n    a10,\n    a12,\n)\n"),
        ("from m import (\n    a10\n)\n", "from m import (\n    a10,\n    a12\n)\n"),
        (
            "from m import (\n    a10,  # ten\n)\n",
            "from m import (\n    a10,  # ten\n    a12,\n)\n",
        ),
        (
            "from m import (\n    a10,  # ten\n\n    b,  # b\n)  # end\n",
            "from m import (\n    a10,  # ten\n\n    a12,\n    b,  # b\n)  # end\n",
        ),
        ("from m import (a9,\n        a10)\n", "from m import (a9,\n        a10,\n        a12)\n"),
    ],
)  # fmt: skip
def test_add_name_keeps_order_and_layout(before: str, after: str) -> None:
    add = payload(
        'Site(FromImport("m", having="a10"), add_name("a12", after="a10"))', 'imports("m", "a12"),'
    )
    assert changed(before, add).decode() == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    f(v=[9, 10])\n", "    f(v=[9, 10, 12])\n"),
        ("    f(v=[9,10,])\n", "    f(v=[9,10,12,])\n"),
        ("    f(\n     v=[\n      9,\n      10,\n     ])\n",
         "    f(\n     v=[\n      9,\n      10,\n      12,\n     ])\n"),
    ],
)  # fmt: skip
def test_append_keeps_the_layout(before: str, after: str) -> None:
    add = payload(
        'Site(Function("g"), append("v", "[9, 10]", 12))', 'lists(Function("g"), "v", 12),'
    )
    rest = "def h():\n    f(v=[9, 10])\n"
    assert changed(f"def g():\n{before}{rest}", add).decode() == f"def g():\n{after}{rest}"


def test_append_leaves_other_arguments_alone() -> None:
    add = payload('Site(Function("g"), append("v", "[9, 10]", 12))')
    assert "0 times" in refusal("def g():\n    f(w=[9, 10], v=[9, 10, 11])\n", add)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('["a", "c"]', '["a", "b", "c"]'),
        ("['a', 'c',]", "['a', \"b\", 'c',]"),
        ('["c", "a"]', '["c", "a", "b"]'),
        ('[\n    "a",  # first\n    "c",\n]', '[\n    "a",  # first\n    "b",\n    "c",\n]'),
        ('[\n    "c",\n    "a",\n]', '[\n    "c",\n    "a",\n    "b",\n]'),
        ('["a", *c]', None),
        ('["a", "b"]', None),
        ('["a", "a"]', None),
        ('("a", "c")', None),
    ],
)  # fmt: skip
def test_add_item_keeps_the_layout_and_wants_one_place(before: str, after: str | None) -> None:
    add = payload(
        """Site(Assignment("A"), add_item('"b"', after='"a"'))""",
        """has(Assignment("A"), '"b"'),""",
    )
    rest = 'B = ["a", "c"]\n'
    if after is None:
        assert not isinstance(run(f"A = {before}\n{rest}", add), Changed)
    else:
        assert changed(f"A = {before}\n{rest}", add).decode() == f"A = {after}\n{rest}"


def test_set_item_changes_the_value_of_that_key_alone() -> None:
    change = payload(
        """Site(Function("f"), set_item('"stages"', "4", "3 if low() else 4"))""",
        """has(Function("f"), "3 if low() else 4"),""",
    )
    before = (
        "def f(x):\n    if x:\n        c = {\n            'warps': 4,\n"
        "            'stages': 4,  # deep\n        }\n    else:\n        c = {'stages': 3}\n"
    )
    after = before.replace("'stages': 4,", "'stages': 3 if low() else 4,")
    assert changed(before, change).decode() == after
    assert 'found `"stages": 4` 2 times' in refusal(before.replace(": 3}", ": 4}"), change)
    assert "0 times" in refusal(before.replace("'stages': 4", "'stages': 5"), change)


def test_a_method_is_inserted_behind_another_one_of_the_class() -> None:
    insert = payload(
        """Site(Class("A"), insert_after("def f(self): return 1", "\\ndef g(self): return 2"))""",
        """has(Function("A.g"), "2"),""",
    )
    file = (
        "class A:\n    x = 1\n\n    def f(self):\n        # one\n        return 1\n\n"
        "    def h(self):\n        return 3\n\n\nclass B:\n    def f(self):\n        return 1\n"
    )
    added = "        return 1\n\n    def g(self): return 2\n\n    def h"
    assert changed(file, insert).decode() == file.replace("        return 1\n\n    def h", added)
    assert "class A: found 0" in refusal(file.replace("class A", "class C"), insert)
    assert "found 2" in refusal(file + file, insert)
    assert "0 times" in refusal(file.replace("return 1", "return 0"), insert)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(a or b)", "(a or b or c())"),
        ("a or b", "a or b or c()"),
        ("not (a or b) and x", "not (a or b or c()) and x"),
        ("(\n        a\n        or b\n    )", "(\n        a\n        or b\n        or c()\n    )"),
        ("x(a or b)", "x(a or b or c())"),
    ],
)  # fmt: skip
def test_widen_keeps_the_layout(before: str, after: str) -> None:
    wide = payload(
        'Site(Function("g"), widen("a or b", "c()"))', 'accepts(Function("g"), "a", "b", "c()"),'
    )
    assert changed(f"def g():\n    return {before}\n", wide).decode() == (
        f"def g():\n    return {after}\n"
    )


def test_inserted_statements_take_indentation_and_line_ends_of_the_file() -> None:
    code = r'"\n# why\nif not a:\n    # deeper\n    b()\n\n    return\n"'
    insert = payload(
        f'Site(Function("A.f"), insert_after("x = 1", {code}))',
        'guarded(Function("A.f"), "c", by=("a",)),',
    )
    file = b"class A:\r\n\tdef f(self):\r\n\t\tfor _ in y:\r\n\t\t\tx = 1  # one\r\n\t\t\tc()"
    assert changed(file, insert) == (
        b"class A:\r\n\tdef f(self):\r\n\t\tfor _ in y:\r\n\t\t\tx = 1  # one\r\n\r\n"
        b"\t\t\t# why\r\n\t\t\tif not a:\r\n\t\t\t\t# deeper\r\n\t\t\t\tb()\r\n\r\n"
        b"\t\t\t\treturn\r\n\t\t\tc()"
    )


BRANCH = """
def f(self):
    if is_a() or is_b():
        self.other = True
    if x and (is_a() or is_b()):
        self.on = True
    if x:
        if is_a() or is_b():
            self.off = (is_a() or is_b())
"""


def test_a_branch_is_known_by_what_it_leads_to() -> None:
    where = 'Branch(Function("f"), sets="self.on = True", asks="is_a()")'
    wide = payload(
        f'Site({where}, widen("is_a() or is_b()", "is_c()"))',
        f'accepts({where}, "is_a()", "is_b()", "is_c()"),',
    )
    expected = BRANCH.replace("x and (is_a() or is_b())", "x and (is_a() or is_b() or is_c())")
    assert changed(BRANCH, wide).decode() == expected
    assert "found 0, expected 1" in refusal(BRANCH.replace("self.on", "self.in_"), wide)
    assert "found 2" in refusal(BRANCH.replace("self.other", "self.on"), wide)
    assert refusal(BRANCH.replace("    if x and", "    elif x and"), wide)


# --- conditions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "met"),
    [
        ("if ok:\n        call()", True),
        ("if ok and x:\n        call()", True),
        ("if ok or x:\n        call()", False),
        ("if not ok:\n        pass\n    else:\n        call()", True),
        ("if not ok:\n        return\n    call()", True),
        ("if not ok or x:\n        return\n    call()", True),
        ("if not ok and x:\n        return\n    call()", False),
        ("if not ok:\n        x()\n    call()", False),
        ("if self.ok:\n        for i in x:\n            call()", True),
        ("for i in x:\n        if not ok:\n            continue\n        call()", True),
        ("for i in call():\n        if not ok:\n            continue", False),
        ("if ok:\n        pass\n    call()", False),
        ("if call():\n        pass", False),
        ("call()\n    if not ok:\n        return", False),
        ("try:\n        pass\n    except E:\n        call()", False),
        ("return 'a call'", False),
        ("return 0", True),
    ],
)
def test_guarded_follows_the_control_flow(body: str, met: bool) -> None:
    check = codemod.guarded(codemod.Function("f"), "call", by=["ok"])
    assert (check(ast.parse(f"def f():\n    {body}\n")) == []) is met


def test_conditions_do_not_hold_where_the_scope_is_missing() -> None:
    tree = ast.parse("x = 1\n")
    scope = codemod.Function("f")
    for check in (
        codemod.guarded(scope, "a", by=["b"]),
        codemod.lacks(scope, "a"),
        codemod.has(scope, "a", 0),
        codemod.lists(scope, "a", 1),
        codemod.accepts(scope, "a"),
    ):
        assert check(tree) == ["function f: found 0, expected 1"]


def test_either_needs_one_of_its_conditions() -> None:
    tree, scope = ast.parse("def f(): return a\n"), codemod.Function("f")
    has, lacks = codemod.has(scope, "a"), codemod.lacks(scope, "a")
    assert codemod.either(lacks, has)(tree) == []
    assert codemod.either(lacks, codemod.has(scope, "b"))(tree) == [
        "function f: still has `a` or function f: does not have `b` exactly 1 times"
    ]


def test_an_insertion_that_half_stands_is_refused() -> None:
    insert = payload('Site(Function("gate"), insert_after("x = 1", "a()\\nb()"))')
    assert "0 times" in refusal("def gate():\n    x = 1\n    if x:\n        b()\n", insert)
