"""Facts of a node: the bytes of a file in, values out; whatever they hold, nothing raises. Pure.

The form is written down in docs/fleet.md. A file that is not of that form, is too old, or leaves
out what a report needs makes its node unknown, with the reason in words.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sm120patch.fleet.agreement import KINDS, SKEW, Answers, contradictions
from sm120patch.fleet.details import details
from sm120patch.fleet.node import HostFacts, NodeFacts, SetFacts, Trouble
from sm120patch.fleet.words import age_words, is_name, moment
from sm120patch.model import EvidenceKind, State, digest_of
from sm120patch.recorded import Record, look, number, record, records, text, texts

SCHEMA = 1
KIND = "sm120patch-facts"
MOST_BYTES = 64 << 20
"""Size of a file that is still read."""
COMMANDS = ("status", "audit", "doctor", "history", "caches")
REQUIRED = ("status", "audit")
STATES = frozenset({*(state.value for state in State), "by-hand"})
_ANSWERED = {"status": (0, 1, 7), "audit": (0, 1), "doctor": (0, 1), "history": (0,),
             "caches": (0,)}  # fmt: skip
"""Exit codes of a command that has answered; 1: it found something, 7: a change is interrupted."""
_MOST_SETS = 500
_MOST_PACKAGES = 50
_MOST_TROUBLES = 100
_WORDS = 300
_REJECTION = re.compile(r"^([a-z-]+)(?: \(([a-z]+)\))? on (\S+)$")
"""Reason of `status` for a rejected set, which has no evidence beside it."""
_COMMIT = re.compile(r"^git commit ([0-9a-f]{40}|[0-9a-f]{64}) of ")


@dataclass(frozen=True)
class Reading:
    """How facts are read: the time, how old they may be, and whether a comparison follows."""

    now: datetime
    max_age: timedelta
    deep: bool = False
    """Keep what only the comparison of two nodes needs."""


class _Unusable(Exception):  # noqa: N818 - control flow inside this module, never seen outside
    """The facts cannot be used; the text says why."""


def parse(data: bytes, source: str, stem: str, how: Reading) -> NodeFacts:
    """Return what the file says. `stem`: its name without `.json`, which is the node's name."""
    name = stem if is_name(stem) else _clipped(stem) or "?"
    try:
        return _parsed(_decoded(data), source, stem, how)
    except _Unusable as error:
        return NodeFacts(name=name, source=source, unknown=str(error))


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _count),) = Counter(name for name, _value in pairs).most_common(1)
        raise _Unusable(f"the facts contradict themselves: {_shown(twice)} is there twice")
    return found


def _decoded(data: bytes) -> Record:
    try:
        found = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _Unusable(
            f"malformed facts: {_clipped(str(error)) or type(error).__name__}"
        ) from None
    if not isinstance(found, dict):
        raise _Unusable(f"malformed facts: {type(found).__name__} where an object is expected")
    if found.get("kind") != KIND:
        raise _Unusable(f"malformed facts: `kind` is not {KIND}")
    schema = found.get("schema")
    if isinstance(schema, bool) or schema != SCHEMA:
        raise _Unusable(f"facts of schema {_shown(schema)}, this version reads {SCHEMA}")
    return record(found)


def _parsed(facts: Record, source: str, stem: str, how: Reading) -> NodeFacts:
    name = look(facts, "node")
    if not isinstance(name, str) or not is_name(name):
        raise _Unusable(f"malformed facts: {_shown(name)} is no name of a node")
    if stem != name and not stem.startswith(f"{name}@"):
        raise _Unusable(f"the file says that it is of {_clipped(name)}, not of {_clipped(stem)}")
    groups = tuple(dict.fromkeys(g for g in texts(facts, "groups", most=50) if is_name(g)))
    base = NodeFacts(
        name=name,
        source=source,
        groups=groups,
        prefix=text(facts, "environment", most=1000),
        collected_at=moment(text(facts, "collected_at", most=64)),
        tool=text(facts, "tool", most=40),
    )
    try:
        _usable(facts, base, how)
        return _filled(base, facts, how)
    except _Unusable as error:
        return replace(base, unknown=str(error))


def _usable(facts: Record, base: NodeFacts, how: Reading) -> None:
    reachable = look(facts, "reachable")
    if reachable is False:
        raise _Unusable(
            f"was not reached: {text(facts, 'reason', most=_WORDS) or 'no reason given'}"
        )
    if reachable is not True:
        raise _Unusable("malformed facts: `reachable` is neither true nor false")
    if base.collected_at is None:
        raise _Unusable("malformed facts: `collected_at` is no time with an offset")
    age = how.now - base.collected_at
    if age > how.max_age:
        raise _Unusable(f"stale: gathered {age_words(age)} ago, allowed {age_words(how.max_age)}")
    if age < -SKEW:
        raise _Unusable(f"gathered {age_words(-age)} from now: one of the clocks is wrong")


def _filled(base: NodeFacts, facts: Record, how: Reading) -> NodeFacts:
    answers = {name: _answer(facts, name) for name in COMMANDS}
    status, audit = (answers[name] for name in REQUIRED)
    assert status is not None and audit is not None  # `_answer` raises for a required one
    environment = _environment(audit, text(status, "prefix", most=1000))
    versions = {t: v for t in record(status, "versions") if (v := text(status, "versions", t))}
    packages = records(environment, "packages")
    if max(len(packages), len(versions)) > _MOST_PACKAGES:
        raise _Unusable(f"malformed facts: {max(len(packages), len(versions))} packages")
    audited = {text(p, "target"): text(p, "version") for p in packages}
    if audited != versions:
        raise _Unusable("status and audit name different versions: something changed in between")
    sets = _sets(status, environment)
    _agree(base, status, environment)
    troubles = _troubles(environment, audit)
    doctor = answers["doctor"]
    found = replace(
        base,
        prefix=text(status, "prefix", most=1000),
        versions={_clipped(target): _clipped(version) for target, version in versions.items()},
        sets=sets,
        content=text(status, "content", most=64),
        code="" if any(t.kind == "unknown" for t in troubles) else _code(packages),
        troubles=tuple(troubles[:_MOST_TROUBLES]),
        more_troubles=max(len(troubles) - _MOST_TROUBLES, 0),
        host=None if doctor is None else _host(doctor),
    )
    return replace(found, details=details(answers, found.sets)) if how.deep else found


def _agree(base: NodeFacts, status: Record, environment: Record) -> None:
    assert base.collected_at is not None  # `_usable` raises for it
    found = list(contradictions(Answers(status, environment, base.collected_at)))
    if found:
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        words = "; ".join(_clipped(one) for one in found[:3])
        raise _Unusable(f"the facts contradict themselves: {words}{more}")


def _answer(facts: Record, name: str) -> Record | None:
    """Result of one command; None for an optional one that was not run or failed."""
    envelope = look(facts, "commands", name)
    result = look(envelope, "result")
    named = look(envelope, "command") == name and look(envelope, "schema") == SCHEMA
    errors = [text(error, "message", most=_WORDS) for error in records(envelope, "errors")]
    code = look(envelope, "exit_code")
    ended = isinstance(code, int) and code in _ANSWERED[name] and not errors
    if named and isinstance(result, Mapping) and ended:
        if look(envelope, "ok") is not (code == 0) and name in REQUIRED:
            raise _Unusable(f"the facts contradict themselves: {name} ended with {code}, and `ok`")
        return record(result)
    if name not in REQUIRED:
        return None
    if envelope is None:
        raise _Unusable(f"facts are missing: {name}")
    if named and (errors or isinstance(result, Mapping)):
        said = errors[0] if errors else f"exit code {_shown(code)}"
        raise _Unusable(f"{name} failed there: {said}")
    raise _Unusable(f"malformed facts: no answer of {name}")


def _environment(audit: Record, prefix: str) -> Record:
    """The environment that status is about, among those of the audit."""
    found = records(audit, "environments")
    for environment in found:
        if prefix and prefix in (text(environment, "prefix"), *texts(environment, "names")):
            return environment
    seen = ", ".join(text(e, "prefix", most=100) for e in found[:3]) or "nothing"
    raise _Unusable(f"status is of {_clipped(prefix) or '?'}, audit of {seen}")


def _sets(status: Record, environment: Record) -> dict[str, SetFacts]:
    digests = _set_digests(environment)
    audited = {text(s, "id"): s for s in records(environment, "sets")}
    found = {}
    for entry in records(status, "sets")[:_MOST_SETS]:
        one = _set(entry, audited.get(text(entry, "id")), digests)
        found[one.id] = one
    for name in [n for n in audited if n not in found][:_MOST_SETS]:
        one = _set(audited[name], audited[name], digests)  # by hand: the ledger has nothing of it
        found[one.id] = one
    return dict(sorted(found.items()))


def _set(entry: Record, audited: Record | None, digests: Mapping[str, str]) -> SetFacts:
    name, state = text(entry, "id"), text(entry, "state", most=40)
    if not is_name(name) or state not in STATES:
        raise _Unusable(f"malformed facts: set {_clipped(name)!r} in state {_clipped(state)!r}")
    if audited is not None and text(audited, "state") == "by-hand" and not text(entry, "role"):
        state = "by-hand"  # status has no word for a set that no ledger knows
    evidence = record(entry, "evidence") or record(audited, "verification")
    if state == State.REJECTED.value and not evidence:
        evidence = _rejection(text(entry, "reason"))
    kind = text(evidence, "kind", most=40)
    return SetFacts(
        id=name,
        state=state,
        kind=kind if kind in KINDS else "",
        verdict=text(evidence, "verdict", most=40),
        passed=look(evidence, "passed") is True,
        counted=look(entry, "counts") is True,
        at=moment(text(evidence, "at", most=64)),
        evidence=text(evidence, "id", most=40),
        profile=text(evidence, "profile", most=64),
        revision=int(number(entry, "revision") or 0),
        role=text(entry, "role", most=40),
        selected=tuple(texts(entry, "with", most=50)),
        reason=text(entry, "reason", most=_WORDS),
        digest=digests.get(name, ""),
    )


def _rejection(reason: str) -> Record:
    """Verdict, kind and date of a rejection; empty where the reason does not name them."""
    found = _REJECTION.match(reason)
    if found is None:
        return {}
    return {"verdict": found[1], "kind": found[2] or EvidenceKind.REAL.value, "at": found[3]}


def _set_digests(environment: Record) -> dict[str, str]:
    """Set -> digest of every file that it shaped, other sets' edits of these files included."""
    shaped: dict[str, list[list[str | None]]] = {}
    for package in records(environment, "packages"):
        for file in records(package, "files"):
            line = [text(package, "target"), *_file(file)]
            for name in {c.partition("/")[0] for c in texts(file, "changes", most=_MOST_SETS)}:
                shaped.setdefault(name, []).append(line)
    return {name: digest_of(sorted(lines, key=str)) for name, lines in shaped.items()}


def _file(file: Record) -> list[str | None]:
    digest = look(file, "sha256")
    return [text(file, "path", most=5000), digest if isinstance(digest, str) else None]


def _code(packages: list[Record]) -> str:
    """Digest of all that the packages hold: release, commit, and every file that differs."""
    held = {}
    for package in packages:
        commit = _COMMIT.match(text(package, "origin"))
        differing = sorted((_file(f) for f in records(package, "files")), key=str)
        base = [text(package, "version"), commit[1] if commit else ""]
        held[text(package, "target")] = [*base, differing]
    return digest_of(held)


def _troubles(environment: Record, audit: Record) -> list[Trouble]:
    own = records(environment, "findings")
    # Those of the host itself stand beside those of the environments.
    own += [f for f in records(audit, "findings") if look(f, "environment") is None]
    found = [
        Trouble(
            text(f, "kind", most=40) or "unknown",
            text(f, "target", most=100),
            text(f, "path", most=_WORDS),
            text(f, "detail", most=_WORDS),
            text(f, "hint", most=_WORDS),
        )
        for f in own
    ]
    # What cannot be told must not be cut off.
    return sorted(found, key=lambda t: t.kind != "unknown")


def _host(doctor: Record) -> HostFacts:
    host = record(doctor, "host")
    return HostFacts(
        gpus=tuple(text(gpu, "name", most=100) for gpu in records(host, "gpus")[:64]),
        driver=text(host, "driver", most=40),
        topology=tuple(word[:40] for word in texts(host, "topology", most=20)),
    )


def _clipped(words: str) -> str:
    return words if len(words) <= _WORDS else words[: _WORDS - 1] + "…"


def _shown(value: object) -> str:
    return _clipped(text(value) if isinstance(value, str | int | float) else type(value).__name__)
