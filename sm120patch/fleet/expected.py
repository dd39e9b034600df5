"""Which nodes there should be, and which of them serve as one: lists and inventories. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sm120patch.fleet.words import is_name
from sm120patch.recorded import record, texts

MOST_NODES = 100_000


@dataclass(frozen=True)
class Expected:
    """Nodes by name, group -> its nodes, and sets; all empty when nothing was said."""

    nodes: tuple[str, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sets: tuple[str, ...] = ()
    """Sets that must count as applied on every node."""


def names_of(content: bytes) -> tuple[str, ...] | None:
    """Nodes of a list: one name a line, `#` begins a comment. None when it is no such list."""
    try:
        lines = [line.partition("#")[0].strip() for line in content.decode("utf-8").splitlines()]
    except ValueError:
        return None
    names = [line for line in lines if line]
    # `---`, `all:`, `[gpus]` and `host key=value` are of inventories.
    plain = all(is_name(n) and not n.startswith(("[", "{", "-")) and n[-1] != ":" for n in names)
    return tuple(dict.fromkeys(names)) if plain and names else None


def inventory_of(content: bytes) -> Mapping[str, tuple[str, ...]] | None:
    """Group -> all its nodes, of what `ansible-inventory --list` prints; None for anything else.

    The group `all` is always there.
    """
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or "all" not in found:
        return None
    groups = {name: record(found, name) for name in record(found) if name != "_meta"}
    members = {name: _members(name, groups, set()) for name in groups}
    every = dict.fromkeys([*members["all"], *record(found, "_meta", "hostvars")])
    members["all"] = [name for name in every if is_name(name)]
    return {name: tuple(dict.fromkeys(found)) for name, found in members.items()}


def _members(name: str, groups: Mapping[str, Mapping[str, object]], seen: set[str]) -> list[str]:
    """Nodes of a group and of the groups below it; a group that holds itself ends."""
    if name in seen or name not in groups:
        return []
    seen.add(name)
    found = [n for n in texts(groups[name], "hosts", most=MOST_NODES) if is_name(n)]
    for child in texts(groups[name], "children", most=MOST_NODES):
        found += _members(child, groups, seen)
    return found


def combined(nodes: Iterable[str], groups: Iterable[tuple[str, tuple[str, ...]]]) -> Expected:
    """Put together what was named; members of a group are expected as well."""
    gathered: dict[str, tuple[str, ...]] = {}
    for name, members in groups:
        gathered[name] = tuple(dict.fromkeys([*gathered.get(name, ()), *members]))
    every = dict.fromkeys([*nodes, *(n for members in gathered.values() for n in members)])
    return Expected(tuple(every), gathered)
