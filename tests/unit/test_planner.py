"""Plans are values: what is refused, what is stacked, and what a revert gives back."""

from __future__ import annotations

import pytest

from sm120patch import catalogue as catalogues
from sm120patch.catalogue import Catalogue
from sm120patch.model import (
    FileSnapshot,
    Obstacle,
    Snapshot,
    State,
    TargetSnapshot,
    sha256_hex,
)
from sm120patch.operations.staging import after_history
from sm120patch.plan import (
    ActiveSet,
    History,
    Outcome,
    Plan,
    Role,
)
from sm120patch.planner import Request, wanted_files
from tests.support.catalogue import KERNEL, TEXTS, A, B, write_catalogue
from tests.support.planning import plan, refusal, snapshot


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    return catalogues.load(write_catalogue(tmp_path_factory.mktemp("catalogue")))


def carried_out(
    at: dict[str, bytes], done: Plan, past: History
) -> tuple[dict[str, bytes], History]:
    contents = at | {s.path: s.after for s in done.files}
    return contents, after_history(past, done)


def apply_all(known: Catalogue, *names: str) -> tuple[dict[str, bytes], History]:
    contents = {path: text.encode() for path, text in TEXTS.items()}
    past = History()
    for name in names:
        step = plan(known, Request("apply", (name,)), snapshot(contents), past)
        contents, past = carried_out(contents, step, past)
    return contents, past


def test_apply_plans_the_closure_and_names_roles(known: Catalogue) -> None:
    result = plan(known, Request("apply", ("bundle",)), snapshot())
    assert {r.id: r.role for r in result.add} == {
        "one": Role.DEPENDENCY, "kernel": Role.DEPENDENCY, "bundle": Role.REQUESTED,
    }  # fmt: skip
    assert [s.path for s in result.files] == [KERNEL, A]
    assert b"line_3 = 'one'" in result.files[1].after
    assert set(result.settled) == {("flashinfer-python", KERNEL), ("sglang", A)}


def test_optional_changes_are_off_unless_selected(known: Catalogue) -> None:
    plain = plan(known, Request("apply", ("one",)), snapshot())
    assert [s.path for s in plain.files] == [A]
    assert Outcome.NOT_SELECTED in {d.outcome for d in plain.decisions if d.change_id == "extra"}
    chosen = plan(known, Request("apply", ("one",), ("extra",)), snapshot())
    assert [s.path for s in chosen.files] == [A, B]
    assert chosen.digest != plain.digest
    assert (
        plan(known, Request("apply", ("one",), ("one/extra",)), snapshot()).digest == chosen.digest
    )


def test_naming_a_set_again_restates_its_selection(known: Catalogue) -> None:
    first = plan(known, Request("apply", ("one",), ("extra",)), snapshot())
    start = {p: t.encode() for p, t in TEXTS.items()}
    contents, past = carried_out(start, first, History())
    again = plan(known, Request("apply", ("one",)), snapshot(contents), past)
    assert [(s.path, s.to_pristine) for s in again.files] == [(B, True)]
    kept = plan(known, Request("apply", ("bundle",)), snapshot(contents), past)
    assert [s.path for s in kept.files] == [KERNEL], "a dependency on disk is reused as it is"


def test_unknown_optional_change_is_a_usage_fault(known: Catalogue) -> None:
    assert refusal(known, Request("apply", ("one",), ("nope",)), snapshot()).kind == "usage"


def test_apply_twice_is_apply_once(known: Catalogue) -> None:
    contents, past = apply_all(known, "bundle")
    assert plan(known, Request("apply", ("bundle",)), snapshot(contents), past).is_noop


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
@pytest.mark.parametrize("first_out", ["one", "two"])
def test_any_stacked_set_can_be_reverted_and_the_other_stays(
    known: Catalogue, order: tuple[str, str], first_out: str
) -> None:
    contents, past = apply_all(known, *order)
    other = "two" if first_out == "one" else "one"
    step = plan(known, Request("revert", (first_out,)), snapshot(contents), past)
    contents, past = carried_out(contents, step, past)
    alone, _past = apply_all(known, other)
    assert contents == alone
    step = plan(known, Request("revert", (other,)), snapshot(contents), past)
    contents, past = carried_out(contents, step, past)
    assert contents == {path: text.encode() for path, text in TEXTS.items()}
    assert past == History()


def test_revert_takes_orphaned_dependencies_along(known: Catalogue) -> None:
    contents, past = apply_all(known, "bundle")
    step = plan(known, Request("revert", ("bundle",)), snapshot(contents), past)
    assert set(step.remove) == {"bundle", "one", "kernel"}


def test_revert_keeps_a_dependency_that_was_requested_too(known: Catalogue) -> None:
    contents, past = apply_all(known, "one", "bundle")
    step = plan(known, Request("revert", ("bundle",)), snapshot(contents), past)
    assert set(step.remove) == {"bundle", "kernel"}
    assert [s.path for s in step.files] == [KERNEL]


def test_reverting_a_needed_set_is_refused_unless_cascade(known: Catalogue) -> None:
    contents, past = apply_all(known, "bundle")
    result = refusal(known, Request("revert", ("one",)), snapshot(contents), past)
    assert result.kind == "conflict" and "needed by bundle" in result.reasons[0]
    step = plan(known, Request("revert", ("one",), cascade=True), snapshot(contents), past)
    assert set(step.remove) == {"bundle", "one", "kernel"}


def test_two_sets_that_change_the_same_line_are_refused(known: Catalogue) -> None:
    contents, past = apply_all(known, "one")
    result = refusal(known, Request("apply", ("clash",)), snapshot(contents), past)
    assert result.kind == "conflict"
    assert any("clash/same" in reason or "one/first" in reason for reason in result.reasons)


def test_a_foreign_edit_is_refused_and_every_refusal_is_listed(known: Catalogue) -> None:
    edited = {A: b"# mine\n" + TEXTS[A].encode(), KERNEL: b"int mine;\n"}
    result = refusal(known, Request("apply", ("bundle",)), snapshot(edited))
    assert result.kind == "conflict"
    assert {reason.split(":")[0] for reason in result.reasons} == {A, KERNEL}
    assert all("foreign edit" in reason for reason in result.reasons)


def test_a_foreign_edit_of_a_patched_file_blocks_the_revert_too(known: Catalogue) -> None:
    contents, past = apply_all(known, "one")
    contents[A] += b"# edited later\n"
    result = refusal(known, Request("revert", ("one",)), snapshot(contents), past)
    assert "foreign edit" in result.reasons[0]


@pytest.mark.parametrize("obstacle", list(Obstacle))
def test_obstacles_are_refused(known: Catalogue, obstacle: Obstacle) -> None:
    at = snapshot(obstacles={A: obstacle})
    result = refusal(known, Request("apply", ("one",)), at)
    assert obstacle.value in result.reasons[0]


def test_upstream_versions_need_nothing(known: Catalogue) -> None:
    result = plan(known, Request("apply", ("bundle",)), snapshot(version="2.1"))
    assert result.is_noop
    assert set(result.states.values()) == {State.UPSTREAM}


def test_unknown_versions_are_not_applicable_with_the_reason(known: Catalogue) -> None:
    result = refusal(known, Request("apply", ("one",)), snapshot(version="0.9"))
    assert result.kind == "not-applicable" and "0.9" in result.reasons[0]


def test_content_that_has_the_change_already_is_upstream(known: Catalogue) -> None:
    pristine = TEXTS[KERNEL].replace("ARCH < 1200", "ARCH < 9999").encode()
    file = FileSnapshot(
        KERNEL, pristine, sha256_hex(pristine), 0o644, 1, 1, sha256_hex(pristine), pristine
    )
    at = Snapshot(
        "/env",
        {
            "flashinfer-python": TargetSnapshot(
                "flashinfer-python", "1.0", "/s", "wheel", {KERNEL: file}
            )
        },
        compute_capability="12.0",
    )
    result = plan(known, Request("apply", ("kernel",)), at)
    assert result.states["kernel"] is State.UPSTREAM and result.is_noop


def test_the_wrong_gpu_is_not_applicable_and_an_unknown_one_unconfirmed(known: Catalogue) -> None:
    hopper = refusal(known, Request("apply", ("one",)), snapshot(capability="9.0"))
    assert hopper.kind == "not-applicable" and "9.0" in hopper.reasons[0]
    unknown = plan(known, Request("apply", ("one",)), snapshot(capability=None))
    assert unknown.applicability == "unconfirmed"


def test_a_reinstalled_package_is_planned_afresh(known: Catalogue) -> None:
    _contents, past = apply_all(known, "one")
    step = plan(known, Request("apply", ("one",)), snapshot(), past)
    assert [s.path for s in step.files] == [A] and step.add == ()
    gone = plan(known, Request("revert", ("one",)), snapshot(), past)
    assert gone.files == () and gone.remove == ("one",)


def test_a_file_that_an_upgrade_dropped_blocks_nothing(known: Catalogue) -> None:
    _contents, past = apply_all(known, "one")
    gone = snapshot(version="1.5", obstacles={A: Obstacle.MISSING})
    step = plan(known, Request("revert", ("one",)), gone, past)
    assert step.files == () and step.remove == ("one",)
    still = snapshot(version="1.0", obstacles={A: Obstacle.MISSING})
    assert "missing" in refusal(known, Request("revert", ("one",)), still, past).reasons[0]


def test_dependencies_of_a_set_the_catalogue_lost_stay(known: Catalogue) -> None:
    contents, past = apply_all(known, "bundle", "two")
    without = Catalogue({n: s for n, s in known.sets.items() if n != "bundle"})
    step = plan(without, Request("revert", ("two",)), snapshot(contents), past)
    assert step.remove == ("two",)


def test_changed_payloads_of_a_neighbour_are_not_slipped_in(known: Catalogue) -> None:
    contents, past = apply_all(known, "one")
    old = past.active["one"]
    aged = ActiveSet(old.id, 0, old.role, old.selected, "older payloads")
    past = History({"one": aged}, past.files)
    result = refusal(known, Request("apply", ("two",)), snapshot(contents), past)
    assert "sm120patch apply one two" in result.reasons[0]


def test_a_set_the_catalogue_lost_can_still_be_reverted(known: Catalogue) -> None:
    contents, past = apply_all(known, "one")
    stranger = ActiveSet("gone", 1, Role.REQUESTED, (), "d")
    files = {k: f._replace(changes=("gone/x",)) for k, f in past.files.items()}
    past = History({"gone": stranger}, files)
    step = plan(known, Request("revert", ("gone",)), snapshot(contents), past)
    assert [(s.path, s.to_pristine) for s in step.files] == [(A, True)]


def test_wanted_files_covers_the_request_and_what_is_owned(known: Catalogue) -> None:
    _contents, past = apply_all(known, "one")
    versions = {"sglang": "1.0", "flashinfer-python": "1.0"}
    wanted = wanted_files(known, versions, past, Request("apply", ("kernel",)))
    assert KERNEL in wanted["flashinfer-python"] and A in wanted["sglang"]
