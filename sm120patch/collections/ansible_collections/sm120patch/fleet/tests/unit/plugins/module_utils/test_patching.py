from __future__ import annotations

import pytest
from ansible_collections.sm120patch.fleet.plugins.module_utils.cli import KINDS
from ansible_collections.sm120patch.fleet.plugins.module_utils.patching import Task
from ansible_collections.sm120patch.fleet.plugins.modules.patch_set import ARGUMENTS, contradiction
from ansible_collections.sm120patch.fleet.tests.unit.plugins.module_utils.stand import (
    Command,
    EndedError,
    Module,
    change,
    envelope,
    plan,
    refusal,
    status,
)

PASSED = {
    "verdict": "no-regression",
    "passed": True,
    "reasons": ["within the margin"],
    "advice": None,
    "kind": "real",
    "goal": "no-regression",
    "margin": 0.03,
    "intervals": {},
    "ended": "clear",
    "collapse": None,
    "arms": {"baseline": "bulky"},
}
REGRESSED = {**PASSED, "verdict": "regressed", "passed": False, "reasons": ["8 % slower"]}


@pytest.fixture
def command(tmp_path):
    """A node where `one` is absent and would be staged."""
    made = Command(tmp_path)
    made.says("status", status("old", "absent"), status("new", "staged"))
    made.says("apply --dry-run", plan())
    made.says("apply", change("staged"))
    return made


def run(command, check=False, **given):
    """Run the task to its end; return what it came to."""
    defaults = {name: spec.get("default") for name, spec in ARGUMENTS.items()}
    params = {
        **defaults,
        "executable": str(command.path),
        "environment": "/env",
        "sets": ["one"],
        **given,
    }
    assert contradiction(params) is None
    with pytest.raises(EndedError) as ended:
        Task(Module(params, check)).run()
    return ended.value


def words_of(command, name):
    (found,) = [w for w in command.calls if w[0] == name and "--dry-run" not in w]
    return found


def test_a_change_is_planned_made_as_planned_and_read_back(command):
    ended = run(command, verify=False, optional_changes=["extra"], gpu="12.0")
    assert command.ran == ["status", "apply --dry-run", "apply", "status"]
    result = ended.result
    assert not ended.failed and result["changed"] and result["outcome"] == "staged"
    assert (result["digest"], result["digest_before"], result["digest_after"]) == (
        "new",
        "old",
        "new",
    )
    assert result["states"] == {"one": "staged"}, "of the sets that were asked for"
    words = words_of(command, "apply")
    assert words[-2:] == ["--", "one"]
    assert words[words.index("--expect") :][:2] == ["--expect", "plan-1"]
    assert "--no-verify" in words and words[words.index("--with") :][:2] == ["--with", "extra"]


def test_it_is_measured_unless_the_user_says_otherwise(command):
    run(command)
    assert all("--no-verify" not in words for words in command.calls)


def test_nothing_left_to_do_changes_nothing(command):
    command.says("apply --dry-run", plan("old", noop=True))
    ended = run(command)
    assert not ended.failed and ended.result["changed"] is False
    assert ended.result["outcome"] == "nothing" and ended.result["launch"]["args"] == ["--flag"]
    assert command.ran == ["status", "apply --dry-run"]


def test_what_is_on_disk_unverified_is_measured(command):
    command.says("status", status("new", "staged"), status("new", "applied"))
    command.says("apply --dry-run", plan(noop=True, owed=["one"], commands={}))
    command.says("apply", change("verified", verification=PASSED, event=7))
    result = run(command, profile="/p.toml").result
    assert result["changed"] and result["states"] == {"one": "applied"}
    assert result["verdict"] == "no-regression" and result["event"] == 7
    assert "arms" not in result["verification"], "the measurements stay on the node"


def test_evidence_that_is_not_real_is_named_in_the_state(command):
    simulated = status("new", "applied")
    for one in simulated["result"]["sets"]:
        one.update(label="applied (simulated)", counts=False)
    command.says("status", status("new", "staged"), simulated)
    command.says("apply --dry-run", plan(noop=True, owed=["one"], commands={}))
    command.says("apply", change("verified", verification={**PASSED, "kind": "simulated"}))
    assert run(command, profile="/p.toml").result["states"] == {"one": "applied (simulated)"}


@pytest.mark.parametrize("broken", ["status", "apply --dry-run", "apply"])
@pytest.mark.parametrize("result", [{"sets": 3}, {"content": "x", "sets": [1]}])
def test_an_answer_of_another_form_is_no_answer(command, broken, result):
    command.says(broken, envelope(result))
    ended = run(command, verify=False)
    assert ended.failed and ended.result["failure"] == "no-answer"
    assert "has not the form" in ended.result["msg"]


def test_check_mode_foretells_it_and_runs_nothing_that_writes(command):
    result = run(command, check=True, verify=False).result
    assert result["changed"] and result["outcome"] == "planned"
    assert result["diff"] == {"prepared": "-a\n+b\n"}
    assert "diff" not in result["plan"]["files"][0]
    assert command.ran == ["status", "apply --dry-run"]


def test_check_mode_foretells_that_a_profile_is_missing(command):
    command.says("apply --dry-run", plan(owed=["one"]))
    ended = run(command, check=True)
    assert ended.failed and ended.result["failure"] == "usage" and "profile" in ended.result["msg"]
    command.says("apply --dry-run", plan(owed=["one"], commands={"baseline": "b"}))
    assert run(command, check=True, profile="/p.toml").result["outcome"] == "planned"


@pytest.mark.parametrize("check", [False, True])
def test_what_is_known_to_do_harm_is_refused_before_anything_is_written(command, check):
    doubt = {"code": "known-harmful", "message": "slower on such hosts"}
    command.says("apply --dry-run", plan(owed=["one"], commands={}, doubt=doubt))
    ended = run(command, check=check, profile="/p.toml")
    assert ended.failed and ended.result["failure"] == "conflict"
    assert "slower on such hosts\nhint: set allow_known_harm" in ended.result["msg"]
    assert ended.result["error"]["code"] == "known-harmful"
    assert command.ran == ["status", "apply --dry-run"]
    command.says("status", status("old", "absent"), status("new", "staged"))
    assert not run(command, check=check, profile="/p.toml", allow_known_harm=True).failed


@pytest.mark.parametrize("check", [False, True])
def test_a_node_that_would_differ_is_refused_before_anything_is_written(command, check):
    ended = run(command, check=check, verify=False, expected_digest="other")
    assert ended.failed and ended.result["failure"] == "conflict"
    assert ended.result["error"]["details"]["versions"] == {"sglang": "1.0"}
    assert command.ran == ["status", "apply --dry-run"]
    command.says("status", status("old", "absent"))
    assert not run(command, check=True, verify=False, expected_digest="new").failed


def test_a_rejected_set_fails_with_the_evidence_and_changed_nothing(command):
    command.says("status", status("old", "absent"), status("old", "rejected"))
    command.says("apply", change("rejected", 8, verification=REGRESSED, event=3, launch=None))
    ended = run(command, profile="/p.toml")
    result = ended.result
    assert ended.failed and result["failure"] == "not-verified" and result["changed"] is False
    assert result["verdict"] == "regressed" and result["states"] == {"one": "rejected"}
    assert "8 % slower" in result["msg"] and "report 3" in result["msg"]
    assert "content from before" in result["msg"] and "diff" not in result


def test_a_rejection_of_what_was_on_disk_says_that_it_is_gone(command):
    command.says("status", status("new", "staged"), status("old", "rejected"))
    command.says("verify --dry-run", plan("old", owed=["one"], commands={}))
    command.says(
        "verify",
        change(
            "rejected",
            8,
            verification=REGRESSED,
            event=3,
            plan={"action": "revert", "requested": ["one"]},
        ),
    )
    ended = run(command, state="verified", profile="/p.toml")
    assert ended.failed and ended.result["changed"] and "taken off" in ended.result["msg"]


def test_an_undecided_set_fails_and_is_left_staged(command):
    undecided = {**REGRESSED, "verdict": "inconclusive", "advice": "measure longer"}
    command.says("apply", change("staged", 8, verification=undecided, event=3))
    ended = run(command, profile="/p.toml")
    assert ended.failed and ended.result["changed"] and ended.result["outcome"] == "staged"
    assert "does not count" in ended.result["msg"] and "measure longer" in ended.result["msg"]


@pytest.mark.parametrize("code", [c for c in KINDS if c not in (1, 8)])
@pytest.mark.parametrize("name", ["apply --dry-run", "apply"])
def test_every_exit_code_of_plan_and_change_fails_with_what_the_tool_says(command, name, code):
    command.says("status", status("old", "absent"))
    command.says(name, refusal(code))
    ended = run(command, verify=False)
    assert ended.failed and ended.result["failure"] == KINDS[code] and ended.result["rc"] == code
    assert ended.result["msg"] == "what was found\nhint: do this"
    assert ended.result["states"] == {"one": "absent"} and ended.result["changed"] is False


def test_a_node_the_sets_are_not_made_for_is_an_outcome_where_that_is_asked_for(command):
    command.says("apply --dry-run", refusal(4))
    assert run(command).failed
    ended = run(command, not_applicable="ok")
    assert not ended.failed and ended.result["changed"] is False
    assert ended.result["outcome"] == "not-applicable"
    assert ended.result["error"]["message"] == "what was found"


def test_a_node_that_is_elsewhere_verified_has_upstreams_code(command):
    command.says("status", status("old", "upstream"))
    assert run(command, state="verified").result["outcome"] == "nothing"
    assert run(command, state="verified", expected_digest="other").failed
    assert command.ran == ["status", "status"]


def test_the_content_of_a_verification_is_what_is_there(command):
    command.says("status", status("new", "applied"))
    command.says("verify --dry-run", plan("old"))
    ended = run(command, state="verified", expected_digest="new")
    assert ended.result["outcome"] == "nothing" and ended.result["digest"] == "new"
    assert run(command, state="verified", expected_digest="old").failed


def test_an_interrupted_command_is_settled_only_where_that_is_asked_for(command):
    broken = status("old", "interrupted", interrupted="apply one")
    broken["exit_code"] = 7
    command.says("status", broken)
    command.says("apply --dry-run", refusal(7))
    assert run(command).result["failure"] == "recovery-needed"
    assert "recover" not in command.ran
    command.says("status", broken, status("old", "absent"), status("new", "staged"))
    command.says("recover", envelope({"outcome": "undone"}))
    command.says("apply --dry-run", plan())
    result = run(command, recover=True).result
    assert result["recovered"] == "undone" and result["changed"]


def test_a_command_that_is_killed_leaves_nothing_known_of_the_node(command):
    command.says("apply", "", code=137)
    ended = run(command, verify=False)
    assert ended.failed and ended.result["failure"] == "no-answer" and ended.result["changed"]
    assert ended.result["digest_before"] == "old"
    assert not {"digest_after", "states", "sets"} & ended.result.keys()


def test_a_node_that_is_interrupted_afterwards_is_changed_whatever_its_content(command):
    broken = status("old", "interrupted", interrupted="apply one")
    broken["exit_code"] = 7
    command.says("status", status("old", "absent"), broken)
    command.says("apply", refusal(7))
    assert run(command, verify=False).result["changed"]


def test_check_mode_settles_nothing(command):
    command.says("status", status("old", "interrupted", interrupted="apply one"))
    result = run(command, recover=True, check=True).result
    assert result["outcome"] == "planned" and command.ran == ["status"]


def test_absent_reverts_as_planned(command):
    command.says("status", status("new", "staged"), status("old", "absent"))
    command.says("revert --dry-run", plan("old", action="revert"))
    command.says("revert", change("reverted", launch=None))
    result = run(command, state="absent", cascade=True, profile="/p.toml", gpu="12.0").result
    assert result["changed"] and result["outcome"] == "reverted" and result["launch"] is None
    words = words_of(command, "revert")
    assert "--cascade" in words and "--expect" in words
    assert "--profile" not in words and "--gpu" not in words


def test_a_set_that_is_gone_already_is_told(command):
    command.says("revert --dry-run", plan("old", noop=True, sets={}))
    assert run(command, state="absent").result["states"] == {"one": "absent"}


def test_all_sets_can_be_taken_off(command):
    command.says("revert --dry-run", plan("old", noop=True, sets={}))
    run(command, state="absent", sets=None, all=True)
    assert command.calls[-1][-1] == "--all"


@pytest.mark.parametrize(
    "given",
    [
        {"sets": None},
        {"sets": []},
        {"all": True, "state": "absent"},
        {"sets": None, "all": True},
        {"cascade": True},
        {"optional_changes": ["x"], "state": "absent"},
        {"verify": False, "state": "verified"},
    ],
)
def test_parameters_that_do_not_go_together_are_refused(given):
    defaults = {name: spec.get("default") for name, spec in ARGUMENTS.items()}
    assert contradiction({**defaults, "sets": ["one"], **given})
