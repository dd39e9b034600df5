"""JSON-ready and human forms of plans, statuses and sets. Pure.

The dictionaries are the contract of `--output json` (documented in docs/json.md): keys are added,
never renamed or removed, within one schema number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sm120patch.evidence import Event, Evidence
from sm120patch.model import ABSENT, PatchSet
from sm120patch.plaintext import clean, table
from sm120patch.plan import (
    ChangeDecision,
    FileStep,
    Launch,
    Outcome,
    Plan,
)
from sm120patch.state import SetStatus


def plan_dict(plan: Plan) -> dict[str, object]:
    """Return the whole plan, diffs included; contents are named by digest only."""
    return {
        "digest": plan.digest,
        "content": plan.content,
        "action": plan.action,
        "requested": list(plan.requested),
        "prefix": plan.prefix,
        "versions": dict(plan.versions),
        "noop": plan.is_noop,
        "applicability": plan.applicability,
        "sets": {name: state.value for name, state in plan.states.items()},
        "add": [
            {"id": r.id, "revision": r.revision, "role": r.role.value, "with": list(r.selected)}
            for r in plan.add
        ],
        "remove": list(plan.remove),
        "decisions": [decision_dict(d) for d in plan.decisions],
        "files": [step_dict(s) for s in plan.files],
        "launch": launch_dict(plan.launch),
        "verification": {
            "goal": plan.verification.goal.value,
            "margin": plan.verification.margin,
            "repeats": plan.verification.repeats,
            "blocks": plan.verification.blocks,
            "answers": plan.verification.answers.value,
        },
        "notes": list(plan.notes),
    }


def decision_dict(decision: ChangeDecision) -> dict[str, object]:
    """Outcome of one change."""
    return {
        "set": decision.set_id,
        "change": decision.change_id,
        "target": decision.target,
        "path": decision.path,
        "outcome": decision.outcome.value,
        "reason": decision.reason,
        "sites": decision.sites,
    }


def step_dict(step: FileStep) -> dict[str, object]:
    """One file that is replaced."""
    return {
        "target": step.target,
        "path": step.path,
        "root": step.root,
        "before": step.before_sha256,
        "after": step.after_sha256,
        "pristine": step.pristine_sha256,
        "to_pristine": step.to_pristine,
        "changes": list(step.changes),
        "diff": _diff(step),
    }


def _diff(step: FileStep) -> str:
    from sm120patch.unified import make_diff  # most commands show none

    return make_diff(step.path, step.before, step.after)


def launch_dict(launch: Launch) -> dict[str, object]:
    """Launch options that a server needs."""
    return {"args": list(launch.args), "env": dict(launch.env)}


def status_dict(status: SetStatus) -> dict[str, object]:
    """State of one set."""
    return {
        "id": status.id,
        "state": status.state.value,
        "label": status.label,
        "counts": status.counts,
        "reason": status.reason,
        "role": status.role,
        "revision": status.revision,
        "with": list(status.selected),
        "evidence": None if status.evidence is None else evidence_dict(status.evidence),
    }


def evidence_dict(evidence: Evidence) -> dict[str, object]:
    """Evidence without its bulky measurements; `history` shows those."""
    return {
        "id": evidence.id,
        "at": evidence.at,
        "kind": evidence.kind,
        "verdict": evidence.verdict,
        "passed": evidence.passed,
        "sets": list(evidence.sets),
        "host": evidence.host,
        "profile": evidence.profile,
    }


def event_dict(event: Event) -> dict[str, object]:
    """One event of the history."""
    return {
        "id": event.id,
        "at": event.at,
        "kind": event.kind,
        "sets": list(event.sets),
        "tool": event.tool,
        "data": dict(event.data),
    }


def set_dict(patch_set: PatchSet) -> dict[str, object]:
    """One set of the catalogue, whole."""
    return {
        "id": patch_set.id,
        "revision": patch_set.revision,
        "title": patch_set.title,
        "description": patch_set.description,
        "type": patch_set.type,
        "compute_capability": list(patch_set.compute_capability),
        "min_gpus": patch_set.min_gpus,
        "depends": list(patch_set.depends),
        "conflicts": list(patch_set.conflicts),
        "upstream": {
            "status": patch_set.upstream_status,
            "reason": patch_set.upstream_reason,
            "last_checked": patch_set.last_checked,
        },
        "goal": patch_set.verification.goal.value,
        "margin": patch_set.verification.margin,
        "changes": [
            {
                "id": c.id,
                "target": c.target,
                "summary": c.summary,
                "description": c.description,
                "optional": c.optional,
                "variants": [
                    {"versions": v.versions, "kind": v.kind.value, "path": v.path}
                    for v in c.variants
                ],
                "windows": [
                    {"versions": w.versions, "outcome": w.outcome, "reason": w.reason}
                    for w in c.windows
                ],
            }
            for c in patch_set.changes
        ],
        "launch": [
            {"target": x.target, "versions": x.versions, "args": list(x.args), "env": dict(x.env)}
            for x in patch_set.launch
        ],
        "known_results": [
            {
                "topology": k.topology,
                "effect": k.effect,
                "source": k.source,
                "harmful": k.harmful,
                "where": list(k.where),
                "tp": list(k.tp),
            }
            for k in patch_set.known_results
        ],
        "advice": [
            {
                "target": a.target,
                "versions": a.versions,
                "outcome": a.outcome,
                "args": list(a.args),
                "env": dict(a.env),
                "reason": a.reason,
                "requires": dict(a.requires),
            }
            for a in patch_set.advice
        ],
        "digest": patch_set.digest,
    }


_MARKS: Mapping[Outcome, str] = {
    Outcome.PATCHED: "patch",
    Outcome.UPSTREAM: "upstream",
    Outcome.NOT_NEEDED: "not needed",
    Outcome.NOT_SELECTED: "optional",
    Outcome.NOT_APPLICABLE: "not applicable",
    Outcome.REFUSED: "refused",
}


def plan_text(plan: Plan, *, diffs: bool) -> str:
    """Return the plan for people; with `diffs` every line that will change."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(plan.versions.items()))
    lines = [
        f"environment  {plan.prefix}",
        f"versions     {versions}",
        f"plan         {plan.digest}",
    ]
    if plan.remove and plan.action == "revert":
        lines.append(f"takes off    {', '.join(plan.remove)}")
    if plan.is_noop:
        lines.append("nothing to do")
    rows = [
        (f"  {_MARKS[d.outcome]}", f"{d.set_id}/{d.change_id}", d.path or "-", d.reason)
        for d in plan.decisions
    ]
    lines += [table(rows)] if rows else []
    lines += [_step_line(s) for s in plan.files]
    if plan.applicability == "unconfirmed" and plan.action == "apply":
        lines.append("applicability unconfirmed: the GPU is unknown; name it with --gpu 12.0")
    lines += [f"note: {note}" for note in plan.notes]
    if diffs:
        lines += [clean(_diff(step)).rstrip("\n") for step in plan.files]
    return "\n".join(lines)


def _step_line(step: FileStep) -> str:
    if step.after_sha256 == ABSENT:
        return f"  remove     {step.path}  (upstream did not ship it)"
    if step.before_sha256 == ABSENT:
        return f"  add        {step.path}"
    return f"  replace    {step.path}" + ("  (upstream's content)" if step.to_pristine else "")


def launch_text(launch: Launch) -> str:
    """Tell what the server must be restarted with; empty when nothing is needed."""
    parts = [f"{name}={value}" for name, value in sorted(launch.env.items())]
    return " ".join([*parts, *launch.args])


def status_rows(statuses: Iterable[SetStatus]) -> list[tuple[str, ...]]:
    """Rows of the `status` table."""
    return [(s.id, s.label, s.role or "-", s.reason or "-") for s in statuses]
