"""One report about many nodes: who is unknown, which groups are unequal, who differs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

from sm120patch.fleet.differences import HEAVY, NO_SET, Difference, differences, sets_of_interest
from sm120patch.fleet.expected import Expected
from sm120patch.fleet.node import NodeFacts
from sm120patch.model import State

LATE = timedelta(days=30)
Own = tuple[str, str, "str | None"]
"""Aspect in words, own value, usual value (None: there is none)."""


class Kind(str, Enum):
    """What a finding is about, the worst first; the words of `--fail-on`."""

    UNEQUAL = "unequal"
    """Nodes of one group hold different code: such a server hangs, or answers wrongly."""
    UNKNOWN = "unknown"
    """A node, a group or a content could not be told. Never OK: it always fails."""
    NOT_APPLIED = "not-applied"
    """A set that was named does not count as applied on a node."""
    DIFFERS = "differs"
    """A node is not as most others are."""
    UNEXPECTED = "unexpected"
    """Facts of a node that is not among those that were named."""
    FINDING = "finding"
    """The audit of the node found something."""


@dataclass(frozen=True)
class Finding:
    """One thing that should not be so."""

    kind: Kind
    subject: str
    """Group, aspect, or kind of the audit's finding."""
    detail: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Nodes that serve as one."""

    name: str
    nodes: tuple[str, ...]
    equal: bool | None
    """All of them hold the same code; None: at least one is unknown, and no two known differ."""


@dataclass(frozen=True)
class Row:
    """One node with everything in which it stands out."""

    node: NodeFacts
    label: str
    """Name, with the environment where the node has several."""
    groups: tuple[str, ...]
    differs: tuple[Own, ...]
    unequal: bool
    """It holds other code than most nodes of its group, or its group has no majority."""
    weight: int = 0
    """How much it stands out."""


@dataclass(frozen=True)
class Fleet:
    """The whole report; `rows` begin with the nodes that stand out most."""

    rows: tuple[Row, ...]
    sets: tuple[str, ...]
    """Sets that are shown: something of them is on a node, or the nodes differ in them."""
    groups: tuple[Group, ...]
    findings: tuple[Finding, ...]
    """The worst first."""
    differences: tuple[Difference, ...]
    expected: tuple[str, ...] = ()

    @property
    def unknown(self) -> tuple[Row, ...]:
        """Nodes of which nothing may be relied on."""
        return tuple(row for row in self.rows if row.node.unknown)

    @property
    def bare(self) -> bool:
        """There are known nodes, and nothing of any set is on one of them."""
        known = [row.node for row in self.rows if not row.node.unknown]
        return bool(known) and all(s.is_quiet for node in known for s in node.sets.values())

    def applied(self, name: str) -> int:
        """Nodes on which a set counts as applied."""
        known = (row.node.sets.get(name) for row in self.rows if not row.node.unknown)
        return sum(found is not None and found.counts for found in known)


def overview(
    nodes: Iterable[NodeFacts], expected: Expected | None = None, late: timedelta = LATE
) -> Fleet:
    """Put the facts of all nodes together. `late`: see `differences`."""
    expected = expected or Expected()
    every = _with_missing(_once(nodes), expected)
    labels = _labels(every)
    members = _members(every, expected)
    groups = tuple(_group(name, found, labels) for name, found in sorted(members.items()))
    known = [node for node in every if not node.unknown]
    differing = differences(known, late)
    bad = {key for found in members.values() for key in _minority(found)}
    where, own = _groups_of(members), _own(differing)
    rows = [
        Row(n, labels[n.key], where.get(n.key, ()),
            tuple((d.title, value, d.usual) for d, value in own.get(n.key, ())), n.key in bad,
            _weight(n, [d for d, _value in own.get(n.key, ())]))
        for n in every
    ]  # fmt: skip
    return Fleet(
        rows=tuple(sorted(rows, key=_rank)),
        sets=_sets(known, expected),
        groups=groups,
        findings=tuple(_findings(rows, groups, differing, labels, expected)),
        differences=differing,
        expected=expected.nodes,
    )


def _sets(known: Sequence[NodeFacts], expected: Expected) -> tuple[str, ...]:
    return tuple(sorted({*sets_of_interest(known), *expected.sets}))


def _once(nodes: Iterable[NodeFacts]) -> list[NodeFacts]:
    """Two files about one environment leave it unknown: nobody can tell which is right."""
    found: dict[tuple[str, str], NodeFacts] = {}
    for node in nodes:
        if node.key in found:
            files = f"{found[node.key].source} and {node.source}"
            node = NodeFacts(node.name, node.source, f"two files are about it: {files}",
                             found[node.key].groups, node.prefix)  # fmt: skip
        found[node.key] = node
    return list(found.values())


def _with_missing(nodes: list[NodeFacts], expected: Expected) -> list[NodeFacts]:
    there = {node.name for node in nodes}
    missing = [NodeFacts(name, "", "facts are missing: there is no file")
               for name in expected.nodes if name not in there]  # fmt: skip
    return [*nodes, *missing]


def _labels(nodes: Sequence[NodeFacts]) -> dict[tuple[str, str], str]:
    count = Counter(node.name for node in nodes)
    return {n.key: f"{n.name}:{n.prefix}" if count[n.name] > 1 else n.name for n in nodes}


def _members(nodes: Sequence[NodeFacts], expected: Expected) -> dict[str, list[NodeFacts]]:
    """Group -> its nodes, as they say themselves and as was named."""
    found: dict[str, dict[tuple[str, str], NodeFacts]] = {}
    named = {name: set(members) for name, members in expected.groups.items()}
    for node in nodes:
        own = [name for name, members in named.items() if node.name in members]
        for group in (*node.groups, *own):
            found.setdefault(group, {})[node.key] = node
    return {name: list(members.values()) for name, members in found.items()}


def _group(name: str, members: Sequence[NodeFacts], labels: Mapping[tuple[str, str], str]) -> Group:
    codes = {node.code for node in members if not node.unknown and node.code}
    untold = any(node.unknown or not node.code for node in members)
    equal = False if len(codes) > 1 else None if untold else True
    return Group(name, tuple(sorted(labels[node.key] for node in members)), equal)


def _groups_of(
    members: Mapping[str, Sequence[NodeFacts]],
) -> dict[tuple[str, str], tuple[str, ...]]:
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for name in sorted(members):
        for node in members[name]:
            found[node.key] = (*found.get(node.key, ()), name)
    return found


def _minority(members: Sequence[NodeFacts]) -> Iterator[tuple[str, str]]:
    """Nodes of an unequal group that do not hold what most of it holds."""
    told = [node for node in members if not node.unknown and node.code]
    counts = Counter(node.code for node in told)
    if len(counts) > 1:
        code, count = counts.most_common(1)[0]
        usual = code if 2 * count > len(told) else None
        yield from (node.key for node in told if node.code != usual)


def _own(
    differing: Sequence[Difference],
) -> dict[tuple[str, str], list[tuple[Difference, str]]]:
    """Node -> in what it differs, with its value."""
    found: dict[tuple[str, str], list[tuple[Difference, str]]] = {}
    for difference in differing:
        for value, nodes in difference.others:
            for node in nodes:
                found.setdefault(node.key, []).append((difference, value))
    return found


def _weight(node: NodeFacts, differing: Sequence[Difference]) -> int:
    # Where there is no majority nobody stands out by it.
    own = [difference for difference in differing if difference.usual is not None]
    return sum(100 if d.aspect in HEAVY else 10 for d in own) + min(len(node.troubles), 9)


def _rank(row: Row) -> tuple[bool, bool, int, str]:
    return (not row.unequal, not row.node.unknown, -row.weight, row.label)


def _findings(
    rows: Sequence[Row],
    groups: Sequence[Group],
    differing: Sequence[Difference],
    labels: Mapping[tuple[str, str], str],
    expected: Expected,
) -> Iterator[Finding]:
    by_label = {row.label: row.node for row in rows}
    for group in groups:
        if group.equal is False:
            yield Finding(Kind.UNEQUAL, group.name, _codes(group, by_label), group.nodes)
    for row in sorted(rows, key=lambda row: row.label):
        if row.node.unknown:
            yield Finding(Kind.UNKNOWN, "node", row.node.unknown, (row.label,))
    for group in groups:
        if group.equal is None:
            detail = "not all of its nodes are known, so nobody can tell whether they are equal"
            yield Finding(Kind.UNKNOWN, group.name, detail, group.nodes)
    yield from _unknown_sets(rows)
    yield from _audited(rows, only_unknown=True)
    yield from _not_applied(rows, expected.sets)
    for difference in differing:
        nodes = tuple(labels[node.key] for node in difference.nodes)
        yield Finding(Kind.DIFFERS, difference.title, difference_words(difference, labels), nodes)
    if expected.nodes:
        strange = sorted(r.label for r in rows if r.node.name not in set(expected.nodes))
        if strange:
            detail = "there are facts of it, but it is not among the nodes that were named"
            yield Finding(Kind.UNEXPECTED, "node", detail, tuple(strange))
    yield from _audited(rows, only_unknown=False)


def _unknown_sets(rows: Sequence[Row]) -> Iterator[Finding]:
    """Sets whose state a node could not tell itself."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for one in row.node.sets.values():
            if one.state == State.UNKNOWN.value and not row.node.unknown:
                found.setdefault((one.id, one.reason), []).append(row.label)
    for (name, reason), labels in found.items():
        yield Finding(Kind.UNKNOWN, f"state of {name}", reason, tuple(sorted(labels)))


def _not_applied(rows: Sequence[Row], sets: Sequence[str]) -> Iterator[Finding]:
    """Sets that were named and do not count on a known node; those alike are told together."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in sets:
        for row in rows:
            one = row.node.sets.get(name)
            if not row.node.unknown and (one is None or not one.counts):
                label = NO_SET if one is None else one.label
                found.setdefault((name, label), []).append(row.label)
    for (name, label), labels in found.items():
        yield Finding(Kind.NOT_APPLIED, name, f"is {label}", tuple(sorted(labels)))


def _codes(group: Group, nodes: Mapping[str, NodeFacts]) -> str:
    held: dict[str, list[str]] = {}
    for label in group.nodes:
        held.setdefault(nodes[label].code[:12] or "unknown", []).append(label)
    return "different code: " + "; ".join(
        f"{code} on {names(found)}" for code, found in sorted(held.items(), key=lambda x: len(x[1]))
    )


def difference_words(difference: Difference, labels: Mapping[tuple[str, str], str]) -> str:
    """`lost on gpu-07; applied on 6 others`."""
    parts = [
        f"{value} on {names([labels[node.key] for node in nodes])}"
        for value, nodes in difference.others
    ]
    if difference.usual is not None:
        parts.append(f"{difference.usual} on {difference.usual_count} others")
    return "; ".join(parts)


def names(labels: Sequence[str], most: int = 6) -> str:
    """Names joined by commas; of many only the first ones, and how many there are."""
    shown = ", ".join(labels[:most])
    return shown if len(labels) <= most else f"{shown} and {len(labels) - most} more"


def _audited(rows: Sequence[Row], *, only_unknown: bool) -> Iterator[Finding]:
    """Findings of the audits; what several nodes or several files have alike is said once."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for trouble in row.node.troubles if not row.node.unknown else ():
            if (trouble.kind == Kind.UNKNOWN.value) is only_unknown:
                where = trouble.path if trouble.path not in ("", "-") else trouble.target
                found.setdefault((trouble.kind, where, trouble.detail), []).append(row.label)
    alike: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (name, where, detail), labels in found.items():
        alike.setdefault((name, detail, tuple(sorted(set(labels)))), []).append(where)
    kind = Kind.UNKNOWN if only_unknown else Kind.FINDING
    for (name, detail, nodes), places in alike.items():
        yield Finding(kind, name, f"{names(places)}: {detail}", nodes)


@dataclass(frozen=True)
class FailOn:
    """Which kinds of findings make a report fail; what is unknown always does."""

    kinds: frozenset[Kind] = field(default_factory=lambda: frozenset(Kind))

    def fails(self, findings: Iterable[Finding]) -> bool:
        """Tell whether any of them is one to fail on."""
        return any(f.kind in self.kinds or f.kind is Kind.UNKNOWN for f in findings)
