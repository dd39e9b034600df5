"""What the module patch_set does: look, plan, act, look again."""

from __future__ import annotations

from typing import Any, Iterable, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sm120patch.fleet.plugins.module_utils.cli import (
    NOT_APPLICABLE,
    NOT_VERIFIED,
    Tool,
    absolute,
    give_up,
    options,
    succeed,
    understood,
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
    plan = result["plan"]
    if result["outcome"] != "rejected":
        left = "left staged, which does not count as applied"
    elif plan["action"] == "revert":
        left = "rejected: taken off, the evidence is kept"
    else:
        left = "rejected: every file holds its content from before, the evidence is kept"
    shown = f"`sm120patch report {result['event']}` on the node shows it whole"
    lines = [
        f"{', '.join(plan['requested'])}: {decided.get('verdict')}: {why}",
        left,
        f"hint: {decided.get('advice') or shown}",
    ]
    return "\n".join(lines)


def other_content(expected: str, found: str, versions: dict[str, str]) -> dict[str, Any]:
    """Return what a task says that refuses a node which would differ from the others."""
    shown = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    message = f"this node would hold content {found}, expected {expected} ({shown})"
    hint = "nothing was written; compare versions and sets with a node that has it"
    return {
        "msg": f"{message}\nhint: {hint}",
        "failure": "conflict",
        "error": {
            "code": "other-content",
            "message": message,
            "hint": hint,
            "details": {"expected": expected, "found": found, "versions": versions},
        },
    }


class Task:
    """One run of the module: look, plan, act, look again."""

    def __init__(self, module: AnsibleModule) -> None:
        """Hold what the task returns, however it ends, in `found`."""
        self.module = module
        self.params = module.params
        self.state: str = module.params["state"]
        self.found: dict[str, Any] = {"changed": False, "recovered": None}
        self.tool = Tool(module, self.found)
        self.status: dict[str, Any] = {}

    def run(self) -> None:
        """Do what is asked for and end the task."""
        with understood(self.module, self.found):
            self._run()

    def _run(self) -> NoReturn:
        sets = self.params["sets"] or []
        self.look(sets)
        self.found["digest_before"] = self.found["digest_after"]
        self.settle(sets)
        sets = self.wanted(sets)
        plan = self.plan(sets)
        if self.settled(plan):
            self.done("nothing", launch=self.launch(plan))
        self.require_consent(plan)
        diff = {}
        if self.module._diff and self.state != "verified":
            diff["diff"] = {"prepared": "".join(file["diff"] for file in plan["files"])}
        if self.module.check_mode:
            self.require_profile(plan)
            self.done("planned", changed=True, launch=self.launch(plan), **diff)
        self.act(sets, plan)
        succeed(self.module, {**self.found, "changed": True, **diff})

    def look(self, names: Iterable[str]) -> None:
        """Read states and content from the node's disk."""
        answer = self.tool.ask("status", *options(gpu=self.params["gpu"]))
        if not answer.result:
            self.tool.fail(answer)
        self.status = answer.result
        self.found["digest_after"] = self.status["content"]
        self.show(names)

    def show(self, names: Iterable[str]) -> None:
        """Return the statuses of the sets that the request is about."""
        wanted = set(names)
        self.found["sets"] = [status for status in self.status["sets"] if status["id"] in wanted]
        self.found["states"] = {status["id"]: status["label"] for status in self.found["sets"]}

    def settle(self, names: Iterable[str]) -> None:
        """Settle an interrupted command where that was asked for."""
        if not (self.status["interrupted"] and self.params["recover"]):
            return
        if self.module.check_mode:
            self.module.warn("a command was interrupted here: what follows cannot be predicted")
            self.done("planned", changed=True)
        answer = self.tool.ask("recover")
        if answer.code:
            self.tool.fail(answer)
        self.found["recovered"] = answer.result["outcome"]
        self.found["changed"] = True
        self.look(names)
        self.found["digest_before"] = self.found["digest_after"]

    def wanted(self, sets: list[str]) -> list[str]:
        """Return the sets that the command is to be asked about."""
        if self.state != "verified":
            return sets
        states = {status["id"]: status["state"] for status in self.status["sets"]}
        if self.params["not_applicable"] == "ok" and any(
            states.get(name) == "not-applicable" for name in sets
        ):
            self.done("not-applicable")
        wanted = [name for name in sets if states.get(name) != "upstream"]
        if not wanted:
            self.require_content(self.status["content"], self.status["versions"])
            self.done("nothing")
        return wanted

    def plan(self, sets: list[str]) -> dict[str, Any]:
        """Return the plan, a dry run of the command; writes nothing.

        Ends the task where the node would not hold the content that it should.
        """
        answer = self.tool.ask(COMMANDS[self.state], *asked(self.params, sets))
        if answer.code == NOT_APPLICABLE and self.params["not_applicable"] == "ok":
            self.done("not-applicable", error=answer.error)
        if answer.code:
            self.tool.fail(answer)
        plan = answer.result
        self.found["plan"] = without_diffs(plan)
        self.found["owed"] = plan["owed"]
        self.show([*sets, *plan["sets"]])
        # The plan of a verification leads to its baseline; it is to end with what is there.
        comes_to = self.status["content"] if self.state == "verified" else plan["content"]
        self.require_content(comes_to, plan["versions"])
        return plan

    def settled(self, plan: dict[str, Any]) -> bool:
        """Tell whether there is nothing left to do."""
        return not plan["owed"] and (plan["noop"] or self.state == "verified")

    def launch(self, plan: dict[str, Any]) -> dict[str, Any] | None:
        """Return what servers must be started with for the sets that are kept."""
        return None if self.state == "absent" else plan["launch"]

    def require_content(self, found: str, versions: dict[str, str]) -> None:
        """Refuse a node that would not hold the same content as the others."""
        self.found["digest"] = found
        expected = self.params["expected_digest"]
        if expected not in (None, found):
            refusal = other_content(expected, found, versions)
            give_up(self.module, {**self.found, **refusal})

    def require_profile(self, plan: dict[str, Any]) -> None:
        """Predict in check mode what the command says where it cannot measure."""
        if plan["owed"] and "commands" not in plan:
            message = f"{', '.join(plan['owed'])} must be measured, and no profile was given"
            hint = "set profile, or verify to false"
            told = {"msg": f"{message}\nhint: {hint}", "failure": "usage"}
            give_up(self.module, {**self.found, **told})

    def require_consent(self, plan: dict[str, Any]) -> None:
        """Refuse, in check mode as well, what the command would not do without `--yes`."""
        doubt = plan.get("doubt")
        if doubt and not self.params["allow_known_harm"]:
            hint = "set allow_known_harm (of a rollout: sm120patch_allow_known_harm) to true"
            told = {
                "msg": f"{doubt['message']}\nhint: {hint} to measure it here all the same",
                "failure": "conflict",
                "error": {**doubt, "hint": hint, "details": {}},
            }
            give_up(self.module, {**self.found, **told})

    def act(self, sets: list[str], plan: dict[str, Any]) -> None:
        """Carry out the plan and read back what holds now; ends the task where it failed."""
        recovered = self.found["changed"]
        # Not known any more until the node has been looked at again: the command may be killed.
        for known in ("digest_after", "sets", "states"):
            del self.found[known]
        self.found["changed"] = True
        answer = self.tool.ask(COMMANDS[self.state], *asked(self.params, sets, plan["digest"]))
        result = answer.result
        if result:
            self.found.update(
                outcome=result["outcome"],
                launch=result["launch"],
                verification=decision(result["verification"]),
                verdict=(result["verification"] or {}).get("verdict"),
                event=result["event"],
            )
        self.look([*sets, *plan["sets"]])
        differs = self.found["digest_after"] != self.found["digest_before"]
        self.found["changed"] = recovered or differs or self.status["interrupted"] is not None
        if answer.code == NOT_VERIFIED and result:
            self.tool.fail(answer, msg=not_passed(result))
        if answer.code:
            self.tool.fail(answer)

    def done(self, outcome: str, **more: Any) -> NoReturn:
        """End the task without having done anything but settling."""
        told = {"verdict": None, "verification": None, "event": None, "launch": None}
        succeed(self.module, {**self.found, **told, "outcome": outcome, **more})
