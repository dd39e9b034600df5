from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120patch import manifest
from sm120patch.errors import CatalogueError, ExitCode
from sm120patch.model import (
    Goal,
    PatchSet,
    PayloadKind,
    sha256_hex,
)
from sm120patch.unified import make_diff

HEADER = "flashinfer/data/a.cuh"
DIFF = make_diff(HEADER, b"a\nb\n", b"a\nB\n").encode()
CODEMOD = b"CODEMOD = ...\n"
PAYLOADS = {"gate/a.patch": DIFF, "gate/b.py": CODEMOD}

GOOD = f"""
schema = 1

[patch-set]
id = "gate"
revision = 3
title = "A gate"
description = "Opens it."
type = "backport"

[host]
compute-capability = ["12.0"]

[relations]
depends = ["other"]
conflicts = ["rival"]

[upstream]
status = "submitted"
reason = "a pull request"
last-checked = "2026-11-29"

[[change]]
id = "header"
target = "flashinfer-python"
summary = "One line"
description = "More."

[[change.variant]]
versions = ">=0.6,<0.7"
kind = "diff"
path = "{HEADER}"
payload = "gate/a.patch"
sha256 = "{sha256_hex(DIFF)}"
present = {{ "B" = 1 }}
absent = ["b"]
requires = {{ sglang = ">=0.5.8" }}

[[change.window]]
versions = ">=0.7,<0.8"
outcome = "upstream"
reason = "there since 0.7"

[[change]]
id = "python"
target = "sglang"
optional = true
summary = "One line"
description = "More."

[[change.variant]]
versions = ">=0.5.8,<0.5.19"
kind = "codemod"
path = "sglang/srt/a.py"
payload = "gate/b.py"
sha256 = "{sha256_hex(CODEMOD)}"

[[launch]]
target = "sglang"
versions = ">=0.5.8,<0.5.14"
args = ["--flag", "1", "1"]
env = {{ SOME_VARIABLE = "1" }}
strip = {{ "--flag" = 2, "--old-flag" = 0 }}
strip-env = ["SOME_VARIABLE"]

[[engagement]]
target = "sglang"
versions = ">=0.5.8"
server-info = {{ flag = true, backend = "x" }}
log = 'enabled: \\d+'
log-absent = "falling back"

[verification]
goal = "speed"
margin = 0.05
repeats = 5
blocks = 3

[[known-result]]
topology = "2 GPUs"
effect = "+3 %"
source = "somebody"
harmful = false
"""


def read_payload(path: str) -> bytes:
    if path not in PAYLOADS:
        raise FileNotFoundError(path)
    return PAYLOADS[path]


def parse(text: str | bytes) -> PatchSet:
    data = text.encode() if isinstance(text, str) else text
    return manifest.parse(data, "gate.toml", read_payload)


def faults(text: str | bytes) -> list[str]:
    with pytest.raises(CatalogueError) as caught:
        parse(text)
    listed = caught.value.details["faults"]
    assert isinstance(listed, list)
    assert caught.value.exit_code == ExitCode.CATALOGUE
    assert all(fault in caught.value.message for fault in listed)
    return listed


def changed(old: str, new: str, *, text: str = GOOD) -> str:
    assert old in text
    return text.replace(old, new, 1)


def test_a_good_manifest_becomes_a_patch_set() -> None:
    patch_set = parse(GOOD)
    assert (patch_set.id, patch_set.revision, patch_set.type) == ("gate", 3, "backport")
    assert (patch_set.depends, patch_set.conflicts) == (("other",), ("rival",))
    header, python = patch_set.changes
    assert not header.optional
    assert python.optional
    variant = header.variants[0]
    assert variant.kind is PayloadKind.DIFF
    assert variant.data == DIFF
    assert (dict(variant.present), variant.absent) == ({"B": 1}, ("b",))
    assert dict(variant.requires) == {"sglang": ">=0.5.8"}
    assert header.windows[0].outcome == "upstream"
    launch = patch_set.launch[0]
    assert launch.args == ("--flag", "1", "1")
    assert (dict(launch.strip), launch.strip_env) == (
        {"--flag": 2, "--old-flag": 0},
        ("SOME_VARIABLE",),
    )
    engagement = patch_set.engagement[0]
    assert dict(engagement.server_info) == {"flag": True, "backend": "x"}
    assert (engagement.log, engagement.log_absent) == (r"enabled: \d+", "falling back")
    assert patch_set.verification.goal is Goal.SPEED
    assert patch_set.verification.margin == 0.05
    assert patch_set.last_checked == "2026-11-29"


def test_the_digest_names_manifest_and_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    first = parse(GOOD).digest
    assert parse(GOOD).digest == first
    assert parse(GOOD + "# a comment\n").digest != first
    edited = CODEMOD + b"# edited\n"
    monkeypatch.setitem(PAYLOADS, "gate/b.py", edited)
    text = changed(sha256_hex(CODEMOD), sha256_hex(edited))
    assert parse(text).digest not in (first, parse(text + "#\n").digest)


def test_what_is_left_out_has_defaults() -> None:
    cut = GOOD[: GOOD.index("[[launch]]")]
    cut = changed("compute-capability", "#", text=cut)
    patch_set = parse(changed('depends = ["other"]', "", text=cut))
    assert (patch_set.launch, patch_set.engagement, patch_set.known_results) == ((), (), ())
    assert (patch_set.depends, patch_set.compute_capability) == ((), ())
    assert patch_set.verification.goal is Goal.NO_REGRESSION


def test_a_bundle_has_no_changes_but_dependencies() -> None:
    bundle = GOOD[: GOOD.index("[[change]]")]
    assert parse(bundle).changes == ()
    listed = faults(changed('depends = ["other"]', "", text=bundle))
    assert listed == ["change: a set needs changes, or dependencies that it bundles"]


V = "change[0].variant[0]"
WRONG = [
    ("schema = 1", "schema = 2", "schema: 2 is not in 1..1"),
    ("schema = 1", "", "schema: is missing"),
    ('id = "gate"', 'id = "Gate"', "patch-set.id: 'Gate' does not match"),
    ('id = "gate"', "", "patch-set.id: is missing"),
    ("revision = 3", "revision = 0", "patch-set.revision: 0 is not in 1.."),
    ("revision = 3", "revision = true", "patch-set.revision: expected an integer, found True"),
    ('title = "A gate"', "title = 1", "patch-set.title: expected a string, found 1"),
    ('title = "A gate"', 'title = "a\\nb"', "patch-set.title: 'a\\nb' does not match"),
    ('description = "Opens it."', 'description = " "', "patch-set.description: is empty"),
    ('type = "backport"', 'type = "fork"', "patch-set.type: 'fork' is none of"),
    ('type = "backport"', 'type = "backport"\nauthor = "x"', "patch-set.author: unknown key"),
    ('["12.0"]', '["sm_120"]', "host.compute-capability[0]: 'sm_120'"),
    ('["12.0"]', '["12.0", "12.0"]', "host.compute-capability[1]: '12.0' is there twice"),
    ('["12.0"]', '"12.0"', "host.compute-capability: expected an array of strings"),
    ('status = "submitted"', 'status = "lost"', "upstream.status: 'lost' is none of"),
    ('reason = "a pull request"', "", "upstream.reason: is missing"),
    ("2026-11-29", "29.11.2026", "upstream.last-checked: '29.11.2026' is no date"),
    ('id = "python"', 'id = "header"', "change[1].id: 'header' is there twice"),
    ('target = "flashinfer-python"', 'target = "vllm"', "change[0].target: 'vllm' is none of"),
    (">=0.6,<0.7", "~=0.6", f"{V}.versions: '~=0.6' is not allowed"),
    (">=0.6,<0.7", "==0.6.1", f"{V}.versions: '==0.6.1' is not allowed"),
    (">=0.6,<0.7", ">=0.6,<0.7.1", "change[0].window[0].versions: '>=0.7,<0.8' overlaps"),
    ('kind = "diff"', 'kind = "sed"', f"{V}.kind: 'sed' is none of diff, codemod"),
    (f'path = "{HEADER}"', 'path = "/etc/passwd"', f"{V}.path: '/etc/passwd' is absolute"),
    (f'path = "{HEADER}"', 'path = "flashinfer/../x"', f"{V}.path: 'flashinfer/../x' has an"),
    (f'path = "{HEADER}"', 'path = "sglang/a"', f"{V}.path: 'sglang/a' is not inside"),
    (f'path = "{HEADER}"', 'path = "flashinfer_evil/a"', f"{V}.path: 'flashinfer_evil/a' is not"),
    ("sglang/srt/a.py", "sglang/srt/a.cu", "change[1].variant[0].path: 'sglang/srt/a.cu' is no"),
    ('"gate/a.patch"', '"../a.patch"', f"{V}.payload: '../a.patch' has an empty, '.' or '..'"),
    ('"gate/a.patch"', '"/a.patch"', f"{V}.payload: '/a.patch' is absolute"),
    ('"gate/a.patch"', '"else/a.patch"', f"{V}.payload: 'else/a.patch' is not below 'gate/'"),
    ('"gate/a.patch"', '"gate/none.patch"', f"{V}.payload: gate/none.patch cannot be read"),
    (sha256_hex(DIFF), "0" * 64, f"{V}.sha256: gate/a.patch has {sha256_hex(DIFF)}"),
    (sha256_hex(DIFF), "abc", f"{V}.sha256: 'abc' does not match"),
    ('present = { "B" = 1 }\nabsent = ["b"]', "", f"{V}.present: a diff needs a post-condition"),
    ('"B" = 1', '"B" = 0', f"{V}.present: 'B': 0 is no number of occurrences"),
    ('"B" = 1', '"B" = "1"', f"{V}.present.B: '1' is not int"),
    ('"B" = 1', '"abc" = 1', f"{V}.absent: contradicts what is to be present: 'abc'"),
    (
        'payload = "gate/b.py"',
        'payload = "gate/b.py"\nabsent = ["x"]',
        "change[1].variant[0].present: a codemod declares its post-conditions itself",
    ),
    ('sglang = ">=0.5.8" }', 'sglang = "0.5.8" }', f"{V}.requires.sglang: '0.5.8' is not"),
    ("harmful = false", "where = ['fast']", "known-result[0].where[0]: 'fast' is no string that"),
    ("harmful = false", "tp = [0]", "known-result[0].tp[0]: 0 is no integer in 1..1024"),
    ("harmful = false", "tp = [2, 2]", "known-result[0].tp[1]: 2 is there twice"),
    ("harmful = false", "harmful = 1", "known-result[0].harmful: expected true or false"),
    ('outcome = "upstream"', 'outcome = "x"', "change[0].window[0].outcome: 'x' is none of"),
    ('"--old-flag" = 0', '"old-flag" = 0', "launch[0].strip: the key 'old-flag' does not match"),
    ('"--flag" = 2, ', "", "launch[0].strip: --flag is not in it"),
    ('"--flag" = 2', '"--flag" = -1', "launch[0].strip.--flag: -1 is no number of values"),
    ('strip-env = ["SOME_VARIABLE"]', "", "launch[0].strip-env: SOME_VARIABLE is not in it"),
    ('{ SOME_VARIABLE = "1" }', "{ SOME_VARIABLE = 1 }", "launch[0].env.SOME_VARIABLE: 1 is not"),
    ('args = ["--flag", "1", "1"]', "args = [1]", "launch[0].args[0]: 1 is no string"),
    ("enabled: \\d+", "(", "engagement[0].log: no regular expression"),
    (
        "log = 'enabled",
        "loaded = '('\nlog = 'enabled",
        "engagement[0].loaded: no regular expression",
    ),
    (
        "log = 'enabled",
        "jit-module = '../x'\nlog = 'enabled",
        "engagement[0].jit-module: '../x' does",
    ),
    ("flag = true", "flag = []", "engagement[0].server-info.flag: [] is no plain value"),
    ('goal = "speed"', 'goal = "win"', "verification.goal: 'win' is none of speed"),
    ("margin = 0.05", "margin = 1", "verification.margin: 1 is not in 0.0..0.5"),
    ("repeats = 5", "repeats = 0", "verification.repeats: 0 is not in 1..100"),
    ("[verification]", "[verification]\nmargins = 1", "verification.margins: unknown key"),
    ("[host]", "[hosts]\nx = 1\n[host]", "hosts: unknown key"),
    ("[patch-set]", "[patch_set]", "patch-set: is missing"),
    ("[[known-result]]", "[known-result]", "known-result: expected an array of tables"),
]


@pytest.mark.parametrize(("old", "new", "expected"), WRONG, ids=[w[2] for w in WRONG])
def test_a_fault_is_named_with_its_key_path(old: str, new: str, expected: str) -> None:
    assert any(fault.startswith(expected) for fault in faults(changed(old, new)))


def test_all_faults_are_listed_at_once() -> None:
    text = GOOD
    for old, new in (("revision = 3", ""), ('"12.0"', '"12"'), (">=0.6,<0.7", "~=0.6"),
                     ("margin = 0.05", "margin = 2.0"), ("[verification]", "x = 1\n[verification]"),
                     ("summary = ", "sumary = ")):  # fmt: skip
        text = changed(old, new, text=text)
    paths = {fault.split(":")[0] for fault in faults(text)}
    assert paths == {
        "patch-set.revision", "host.compute-capability[0]", "change[0].variant[0].versions",
        "verification.margin", "engagement[0].x", "change[0].sumary", "change[0].summary",
    }  # fmt: skip


def test_engagement_must_be_able_to_see_something() -> None:
    text = changed("server-info = { flag = true, backend = \"x\" }\nlog = 'enabled: \\d+'\n", "")
    assert "engagement[0].log: neither server-info, log, loaded nor jit-module" in faults(text)[0]


def test_launch_ranges_of_one_target_must_not_overlap() -> None:
    second = GOOD[GOOD.index("[[launch]]") : GOOD.index("[[engagement]]")]
    listed = faults(GOOD + second)
    assert listed == ["launch[1].versions: '>=0.5.8,<0.5.14' overlaps '>=0.5.8,<0.5.14'"]
    assert len(parse(GOOD + second.replace('"sglang"', '"flashinfer-python"')).launch) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"schema = \n", "not TOML"),
        (b"\xff\xfe", "not TOML"),
        (b"a = " + b"[" * 5000, "not TOML"),
        (b"#" * (manifest.MAX_BYTES + 1), "bytes; at most"),
        (b"", "schema: is missing"),
    ],
)
def test_text_that_is_no_manifest_is_one_clear_fault(text: bytes, expected: str) -> None:
    assert expected in faults(text)[0]


def test_paths_reach_the_reader_checked() -> None:
    asked: list[str] = []

    def spy(path: str) -> bytes:
        asked.append(path)
        return read_payload(path)

    text = changed('"gate/a.patch"', '"gate/../../secret"')
    with pytest.raises(CatalogueError):
        manifest.parse(text.encode(), "gate.toml", spy)
    assert asked == ["gate/b.py"]


values = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(), st.none()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=5,
)


@given(data=st.data())
def test_no_shape_of_document_raises_anything_else(data: st.DataObject) -> None:
    """Replace one value anywhere by something of any shape."""
    document = manifest._decode(GOOD.encode())
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(document)
    node, key = data.draw(st.sampled_from(places))
    node[key] = data.draw(values)
    listed: list[str] = []
    table = manifest.Table(document, "", listed)
    manifest._patch_set(table, b"", read_payload)


def test_no_file_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a file was opened")

    parse(GOOD)
    monkeypatch.setattr(Path, "open", forbidden)
    monkeypatch.setattr("builtins.open", forbidden)
    parse(GOOD)
