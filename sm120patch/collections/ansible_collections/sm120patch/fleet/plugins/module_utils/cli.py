"""Runs the sm120patch command on the node and reads the JSON that it prints.

Never imports the package sm120patch: the node's Python needs nothing but its standard library.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, NamedTuple, NoReturn, Sequence

from ansible.module_utils.basic import AnsibleModule

SCHEMA = 1
"""Form of the envelope that is understood; keys may be added within it."""

FINDINGS = 1
NOT_APPLICABLE = 4
NOT_VERIFIED = 8
KINDS = {
    FINDINGS: "findings",
    2: "usage",
    3: "catalogue",
    NOT_APPLICABLE: "not-applicable",
    5: "conflict",
    6: "rolled-back",
    7: "recovery-needed",
    NOT_VERIFIED: "not-verified",
    9: "busy",
    10: "host",
    70: "bug",
    130: "interrupted",
}
"""Exit code of the tool -> the word that `failure` holds."""

NEXT = {
    6: "every file holds its content from before; look into the message, then repeat",
    7: "run `sm120patch recover` on the node, or set recover to true",
    9: "wait for the command or stop the processes that are named, then repeat",
    70: "please report it with the file that the message names",
    130: "the environment was put back; repeat",
}
"""What to do next where the tool did not say it."""

COMMON = {
    "executable": {"type": "path", "default": "sm120patch"},
    "catalogue": {"type": "path"},
    "extra_catalogues": {"type": "list", "elements": "path", "default": []},
}
"""Argument spec of every module."""

ENVIRONMENT = {
    "environment": {"type": "path", "aliases": ["prefix"]},
    "python": {"type": "path"},
}
"""Argument spec of the modules that look at one environment."""


class Answer(NamedTuple):
    """What one run of the tool came to."""

    command: str
    code: int
    envelope: dict[str, Any]

    @property
    def result(self) -> dict[str, Any]:
        """What the command found or did; empty after an error."""
        found = self.envelope.get("result")
        return found if isinstance(found, dict) else {}

    @property
    def error(self) -> dict[str, Any] | None:
        """Why there is no result, as the tool says it."""
        errors: list[dict[str, Any]] = self.envelope.get("errors") or []
        return errors[0] if errors else None


class NoAnswerError(Exception):
    """What the tool printed is not an answer; the message says what was found."""


def read(command: str, code: int, out: str, err: str) -> Answer:
    """Return the answer that `out` holds; raises NoAnswerError for anything else."""
    last = " ".join(err.strip().splitlines()[-1:])[:300]
    said = ": " + last if last else ""
    if code < 0:
        raise NoAnswerError(f"it was killed by signal {-code}{said}")
    try:
        envelope = json.loads(out)
    except ValueError:
        raise NoAnswerError(f"it exited with {code} and printed no JSON{said}") from None
    if not isinstance(envelope, dict) or envelope.get("schema") != SCHEMA:
        raise NoAnswerError(
            f"its answer is not of schema {SCHEMA}; use a collection of its release"
        )
    if envelope.get("exit_code") != code:
        raise NoAnswerError(
            f"it exited with {code}, but its answer says {envelope.get('exit_code')}"
        )
    return Answer(command, code, envelope)


def failure(answer: Answer) -> dict[str, Any]:
    """Return what a failed task says of an exit code: `msg`, `failure`, `rc` and `error`."""
    error = answer.error or {}
    message = error.get("message") or f"sm120patch {answer.command} exited with {answer.code}"
    hint = error.get("hint") or NEXT.get(answer.code)
    return {
        "msg": message + (f"\nhint: {hint}" if hint else ""),
        "failure": KINDS.get(answer.code, "unknown"),
        "rc": answer.code,
        "error": answer.error,
    }


def options(**named: Any) -> list[str]:
    """Return `--name value` for what is set: true is a flag, a list repeats the option."""
    words: list[str] = []
    for name, value in named.items():
        option = "--" + name.rstrip("_").replace("_", "-")
        if value is True:
            words.append(option)
        elif isinstance(value, (list, tuple)):
            words += [word for one in value for word in (option, str(one))]
        elif value is not None and value is not False:
            words += [option, str(value)]
    return words


def succeed(module: AnsibleModule, found: dict[str, Any]) -> NoReturn:
    """End the task well, with what it returns."""
    module.exit_json(**found)
    raise SystemExit


def give_up(module: AnsibleModule, found: dict[str, Any]) -> NoReturn:
    """End the task with a failure, with what it returns; `msg` holds no control character."""
    module.fail_json(**{**found, "msg": visible(found["msg"])})
    raise SystemExit(1)


def visible(text: str) -> str:
    """Return text that a terminal shows and does not obey; line ends and tabs stay."""
    return re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f]", "?", text)


@contextmanager
def understood(module: AnsibleModule, found: dict[str, Any]) -> Iterator[None]:
    """End the task where an answer of the tool lacks what it must have, or has it as another type.

    `found` is what a task returns that ends in a failure.
    """
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        message = f"an answer of sm120patch has not the form that is expected ({what})"
        hint = "use a tool and a collection of the same release"
        told = {"msg": f"{message}\nhint: {hint}", "failure": "no-answer"}
        give_up(module, {**found, **told})


class Tool:
    """The command on this node, for one environment and catalogue."""

    def __init__(self, module: AnsibleModule, found: dict[str, Any] | None = None) -> None:
        """Find the executable; ends the task where there is none.

        `found` is what a task returns that ends in a failure; it may grow later.
        """
        self._module = module
        self._found = {} if found is None else found
        params = module.params
        named = params["executable"]
        self._executable = module.get_bin_path(named, required=False)
        if self._executable is None:
            missing = f"there is no executable {named} on this node"
            hint = "install sm120patch there (role sm120patch.fleet.install), or set executable"
            give_up(module, {"msg": f"{missing}\nhint: {hint}", "failure": "no-tool"})
        self._catalogue = options(
            catalogue=absolute(params["catalogue"]),
            extra_catalogue=[absolute(path) for path in params["extra_catalogues"]],
        )
        self._environment = options(
            env=absolute(params.get("environment")), python=absolute(params.get("python"))
        )

    def version(self) -> str | None:
        """Return what `sm120patch --version` says; None where it does not."""
        code, out, _err = self._run(["--version"])
        words = out.split()
        return words[-1] if code == 0 and words else None

    def ask(self, command: str, *words: str) -> Answer:
        """Run one command with `--output json`; ends the task where it gives no answer."""
        given = [*self._environment, *self._catalogue, "--output", "json"]
        code, out, err = self._run([command, *given, *words])
        try:
            return read(command, code, out, err)
        except NoAnswerError as error:
            message = f"sm120patch {command} gave no answer: {error}"
            told = {"msg": message, "failure": "no-answer", "rc": code}
            give_up(self._module, {**self._found, **told})

    def fail(self, answer: Answer, **more: Any) -> NoReturn:
        """End the task with what the tool says of its exit code."""
        give_up(self._module, {**self._found, **failure(answer), **more})

    def _run(self, words: Sequence[str]) -> tuple[int, str, str]:
        done = self._module.run_command(
            [self._executable, *words],
            cwd="/",
            expand_user_and_vars=False,
            environ_update={"NO_COLOR": "1"},
        )
        code, out, err = done
        return code, out, err


def absolute(path: str | None) -> str | None:
    """Return a path that means the same in any working directory."""
    return None if path is None else str(Path(path).absolute())
