"""`fleet-report`: read the facts of all nodes, and which nodes there should be.

Reads the files that are named; runs `ansible-inventory` for an inventory. Writes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sm120patch.errors import HostError, UsageError
from sm120patch.fleet.compare import Comparison, compare
from sm120patch.fleet.expected import Expected, combined, inventory_of, names_of
from sm120patch.fleet.node import NodeFacts
from sm120patch.fleet.parsing import MOST_BYTES, Reading, parse
from sm120patch.fleet.words import is_name

SUFFIX = ".json"
_MOST_LIST = 64 << 20
_INVENTORY_TIMEOUT = 120.0


@dataclass(frozen=True)
class Gathered:
    """Nodes as their files tell; those of a comparison with all that it needs."""

    nodes: tuple[NodeFacts, ...]
    comparison: Comparison | None


def gather(
    places: Sequence[Path],
    how: Reading,
    pair: tuple[str, str] | None,
    progress: Callable[[int, str], None] = lambda _count, _name: None,
) -> Gathered:
    """Read all facts in `places`, files or directories; `pair` are two nodes to be compared.

    One file is in memory at a time. A file that cannot be read leaves its node unknown. Raises
    UsageError where a place is not there, or a node of the pair is not among the facts.
    """
    nodes: list[NodeFacts] = []
    deep: list[NodeFacts] = []
    for count, path in enumerate(_files(places)):
        progress(count, path.name)
        stem = path.name.removesuffix(SUFFIX)
        wanted = pair is not None and any(_may_be(name, stem) for name in pair)
        found = _node(path, stem, replace(how, deep=wanted))
        nodes.append(replace(found, details=None))
        if wanted:
            deep.append(found)
    if pair is None:
        return Gathered(tuple(nodes), None)
    one, other = (_named(name, deep) for name in pair)
    return Gathered(tuple(nodes), compare(one, other))


def _files(places: Iterable[Path]) -> Iterator[Path]:
    seen: set[Path] = set()
    for place in places:
        for path in _below(place):
            if path.absolute() not in seen:
                seen.add(path.absolute())
                yield path


def _below(place: Path) -> list[Path]:
    try:
        if not place.is_dir():
            place.stat()
            return [place]
        found = sorted(place.iterdir())
    except OSError as error:
        raise UsageError(
            f"{place}: {error.strerror}",
            hint="name the directory that the facts of the nodes were gathered in, or their files",
            code="no-facts",
        ) from error
    return [p for p in found if p.name.endswith(SUFFIX) and not p.name.startswith(".")]


def _node(path: Path, stem: str, how: Reading) -> NodeFacts:
    data = _content(path, MOST_BYTES)
    if isinstance(data, str):
        return NodeFacts(stem if is_name(stem) else "?", str(path), f"malformed facts: {data}")
    return parse(data, str(path), stem, how)


def _content(path: Path, most: int) -> bytes | str:
    """Bytes of a regular file of at most `most` bytes, or why there are none."""
    try:
        # A pipe would wait for a writer that never comes.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    try:
        with open(number, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return "not a regular file"
            data = file.read(most + 1)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return data if len(data) <= most else f"larger than {most >> 20} MiB"


def _may_be(wanted: str, stem: str) -> bool:
    """A file of that name may be about the node that is wanted, named with its prefix or not."""
    names = {stem, stem.rpartition("@")[0]} - {""}
    return any(wanted == name or wanted.startswith(f"{name}:") for name in names)


def _named(wanted: str, nodes: Sequence[NodeFacts]) -> NodeFacts:
    found = [n for n in nodes if wanted in (n.name, f"{n.name}:{n.prefix}")]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(
            f"there are no facts of {wanted}",
            hint="`sm120patch fleet-report FACTS_DIR` lists the nodes that there are",
            code="no-facts",
        )
    listed = ", ".join(f"{n.name}:{n.prefix}" for n in found)
    raise UsageError(
        f"there are {len(found)} environments of {wanted}",
        hint=f"name one of them: {listed}",
        code="several-environments",
    )


# --- which nodes there should be -------------------------------------------------------------


def expected(place: Path | None, groups: Sequence[str], sets: Sequence[str] = ()) -> Expected:
    """Nodes that `place` names (a list or an inventory), and `groups` (`NAME=node,node` or `NAME`).

    A group without nodes is one of the inventory. `sets`: `NAME` or `NAME,NAME`.
    """
    inventory = None if place is None else _inventory(place)
    named = [_group(text, inventory) for text in groups]
    found = combined((inventory or {}).get("all", ()), named)
    return replace(found, sets=tuple(dict.fromkeys(_set_names(sets))))


def _set_names(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        for name in text.split(","):
            if not is_name(name.strip()):
                raise UsageError(
                    f"--sets {text}: names are expected", hint="write --sets fusion,runtime-gate"
                )
            yield name.strip()


def _group(
    text: str, inventory: Mapping[str, tuple[str, ...]] | None
) -> tuple[str, tuple[str, ...]]:
    name, equals, listed = text.partition("=")
    if equals:
        nodes = tuple(part.strip() for part in listed.split(",") if part.strip())
        if is_name(name) and nodes and all(map(is_name, nodes)):
            return name, nodes
        raise UsageError(
            f"--group {text}: names are expected", hint="write --group server-0=gpu-01,gpu-02"
        )
    if inventory is None or name not in inventory:
        there = ", ".join(sorted(inventory)) if inventory else "no inventory is given"
        raise UsageError(
            f"--group {name}: no such group ({there})",
            hint="name its nodes, --group NAME=node,node, or an inventory with --expect",
        )
    return name, inventory[name]


def _inventory(place: Path) -> Mapping[str, tuple[str, ...]]:
    """Group -> nodes; a list of nodes is the group `all`."""
    if not place.is_dir():
        data = _content(place, _MOST_LIST)
        if isinstance(data, str):
            raise UsageError(
                f"--expect {place}: {data}", hint="name a list of nodes, or an inventory"
            )
        names = names_of(data)
        if names is not None:
            return {"all": names}
        found = inventory_of(data)
        if found is not None:
            return found
    return _asked(place)


def _asked(place: Path) -> Mapping[str, tuple[str, ...]]:
    """Let Ansible read its own inventory."""
    import subprocess

    hint = "or write `ansible-inventory -i INVENTORY --list` into a file, and name that"
    words = ["ansible-inventory", "-i", str(place), "--list"]
    try:
        done = subprocess.run(
            words, capture_output=True, timeout=_INVENTORY_TIMEOUT, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        raise HostError(
            f"--expect {place} is no list of nodes, and there is no ansible-inventory to read it",
            hint=f"put it on PATH, {hint}",
            code="no-inventory",
        ) from None
    except subprocess.TimeoutExpired:
        raise HostError(
            f"ansible-inventory -i {place} took more than {_INVENTORY_TIMEOUT:.0f} s",
            hint=f"look at it by hand, {hint}",
            code="no-inventory",
        ) from None
    found = inventory_of(done.stdout) if done.returncode == 0 else None
    if found is None or not found["all"]:
        said = done.stderr.decode("utf-8", "replace").strip()[-500:] or "it names no node"
        raise UsageError(
            f"--expect {place} cannot be read as an inventory: {said}",
            hint="name a list of nodes, one a line, or an inventory of Ansible",
            code="no-inventory",
        )
    return found
