"""What doctor goes by, as it was read: a value, nothing in it is judged yet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sm120patch.host.bounded import Answer
from sm120patch.host.machine import Host


@dataclass(frozen=True)
class Readings:
    """Everything that was read of a host."""

    host: Host
    cuda: str | None
    """Newest CUDA release that the driver runs."""
    devices: tuple[Mapping[str, int], ...]
    """PCIe link and MIG mode as NVML tells them, by GPU."""
    machine: Answer
    pci: tuple[Answer, ...]
    """The way up to the root complex, by GPU."""
    memory: Answer
    disks: Mapping[str, Answer]
    """Purpose -> the disk it uses."""
    toolkit: Answer
    servers: Answer
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables that builds would run with."""
