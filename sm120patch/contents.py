"""Plan the contents of files: upstream's bytes plus the changes of the sets that shall remain.

Pure. This is where two sets that touch one file meet, and where foreign edits are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sm120patch import catalogue as catalogues
from sm120patch.catalogue import Catalogue, choose
from sm120patch.fingerprints import edit_key, recognise
from sm120patch.model import (
    ABSENT,
    Change,
    Changed,
    EditResult,
    FileSnapshot,
    Obstacle,
    PayloadKind,
    Refused,
    Snapshot,
    Variant,
    sha256_hex,
)
from sm120patch.plan import (
    ActiveSet,
    ChangeDecision,
    FileKey,
    History,
    Outcome,
    OwnedFile,
    sets_of,
)

Edits = dict[tuple[str, str], EditResult]
"""(edit key, sha256 before) -> what came of it: edits that several plans may share."""


class Draft:
    """Contents planned so far, who shaped them, and every conflict found."""

    def __init__(self) -> None:
        self.contents: dict[FileKey, bytes | None] = {}
        """None: the file shall not be there."""
        self.shaped_by: dict[FileKey, list[str]] = {}
        self.decisions: list[ChangeDecision] = []
        self.conflicts: list[str] = []


class ContentPlanner:
    """Plans file contents for one catalogue, snapshot and ledger history."""

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
        self.versions = snapshot.versions
        self._edits: Edits = {} if edits is None else edits
        self._added: set[FileKey] = set()
        """Files that a set of the plan adds."""

    def edit(self, variant: Variant, data: bytes | None) -> EditResult:
        """Run a variant once per content; deciding and planning ask for the same edit."""
        key = (edit_key(variant), ABSENT if data is None else sha256_hex(data))
        if key not in self._edits:
            self._edits[key] = catalogues.edit(variant, data)
        return self._edits[key]

    def file(self, target: str, path: str) -> FileSnapshot | None:
        """Return what was read of that file, None when it was not found."""
        found = self._snapshot.targets.get(target)
        return None if found is None else found.files.get(path)

    def version(self, target: str) -> str | None:
        """Return the installed version, None when the target is not installed."""
        found = self._snapshot.targets.get(target)
        return None if found is None else found.version

    def ordered(self, names: Iterable[str]) -> list[str]:
        """Dependency-first, otherwise alphabetical: one order for every stack of sets."""
        wanted = sorted(names)
        known = [n for n in wanted if n in self._catalogue.ids]
        order = [n for n in self._catalogue.closure(known) if n in known]
        return order + [n for n in wanted if n not in known]

    def plan(
        self, desired: Mapping[str, ActiveSet], touched: set[str], *, leaving: bool = False
    ) -> Draft:
        """Plan every file that a set in `touched` changes or changed, with all desired sets.

        `leaving`: only to take sets off, so that a file with upstream's content keeps it, although
        another set was there before an installer took it away.
        """
        draft = Draft()
        keys = self._keys(desired, touched)
        for key in sorted(keys):
            self._start(key, draft)
        if leaving:
            keys = {key for key in keys if not self._is_upstream(key)}
        for name in self.ordered(desired):
            record = desired[name]
            if name not in self._catalogue.ids:
                draft.conflicts += [
                    f"{path} is shared with {name}, which this catalogue does not know"
                    for target, path in self._owned_by(name)
                    if (target, path) in keys
                ]
                continue
            self._add_set(name, record, keys, name in touched, draft)
        self._ask_for_revised(desired, touched, keys, draft)
        return draft

    def _ask_for_revised(
        self,
        desired: Mapping[str, ActiveSet],
        touched: set[str],
        keys: set[FileKey],
        draft: Draft,
    ) -> None:
        """Refuse to plan a file with a set whose payloads changed since; name all such sets.

        Two of them on one file can only be brought up to date by one command.
        """
        sharing = {
            name: sorted({path for target, path in self._owned_by(name) if (target, path) in keys})
            for name in sorted(desired)
            if name in self._catalogue.ids and name not in touched
        }
        revised = {
            name: paths
            for name, paths in sharing.items()
            if paths and desired[name].digest != self._catalogue.get(name).digest
        }
        together = " ".join(sorted({*revised, *(touched & set(desired))}))
        for name, paths in revised.items():
            record, patch_set = desired[name], self._catalogue.get(name)
            draft.conflicts.append(
                f"{', '.join(paths)} is shared with {name}, whose payloads changed since it was"
                f" applied (revision {record.revision} -> {patch_set.revision});"
                f" bring them up to date in one command: sm120patch apply {together}"
            )

    def _keys(self, desired: Mapping[str, ActiveSet], touched: set[str]) -> set[FileKey]:
        keys = {key for name in touched for key in self._owned_by(name)}
        for name in touched & set(desired) & set(self._catalogue.ids):
            for change in self._catalogue.get(name).changes:
                if change.optional and change.id not in desired[name].selected:
                    continue
                choice, _reason = choose(change, self.versions)
                if isinstance(choice, Variant) and change.target in self._snapshot.targets:
                    keys.add((change.target, choice.path))
                    if choice.kind is PayloadKind.FILE:
                        self._added.add((change.target, choice.path))
        return keys

    def _is_upstream(self, key: FileKey) -> bool:
        file = self.file(*key)
        return file is not None and file.sha256 == file.pristine_sha256

    def _owned_by(self, name: str) -> list[FileKey]:
        prefix = f"{name}/"
        return [
            key
            for key, owned in self._history.files.items()
            if any(change.startswith(prefix) for change in owned.changes)
        ]

    def _start(self, key: FileKey, draft: Draft) -> None:
        file = self.file(*key)
        owned = self._history.files.get(key)
        if file is None:
            if owned is None:
                draft.conflicts.append(f"{key[1]}: not part of the installed {key[0]}")
            return
        if key in self._added or (owned is not None and owned.pristine_sha256 == ABSENT):
            self._start_added(key, file, owned, draft)
            return
        upgraded = owned is not None and owned.version != self.version(key[0])
        if upgraded and file.obstacle is Obstacle.MISSING:
            return  # The new version does not have the file: there is nothing to give back.
        problem = self._obstacle(file, owned, self.version(key[0]))
        if problem:
            if known := recognise(*key, file.sha256):
                problem += f"; this is {known}"
            draft.conflicts.append(f"{file.path}: {problem}")
            return
        if file.pristine is not None:
            draft.contents[key] = file.pristine
            draft.shaped_by[key] = []

    def _start_added(
        self, key: FileKey, file: FileSnapshot, owned: OwnedFile | None, draft: Draft
    ) -> None:
        """Start a file that a set adds: upstream must not have it, nor anybody else.

        Our own file counts as ours whatever the version: an upgrade leaves it where it is.
        """
        if file.pristine_sha256 != ABSENT:
            problem = "upstream shipped it, or nobody knows whether it did; it cannot be added"
        elif file.obstacle not in (None, Obstacle.MISSING):
            problem = f"refused: {file.obstacle.value}"
        elif file.sha256 not in (ABSENT, owned.current_sha256 if owned else ABSENT):
            problem = f"foreign edit: upstream did not ship it, sha256 {file.sha256[:12]}"
        else:
            draft.contents[key] = None
            draft.shaped_by[key] = []
            return
        draft.conflicts.append(f"{file.path}: {problem}")

    @staticmethod
    def _obstacle(file: FileSnapshot, owned: OwnedFile | None, version: str | None) -> str | None:
        if file.obstacle is not None:
            return f"refused: {file.obstacle.value}"
        if file.pristine_sha256 in (None, ABSENT):
            return "upstream's content is unknown (neither RECORD nor git knows the file)"
        ours = owned is not None and owned.version == version
        expected = {file.pristine_sha256} | ({owned.current_sha256} if owned and ours else set())
        if file.sha256 not in expected:
            return (
                f"foreign edit: sha256 {file.sha256[:12]}, upstream {file.pristine_sha256[:12]}"
                + (f", ours {owned.current_sha256[:12]}" if owned is not None and ours else "")
            )
        if file.pristine is None:
            return "upstream's bytes are not in the store and the file no longer holds them"
        return None

    def _add_set(
        self, name: str, record: ActiveSet, keys: set[FileKey], touched: bool, draft: Draft
    ) -> None:
        patch_set = self._catalogue.get(name)
        for change in patch_set.changes:
            if change.optional and change.id not in record.selected:
                continue
            choice, _reason = choose(change, self.versions)
            if not isinstance(choice, Variant) or (change.target, choice.path) not in keys:
                continue
            if not touched and record.digest != patch_set.digest:
                continue  # refused below, by name
            self._add_change(name, change, choice, draft)

    def _add_change(self, name: str, change: Change, choice: Variant, draft: Draft) -> None:
        key = (change.target, choice.path)
        if key not in draft.contents:
            return
        label = f"{name}/{change.id}"
        result = self.edit(choice, draft.contents[key])
        if isinstance(result, Changed):
            draft.contents[key] = result.data
            draft.shaped_by[key].append(label)
            decision = (Outcome.PATCHED, change.summary, result.sites)
        elif isinstance(result, Refused):
            clash = self._clash(key, choice, draft)
            draft.conflicts.append(f"{choice.path}: {label}: {clash or result.reason}")
            decision = (Outcome.REFUSED, result.reason, 0)
        else:
            decision = (Outcome.UPSTREAM, result.reason, 0)
        outcome, reason, sites = decision
        draft.decisions.append(
            ChangeDecision(name, change.id, change.target, choice.path, outcome, reason, sites)
        )

    def _clash(self, key: FileKey, variant: Variant, draft: Draft) -> str:
        """Say that other sets are in the way, where the change fits upstream's content alone."""
        file, others = self.file(*key), sets_of(draft.shaped_by[key])
        alone = None if file is None else file.pristine
        if not others or not isinstance(self.edit(variant, alone), Changed):
            return ""
        return f"changes the same lines as {', '.join(others)}: they cannot be on disk together"
