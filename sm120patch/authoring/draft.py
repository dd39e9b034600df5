"""A patch set as files: payloads, manifest and tests for what an author changed. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from sm120patch import versions
from sm120patch.authoring import skeleton, textdiff
from sm120patch.model import Refused, sha256_hex


@dataclass(frozen=True)
class Brief:
    """What the author said about the set, and what it was made from."""

    id: str
    target: str
    version: str
    title: str
    capabilities: tuple[str, ...]
    checked: str
    """ISO date of the comparison with the package: today."""


@dataclass(frozen=True)
class Edited:
    """One file that the author changed, or added."""

    path: str
    before: bytes | None = field(repr=False)
    """None for a file that upstream does not have."""
    after: bytes = field(repr=False)


@dataclass(frozen=True)
class Made:
    """What became of one edited file."""

    change: str
    path: str
    kind: str
    """`codemod`, `unwritten` (a codemod that its author has to write), `diff` or `file`."""
    payload: str
    note: str


_CODEMODS = ("codemod", "unwritten")


@dataclass(frozen=True)
class Draft:
    """A whole set: relative path below the catalogue -> content."""

    files: Mapping[str, bytes]
    made: tuple[Made, ...]


def compose(brief: Brief, edits: Sequence[Edited]) -> Draft | list[str]:
    """Return the files of the set, or everything that stands against it."""
    files: dict[str, bytes] = {}
    made: list[Made] = []
    entries: list[str] = []
    refused: list[str] = []
    for edit, change in zip(edits, change_ids(e.path for e in edits), strict=True):
        if edit.before is None:
            entry, result = _file(brief, edit, change, files)
        elif edit.path.endswith(".py"):
            entry, result = _codemod(brief, edit, change, edit.before, files)
        else:
            found = textdiff.write(edit.path, edit.before, edit.after)
            if isinstance(found, Refused):
                refused.append(f"{edit.path}: {found.reason}")
                continue
            entry, result = _diff(brief, edit, change, found, files)
        entries.append(entry)
        made.append(result)
    if refused:
        return refused
    files[f"manifests/{brief.id}.toml"] = (_head(brief) + "".join(entries)).encode()
    if any(m.kind in _CODEMODS for m in made):
        files[f"tests/test_{brief.id.replace('-', '_')}.py"] = _test(brief.id, made)
    return Draft(files, tuple(made))


def change_ids(paths: Iterable[str]) -> list[str]:
    """Name a change after its file, and after as many directories as make the names distinct."""
    parts = [PurePosixPath(p).with_suffix("").parts for p in paths]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = [_word("-".join(p[-depth:])) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{_word('-'.join(p))}-{n}" for n, p in enumerate(parts, 1)]


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "change"


def _file(brief: Brief, edit: Edited, change: str, files: dict[str, bytes]) -> tuple[str, Made]:
    payload = f"{brief.id}/{change.replace('-', '_')}{PurePosixPath(edit.path).suffix}"
    files[f"patches/{payload}"] = edit.after
    entry = _change(brief, edit.path, change, "file", payload, edit.after)
    return entry, Made(change, edit.path, "file", payload, "")


def _codemod(
    brief: Brief, edit: Edited, change: str, before: bytes, files: dict[str, bytes]
) -> tuple[str, Made]:
    found = skeleton.write(edit.path, before, edit.after, brief.title)
    payload = f"{brief.id}/{change.replace('-', '_')}.py"
    files[f"patches/{payload}"] = found.source
    files[f"tests/{brief.id}/{change}.before"] = found.before
    files[f"tests/{brief.id}/{change}.after"] = found.after
    entry = _change(brief, edit.path, change, "codemod", payload, found.source)
    kind = "codemod" if found.works else "unwritten"
    return entry, Made(change, edit.path, kind, payload, found.note)


def _diff(
    brief: Brief, edit: Edited, change: str, diff: textdiff.TextDiff, files: dict[str, bytes]
) -> tuple[str, Made]:
    payload = f"{brief.id}/{change.replace('-', '_')}.patch"
    files[f"patches/{payload}"] = diff.payload
    entry = _change(brief, edit.path, change, "diff", payload, diff.payload)
    if diff.present:
        pairs = ", ".join(f"{_toml(text)} = {count}" for text, count in diff.present.items())
        entry += f"present = {{ {pairs} }}\n"
    if diff.absent:
        entry += f"absent = [{', '.join(map(_toml, diff.absent))}]\n"
    return entry, Made(change, edit.path, "diff", payload, "")


def _head(brief: Brief) -> str:
    capabilities = ", ".join(map(_toml, brief.capabilities))
    return f"""\
schema = 1

[patch-set]
id = {_toml(brief.id)}
revision = 1
title = {_toml(brief.title)}
description = \"\"\"
TODO: why this set is needed, what it does not do, and when it may be removed.
\"\"\"
type = "unofficial"

[host]
compute-capability = [{capabilities}]

[upstream]
# pending | submitted | backport | denied | inactive-upstream | inappropriate; all but the first
# need a `reason`.
status = "pending"
last-checked = "{brief.checked}"

[verification]
# speed | no-regression | crash-fix | capacity | correctness
goal = "no-regression"
"""


def _change(brief: Brief, path: str, change: str, kind: str, payload: str, data: bytes) -> str:
    return f"""
[[change]]
id = "{change}"
target = {_toml(brief.target)}
summary = {_toml(f"{'Add' if kind == 'file' else 'Change'} {PurePosixPath(path).name}")}
description = "TODO: what it does, and what it does not."

[[change.variant]]
# Exactly the release it was made from. Widen it with `lint --against`, not by guessing.
versions = "{versions.exactly(brief.version)}"
kind = "{kind}"
path = {_toml(path)}
payload = "{payload}"
sha256 = "{sha256_hex(data)}"
"""


def _toml(text: str) -> str:
    """Return a basic string; JSON's escapes are TOML's, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _test(set_id: str, made: Sequence[Made]) -> bytes:
    changes = "".join(f'    "{m.change}": "{m.payload}",\n' for m in made if m.kind in _CODEMODS)
    return f'''\
"""Every codemod of {set_id} turns its `.before` into its `.after`, and leaves that alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm120patch import codemod
from sm120patch.model import Changed, Unchanged

ROOT = Path(__file__).resolve().parents[1]
PAYLOADS = {{
{changes}}}


@pytest.mark.parametrize("change", PAYLOADS)
def test_the_codemod_makes_the_edit_and_knows_it_again(change: str) -> None:
    payload = (ROOT / "patches" / PAYLOADS[change]).read_bytes()
    before = (ROOT / "tests" / "{set_id}" / f"{{change}}.before").read_bytes()
    after = (ROOT / "tests" / "{set_id}" / f"{{change}}.after").read_bytes()
    result = codemod.run(payload, PAYLOADS[change], before)
    assert isinstance(result, Changed), result.reason
    assert result.data == after
    assert isinstance(codemod.run(payload, PAYLOADS[change], after), Unchanged)
'''.encode()
