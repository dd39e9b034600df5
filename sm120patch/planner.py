"""Turn (catalogue, snapshot, ledger history, request) into a Plan or into every reason against it.

Pure: bytes in, values out. A file that several sets touch is always planned from upstream's bytes
with the sets that shall remain, so the order in which sets were applied or are reverted does not
matter.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sm120patch.catalogue import Catalogue, advice_for, choose, engagement_for, launch_for
from sm120patch.contents import ContentPlanner, Draft, Edits
from sm120patch.model import (
    ABSENT,
    Change,
    Changed,
    Engagement,
    FileSnapshot,
    PatchSet,
    Refused,
    Snapshot,
    State,
    Variant,
    Window,
    sha256_hex,
)
from sm120patch.plan import (
    ActiveSet,
    ChangeDecision,
    FileKey,
    FileStep,
    History,
    Launch,
    Outcome,
    Plan,
    Role,
    history_digest,
)
from sm120patch.policy import merge_launches, merge_policies
from sm120patch.variants import advice_hint


class Request(NamedTuple):
    """What the user asked for."""

    action: str
    """`apply` or `revert`."""
    sets: tuple[str, ...]
    selected: tuple[str, ...] = ()
    """Optional changes: `change` or `set/change`."""
    cascade: bool = False
    """Revert also the sets that need the named ones."""


class Refusal(NamedTuple):
    """Why there is no plan: every reason, not the first."""

    kind: str
    """`conflict`, `not-applicable`, `not-needed` (the versions have nothing that the sets could
    change) or `usage`; the gravest one decides the exit code."""
    reasons: tuple[str, ...]
    decisions: tuple[ChangeDecision, ...] = ()
    hint: str | None = None
    """What to do instead, where the catalogue says so."""


def wanted_files(
    catalogue: Catalogue, versions: Mapping[str, str], history: History, request: Request
) -> dict[str, set[str]]:
    """Return target -> paths whose bytes the planner will need for this request."""
    wanted: dict[str, set[str]] = {}
    names = set(history.active) | set(request.sets)
    known = [name for name in names if name in catalogue.ids]
    for name in catalogue.closure(known):
        for change in catalogue.get(name).changes:
            variant, _reason = choose(change, versions)
            if isinstance(variant, Variant):
                wanted.setdefault(change.target, set()).add(variant.path)
    for target, path in history.files:
        wanted.setdefault(target, set()).add(path)
    return wanted


def make_plan(
    catalogue: Catalogue,
    snapshot: Snapshot,
    history: History,
    request: Request,
    edits: Edits | None = None,
) -> Plan | Refusal:
    """Plan the request against what is on disk; see the module for what the result means.

    `edits` keeps results of edits from one plan to the next, for callers that make several.
    """
    planner = _Planner(catalogue, snapshot, history, edits)
    return planner.revert(request) if request.action == "revert" else planner.apply(request)


_ADDED_MODE = 0o644
"""Permission bits of a file that upstream did not ship."""


def _digest(data: bytes | None) -> str:
    return ABSENT if data is None else sha256_hex(data)


class _Planner:
    def __init__(
        self,
        catalogue: Catalogue,
        snapshot: Snapshot,
        history: History,
        edits: Edits | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._snapshot = snapshot
        self._history = history
        self._files = ContentPlanner(catalogue, snapshot, history, edits)
        self._versions = self._files.versions
        self._unneeded: set[str] = set()
        """Sets that are not applicable because there is nothing that they could change: what
        brings them along works without them."""

    # --- apply ---------------------------------------------------------------------------------

    def apply(self, request: Request) -> Plan | Refusal:
        closure = self._catalogue.closure(request.sets)
        selection, unknown = self._selection(closure, request)
        if unknown:
            return Refusal("usage", tuple(unknown))
        draft = Draft()
        states = {name: self._applicability(name, selection[name], draft) for name in closure}
        self._roll_up(closure, states)
        blocked = [name for name in request.sets if states[name] is State.NOT_APPLICABLE]
        if blocked:
            reasons, decisions = self._reasons(draft, blocked), tuple(draft.decisions)
            kind = "not-needed" if self._unneeded.issuperset(blocked) else "not-applicable"
            return Refusal(kind, reasons, decisions, self._instead(blocked))
        settled = {n for n in closure if states[n] is State.UPSTREAM} | self._unneeded
        # Dry decisions only chose what takes part; contents are planned together below.
        wanted = {
            name: self._record(name, selection[name], request)
            for name in closure
            if name not in settled
        }
        conflicts = self._relations(wanted)
        upstream = settled & set(self._history.active)
        kept = {n: r for n, r in self._history.active.items() if n not in upstream}
        desired = {**kept, **wanted}
        changed = {n for n, record in wanted.items() if self._history.active.get(n) != record}
        dry = tuple(d for d in draft.decisions if d.outcome is not Outcome.PATCHED)
        draft = self._files.plan(desired, set(wanted) | upstream)
        conflicts += draft.conflicts
        if conflicts:
            return Refusal("conflict", tuple(conflicts), (*dry, *draft.decisions))
        add = tuple(wanted[name] for name in closure if name in changed)
        return self._plan(
            request, closure, desired, add, tuple(sorted(upstream)), draft, states, dry
        )

    def _selection(
        self, closure: Iterable[str], request: Request
    ) -> tuple[dict[str, tuple[str, ...]], list[str]]:
        chosen: dict[str, set[str]] = {name: set() for name in closure}
        unknown = []
        for text in request.selected:
            set_id, _, change_id = text.rpartition("/")
            owners = [
                name
                for name in chosen
                if (not set_id or name == set_id)
                and (change := self._catalogue.get(name).change(change_id)) is not None
                and change.optional
            ]
            if not owners:
                unknown.append(f"no optional change {text!r}: {self._catalogue.optional(chosen)}")
            for name in owners:
                chosen[name].add(change_id)
        for name, picked in chosen.items():
            active = self._history.active.get(name)
            # A dependency on disk is reused as it is; naming a set restates its selection.
            if active is not None and name not in request.sets:
                picked.update(active.selected)
        return {name: tuple(sorted(picked)) for name, picked in chosen.items()}, unknown

    def _record(self, name: str, selected: tuple[str, ...], request: Request) -> ActiveSet:
        patch_set = self._catalogue.get(name)
        active = self._history.active.get(name)
        requested = name in request.sets or (active is not None and active.role is Role.REQUESTED)
        role = Role.REQUESTED if requested else Role.DEPENDENCY
        return ActiveSet(name, patch_set.revision, role, selected, patch_set.digest)

    def _relations(self, wanted: Mapping[str, ActiveSet]) -> list[str]:
        names = set(wanted) | set(self._history.active)
        return [
            f"{name} conflicts with {other}, which is on disk or requested too"
            for name in sorted(wanted)
            for other in self._catalogue.get(name).conflicts
            if other in names
        ]

    # --- applicability: by version and by content ----------------------------------------------

    def _applicability(self, name: str, selected: tuple[str, ...], draft: Draft) -> State:
        patch_set = self._catalogue.get(name)
        if (unfit := self._snapshot.unfit(patch_set)) is not None:
            reason = f"{name} {unfit}"
            draft.decisions.append(
                ChangeDecision(name, "*", "host", None, Outcome.NOT_APPLICABLE, reason)
            )
            return State.NOT_APPLICABLE
        if patch_set.only_advice:
            reason = advice_for(patch_set, self._versions)[1]
            draft.decisions.append(
                ChangeDecision(name, "*", "host", None, Outcome.NOT_APPLICABLE, reason)
            )
            return State.NOT_APPLICABLE
        outcomes = [self._decide(patch_set, c, selected, draft) for c in patch_set.changes]
        if Outcome.NOT_APPLICABLE in outcomes:
            return State.NOT_APPLICABLE
        live = [o for o in outcomes if o in (Outcome.PATCHED, Outcome.REFUSED)]
        if live or not outcomes:
            return State.ABSENT
        if Outcome.UPSTREAM in outcomes:
            return State.UPSTREAM
        self._unneeded.add(name)
        return State.NOT_APPLICABLE

    def _decide(
        self, patch_set: PatchSet, change: Change, selected: tuple[str, ...], draft: Draft
    ) -> Outcome:
        outcome, path, reason = self._look(change, change.optional and change.id not in selected)
        draft.decisions.append(
            ChangeDecision(patch_set.id, change.id, change.target, path, outcome, reason)
        )
        return outcome

    def _look(self, change: Change, unselected: bool) -> tuple[Outcome, str | None, str]:
        if unselected:
            return Outcome.NOT_SELECTED, None, f"optional; select it with --with {change.id}"
        if change.target not in self._snapshot.targets:
            why = self._snapshot.missing.get(change.target, "not installed")
            return Outcome.NOT_APPLICABLE, None, f"{change.target} was not found: {why}"
        choice, reason = choose(change, self._versions)
        if isinstance(choice, Window):
            upstream = choice.outcome == Outcome.UPSTREAM.value
            return Outcome.UPSTREAM if upstream else Outcome.NOT_NEEDED, None, choice.reason
        if choice is None:
            return Outcome.NOT_APPLICABLE, None, reason
        file = self._files.file(change.target, choice.path)
        if file is None or file.pristine is None:
            return Outcome.PATCHED, choice.path, "to be planned"
        result = self._files.edit(choice, file.pristine)
        if isinstance(result, Changed):
            return Outcome.PATCHED, choice.path, "to be planned"
        if isinstance(result, Refused):
            return Outcome.REFUSED, choice.path, result.reason
        return Outcome.UPSTREAM, choice.path, result.reason

    def _instead(self, names: Iterable[str]) -> str | None:
        """Join what to set instead of the entries that are nothing but advice."""
        found = [
            advice_for(patch_set, self._versions)[0]
            for patch_set in map(self._catalogue.get, names)
            if patch_set.only_advice
        ]
        return "; ".join(advice_hint(a) for a in found if a and a.outcome == "set") or None

    def _roll_up(self, closure: Iterable[str], states: dict[str, State]) -> None:
        """A set inherits from its dependencies; one without changes is nothing but them."""
        for name in closure:
            patch_set = self._catalogue.get(name)
            below = [states[d] for d in patch_set.depends if d not in self._unneeded]
            if State.NOT_APPLICABLE in below:
                states[name] = State.NOT_APPLICABLE
            elif patch_set.changes or not patch_set.depends:
                continue
            elif not below:
                self._unneeded.add(name)
                states[name] = State.NOT_APPLICABLE
            elif all(s is State.UPSTREAM for s in below):
                states[name] = State.UPSTREAM

    def _reasons(self, draft: Draft, blocked: Iterable[str]) -> tuple[str, ...]:
        bad = (Outcome.NOT_APPLICABLE, Outcome.REFUSED)
        idle = self._unneeded & set(self._catalogue.closure(blocked))
        return tuple(
            f"{d.set_id}/{d.change_id}: {d.reason}"
            for d in draft.decisions
            if d.outcome in bad
            or (d.set_id in idle and d.outcome in (Outcome.NOT_NEEDED, Outcome.NOT_SELECTED))
        )

    # --- revert --------------------------------------------------------------------------------

    def revert(self, request: Request) -> Plan | Refusal:
        active = self._history.active
        doomed = {name for name in request.sets if name in active}
        needing = self._dependents(doomed)
        if needing and not request.cascade:
            return Refusal(
                "conflict",
                tuple(
                    f"{name} is needed by {other}, which is on disk"
                    for other, name in sorted(needing.items())
                ),
            )
        doomed |= set(needing)
        self._collect_orphans(doomed)
        desired = {name: record for name, record in active.items() if name not in doomed}
        draft = self._files.plan(desired, doomed, leaving=True)
        if draft.conflicts:
            return Refusal("conflict", tuple(draft.conflicts), tuple(draft.decisions))
        states = dict.fromkeys(sorted(doomed), State.ABSENT)
        order = self._files.ordered(doomed)
        return self._plan(request, order, desired, (), tuple(reversed(order)), draft, states, ())

    def _dependents(self, names: set[str]) -> dict[str, str]:
        """Return active set -> the one of `names` it (transitively) needs."""
        found: dict[str, str] = {}
        for other in self._history.active:
            if other in names or other not in self._catalogue.ids:
                continue
            needed = [n for n in self._catalogue.closure([other]) if n in names]
            if needed:
                found[other] = needed[0]
        return found

    def _collect_orphans(self, doomed: set[str]) -> None:
        """Add dependencies that nobody asked for and nobody needs any more."""
        active = self._history.active
        if any(n not in self._catalogue.ids for n in active if n not in doomed):
            return  # What a set needs that the catalogue does not know cannot be told.
        while True:
            kept = [n for n in active if n not in doomed and n in self._catalogue.ids]
            needed = {d for n in kept for d in self._catalogue.get(n).depends}
            orphans = {
                n
                for n, record in active.items()
                if n not in doomed and record.role is Role.DEPENDENCY and n not in needed
            }
            if not orphans:
                return
            doomed |= orphans

    # --- assembly ------------------------------------------------------------------------------

    def _plan(
        self,
        request: Request,
        closure: Iterable[str],
        desired: Mapping[str, ActiveSet],
        add: tuple[ActiveSet, ...],
        remove: tuple[str, ...],
        draft: Draft,
        states: Mapping[str, State],
        dry: tuple[ChangeDecision, ...],
    ) -> Plan:
        order = list(closure)
        known = [n for n in order if n in self._catalogue.ids]
        others = [
            n for n in self._files.ordered(desired) if n in self._catalogue.ids and n not in known
        ]
        steps = tuple(
            step for key in sorted(draft.contents) if (step := self._step(key, draft)) is not None
        )
        bound = any(self._catalogue.get(n).compute_capability for n in known)
        unknown = self._snapshot.compute_capability is None
        if any(self._catalogue.get(n).devices for n in known) and self._snapshot.devices is None:
            bound = unknown = True
        requested = [n for n in request.sets if n in self._catalogue.ids]
        return Plan(
            action=request.action,
            requested=request.sets,
            prefix=self._snapshot.prefix,
            versions=self._versions,
            add=add,
            remove=remove,
            decisions=(*dry, *draft.decisions),
            files=steps,
            settled=self._settled(draft),
            shaped_by={key: tuple(labels) for key, labels in draft.shaped_by.items()},
            states=dict(states),
            launch=self._launch(known),
            base_launch=self._launch(others),
            engagement=self._engagement(known),
            verification=merge_policies(
                [self._catalogue.get(n).verification for n in requested or known]
            ),
            based_on=history_digest(self._history),
            applicability="unconfirmed" if bound and unknown else "confirmed",
        )

    def _step(self, key: FileKey, draft: Draft) -> FileStep | None:
        file = self._files.file(*key)
        after = draft.contents[key]
        if file is None or (file.pristine is None and file.pristine_sha256 != ABSENT):
            return None
        after_sha256 = _digest(after)
        if file.sha256 == after_sha256:
            return None
        target = self._snapshot.targets[key[0]]
        owned = self._history.files.get(key)
        same = owned is not None and owned.pristine_sha256 == file.pristine_sha256
        return FileStep(
            target=key[0],
            path=key[1],
            root=target.root,
            version=target.version,
            before_sha256=file.sha256,
            after_sha256=after_sha256,
            pristine_sha256=_digest(file.pristine),
            mode=owned.pristine_mode if owned and same else self._mode(file),
            pristine_mtime_ns=owned.pristine_mtime_ns if owned and same else file.mtime_ns,
            before=file.data,
            after=after or b"",
            pristine=file.pristine or b"",
            changes=tuple(draft.shaped_by[key]),
        )

    @staticmethod
    def _mode(file: FileSnapshot) -> int:
        return file.mode if file.obstacle is None else _ADDED_MODE

    def _settled(self, draft: Draft) -> dict[FileKey, str]:
        settled = {}
        for key, owned in self._history.files.items():
            if key not in draft.contents and self._files.version(key[0]) == owned.version:
                settled[key] = owned.current_sha256
        for key, data in draft.contents.items():
            file = self._files.file(*key)
            if file is not None and data is not None and data != file.pristine:
                settled[key] = sha256_hex(data)
        return settled

    def _launch(self, names: Iterable[str]) -> Launch:
        return merge_launches([launch_for(self._catalogue.get(n), self._versions) for n in names])

    def _engagement(self, names: Iterable[str]) -> tuple[Engagement, ...]:
        found: list[Engagement] = []
        for name in names:
            # A bundle has the probes of its members too; each is asked once.
            probes = engagement_for(self._catalogue.get(name), self._versions)
            asked = [probe._replace(of="") for probe in found]
            found += [probe._replace(of=name) for probe in probes if probe not in asked]
        return tuple(found)
