"""Cases 1 to 16: where an edit belongs, and what happens when it does not fit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sm120patch import catalogue, variants
from sm120patch.catalogue import choose
from sm120patch.model import Changed, Refused, Unchanged, Variant, Window
from tests.support.catalogue import A_TEXT, KERNEL, A, B
from tests.support.command import run
from tests.support.environments import create_venv, install_fake
from tests.support.field import EDITED, LINES, Field
from tests.support.place import Place
from tests.support.simulated import JIT, JIT_CLOSED
from tests.support.wheels import PINS, published

GATE = "allreduce-arch-gate"


def shipped(set_id: str, change_id: str, **versions: str) -> tuple[Variant | Window | None, str]:
    """What a change of the shipped catalogue means for some versions."""
    change = catalogue.load().get(set_id).change(change_id)
    assert change is not None
    return choose(change, {name.replace("_", "-"): text for name, text in versions.items()})


def gate_variant() -> Variant:
    variant, _reason = shipped(GATE, "jit-arch-list", flashinfer_python="0.6.3")
    assert isinstance(variant, Variant) and variant.path == JIT
    return variant


def test_case_01_the_anchor_matches_nothing(field: Field) -> None:
    field.diff_set("edit")
    field.ship({A: b"nothing = 'of the kind'\n"})
    assert "edit" in field.refuse("apply", "edit", "--no-verify")


def test_case_02_the_anchor_matches_more_than_once(field: Field) -> None:
    block = "".join(f"line_{n} = {n}\n" for n in range(17, 24))
    field.diff_set("edit", block, block.replace("line_20 = 20", "line_20 = 'patched'"))
    field.ship({A: f"head = 1\n{block}middle = 1\n{block}tail = 1\n".encode()})
    field.refuse("apply", "edit", "--no-verify")
    field.ship({A: f"head = 1\n{block}tail = 1\n".encode()})
    assert field.stage("edit"), "once it is a place"


def test_case_03_the_anchor_matches_once_in_the_wrong_function() -> None:
    source = JIT_CLOSED.replace("gen_trtllm_comm_module", "gen_another_module")
    assert source.count("[9, 10]") == 2
    only_wrong = source.replace("[9, 10]", "[9]", 1)
    assert only_wrong.count("[9, 10]") == 1, "a search for the text would find exactly one place"
    result = variants.run(gate_variant(), only_wrong.encode())
    assert isinstance(result, Refused) and "gen_trtllm_comm_module" in result.reason
    right = variants.run(gate_variant(), JIT_CLOSED.encode())
    assert isinstance(right, Changed) and right.sites == 1
    assert right.data.decode() == JIT_CLOSED.replace("[9, 10]", "[9, 10, 12]", 1)


def test_case_04_an_optional_member_that_was_left_out_is_not_counted(place: Place) -> None:
    place.stage("one")
    (entry,) = [s for s in place.done("status")["sets"] if s["id"] == "one"]
    assert entry["with"] == [] and place.changed() == {A}
    decisions = {d["change"]: d["outcome"] for d in place.done("plan", "one")["decisions"]}
    assert decisions["extra"] == "not-selected"
    place.done("apply", "one", "--with", "extra", "--no-verify")
    (entry,) = [s for s in place.done("status")["sets"] if s["id"] == "one"]
    assert entry["with"] == ["extra"] and place.changed() == {A, B}


def test_case_05_applied_twice_it_is_there_once(place: Place) -> None:
    place.stage("one")
    once, events = place.facts(), place.done("history")["events"]
    assert place.done("apply", "one", "--no-verify")["outcome"] == "nothing"
    assert place.facts() == once and place.done("history")["events"] == events


def test_case_06_apply_revert_apply(place: Place) -> None:
    place.stage("bundle")
    patched = place.contents()
    place.done("revert", "bundle")
    assert place.facts() == place.before, "bytes, modes and times"
    place.stage("bundle")
    assert place.contents() == patched and place.litter() == []


def test_case_07_upstream_has_it_already(tmp_path: Path) -> None:
    place = Place(tmp_path, version="2.0")
    assert place.done("apply", "one", "--no-verify")["outcome"] == "nothing"
    assert place.states()["one"] == "upstream"
    assert place.facts() == place.before


def test_case_08_upstream_has_it_in_another_way(field: Field) -> None:
    field.diff_set("edit")
    own_way = LINES.replace("line_20 = 20\n", "if True:\n    line_20 = 'patched'\n")
    field.ship({A: own_way.encode()})
    assert field.done("apply", "edit", "--no-verify")["outcome"] == "nothing"
    (decision,) = field.done("plan", "edit")["decisions"]
    assert decision["outcome"] == "upstream"
    assert field.done("revert", "edit")["outcome"] == "nothing", "it is not ours to take off"
    assert field.facts() == field.before
    choice, reason = shipped("fp8-moe-smem", "default-config", sglang="0.5.14")
    assert isinstance(choice, Window) and "by shared memory" in reason


@pytest.mark.network
def test_case_09_upstream_has_half_of_it_by_architecture() -> None:
    choice, _reason = shipped("inkling-num-stages", "num-stages", sglang="0.5.18")
    assert isinstance(choice, Variant)
    source = published("sglang", "0.5.18", choice.path)
    assert source is not None
    result = variants.run(choice, source)
    assert isinstance(result, Changed), "0.5.18 mends SM121 alone"
    assert isinstance(variants.run(choice, result.data), Unchanged)
    assert catalogue.load().get("inkling-num-stages").compute_capability == ("12.0",)


def fake(root: Path, sglang: str, flashinfer: str) -> list[str]:
    site = create_venv(root / "env")
    install_fake(site, "sglang", sglang, {"sglang/__init__.py": b""})
    install_fake(site, "flashinfer-python", flashinfer, {"flashinfer/__init__.py": b""})
    return ["--env", str(root / "env"), "--gpu", "12.0", "--output", "json"]


def test_case_10_upstream_decided_the_opposite(tmp_path: Path) -> None:
    done = run("plan", "ue8m0-off", *fake(tmp_path, "0.5.20", "0.6.18"))
    assert done.code in (4, 5) and done.error["hint"]
    choice, reason = shipped("ue8m0-off", "scale-format", sglang="0.5.20")
    assert choice is None and reason in done.error["message"]


@pytest.mark.network
def test_case_11_the_file_moved() -> None:
    found = {}
    for version in ("0.5.16", "0.5.17"):
        choice, _reason = shipped("inkling-num-stages", "num-stages", sglang=version)
        assert isinstance(choice, Variant) and published("sglang", version, choice.path)
        found[version] = choice.path
    assert found["0.5.16"] != found["0.5.17"]
    assert published("sglang", "0.5.17", found["0.5.16"]) is None
    assert PINS["0.5.17"], "both are releases of the table"


def test_case_13_the_target_is_gone(field: Field) -> None:
    field.diff_set("edit")
    field.ship({A: LINES.encode()})
    (field.site / A).unlink()
    field.seal()
    assert A in field.refuse("apply", "edit", "--no-verify")
    field.ship({B: b""})
    assert A in field.refuse("apply", "edit", "--no-verify"), "upstream does not ship it"


def test_case_14_a_hunk_that_fits_only_with_fuzz(field: Field, tmp_path: Path) -> None:
    field.diff_set("edit")
    drifted = LINES.replace("line_18 = 18", "line_18 = 'another context'")
    field.ship({A: drifted.encode()})
    field.refuse("apply", "edit", "--no-verify")
    if shutil.which("patch"):
        (tmp_path / "copy" / "sglang").mkdir(parents=True)
        (tmp_path / "copy" / A).write_text(drifted.replace("line_17 = 17", "line_17 = 0"))
        diff = (field.catalogue / "patches/edit/edit.patch").read_bytes()
        words = ["patch", "-p1", "-d", tmp_path / "copy"]
        done = subprocess.run(words, input=diff, capture_output=True, check=False)
        assert done.returncode == 0 and b"fuzz" in done.stdout, "GNU patch guesses"


def test_case_15_one_hunk_of_three_fails_and_nothing_changes(field: Field) -> None:
    after = LINES
    for number in (5, 20, 35):
        after = after.replace(f"line_{number} = {number}\n", f"line_{number} = 'patched'\n")
    field.diff_set("three", LINES, after)
    field.diff_set("other", "value = 1\n", "value = 'patched'\n", path=B)
    field.ship({A: LINES.replace("line_20 = 20", "line_20 = 0").encode(), B: b"value = 1\n"})
    field.refuse("apply", "three", "other", "--no-verify")
    assert field.read(B) == "value = 1\n", "the set that would fit waits for the other"


def test_case_16_nothing_is_left_beside_the_files(field: Field) -> None:
    field.diff_set("edit")
    field.ship({A: LINES.replace("line_20 = 20", "line_20 = 0").encode()})
    field.refuse("apply", "edit", "--no-verify")
    field.ship({A: LINES.encode()})
    field.stage("edit")
    assert field.read(A) == EDITED
    field.done("revert", "edit")
    names = {path.name for path in field.prefix.rglob("*")}
    assert not {name for name in names if name.endswith((".rej", ".orig", ".tmp", "~"))}
    assert field.facts() == field.before


def test_case_15_holds_across_two_packages(field: Field) -> None:
    field.ship({A: A_TEXT.encode(), B: b"value = 'upstream'\n"})
    (field.site / KERNEL).write_text("something else\n")
    field.seal()
    field.refuse("apply", "bundle", "--no-verify")
