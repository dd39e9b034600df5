"""What lies between the GPUs of a host: switches, root complexes, links, NUMA nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from sm120patch.doctor.readings import Readings
from sm120patch.host.bounded import Answer

_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
"""GT/s of a lane -> PCI Express generation."""


@dataclass(frozen=True)
class Slot:
    """Where one GPU sits. Generations and widths are None where nobody tells them."""

    gpu: int
    address: str
    root: str | None
    """Root complex (`pci0000:00`)."""
    node: int | None
    """NUMA node."""
    generation: int | None
    """Now; lower than it can be while the GPU idles."""
    width: int | None
    able_generation: int | None
    """What the GPU itself can do."""
    able_width: int | None
    path_generation: int | None
    """What the slowest link up to the root complex can do."""
    reason: str | None = None
    """Why sysfs says nothing about it."""


@dataclass(frozen=True)
class Way:
    """What two GPUs have in common."""

    one: int
    other: int
    path: str
    """As in `nvidia-smi topo -m`, by NVML."""
    p2p: str
    ancestor: str
    """By sysfs: `bridge ADDRESS`, `root complex NAME`, `none` or `unknown`."""
    redirected: bool | None
    """A bridge on the way to that ancestor sends peer transfers upstream (ACS); None: unknown."""


@dataclass(frozen=True)
class Topology:
    """All slots and all ways of a host."""

    slots: tuple[Slot, ...]
    ways: tuple[Way, ...]


def read(readings: Readings) -> Topology:
    """Put NVML's and sysfs' answers together."""
    host, pci = readings.host, readings.pci
    slots = tuple(
        _slot(gpu.index, answer, _at(readings.devices, position))
        for position, (gpu, answer) in enumerate(zip(host.gpus, pci, strict=True))
    )
    links = {(link.one, link.other): link for link in host.links}
    ways = []
    for one, other in combinations(range(len(slots)), 2):
        link = links.get((one, other))
        ancestor, redirected = _ancestor(pci[one], pci[other])
        ways.append(
            Way(
                one=one,
                other=other,
                path=link.path if link else "unknown",
                p2p=link.p2p if link else "unknown",
                ancestor=ancestor,
                redirected=redirected,
            )
        )
    return Topology(slots, tuple(ways))


def _at(devices: tuple[Mapping[str, int], ...], position: int) -> Mapping[str, int]:
    return devices[position] if position < len(devices) else {}


def _slot(index: int, answer: Answer, nvml: Mapping[str, int]) -> Slot:
    hops = answer.get("hops") or []
    first: Mapping[str, Any] = hops[0] if hops else {}
    speeds = [generation(hop.get("max_link_speed", "")) for hop in hops]
    known = [speed for speed in speeds if speed is not None]
    node = answer.get("numa_node")
    return Slot(
        gpu=index,
        address=first.get("address", ""),
        root=answer.get("root"),
        node=_number(node or ""),
        generation=generation(first.get("current_link_speed", "")) or nvml.get("generation"),
        width=_width(first.get("current_link_width", "")) or nvml.get("width"),
        able_generation=generation(first.get("max_link_speed", "")) or nvml.get("max_generation"),
        able_width=_width(first.get("max_link_width", "")) or nvml.get("max_width"),
        path_generation=min(known, default=None),
        reason=answer.reason,
    )


def generation(speed: str) -> int | None:
    """PCIe generation of `16.0 GT/s PCIe`, the way sysfs says it."""
    found = re.match(r"(\d+(?:\.\d)?) GT/s", speed)
    text = found[1] if found else ""
    return _GENERATIONS.get(text if "." in text else f"{text}.0")


def _width(text: str) -> int | None:
    # 0 and 255 stand for "no link" in drivers that do not know.
    number = _number(text)
    return number if number is not None and 0 < number <= 32 else None


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,6}", text) else None


def _ancestor(one: Answer, other: Answer) -> tuple[str, bool | None]:
    if one.value is None or other.value is None:
        return "unknown", None
    hops = [list(answer.value["hops"]) for answer in (one, other) if answer.value]
    above = [{hop["address"]: hop for hop in way[1:]} for way in hops]
    common = next((address for address in above[0] if address in above[1]), None)
    redirected = _redirected(hops, common)
    if common is not None:
        return f"bridge {common}", redirected
    if one.get("root") == other.get("root"):
        return f"root complex {one.get('root')}", redirected
    return "none", redirected


def _redirected(hops: list[list[Mapping[str, Any]]], common: str | None) -> bool | None:
    """ACS counts at the ports below the common ancestor: there a transfer could turn around."""
    states: list[bool | None] = []
    for way in hops:
        for hop in way[1:]:
            if hop["address"] == common:
                break
            states.append(hop.get("acs"))
    if any(states):
        return True
    return None if None in states else False
