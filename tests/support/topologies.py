"""Hosts for doctor to look at: NVML's answer and a tree of sysfs and /proc each.

`recorded/*.json` is what real hosts answered. Everything that `constructed` makes is our own: of
the reports named with each only the facts in `from_report` are known, all other values are chosen.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from sm120patch.doctor.gathering import Source

RECORDED = Path(__file__).with_name("recorded")
PRO_6000 = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
GEN = {3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}


@dataclass(frozen=True)
class Card:
    """One GPU: bridges above it from the root port down, and what its slot gives."""

    bridges: tuple[str, ...]
    root: str = "pci0000:00"
    node: int = 0
    name: str = PRO_6000
    capability: str = "12.0"
    width: int = 16
    bridge_generation: int = 5
    memory: int | None = 96 << 30


@dataclass(frozen=True)
class Machine:
    """A constructed host."""

    cards: tuple[Card, ...]
    from_report: str
    p2p: str = "ok"
    virtual: bool = False
    iommu: str = ""
    acs: bool | None = False
    """Redirection on every bridge; None: configuration space is cut off, as without privileges."""
    driver: str = "580.95.05"
    cuda: str = "13.0"
    paths: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """NVML's path of a pair where it is not what the bridges come to."""


def eight_cards(**changes: Any) -> tuple[Card, ...]:
    """Two sockets, four root ports each."""
    return tuple(
        Card((f"0000:{bus:02x}:01.0",), root=f"pci0000:{bus:02x}", node=position // 4, **changes)
        for position, bus in enumerate((0x10, 0x20, 0x30, 0x40, 0x80, 0x90, 0xA0, 0xB0))
    )


CONSTRUCTED: Mapping[str, Machine] = {
    "2-gpus-one-root-complex": Machine(
        (Card(("0000:00:01.0",)), Card(("0000:00:03.0",))),
        from_report="2 GPUs on one PCIe root complex (known result: +2 to +5 %)",
    ),
    "4-gpus-one-switch": Machine(
        tuple(Card(("0000:00:01.0", "0000:01:00.0", f"0000:02:0{i}.0")) for i in range(4)),
        from_report="4 GPUs, PCIe only (known result: a substantial regression)",
    ),
    "4-gpus-acs-and-iommu": Machine(
        tuple(Card(("0000:00:01.0", "0000:01:00.0", f"0000:02:0{i}.0")) for i in range(4)),
        from_report="IOMMU mode and ACS redirect decide (field notes; no host is described)",
        iommu="DMA-FQ",
        acs=True,
    ),
    "8-gpus-virtual-machine-no-p2p": Machine(
        tuple(Card((), root="pci0000:00", node=-1) for _ in range(8)),
        from_report="8 GPUs in a virtual machine without P2P: 1867 -> 236 tokens/s",
        p2p="chipset-not-supported",
        virtual=True,
    ),
    "8-gpus-two-sockets": Machine(
        eight_cards(),
        from_report="8 SM120 GPUs on two sockets, every transfer crosses the CPU",
        acs=None,
    ),
    "2-gpus-narrow-slots": Machine(
        (
            Card(("0000:00:01.0",), name="NVIDIA GeForce RTX 5090", width=8, memory=32 << 30),
            Card(
                ("0000:00:03.0",),
                name="NVIDIA GeForce RTX 5090",
                bridge_generation=4,
                memory=32 << 30,
            ),
        ),
        from_report="PCIe generation and width decide (field notes; no host is described)",
        p2p="not-supported",
    ),
    "dgx-spark": Machine(
        (Card(("000f:00:00.0",), "pci000f:00", -1, "NVIDIA GB10", "12.1", memory=None),),
        from_report="DGX Spark: one GB10, compute capability 12.1, memory shared with the host",
    ),
    "12.0-beside-12.1": Machine(
        (Card(("0000:00:01.0",)), Card(("0000:00:03.0",), name="NVIDIA GB10", capability="12.1")),
        from_report="nothing: a host that nobody has, for what differs between GPUs",
    ),
}


@dataclass(frozen=True)
class Replay:
    """One host below a directory."""

    root: Path
    answer: dict[str, Any]

    def source(self, limit: float = 10.0) -> Source:
        return Source(self.root, lambda: self.answer, limit)


def recorded(name: str, root: Path) -> Replay:
    """Lay out what a real host answered."""
    document = json.loads((RECORDED / f"{name}.json").read_text())
    assert document["origin"] == "recorded" and document["about"]
    for path, text in document["files"].items():
        data = base64.b64decode(text) if path.startswith("base64:") else text.encode()
        put(root, path.removeprefix("base64:"), data)
    for path, to in document["links"].items():
        link(root, path, to)
    return Replay(root, document["nvml"])


def constructed(machine: str | Machine, root: Path) -> Replay:
    """Lay out a host of `CONSTRUCTED`, or a variation of one."""
    made = CONSTRUCTED[machine] if isinstance(machine, str) else machine
    flags = "flags : fpu hypervisor\n" if made.virtual else "flags : fpu vme\n"
    put(root, "proc/cpuinfo", flags.encode())
    put(root, "proc/meminfo", b"MemTotal: 263998500 kB\nMemAvailable: 253998500 kB\n")
    put(root, "proc/cmdline", b"quiet\n")
    put(root, "etc/machine-id", b"0123456789abcdef\n")
    gpus, places = [], []
    for index, card in enumerate(made.cards):
        place = _device(root, made, index, card)
        places.append(place)
        gpus.append(
            {
                "index": index,
                "name": card.name,
                "uuid": f"GPU-{index:08x}",
                "compute_capability": card.capability,
                "memory_bytes": card.memory,
                "pci_bus_id": f"0000{place[-1]}".upper(),
            }
        )
    answer = {
        "driver": made.driver,
        "cuda": made.cuda,
        "gpus": gpus,
        "links": [
            [i, j, made.paths.get((i, j)) or _path(made, places, i, j), made.p2p]
            for i, j in combinations(range(len(gpus)), 2)
        ],
        "processes": [],
        "devices": [{"mig": 0} for _ in gpus],
        "reason": None,
    }
    return Replay(root, answer)


def with_toolkit(root: Path, release: str = "12.9") -> None:
    """A stand-in for a CUDA toolkit at the default place, and the tools beside it."""
    script = f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.0'\n"
    put(root, "usr/local/cuda/bin/nvcc", script.encode(), 0o755)
    for name in ("ninja", "c++"):
        put(root, f"usr/bin/{name}", b"#!/bin/sh\n", 0o755)
    for name in ("libcudart.so", "stubs/libcuda.so"):
        put(root, f"usr/local/cuda/lib64/{name}", b"")


def changed(name: str, **changes: Any) -> Machine:
    return replace(CONSTRUCTED[name], **changes)


def _device(root: Path, made: Machine, index: int, card: Card) -> tuple[str, ...]:
    """Bridges and GPU below sysfs; returns the addresses from the root down."""
    address = f"0000:{0xC1 + index:02x}:00.0" if card.bridges else f"0000:00:{index + 6:02x}.0"
    chain = (*card.bridges, address)
    base = f"sys/devices/{card.root}"
    for position, name in enumerate(chain):
        base = f"{base}/{name}"
        gpu = position == len(chain) - 1
        _links(root, base, card, gpu)
        if not gpu:
            put(root, f"{base}/config", _config(made.acs))
        if made.iommu:
            group = 10 + index if gpu else 1
            put(root, f"sys/kernel/iommu_groups/{group}/type", f"{made.iommu}\n".encode())
            link(root, f"{base}/iommu_group", root / f"sys/kernel/iommu_groups/{group}")
    put(root, f"{base}/numa_node", f"{card.node}\n".encode())
    link(root, f"sys/bus/pci/devices/{address}", root / base)
    return chain


def _links(root: Path, base: str, card: Card, gpu: bool) -> None:
    speed = GEN[5] if gpu else GEN[card.bridge_generation]
    now = GEN[min(5 if gpu else card.bridge_generation, card.bridge_generation)]
    put(root, f"{base}/class", b"0x030200\n" if gpu else b"0x060400\n")
    put(root, f"{base}/max_link_speed", f"{speed}\n".encode())
    put(root, f"{base}/current_link_speed", f"{now}\n".encode())
    put(root, f"{base}/max_link_width", b"16\n")
    put(root, f"{base}/current_link_width", f"{card.width}\n".encode())


def _config(acs: bool | None) -> bytes:
    """Configuration space of a bridge: one extended capability before ACS, as is usual."""
    space = bytearray(64 if acs is None else 4096)
    if acs is not None:
        space[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
        space[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
        space[0x14E:0x150] = (0x001D if acs else 0x0011).to_bytes(2, "little")
    return bytes(space)


def _path(made: Machine, places: list[tuple[str, ...]], one: int, other: int) -> str:
    shared = set(places[one][:-1]) & set(places[other][:-1])
    a, b = made.cards[one], made.cards[other]
    if shared:
        return "PIX"
    if a.root == b.root:
        return "PHB"
    return "NODE" if a.node == b.node else "SYS"


def put(root: Path, path: str, data: bytes, mode: int = 0o644) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    file.chmod(mode)


def link(root: Path, path: str, to: str | Path) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink():
        target = os.path.relpath(to, place.parent) if isinstance(to, Path) else to
        place.symlink_to(target)
