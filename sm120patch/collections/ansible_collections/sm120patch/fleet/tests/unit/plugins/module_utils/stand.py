"""A module and a sm120patch command to test with: a script that gives prepared answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = """\
#!{python}
import json, os, sys
words = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(words) + "\\n")
with open({answers!r}) as file:
    answers = json.load(file)
name = words[0] + (" --dry-run" if "--dry-run" in words else "")
queue = answers[name]
answer = queue.pop(0) if len(queue) > 1 else queue[0]
with open({answers!r}, "w") as file:
    json.dump(answers, file)
sys.stderr.write("talk\\n")
sys.stdout.write(answer["out"])
sys.exit(answer["code"])
"""


class EndedError(Exception):
    """The module ended; `result` is what it returned."""

    def __init__(self, result: dict[str, Any], failed: bool) -> None:
        super().__init__(result)
        self.result = result
        self.failed = failed


class Module:
    """What the code needs of AnsibleModule; commands are run for real."""

    def __init__(self, params: dict[str, Any], check: bool = False) -> None:
        self.params = params
        self.check_mode = check
        self._diff = True
        self.warnings: list[str] = []

    def get_bin_path(self, name: str, required: bool = True) -> str | None:
        assert not required
        return name if Path(name).is_file() else None

    def run_command(
        self, words: list[str], cwd: str, expand_user_and_vars: bool, environ_update: dict[str, str]
    ) -> tuple[int, str, str]:
        assert cwd == "/" and not expand_user_and_vars and environ_update == {"NO_COLOR": "1"}
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def exit_json(self, **result: Any) -> None:
        raise EndedError(result, False)

    def fail_json(self, **result: Any) -> None:
        raise EndedError(result, True)


class Command:
    """The executable; `said` maps a command to the answers that it gives, the last one for ever."""

    def __init__(self, root: Path) -> None:
        self.path = root / "sm120patch"
        self.log = root / "log"
        self.answers = root / "answers"
        text = SCRIPT.format(python=sys.executable, log=str(self.log), answers=str(self.answers))
        self.path.write_text(text)
        self.path.chmod(0o755)
        self.answers.write_text("{}")

    def says(self, name: str, *answers: dict[str, Any] | str, code: int | None = None) -> None:
        known = json.loads(self.answers.read_text())
        known[name] = [
            {"out": answer, "code": code}
            if isinstance(answer, str)
            else {"out": json.dumps(answer), "code": answer["exit_code"]}
            for answer in answers
        ]
        self.answers.write_text(json.dumps(known))

    @property
    def calls(self) -> list[list[str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines]

    @property
    def ran(self) -> list[str]:
        """Commands in order, dry runs marked."""
        return [words[0] + (" --dry-run" if "--dry-run" in words else "") for words in self.calls]


def envelope(
    result: dict[str, Any] | None, code: int = 0, error: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "schema": 1,
        "command": "x",
        "ok": code == 0,
        "exit_code": code,
        "result": result,
        "errors": [] if error is None else [error],
    }


def refusal(code: int, word: str = "word", hint: str | None = "do this") -> dict[str, Any]:
    error = {"code": word, "message": "what was found", "hint": hint, "details": {}}
    return envelope(None, code, error)


def status(content: str, state: str, **more: Any) -> dict[str, Any]:
    one = {
        "id": "one",
        "state": state,
        "label": state,
        "counts": state == "applied",
        "role": "requested" if state in ("staged", "applied") else "",
    }
    found = {
        "prefix": "/env",
        "versions": {"sglang": "1.0"},
        "content": content,
        "interrupted": None,
        "under_way": None,
        "sets": [one, {**one, "id": "unasked"}],
    }
    return envelope({**found, **more})


def plan(content: str = "new", **more: Any) -> dict[str, Any]:
    found = {
        "digest": "plan-1",
        "content": content,
        "action": "apply",
        "requested": ["one"],
        "versions": {"sglang": "1.0"},
        "noop": False,
        "sets": {"one": "absent"},
        "files": [{"path": "a.py", "before": "1", "after": "2", "diff": "-a\n+b\n"}],
        "launch": {"args": ["--flag"], "env": {}},
        "owed": [],
        "caches": [],
    }
    return envelope({**found, **more})


def change(outcome: str, code: int = 0, **more: Any) -> dict[str, Any]:
    found = {
        "outcome": outcome,
        "plan": {"action": "apply", "requested": ["one"]},
        "launch": {"args": ["--flag"], "env": {}},
        "verification": None,
        "event": None,
        "compiled": None,
    }
    return envelope({**found, **more}, code)
