from __future__ import annotations

import json

import pytest
from ansible_collections.sm120patch.fleet.plugins.module_utils.cli import (
    KINDS,
    Answer,
    NoAnswerError,
    Tool,
    absolute,
    failure,
    options,
    read,
)
from ansible_collections.sm120patch.fleet.tests.unit.plugins.module_utils.stand import (
    Command,
    EndedError,
    Module,
    envelope,
    refusal,
)


def test_an_answer_is_read_with_its_exit_code():
    answer = read("status", 7, json.dumps(envelope({"interrupted": "apply"}, 7)), "")
    assert answer.result == {"interrupted": "apply"} and answer.error is None


@pytest.mark.parametrize(
    ("code", "out", "said"),
    [
        (0, "", "exited with 0 and printed no JSON: last line"),
        (1, "Traceback", "printed no JSON"),
        (-9, json.dumps(envelope({})), "killed by signal 9"),
        (0, "[]", "schema 1"),
        (0, json.dumps({**envelope({}), "schema": 2}), "schema 1"),
        (5, json.dumps(envelope({})), "exited with 5, but its answer says 0"),
    ],
)
def test_anything_else_is_no_answer(code, out, said):
    with pytest.raises(NoAnswerError, match=said):
        read("status", code, out, "first line\nlast line\n")


@pytest.mark.parametrize("code", KINDS)
def test_every_exit_code_has_its_word_and_the_next_step(code):
    found = failure(Answer("apply", code, refusal(code)))
    assert found["failure"] == KINDS[code] and found["rc"] == code
    assert found["msg"] == "what was found\nhint: do this"
    assert found["error"]["code"] == "word"


def test_a_message_cannot_write_to_the_terminal(tmp_path):
    command = Command(tmp_path)
    told = refusal(5)
    told["errors"][0]["message"] = "one\x1b]0;title\x07\n\ttwo\x9b2J"
    command.says("status", told)
    tool = Tool(Module(params(command)))
    with pytest.raises(EndedError) as ended:
        tool.fail(tool.ask("status"))
    assert ended.value.result["msg"].startswith("one?]0;title?\n\ttwo?2J\nhint: ")


@pytest.mark.parametrize("code", [6, 7, 9, 70, 130])
def test_where_the_tool_has_no_hint_there_is_one(code):
    assert "\nhint: " in failure(Answer("apply", code, refusal(code, hint=None)))["msg"]


def test_options_are_words_and_never_a_shell_line():
    words = options(with_=["a", "$(b)"], max_time=2.5, gpu=None, all=True, cascade=False)
    assert words == ["--with", "a", "--with", "$(b)", "--max-time", "2.5", "--all"]


def test_paths_mean_the_same_in_any_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert absolute("profile.toml") == str(tmp_path / "profile.toml")
    assert absolute(None) is None


def params(command):
    return {
        "executable": str(command.path),
        "catalogue": "/catalogue",
        "extra_catalogues": ["/more"],
        "environment": "/env",
        "python": None,
    }


def test_the_tool_is_asked_for_json_about_one_environment(tmp_path):
    command = Command(tmp_path)
    command.says("status", envelope({"sets": []}))
    assert Tool(Module(params(command))).ask("status", "--gpu", "12.0").result == {"sets": []}
    assert command.calls == [
        ["status", "--env", "/env", "--catalogue", "/catalogue", "--extra-catalogue", "/more",
         "--output", "json", "--gpu", "12.0"]
    ]  # fmt: skip


def test_without_the_tool_the_task_says_how_to_get_it(tmp_path):
    command = Command(tmp_path)
    with pytest.raises(EndedError) as ended:
        Tool(Module({**params(command), "executable": "/nowhere/sm120patch"}))
    assert ended.value.failed and ended.value.result["failure"] == "no-tool"
    assert "sm120patch.fleet.install" in ended.value.result["msg"]


def test_no_answer_ends_the_task_with_what_was_found_before(tmp_path):
    command = Command(tmp_path)
    command.says("status", "Killed", code=137)
    with pytest.raises(EndedError) as ended:
        Tool(Module(params(command)), {"outcome": "applied"}).ask("status")
    result = ended.value.result
    assert ended.value.failed and result["failure"] == "no-answer" and result["rc"] == 137
    assert result["outcome"] == "applied" and "talk" in result["msg"]
