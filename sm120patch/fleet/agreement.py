"""Where the answers of one node contradict each other: nothing of them may be relied on then. Pure.

`status` and `audit` are asked one after the other and look at the same files, ledger and evidence:
what one calls applied, the other must call so, and what both say of it must be able to be true.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sm120patch.fleet.words import moment
from sm120patch.model import EvidenceKind, State
from sm120patch.recorded import Record, look, record, records, text, texts
from sm120patch.verify.verdict import Verdict

PASSES = frozenset(verdict.value for verdict in Verdict if verdict.passed)
"""Verdicts that let a set count as applied."""
KINDS = frozenset(kind.value for kind in EvidenceKind)
SKEW = timedelta(minutes=10)
"""How far ahead of another clock one may be."""
BY_HAND = "by-hand"
_ON_DISK = frozenset((State.APPLIED.value, State.STAGED.value))
_DENIALS = frozenset(("drifted", "lost", "interrupted"))
"""Findings of the audit that no applied set can have."""
_NOT_OURS = frozenset(("drifted", "lost", "unreadable"))
"""States of a file that no applied set can have shaped."""


@dataclass(frozen=True)
class Answers:
    """What a node said, and until when."""

    status: Record
    environment: Record
    """That of `audit`."""
    until: datetime
    """When the facts had been gathered."""


def contradictions(said: Answers) -> Iterator[str]:
    """Return in words what cannot all be true; nothing where the facts agree."""
    entries, audited = records(said.status, "sets"), records(said.environment, "sets")
    for command, listed in (("status", entries), ("audit", audited)):
        twice = [
            name for name, count in Counter(text(s, "id") for s in listed).items() if count > 1
        ]
        yield from (f"{command} lists {name} more than once" for name in twice)
    others = {text(s, "id"): s for s in audited}
    for entry in entries:
        other = others.pop(text(entry, "id"), None)
        yield from _of_states(entry, other)
        if text(entry, "state") == State.APPLIED.value and other is not None:
            yield from _of_applied(entry, other, said)
        yield from _of_evidence(text(entry, "id"), record(entry, "evidence"), said.until)
    for name, other in others.items():
        if text(other, "state") != BY_HAND:
            yield f"{name} is {text(other, 'state')} for audit, and status has nothing of it"
    if any(text(entry, "state") == State.APPLIED.value for entry in entries):
        yield from _of_environment(said)


def _of_states(entry: Record, other: Record | None) -> Iterator[str]:
    """Both must give a set that the ledger has the same state."""
    name, state = text(entry, "id"), text(entry, "state")
    audited = text(other, "state")
    in_ledger = bool(text(entry, "role")) or state in _ON_DISK
    # Of what no ledger has, audit knows whole sets; status has only words for single files.
    told = in_ledger if other is None or audited == BY_HAND else True
    if told and state != audited:
        yield f"{name} is {state} for status, and {audited or 'not in the ledger'} for audit"


def _of_evidence(name: str, evidence: Record, until: datetime) -> Iterator[str]:
    if not evidence:
        return
    verdict, at = text(evidence, "verdict"), moment(text(evidence, "at", most=64))
    if (look(evidence, "passed") is True) != (verdict in PASSES):
        passed = "passed" if look(evidence, "passed") is True else "did not pass"
        yield f"the evidence of {name} {passed}, with the verdict {verdict or 'none'}"
    if at is None:
        yield f"the evidence of {name} has no date"
    elif at - until > SKEW:
        yield f"the evidence of {name} is from after the facts were gathered"


def _of_applied(entry: Record, other: Record, said: Answers) -> Iterator[str]:
    """A set that both call applied must have evidence for it, and its files must be there."""
    name, evidence = text(entry, "id"), record(entry, "evidence")
    kind = text(evidence, "kind")
    if kind not in KINDS or look(evidence, "passed") is not True:
        yield f"{name} is applied without evidence that passed"
    real = kind == EvidenceKind.REAL.value
    for command, claim in (("status", entry), ("audit", other)):
        if (look(claim, "counts") is True) != real:
            word = "counts" if look(claim, "counts") is True else "does not count"
            yield f"{name} {word} for {command}, with {kind or 'no'} evidence"
    yield from _of_verification(name, evidence, record(other, "verification"))
    denied = _denied(name, said.environment, real=real)
    yield from (f"{name} is applied, and audit finds: {words}" for words in denied)


def _of_verification(name: str, evidence: Record, verification: Record) -> Iterator[str]:
    """Audit shows the newest evidence wherever it is from; of this host it is that of status."""
    if not verification:
        yield f"{name} is applied, and audit knows no verification of it"
        return
    same = text(verification, "event") == text(evidence, "id")
    if look(verification, "here") is not True and not same:
        return
    keys = [k for k in ("kind", "verdict", "passed") if verification.get(k) != evidence.get(k)]
    if keys or not same:
        told = ", ".join(text(verification, key) for key in ("verdict", "kind"))
        yield f"{name} rests on other evidence for audit ({told}) than for status"


def _denied(name: str, environment: Record, *, real: bool) -> Iterator[str]:
    kinds = _DENIALS | {"unverified"} if real else _DENIALS
    for finding in records(environment, "findings"):
        kind = text(finding, "kind")
        about = text(finding, "target") == "-" and text(finding, "path") == name
        unknown = about and kind == "unknown"
        if unknown or (kind in kinds and (about or name in texts(finding, "sets"))):
            yield f"{kind} ({text(finding, 'detail', most=100) or 'no reason'})"
    for file in (f for p in records(environment, "packages") for f in records(p, "files")):
        shaped = any(c.partition("/")[0] == name for c in texts(file, "changes"))
        if shaped and text(file, "state") in _NOT_OURS:
            yield f"{text(file, 'path', most=200)} is {text(file, 'state')}"


def _of_environment(said: Answers) -> Iterator[str]:
    """What must hold where anything is applied."""
    if text(said.status, "interrupted"):
        yield "a set is applied, and a change was interrupted"
    if look(said.status, "ledger_lost") is True:
        yield "a set is applied, and the ledger is lost"
    if look(said.environment, "ledger") is not True:
        yield "a set is applied, and audit found no ledger"
    files = [f for p in records(said.environment, "packages") for f in records(p, "files")]
    if not any(text(file, "state") == "ours" for file in files):
        yield "a set is applied, and audit found no patched file"
