"""In what nodes differ from most others: one aspect after the other. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sm120patch.fleet.node import NodeFacts, SetFacts

ABSENT = "not installed"
NO_SET = "not in its catalogue"


@dataclass(frozen=True)
class Difference:
    """One aspect in which not all known nodes are alike."""

    aspect: str
    """`state`, `contents`, `verdict`, `revision`, `selection`, `profile`, `version`, `tool`,
    `driver`, `gpus`, `topology` or `evidence-age`."""
    subjects: tuple[str, ...]
    """Sets or packages in which the same nodes differ in the same way; empty for a host."""
    usual: str | None
    """What more than half of the nodes have; None when no value is so common."""
    usual_count: int
    others: tuple[tuple[str, tuple[NodeFacts, ...]], ...]
    """Every other value with its nodes, the rarest first."""

    @property
    def nodes(self) -> tuple[NodeFacts, ...]:
        """Nodes that differ; all where there is no majority."""
        return tuple(node for _value, nodes in self.others for node in nodes)

    @property
    def title(self) -> str:
        """Aspect and subject in words."""
        words = WORDS[self.aspect]
        return f"{words} of {', '.join(self.subjects)}" if self.subjects else words


WORDS: Mapping[str, str] = {
    "state": "state",
    "contents": "contents",
    "verdict": "verdict",
    "version": "version",
    "revision": "revision",
    "selection": "optional changes",
    "profile": "profile of the verification",
    "tool": "version of sm120patch",
    "gpus": "GPUs",
    "driver": "driver",
    "topology": "topology",
    "evidence-age": "age of the evidence",
}
"""Aspect -> words, in the order in which they are looked at and shown."""
HEAVY = frozenset({"state", "contents", "version", "selection", "revision", "gpus"})
"""Aspects in which the code that runs differs, or what it runs on."""


def sets_of_interest(nodes: Sequence[NodeFacts]) -> tuple[str, ...]:
    """Sets of which any node has something, or in whose state the nodes differ."""
    names = sorted({name for node in nodes for name in node.sets})
    return tuple(name for name in names if _interesting([n.sets.get(name) for n in nodes]))


def _interesting(found: Sequence[SetFacts | None]) -> bool:
    known = [s for s in found if s is not None]
    return any(not s.is_quiet for s in known) or len({s.state for s in known}) > 1


def differences(nodes: Sequence[NodeFacts], late: timedelta) -> tuple[Difference, ...]:
    """Return every aspect in which known nodes differ.

    `late`: how much older than the median of the nodes evidence may be.
    """
    found: list[Difference] = []
    sets = sets_of_interest(nodes)
    for aspect in WORDS:
        for subject in _subjects(aspect, nodes, sets):
            if aspect == "evidence-age":
                found += _late(nodes, subject, late)
            else:
                found += _aspect(aspect, subject, [(n, _value(aspect, subject, n)) for n in nodes])
    return tuple(_merged(found))


def _merged(found: Sequence[Difference]) -> Iterator[Difference]:
    """Sets that were verified together differ together: say so once."""
    kept: dict[object, Difference] = {}
    for one in found:
        others = tuple((value, tuple(n.key for n in nodes)) for value, nodes in one.others)
        key = (one.aspect, one.usual, one.usual_count, others)
        known = kept.get(key)
        kept[key] = one if known is None else replace(known, subjects=known.subjects + one.subjects)
    yield from kept.values()


def _subjects(aspect: str, nodes: Sequence[NodeFacts], sets: Sequence[str]) -> Sequence[str]:
    if aspect in ("tool", "gpus", "driver", "topology"):
        return ("",)
    if aspect == "version":
        return sorted({target for node in nodes for target in node.versions})
    return sets


def _value(aspect: str, subject: str, node: NodeFacts) -> str | None:
    """Value of one node in words; None where it has nothing to say."""
    if aspect == "version":
        return node.versions.get(subject, ABSENT)
    if aspect == "tool":
        return node.tool or None
    if aspect in ("gpus", "driver", "topology"):
        return _of_host(aspect, node)
    return _of_set(aspect, node.sets.get(subject))


def _of_host(aspect: str, node: NodeFacts) -> str | None:
    if node.host is None:
        return None
    if aspect == "gpus":
        return node.host.gpu_words or "none"
    return node.host.driver or None if aspect == "driver" else ", ".join(node.host.topology) or None


def _of_set(aspect: str, found: SetFacts | None) -> str | None:
    if aspect == "state":
        return NO_SET if found is None else found.label
    if found is None or found.is_quiet:
        return None
    values = {
        "contents": found.digest[:12],
        "verdict": found.verdict_words or "none",
        "revision": str(found.revision) if found.revision else "",
        "selection": ", ".join(found.selected) or "none",
        "profile": found.profile[:12],
    }
    return values[aspect] or None


def _aspect(
    aspect: str, subject: str, values: Sequence[tuple[NodeFacts, str | None]]
) -> Iterator[Difference]:
    told = [(node, value) for node, value in values if value is not None]
    counts = Counter(value for _node, value in told)
    if len(counts) < 2:
        return
    value, count = counts.most_common(1)[0]
    usual = value if 2 * count > len(told) else None
    holders: dict[str, list[NodeFacts]] = {}
    for node, value in told:
        if value != usual:
            holders.setdefault(value, []).append(node)
    others = sorted(holders.items(), key=lambda item: (len(item[1]), item[0]))
    yield Difference(
        aspect, (subject,) if subject else (), usual, counts[usual] if usual is not None else 0,
        tuple((value, tuple(nodes)) for value, nodes in others),
    )  # fmt: skip


def _late(nodes: Sequence[NodeFacts], name: str, late: timedelta) -> Iterator[Difference]:
    """Find evidence that is far older than that of the others; it may be from before a change."""
    dated = [(n, s.at) for n in nodes if (s := n.sets.get(name)) is not None and s.at is not None]
    if len(dated) < 3:
        return
    middle = statistics.median_low([at for _node, at in dated])
    old = [(node, at) for node, at in dated if middle - at > late]
    if old:
        others = tuple((_day(at), (node,)) for node, at in sorted(old, key=lambda x: x[1]))
        yield Difference("evidence-age", (name,), _day(middle), len(dated) - len(old), others)


def _day(at: datetime) -> str:
    return at.strftime("%Y-%m-%d")
