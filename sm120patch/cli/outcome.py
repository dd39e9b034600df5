"""Words, data and exit code for what a changing command did. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sm120patch.cli import following
from sm120patch.errors import ExitCode
from sm120patch.evidence import Event
from sm120patch.model import EvidenceKind, State
from sm120patch.operations.changing import Change
from sm120patch.plaintext import table
from sm120patch.plan import Launch, Plan, Role
from sm120patch.recorded import record, text, texts
from sm120patch.render import launch_dict, launch_text, plan_dict, status_dict, status_rows
from sm120patch.state import SetStatus


def experiment_rows(
    events: Sequence[Event], evidence: Mapping[int, Mapping[str, object]]
) -> list[tuple[str, ...]]:
    """Rows of `history --experiments`: when, what was tried, how it ended, with which effect."""
    from sm120patch.report.charts import effects_text

    rows: list[tuple[str, ...]] = []
    for event in events:
        data = record(evidence.get(event.id), "data")
        kind = text(event.data, "kind")
        verdict = text(event.data, "verdict") + ("" if kind == "real" else f" ({kind})")
        effects = effects_text(data) or "; ".join(texts(data, "reasons")[:1]).partition("\n")[0]
        tried = text(event.data, "experiment", "name")
        rows.append((str(event.id), event.at, tried, verdict, effects))
    return rows


def history_rows(events: Sequence[Event]) -> list[tuple[str, ...]]:
    """Rows of `history`: when, what was done, to what, how it ended.

    An event that changed the state of no set says what was asked for: the sets that were put back
    over an upgrade, the options of an experiment, the command that was recovered.
    """
    rows: list[tuple[str, ...]] = []
    for event in events:
        gone = texts(event.data, "no_longer_needed")
        named = [n for n in event.sets if n not in gone] or texts(event.data, "requested")
        subject = ", ".join(name for name in named if name not in gone)
        if gone:
            subject += f"{'; ' if subject else ''}no longer needed: {', '.join(gone)}"
        subject = subject or text(event.data, "experiment", "name") or text(event.data, "command")
        verdict = text(event.data, "verdict") or text(event.data, "outcome")
        verdict = verdict or text(event.data, "error").partition("\n")[0]
        kind = text(event.data, "kind")
        shown = f"{verdict} ({kind})" if kind not in ("", "real") else verdict
        rows.append((str(event.id), event.at, event.kind, subject or "-", shown))
    return rows


def exit_code(change: Change) -> ExitCode:
    """0 when what was asked holds; 8 for any verdict but a pass."""
    verified = change.verified
    if verified is not None and not (verified.outcome.passed and verified.confirmed):
        return ExitCode.NOT_VERIFIED
    return ExitCode.OK


def change_dict(change: Change, statuses: Sequence[SetStatus]) -> dict[str, object]:
    """Return the JSON-ready result of a changing command."""
    verified = change.verified
    return {
        "outcome": change.outcome,
        "plan": plan_dict(change.plan),
        "sets": [status_dict(s) for s in statuses],
        "launch": launch_dict(change.plan.launch) if _kept(change) else None,
        "verification": None if verified is None else dict(verified.outcome.summary),
        "event": None if verified is None else verified.event,
        "compiled": _compiled_dicts(change),
    }


def change_text(change: Change, statuses: Sequence[SetStatus], given: following.Given = ()) -> str:
    """Return the result for people: what holds now, and what to do next.

    `statuses` is what was read back; `given` goes into the command to run next.
    """
    lines = [table(status_rows(statuses)), *_summary(change, statuses, given), *_compiled(change)]
    launch = launch_text(change.plan.launch)
    if change.verified is not None and change.verified.restart_problem:
        lines.append(f"the server was NOT restarted: {change.verified.restart_problem}")
    if _unreal(change):
        lines += _measure_really(change, launch, given)
    elif _kept(change) and launch:
        told = "restart your server with" if change.plan.files else "your server needs"
        lines.append(f"{told}: {launch}")
    elif _kept(change) and change.plan.files:
        lines.append("restart your server: running processes keep the old code")
    elif change.outcome == "reverted":
        lines += _restart_without(change.plan)
    return "\n".join(line for line in lines if line)


def unverified_others(others: Sequence[SetStatus], given: following.Given) -> list[str]:
    """Name sets that the change was not about and that no evidence speaks for as it left them."""
    staged = [s.id for s in others if s.state is State.STAGED]
    asked = [s.id for s in others if s.id in staged and s.role == Role.REQUESTED.value]
    if not staged:
        return []
    verify = following.command(f"sm120patch verify {' '.join(asked or staged)}", given)
    return [f"not verified together with what is on disk now: {', '.join(staged)}; next: {verify}"]


def _restart_without(plan: Plan) -> list[str]:
    """What the server is to be started without now, and what the sets that stay still need."""
    kept = _settings(plan.base_launch)
    gone = [setting for setting in _settings(plan.launch) if setting not in kept]
    lines = ["restart your server: running processes keep the old code"] if plan.files else []
    lines = [f"restart your server without: {' '.join(gone)}"] if gone else lines
    return [*lines, *([f"the sets that stay need: {' '.join(kept)}"] if lines and kept else [])]


def _settings(launch: Launch) -> list[str]:
    """Variables and options of a launch, each option with its values."""
    found = [f"{name}={value}" for name, value in sorted(launch.env.items())]
    for word in launch.args:
        if word.startswith("-") or not found:
            found.append(word)
        else:
            found[-1] += f" {word}"
    return found


def _unreal(change: Change) -> bool:
    """Tell whether what speaks for the sets was not measured on a real server."""
    verified = change.verified
    return _kept(change) and verified is not None and verified.outcome.kind is not EvidenceKind.REAL


def _measure_really(change: Change, launch: str, given: following.Given) -> list[str]:
    """What a pass without a real server means, and what comes next: no restart follows from it."""
    assert change.verified is not None
    kind = change.verified.outcome.kind.value
    own = tuple((name, value) for name, value in given if name != "--profile")
    names = " ".join(change.plan.requested)
    verify = following.command(f"sm120patch verify {names}", own)
    return [
        f"this evidence is {kind}: it says nothing of your GPUs, and is never counted",
        *([f"with the sets your server is started with: {launch}"] if launch else []),
        f"next: {verify} --profile PROFILE_OF_YOUR_SERVER",
    ]


def _compiled_dicts(change: Change) -> list[dict[str, object]] | None:
    if change.compiled is None:
        return None
    from sm120patch.operations.compiling import compiled_dict

    return [compiled_dict(compiled) for compiled in change.compiled]


def _compiled(change: Change) -> list[str]:
    if change.compiled is None:
        return []
    from sm120patch.operations.compiling import compiled_text

    found = [compiled_text(compiled) for compiled in change.compiled]
    return found or ["nothing to compile: no set here says how its code is compiled ahead"]


def _kept(change: Change) -> bool:
    return change.outcome in ("applied", "verified", "staged")


def _summary(change: Change, statuses: Sequence[SetStatus], given: following.Given) -> list[str]:
    names = ", ".join(change.plan.requested)
    verified = change.verified
    if change.outcome == "compiled":
        return ["compiled; not measured, so no state changes"]
    if change.outcome == "nothing":
        states = set(change.plan.states.values())
        upstream = State.UPSTREAM in states and states <= {State.UPSTREAM, State.NOT_APPLICABLE}
        done = "upstream has it" if upstream else "nothing to do"
        return [f"{names or 'the ledger has no set'}: {done}"]
    if change.outcome == "reverted":
        return [f"reverted: {', '.join(change.plan.remove)}"]
    if change.outcome == "rejected" and verified is not None:
        off = f"taken off: {', '.join(change.plan.remove)}"
        what = off if change.plan.action == "revert" else "every file holds its content from before"
        kept = following.command(f"sm120patch report {verified.event}", given)
        return [f"rejected ({verified.outcome.verdict}): {what}", f"what was measured: {kept}"]
    if change.outcome != "staged":
        return []
    if verified is None:
        return _staged(change, statuses, given)
    lines = ["staged, NOT verified: this does not count as applied"]
    if not verified.confirmed:
        return [*lines, "the GPU is unknown, so a pass cannot count: name it with --gpu 12.0"]
    advice = verified.outcome.decision.advice
    return [*lines, f"{verified.outcome.verdict}: {advice or 'measure again'}"]


def _staged(change: Change, statuses: Sequence[SetStatus], given: following.Given) -> list[str]:
    """What was put there without a measurement may have been measured before."""
    owed = [s.id for s in statuses if s.state not in (State.APPLIED, State.UPSTREAM)]
    if statuses and not owed:
        return ["on disk, not measured again: there is evidence for exactly this content"]
    named = [name for name in change.plan.requested if name in owed] or owed
    verify = following.command(f"sm120patch verify {' '.join(named)}", given)
    some = "" if len(owed) == len(statuses) else f" ({', '.join(owed)})"
    return [f"staged, NOT verified{some}: this does not count as applied", f"next: {verify}"]
