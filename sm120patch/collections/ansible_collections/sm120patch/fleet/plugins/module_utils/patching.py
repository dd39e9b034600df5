"""What the module patch_set does: look, plan, act, look again."""

from __future__ import annotations

from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sm120patch.fleet.plugins.module_utils.cli import (
    NOT_APPLICABLE,
    NOT_VERIFIED,
    Tool,
    absolute,
    failure,
    options,
)

DECISION = (
    "verdict", "passed", "reasons", "advice", "kind", "goal", "margin", "intervals", "ended",
    "collapse",
)  # fmt: skip
"""Keys of a verification that are returned; the measurements stay on the node."""

COMMANDS = {"present": "apply", "verified": "verify", "absent": "revert"}


def asked(params: dict[str, Any], sets: list[str], plan: str | None = None) -> list[str]:
    """Return options and sets for the command of a state.

    `plan` is the digest of the plan to be carried out; without it the command is a dry run.
    """
    words = options(dry_run=plan is None)
    state = params["state"]
    if state != "absent":
        words += options(
            profile=absolute(params["profile"]),
            goal=params["goal"],
            max_time=params["max_time"],
            gpu=params["gpu"],
        )
    if plan is not None:
        words += options(allow_running=params["allow_running"])
        if state != "absent":
            words += options(
                compile=params["compile"],
                compile_timeout=params["compile_timeout"] if params["compile"] else None,
            )
        if state != "verified":
            words += options(expect=plan)
    if state == "present":
        words += options(
            with_=params["optional_changes"],
            no_verify=not params["verify"],
            yes=params["allow_known_harm"],
        )
    if state == "absent":
        words += options(cascade=params["cascade"], all=params["all"])
    return [*words, "--", *sets] if sets else words


def decision(verification: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what decided, without the measurements."""
    if verification is None:
        return None
    return {key: verification.get(key) for key in DECISION}


def without_diffs(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the plan without the text of its diffs, its caches and its command lines."""
    files = [{k: v for k, v in file.items() if k != "diff"} for file in plan["files"]]
    kept = {k: v for k, v in plan.items() if k not in ("caches", "commands", "owed")}
    return {**kept, "files": files}


def not_passed(result: dict[str, Any]) -> str:
    """Say how a verification ended that did not pass, and where that leaves the node."""
    decided = decision(result["verification"]) or {}
    why = "; ".join(decided.get("reasons") or []) or "no reason was given"
    names = ", ".join(result["plan"]["requested"])
    if result["outcome"] == "rejected":
        left = "rejected: the files hold their content from before, the evidence is kept"
    else:
        left = "left staged, which does not count as applied"
    message = "{}: {}: {}\n{}".format(names, decided.get("verdict"), why, left)
    advice = decided.get("advice") or "`sm120patch report {}` on the node shows it whole".format(
        result["event"]
    )
    return message + "\nhint: " + advice


class Task:
    """One run of the module: look, plan, act, look again."""

    def __init__(self, module: AnsibleModule) -> None:
        """Hold what the task returns, however it ends, in `found`."""
        self.module = module
        self.params = module.params
        self.tool = Tool(module)
        self.statuses: dict[str, dict[str, Any]] = {}
        self.found: dict[str, Any] = {"changed": False, "recovered": None}

    def run(self) -> NoReturn:
        """Do what is asked for and end the task."""
        self.found["digest_before"] = self.look(self.params["sets"] or [])
        self.settle()
        sets = self.wanted()
        plan = self.plan(sets)
        self.require_content(plan)
        launch = None if self.params["state"] == "absent" else plan["launch"]
        if plan["noop"] and not self.found["owed"]:
            self.done("nothing", launch=launch)
        if self.module._diff and self.params["state"] != "verified":
            self.found["diff"] = {"prepared": "".join(file["diff"] for file in plan["files"])}
        if self.module.check_mode:
            self.require_profile(plan)
            self.done("planned", changed=True, launch=launch)
        self.act(sets, plan)

    def look(self, names: list[str]) -> str:
        """Read states and content from the node's disk; return the digest of the content."""
        answer = self.tool.ask("status", *options(gpu=self.params["gpu"]))
        if not answer.result:
            self.tool.fail(answer, **self.found)
        self.statuses = {status["id"]: status for status in answer.result["sets"]}
        self.interrupted = answer.result["interrupted"]
        self.found["digest_after"] = answer.result["content"]
        self.show(names)
        return answer.result["content"]

    def show(self, names: list[str]) -> None:
        """Return the statuses of the sets that the request is about."""
        shown = [self.statuses[name] for name in sorted(names) if name in self.statuses]
        self.found["sets"] = shown
        self.found["states"] = {status["id"]: status["state"] for status in shown}

    def settle(self) -> None:
        """Settle an interrupted command where that was asked for."""
        if not (self.interrupted and self.params["recover"]):
            return
        if self.module.check_mode:
            self.module.warn("a command was interrupted here: what follows cannot be predicted")
            self.done("planned", changed=True)
        answer = self.tool.ask("recover")
        if answer.code:
            self.tool.fail(answer, **self.found)
        self.found["recovered"] = answer.result["outcome"]
        self.found["changed"] = answer.result["outcome"] != "nothing"
        self.found["digest_before"] = self.look(self.params["sets"] or [])

    def wanted(self) -> list[str]:
        """Return the sets that the command is to be asked about."""
        sets = self.params["sets"] or []
        if self.params["state"] != "verified":
            return sets
        states = {name: self.statuses.get(name, {}).get("state") for name in sets}
        if self.params["not_applicable"] == "ok" and "not-applicable" in states.values():
            self.done("not-applicable")
        wanted = [name for name in sets if states[name] != "upstream"]
        if not wanted:
            self.done("nothing")
        return wanted

    def plan(self, sets: list[str]) -> dict[str, Any]:
        """Return the plan, dry run of the command; writes nothing."""
        answer = self.tool.ask(COMMANDS[self.params["state"]], *asked(self.params, sets))
        if answer.code == NOT_APPLICABLE and self.params["not_applicable"] == "ok":
            self.done("not-applicable", error=answer.error)
        if answer.code:
            self.tool.fail(answer, **self.found)
        plan = answer.result
        verified = self.params["state"] == "verified"
        self.found["plan"] = without_diffs(plan)
        self.found["owed"] = plan["owed"]
        self.found["digest"] = self.found["digest_before"] if verified else plan["content"]
        self.show(list(plan["sets"]))
        if verified:
            plan = {**plan, "noop": True}  # its files are those of the baseline
        return plan

    def require_content(self, plan: dict[str, Any]) -> None:
        """Refuse a node that would not hold the same content as the others."""
        expected, found = self.params["expected_digest"], self.found["digest"]
        if expected in (None, found):
            return
        versions = ", ".join("{} {}".format(*item) for item in sorted(plan["versions"].items()))
        message = (
            f"this node would hold content {found}, expected {expected} ({versions});"
            " nothing was written"
        )
        hint = "compare its versions and its sets on disk with a node that has it"
        self.module.fail_json(
            **{
                **self.found,
                "msg": message + "\nhint: " + hint,
                "failure": "conflict",
                "error": {
                    "code": "other-content",
                    "message": message,
                    "hint": hint,
                    "details": {"expected": expected, "found": found},
                },
            }
        )

    def require_profile(self, plan: dict[str, Any]) -> None:
        """Predict in check mode what the command says where it cannot measure."""
        if self.found["owed"] and "commands" not in plan:
            self.module.fail_json(
                **{
                    **self.found,
                    "msg": "{} must be measured, and no profile says how to start the server\n"
                    "hint: set profile, or verify to false".format(", ".join(self.found["owed"])),
                    "failure": "usage",
                }
            )

    def act(self, sets: list[str], plan: dict[str, Any]) -> NoReturn:
        """Carry out the plan and read back what holds now."""
        answer = self.tool.ask(
            COMMANDS[self.params["state"]], *asked(self.params, sets, plan["digest"])
        )
        after = self.look(list(plan["sets"]))
        result = answer.result
        moved = self.found["changed"] or after != self.found["digest_before"]
        if not result:
            self.tool.fail(answer, **{**self.found, "changed": moved})
        verification = result["verification"]
        self.found.update(
            outcome=result["outcome"],
            launch=result["launch"],
            verdict=None if verification is None else verification["verdict"],
            verification=decision(verification),
            event=result["event"],
        )
        if answer.code == NOT_VERIFIED:
            more = {"changed": moved, "msg": not_passed(result)}
            self.module.fail_json(
                **{**self.found, **failure(answer), **more},
            )
        if answer.code:
            self.tool.fail(answer, **{**self.found, "changed": moved})
        self.found["changed"] = True
        self.module.exit_json(**self.found)

    def done(self, outcome: str, **more: Any) -> NoReturn:
        """End the task without having measured anything."""
        told = {"verdict": None, "verification": None, "event": None, "launch": None}
        self.module.exit_json(**{**self.found, **told, "outcome": outcome, **more})
