"""Make a plan for an open environment, or raise the error that lists every reason against it.

Reads disk; writes nothing. `plan`, `--dry-run`, `apply` and `revert` all come through here.
"""

from __future__ import annotations

from sm120patch.claims import refuse_foreign_claims
from sm120patch.environment import take_snapshot
from sm120patch.errors import (
    ConflictError,
    NotApplicableError,
    Sm120PatchError,
    UsageError,
)
from sm120patch.model import Snapshot
from sm120patch.operations.gpus import device_names
from sm120patch.operations.originals import with_originals
from sm120patch.operations.site import Site
from sm120patch.plan import History, Plan
from sm120patch.planner import Refusal, Request, make_plan, wanted_files


def snapshot_for(
    site: Site, history: History, request: Request, capability: str | None
) -> Snapshot:
    """Read every file that planning `request` needs."""
    wanted = wanted_files(site.catalogue, site.versions, history, request)
    snapshot = take_snapshot(site.environment, wanted, site.store.get, capability)
    snapshot = with_originals(snapshot, history, site.store.get)
    if request.action != "apply":
        return snapshot
    closure = site.catalogue.closure(request.sets)
    bound = any(site.catalogue.get(name).devices for name in closure)
    return snapshot._replace(devices=device_names()) if bound else snapshot


def plan_request(
    site: Site,
    request: Request,
    capability: str | None,
    *,
    expect: str | None = None,
    expect_content: str | None = None,
    done: str | None = None,
) -> Plan:
    """Plan `request` against what is on disk now.

    `expect` is the digest of an earlier plan: any other result is refused as stale.
    `expect_content` is what the environment must hold afterwards (`Plan.content`), as its
    neighbours do. `done` is what was asked for, in a refusal, where the plan is only a means to
    it: `verified`.
    """
    history = site.history()
    for name in request.sets:
        if request.action == "apply" or name not in history.active:
            site.catalogue.get(name)
    if request.action == "apply":
        refuse_foreign_claims(site.environment)
    result = make_plan(
        site.catalogue, snapshot_for(site, history, request, capability), history, request
    )
    if isinstance(result, Refusal):
        raise refused(request, result, done)
    if expect is not None and result.digest != expect:
        raise ConflictError(
            f"the plan is stale: expected {expect}, today's plan is {result.digest}",
            code="stale-plan",
            hint="look at the present plan with `sm120patch plan`, then pass its digest",
            details={"expected": expect, "found": result.digest},
        )
    if expect_content is not None and result.content != expect_content:
        raise _other_content(result, expect_content)
    return result


def _other_content(plan: Plan, expected: str) -> ConflictError:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(plan.versions.items()))
    return ConflictError(
        f"this environment would not hold the same code as the others: expected content"
        f" {expected}, the plan comes to {plan.content} ({versions})",
        code="other-content",
        hint="compare versions and sets on disk with a node that has it: `sm120patch status`",
        details={"expected": expected, "found": plan.content, "versions": dict(plan.versions)},
    )


def refused(request: Request, refusal: Refusal, done: str | None = None) -> Sm120PatchError:
    """Return the error that says why there is no plan; `done` as for `plan_request`."""
    names = ", ".join(request.sets) or "the request"
    verb = done or ("applied" if request.action == "apply" else "reverted")
    message = f"{names} cannot be {verb} here:\n" + "\n".join(f"  - {r}" for r in refusal.reasons)
    details = {"reasons": list(refusal.reasons)}
    if refusal.kind == "usage":
        return UsageError(message, hint=f"see `sm120patch show {names}`", details=details)
    if refusal.kind in ("not-applicable", "not-needed"):
        shown = request.sets[0] if len(request.sets) == 1 else "SET"
        hint = refusal.hint or f"`sm120patch show {shown}` lists versions and GPUs"
        return NotApplicableError(message, hint=hint, details=details)
    return ConflictError(message, hint=_conflict_hint(refusal), details=details)


def _conflict_hint(refusal: Refusal) -> str:
    text = " ".join(refusal.reasons)
    if "is needed by" in text:
        return "name those sets too, or add --cascade"
    if "cannot be on disk together" in text:
        return "nothing was changed; choose one, or take the other off: `sm120patch revert SET`"
    if "which this catalogue does not know" in text:
        return "nothing was changed; name the catalogue of that set: --extra-catalogue DIRECTORY"
    if "foreign edit" in text:
        return (
            "nothing was changed; `sm120patch diff` shows every foreign edit. Take it over if it is"
            " a set applied by hand (`sm120patch adopt SET`), or undo it or reinstall the package"
        )
    if "refused: symlink" in text:
        return "install the package as real files, or patch the environment the link points to"
    if "missing" in text:
        return "reinstall the package, then repeat"
    return "nothing was changed; `sm120patch audit` compares every file with upstream's"
