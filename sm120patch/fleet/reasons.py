"""What differs between two nodes and could make one slower, with how probable it is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sm120patch.fleet.details import AT_WORK
from sm120patch.fleet.node import Details, Measurement, NodeFacts, SetFacts
from sm120patch.model import State


@dataclass(frozen=True)
class Reason:
    """One thing that differs."""

    rank: int
    """The lower, the more probable."""
    matter: str
    values: tuple[str, str]
    """In words, of both nodes."""
    slower: str = ""
    """Name of the node that it would make slower; empty where it may be either."""
    why: str = ""


def reasons(one: NodeFacts, other: NodeFacts) -> Iterator[Reason]:
    """Return everything that differs between two known nodes, in no order."""
    mine, theirs = one.details or Details(), other.details or Details()
    yield from _of_sets(one, other)
    yield from _of_code(one, other)
    yield from _of_troubles(one, other)
    yield from _of_caches(one, other, mine, theirs)
    yield from _of_readings(one, other, mine.measurement, theirs.measurement)
    yield from _of_host(one, other)
    yield from _of_checks(mine, theirs)
    yield from _of_flags(mine, theirs)
    yield from _of_launch(mine.measurement, theirs.measurement)


_ON_DISK = frozenset({State.APPLIED.value, State.STAGED.value, "by-hand"})
"""States in which the whole of a set is on disk."""


def _of_sets(one: NodeFacts, other: NodeFacts) -> Iterator[Reason]:
    """States, contents, selections and verdicts; sets that differ alike are told together."""
    alike: dict[tuple[int, str, tuple[str, str], str, str], list[str]] = {}
    for name in sorted({*one.sets, *other.sets}):
        for rank, words, values, slower, why in _of_set(one, other, name):
            alike.setdefault((rank, words, values, slower, why), []).append(name)
    for (rank, words, values, slower, why), names in alike.items():
        yield Reason(rank, f"{words} of {', '.join(names)}", values, slower, why)


def _of_set(
    one: NodeFacts, other: NodeFacts, name: str
) -> Iterator[tuple[int, str, tuple[str, str], str, str]]:
    """Rank, words, values, the slower node, and why."""
    a, b = one.sets.get(name), other.sets.get(name)
    labels = tuple(s.label if s is not None else "not in its catalogue" for s in (a, b))
    if all(s is None or s.is_quiet for s in (a, b)):
        return
    if labels[0] != labels[1]:
        yield _state(one, other, (labels[0], labels[1]), same=_same_contents(one, other, a, b))
        return
    if a is None or b is None:
        return
    if a.digest != b.digest:
        yield 20, "contents", (a.digest[:12], b.digest[:12]), "", ""
    if a.selected != b.selected:
        shown = [", ".join(s.selected) or "none" for s in (a, b)]
        yield 21, "optional changes", (shown[0], shown[1]), "", ""
    if a.verdict_words != b.verdict_words:
        yield 60, "verdict", (a.verdict_words or "none", b.verdict_words or "none"), "", ""


def _same_contents(
    one: NodeFacts, other: NodeFacts, a: SetFacts | None, b: SetFacts | None
) -> bool:
    """The files of a set are alike; one that only bundles others has none, all code answers."""
    if any(s is None or s.state not in _ON_DISK for s in (a, b)):
        return False
    digests = [s.digest if s is not None else "" for s in (a, b)]
    if any(digests):
        return digests[0] == digests[1]
    return bool(one.code) and one.code == other.code


def _state(
    one: NodeFacts, other: NodeFacts, labels: tuple[str, str], *, same: bool
) -> tuple[int, str, tuple[str, str], str, str]:
    if same:
        return 55, "state", labels, "", "the same contents: only what is known of them differs"
    on = [label.startswith("applied") for label in labels]
    slower = "" if on[0] == on[1] else one.name if on[1] else other.name
    why = f"{slower} does not hold the patched code as it was verified" if slower else ""
    return 10, "state", labels, slower, why


def _of_code(one: NodeFacts, other: NodeFacts) -> Iterator[Reason]:
    for target in sorted({*one.versions, *other.versions}):
        versions = [n.versions.get(target, "not installed") for n in (one, other)]
        if versions[0] != versions[1]:
            yield Reason(15, f"version of {target}", (versions[0], versions[1]))
    if one.code != other.code:
        shown = [n.code[:12] or "unknown" for n in (one, other)]
        yield Reason(25, "code of the packages", (shown[0], shown[1]), why="not the same program")


_HEAVY = {
    "stale-server": (5, "the running server is older than the files"),
    "stale-build": (6, "a compiled module is older than its source"),
    "stale-bytecode": (7, "Python runs old bytecode in place of the source"),
    "carrier": (16, "something outside the packages changes them at start"),
}
"""Kind of the audit's finding -> rank and what it means."""


def _of_troubles(one: NodeFacts, other: NodeFacts) -> Iterator[Reason]:
    """Findings of the audit that only one of them has."""
    seen = [{(t.kind, t.target, t.path): t for t in n.troubles} for n in (one, other)]
    for index, node in enumerate((one, other)):
        for key in seen[index]:
            if key in seen[1 - index]:
                continue
            rank, why = _HEAVY.get(key[0], (50, ""))
            values = _of_one(index, f"{key[2]}: {seen[index][key].detail}")
            yield Reason(rank, key[0], values, slower=node.name if why else "", why=why)


def _of_caches(
    one: NodeFacts, other: NodeFacts, mine: Details, theirs: Details
) -> Iterator[Reason]:
    if mine.modules is None or theirs.modules is None:
        return
    live = [{(m.name, m.arch): m.live for m in d.modules or ()} for d in (mine, theirs)]
    for name, arch in sorted(live[0].keys() | live[1].keys()):
        states = [found.get((name, arch), "not known there") for found in live]
        if states[0] == states[1]:
            continue
        waiting = [s == "nothing" for s in states]
        slower = "" if waiting[0] == waiting[1] else (one.name if waiting[0] else other.name)
        why = "not compiled yet: the first requests wait for the compiler" if slower else ""
        shown = ["not compiled" if s == "nothing" else s for s in states]
        yield Reason(8, f"compiled module {name}", (shown[0], shown[1]), slower=slower, why=why)
    notes = [set(d.cache_notes) for d in (mine, theirs)]
    for index, node in enumerate((one, other)):
        for note in sorted(notes[index] - notes[1 - index]):
            yield Reason(9, "caches", _of_one(index, note), slower=node.name)


def _of_one(index: int, words: str) -> tuple[str, str]:
    """Words that one of the two nodes has, and the other has nothing for."""
    return ("-", words) if index else (words, "-")


_FIGURES: Mapping[str, tuple[str, str, float]] = {
    "power_limit_w": ("power limit of a GPU", "W", 0.02),
    "sm_mhz": ("SM clock under load", "MHz", 0.03),
    "mem_mhz": ("memory clock under load", "MHz", 0.03),
    "power_w": ("power of a GPU under load", "W", 0.10),
    "temp_c": ("temperature under load", "°C", 0.15),
}
"""Figure -> words, unit, and the share below which a difference is not worth a word."""


def _of_readings(
    one: NodeFacts, other: NodeFacts, mine: Measurement | None, theirs: Measurement | None
) -> Iterator[Reason]:
    """Clocks, power and throttling while they were measured."""
    if mine is None or theirs is None or mine.kind != theirs.kind:
        return
    working = [m.gpus.get(AT_WORK, 0.0) for m in (mine, theirs)]
    if all(working) and working[0] != working[1]:
        shown = [f"{count:g}" for count in working]
        yield Reason(4, "GPUs at work while it was measured", (shown[0], shown[1]))
    for name, (words, unit, least) in _FIGURES.items():
        a, b = mine.gpus.get(name), theirs.gpus.get(name)
        if a is None or b is None or abs(a - b) <= least * max(abs(a), abs(b)):
            continue
        lower = one.name if a < b else other.name
        hotter = other.name if a < b else one.name
        slower = hotter if name == "temp_c" else lower
        yield Reason(12, words, (f"{a:.0f} {unit}", f"{b:.0f} {unit}"), slower)
    for reason in sorted({*mine.throttled, *theirs.throttled}):
        a, b = (m.throttled.get(reason, 0.0) for m in (mine, theirs))
        if abs(a - b) > 0.05:
            slower = one.name if a > b else other.name
            yield Reason(11, f"throttled: {reason}", (f"{a:.0%}", f"{b:.0%}"), slower)


def _of_host(one: NodeFacts, other: NodeFacts) -> Iterator[Reason]:
    if one.host is None or other.host is None:
        return
    gpus = [h.gpu_words or "none" for h in (one.host, other.host)]
    if gpus[0] != gpus[1]:
        counts = [len(h.gpus) for h in (one.host, other.host)]
        fewer = one.name if counts[0] < counts[1] else other.name
        yield Reason(3, "GPUs", (gpus[0], gpus[1]), slower=fewer if counts[0] != counts[1] else "")
    words = [", ".join(h.topology) for h in (one.host, other.host)]
    if words[0] != words[1]:
        yield Reason(14, "topology", (words[0], words[1]))
    if one.host.driver != other.host.driver:
        shown = [h.driver or "none" for h in (one.host, other.host)]
        yield Reason(30, "driver", (shown[0], shown[1]))


_RANKS = {"pcie-link": 13, "p2p": 13, "acs": 18, "iommu": 18, "ancestor": 18, "numa": 19}
_ELSEWHERE = frozenset(("gpus", "servers", "message-size"))
_BAD = ("problem", "warning")


def _of_checks(mine: Details, theirs: Details) -> Iterator[Reason]:
    """What doctor judged differently; free disk and memory differ everywhere, so only by status."""
    for name in sorted({*mine.checks, *theirs.checks} - _ELSEWHERE):
        a, b = mine.checks.get(name), theirs.checks.get(name)
        by_status = name.startswith(("disk-", "build-memory"))
        same = a == b or (by_status and a is not None and b is not None and a.status == b.status)
        if not same and mine.checks and theirs.checks:
            shown = [f"{c.status}: {c.summary}" if c is not None else "-" for c in (a, b)]
            yield Reason(_RANKS.get(name, 40), f"doctor: {name}", (shown[0], shown[1]))


def _of_flags(mine: Details, theirs: Details) -> Iterator[Reason]:
    """Options and variables that are set on one of them and do nothing there."""
    if not all("doctor" in found.collected for found in (mine, theirs)):
        return
    flags = [set(found.idle_flags) for found in (mine, theirs)]
    for index in range(2):
        for flag in sorted(flags[index] - flags[1 - index]):
            yield Reason(35, "flag without effect", _of_one(index, flag))


def _of_launch(mine: Measurement | None, theirs: Measurement | None) -> Iterator[Reason]:
    """Options of the servers that were measured, by what they said of themselves."""
    if mine is None or theirs is None:
        return
    fields = sorted({*mine.server, *theirs.server})
    differing = [f for f in fields if mine.server.get(f) != theirs.server.get(f)]
    for field in differing[:50]:
        shown = [m.server.get(field, "-") for m in (mine, theirs)]
        yield Reason(17, f"server: {field}", (shown[0], shown[1]))
    if not differing and mine.command != theirs.command:
        shown = [
            _only_in(m.command, other.command) for m, other in ((mine, theirs), (theirs, mine))
        ]
        yield Reason(17, "command line of the server", (shown[0], shown[1]))
    if mine.profile != theirs.profile:
        yield Reason(45, "profile of the verification", (mine.profile[:12], theirs.profile[:12]))


def _only_in(command: str, other: str) -> str:
    """Words of a command line that the other has not; all where only their order differs."""
    known = set(other.split())
    return " ".join(word for word in command.split() if word not in known) or command
