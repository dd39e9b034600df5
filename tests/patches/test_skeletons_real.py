"""What the shipped codemods do to published files, `new` derives again from the files alone."""

from __future__ import annotations

import ast
import zipfile

import pytest

from sm120patch import catalogue, codemod
from sm120patch.authoring import skeleton
from sm120patch.model import (
    Changed,
    PayloadKind,
    Unchanged,
    Variant,
)
from tests.support.wheels import wheel

CASES = [
    ("allreduce-arch-gate", "jit-arch-list", "0.6.3"),
    ("allreduce-arch-gate", "multicast-optional", "0.6.3"),
    ("sm120-checks", "runtime-gate", "0.5.9"),
    ("sm120-checks", "preflight", "0.5.12.post1"),
    ("sm120-checks", "auto-enable", "0.5.9"),
]


@pytest.mark.network
@pytest.mark.parametrize(("set_id", "change_id", "version"), CASES)
def test_a_shipped_codemod_is_derived_again(set_id: str, change_id: str, version: str) -> None:
    change = catalogue.load().get(set_id).change(change_id)
    assert change is not None
    variant, _reason = catalogue.choose(change, {change.target: version})
    assert isinstance(variant, Variant) and variant.kind is PayloadKind.CODEMOD
    with zipfile.ZipFile(wheel(change.target, version)) as archive:
        before = archive.read(variant.path)
    edited = catalogue.edit(variant, before)
    assert isinstance(edited, Changed)
    found = skeleton.write(variant.path, before, edited.data, "Again")
    assert found.works, found.note
    again = codemod.run(found.source, "again", before)
    assert isinstance(again, Changed)
    assert ast.dump(ast.parse(again.data)) == ast.dump(ast.parse(edited.data))
    # Each knows the other's result: the conditions are about meaning.
    assert isinstance(codemod.run(found.source, "again", edited.data), Unchanged)
    assert isinstance(catalogue.edit(variant, again.data), Unchanged)
    assert len(found.before) < len(before)
