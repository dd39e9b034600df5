"""Known results of patch sets, matched against a host's topology and a server's TP size. Pure."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from sm120patch.model import KnownResult

WAYS = {
    "NVLINK": "nvlink",
    "INTERNAL": "one-switch",
    "PIX": "one-switch",
    "PXB": "one-switch",
    "PHB": "one-host-bridge",
    "NODE": "one-node",
    "SYS": "cross-node",
}
"""Way between two GPUs, the shortest first -> its word in `Host.topology`."""
_WORD = (
    r"([1-9][0-9]{0,3}-gpus|virtual-machine|bare-metal|pcie|p2p|no-p2p|p2p-unknown|path-unknown|"
    + "|".join(dict.fromkeys(WAYS.values()))
    + ")"
)
WHERE = rf"{_WORD}(\|{_WORD})*"
"""Pattern of an entry of `KnownResult.where`."""
_TP_OPTIONS = ("--tp", "--tp-size", "--tensor-parallel-size")


class Place(NamedTuple):
    """Where a server runs, as far as published results depend on it."""

    words: tuple[str, ...]
    """Words of `host.Host.topology`: `8-gpus`, `virtual-machine`, `no-p2p`, `one-node`, ..."""
    tp: int | None
    """Tensor parallel size; None when nobody can tell."""

    @property
    def shown(self) -> str:
        """For people."""
        return ", ".join([*self.words, f"TP {self.tp or 'unknown'}"])


class Match(NamedTuple):
    """A known result of a set that is for a place."""

    set_id: str
    result: KnownResult

    @property
    def shown(self) -> str:
        """One line for people."""
        known = self.result
        mark = "known to be harmful" if known.harmful else "known"
        return f"{mark}: {self.set_id} on {known.topology}: {known.effect} ({known.source})"

    def as_dict(self) -> dict[str, object]:
        """JSON-ready form."""
        known = self.result
        return {
            "set": self.set_id,
            "topology": known.topology,
            "effect": known.effect,
            "source": known.source,
            "harmful": known.harmful,
        }


def fits(known: KnownResult, place: Place) -> bool:
    """Tell whether a result is for a place: every word of `where` is there, and the TP size.

    An unknown TP size may be any. A result without `where` and `tp` is for no place in particular
    and fits none.
    """
    if not (known.where or known.tp):
        return False
    there = all(set(choice.split("|")) & set(place.words) for choice in known.where)
    return there and (not known.tp or place.tp is None or place.tp in known.tp)


def matches(sets: Iterable[tuple[str, Sequence[KnownResult]]], place: Place) -> tuple[Match, ...]:
    """Results of `sets` (id, its results) for a place, each once, harmful ones first."""
    found: dict[KnownResult, Match] = {}
    for set_id, results in sets:
        for known in results:
            if fits(known, place):
                found.setdefault(known, Match(set_id, known))
    return tuple(sorted(found.values(), key=lambda match: not match.result.harmful))


def tp_of(command: Sequence[str]) -> int | None:
    """Tensor parallel size of a server's command line, None where it does not say."""
    for word, after in pairwise((*command, "")):
        name, equals, value = word.partition("=")
        if name in _TP_OPTIONS:
            given = value if equals else after
            return int(given) if given.isdecimal() and 0 < int(given) < 10_000 else None
    return None
