"""Compare an environment with what upstream shipped and what the ledger says. Reads disk only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sm120patch.environment import Checkout, Difference, Installation, verify_records
from sm120patch.environment.snapshot import read_target
from sm120patch.model import Obstacle, State, sha256_hex
from sm120patch.operations import inspecting
from sm120patch.operations.site import Site
from sm120patch.plan import History, OwnedFile
from sm120patch.state import DiskFact, disk_state

_KINDS = {"changed": "foreign", "missing": "missing", "added": "added"}


@dataclass(frozen=True)
class Finding:
    """One thing that should not be so."""

    kind: str
    """`foreign`, `missing`, `added`, `unreadable`, `lost`, `drifted`, `unverified`, `copies`,
    `unknown`, `interrupted` or `changed-payload`."""
    target: str
    path: str
    detail: str
    sets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Audit:
    """Result of an audit; an empty `findings` is the only clean answer."""

    prefix: str
    versions: Mapping[str, str]
    files: Mapping[str, int]
    """Target -> number of files that were compared."""
    findings: tuple[Finding, ...]


def audit_environment(site: Site) -> Audit:
    """Hash every file of the targets and hold it against RECORD (or git) and the ledger."""
    history = site.history()
    findings: list[Finding] = []
    files: dict[str, int] = {}
    for name, installation in site.environment.installations.items():
        owned = {path: f for (target, path), f in history.files.items() if target == name}
        found = list(_installation(installation, owned))
        findings += found
        files[name] = len(installation.records()) if installation.kind == "wheel" else 0
    findings += _gone(site, history)
    findings += _sets(site)
    findings += _payloads(site, history)
    return Audit(
        prefix=str(site.environment.prefix),
        versions=site.versions,
        files=files,
        findings=tuple(sorted(findings, key=lambda f: (f.kind, f.target, f.path))),
    )


def _installation(installation: Installation, owned: Mapping[str, OwnedFile]) -> Iterator[Finding]:
    target = installation.target
    for copy in installation.other_copies:
        yield Finding(
            "copies", target, str(copy), f"a second copy; {installation.root} is imported"
        )
    for metadata in installation.other_metadata:
        yield Finding("copies", target, str(metadata), "metadata of a second version")
    if installation.kind == "editable":
        checkout = installation.checkout()
        if not isinstance(checkout, Checkout):
            yield Finding("unknown", target, "-", f"upstream's content: {checkout.reason}")
            return
    elif installation.record is None:
        yield Finding("unknown", target, "-", "no RECORD: upstream's content is unknown")
        return
    else:
        for fault in installation.table().faults:
            yield Finding("unknown", target, str(installation.record), fault)
    differing = {d.path: d for d in verify_records(installation)}
    for path, difference in differing.items():
        if path not in owned:
            yield _foreign(target, difference)
    for path, entry in owned.items():
        found = _owned(entry, installation, differing.get(path))
        if found is not None:
            yield found


def _foreign(target: str, difference: Difference) -> Finding:
    kind = _KINDS.get(difference.kind, difference.kind)
    if difference.expected and difference.found:
        detail = f"sha256 {difference.found[:12]}, upstream {difference.expected[:12]}"
        if known := inspecting.known_as(target, difference.path, difference.found):
            detail += f"; this is {known}"
    else:
        detail = {"missing": "upstream shipped it", "added": "upstream did not ship it"}.get(
            kind, "differs from upstream"
        )
    return Finding(kind, target, difference.path, detail)


def _owned(
    entry: OwnedFile, installation: Installation, difference: Difference | None
) -> Finding | None:
    if difference is None:
        # No difference from upstream: our content is gone.
        fact = DiskFact("pristine", installation.version, "pristine")
    else:
        # Git names the files that differ from HEAD, not what they hold.
        found = difference.found or _digest(installation, entry.path)
        expected = difference.expected or entry.pristine_sha256
        known = inspecting.known_as(entry.target, entry.path, found)
        fact = DiskFact(found, installation.version, expected, known)
    state, reason = disk_state(entry, fact)
    if state is None:
        return None
    sets = tuple(dict.fromkeys(c.split("/", 1)[0] for c in entry.changes))
    return Finding(state.value, entry.target, entry.path, reason, sets)


def _digest(installation: Installation, path: str) -> str | None:
    found = read_target(installation.root, path)
    return None if isinstance(found, Obstacle) else sha256_hex(found[0])


def _gone(site: Site, history: History) -> Iterator[Finding]:
    """Targets of the ledger that are not installed any more."""
    installed = site.environment.installations
    for target in sorted({t for t, _path in history.files} - set(installed)):
        yield Finding("lost", target, "-", "patched once, not installed any more")


def _sets(site: Site) -> Iterator[Finding]:
    status = inspecting.status(site)
    if status.interrupted:
        yield Finding("interrupted", "-", "-", f"{status.interrupted!r} was interrupted")
    if status.under_way:
        yield Finding("interrupted", "-", "-", f"a change is under way: {status.under_way}")
    for entry in status.sets:
        if entry.state is State.STAGED:
            yield Finding("unverified", "-", entry.id, entry.reason, (entry.id,))
        elif entry.state is State.APPLIED and not entry.counts:
            kind = entry.evidence.kind if entry.evidence else "no"
            yield Finding(
                "unverified", "-", entry.id, f"only {kind} evidence on this host", (entry.id,)
            )


def _payloads(site: Site, history: History) -> Iterator[Finding]:
    """Sets whose manifest or payloads are no longer those that were applied."""
    for name, record in history.active.items():
        if reason := inspecting.changed_payload(site.catalogue, record):
            yield Finding("changed-payload", "-", name, reason, (name,))


def finding_dict(finding: Finding) -> dict[str, object]:
    """JSON-ready form."""
    return {
        "kind": finding.kind,
        "target": finding.target,
        "path": finding.path,
        "detail": finding.detail,
        "sets": list(finding.sets),
    }
