"""Which machine this is and which GPUs it has: what evidence is valid for. Reads disk only."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sm120patch.host import nvml
from sm120patch.known import WAYS
from sm120patch.model import digest_of


@dataclass(frozen=True)
class Gpu:
    """One GPU, numbered in PCI order as NVML does (not as CUDA_VISIBLE_DEVICES may)."""

    index: int
    name: str
    uuid: str
    compute_capability: str
    """`12.0`, as in the catalogue."""
    memory_bytes: int | None
    pci_bus_id: str


class Link(NamedTuple):
    """The way between two GPUs."""

    one: int
    other: int
    path: str
    """`NVLINK`, or `PIX`, `PXB`, `PHB`, `NODE`, `SYS` as in `nvidia-smi topo -m`, or `unknown`."""
    p2p: str
    """`ok`, why the driver refuses peer reads, or `unknown`. `ok` does not prove correct data."""


class Host(NamedTuple):
    """A host as a verification sees it."""

    machine_id: str
    machine_id_source: str
    """`machine-id`, `dmi`, `gpus` or `hostname`: see `identify`."""
    gpus: tuple[Gpu, ...]
    links: tuple[Link, ...]
    driver: str | None
    reason: str | None
    """Why there are no GPUs in this answer; None when there are."""
    virtual: bool
    """A hypervisor runs this kernel."""

    @property
    def compute_capabilities(self) -> tuple[str, ...]:
        """Capabilities of the GPUs, each once, sorted; empty when there are none."""
        return tuple(sorted({gpu.compute_capability for gpu in self.gpus}))

    @property
    def topology(self) -> tuple[str, ...]:
        """Words that published results are matched against.

        `N-gpus`; `virtual-machine` or `bare-metal`; with several GPUs `p2p`, `no-p2p` or
        `p2p-unknown`, and the longest way: `nvlink`, `one-switch` (PIX, PXB), `one-host-bridge`
        (PHB), `one-node` (NODE), `cross-node` (SYS) or `path-unknown`; `pcie` where that is known
        and no NVLink.
        """
        words = [f"{len(self.gpus)}-gpus", "virtual-machine" if self.virtual else "bare-metal"]
        if not self.links:
            return tuple(words)
        states = {link.p2p for link in self.links}
        if states == {"ok"}:
            words.append("p2p")
        else:
            words.append("no-p2p" if states - {"ok", "unknown"} else "p2p-unknown")
        paths = {link.path for link in self.links}
        longest = max(paths, key=list(WAYS).index) if paths <= set(WAYS) else "unknown"
        words.append(WAYS.get(longest, "path-unknown"))
        if longest in WAYS and longest != "NVLINK":
            words.append("pcie")
        return tuple(words)

    @property
    def fingerprint(self) -> str:
        """Digest of what a measurement is valid for: machine, GPU models and count, topology."""
        return digest_of(
            {
                "machine": self.machine_id,
                "gpus": [gpu.name for gpu in self.gpus],
                "links": [[link.one, link.other, link.path, link.p2p] for link in self.links],
            }
        )


def probe() -> Host:
    """Look at this host; takes at most `nvml.TIMEOUT` seconds and never fails."""
    facts = nvml.facts()
    uuids = [gpu["uuid"] for gpu in facts["gpus"]]
    return assemble(facts, identify(uuids), virtual=_is_virtual())


def assemble(facts: Mapping[str, Any], identity: tuple[str, str], *, virtual: bool) -> Host:
    """Put together what was found: NVML's answer, and what `identify` says."""
    return Host(
        machine_id=identity[0],
        machine_id_source=identity[1],
        gpus=tuple(Gpu(**gpu) for gpu in facts["gpus"]),
        links=tuple(Link(*link) for link in facts["links"]),
        driver=facts["driver"],
        reason=facts["reason"],
        virtual=virtual,
    )


def identify(uuids: Sequence[str], root: Path = Path("/")) -> tuple[str, str]:
    """Return an identifier of this machine and where it is from.

    `/etc/machine-id` first, then the DMI product UUID (readable by root), the UUIDs of the GPUs,
    the host name. In a container `/etc/machine-id` belongs to the image and is the same on every
    host that runs it, so there it is left out: evidence must not travel with an image.
    """
    if not in_container(root) and (text := _read(root / "etc/machine-id")):
        return text, "machine-id"
    if text := _read(root / "sys/class/dmi/id/product_uuid"):
        return text, "dmi"
    if uuids:
        return digest_of(sorted(uuids))[:32], "gpus"
    return os.uname().nodename, "hostname"


def in_container(root: Path = Path("/")) -> bool:
    """Tell whether this process runs in a container of one of the usual engines."""
    if any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv")):
        return True
    environment = _read(root / "proc/1/environ")
    if any(entry.startswith("container=") for entry in environment.split("\0")):
        return True
    groups = _read(root / "proc/1/cgroup")
    return any(word in groups for word in ("docker", "kubepods", "containerd", "libpod"))


def _is_virtual() -> bool:
    flags = (line for line in _read(Path("/proc/cpuinfo")).splitlines() if line[:5] == "flags")
    return "hypervisor" in next(flags, "").split()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip().strip("\0")
    except OSError:
        return ""


def describe(host: Host) -> Mapping[str, Any]:
    """JSON-ready form of a host for evidence and `--output json`."""
    return {
        "machine_id": host.machine_id,
        "machine_id_source": host.machine_id_source,
        "fingerprint": host.fingerprint,
        "driver": host.driver,
        "topology": list(host.topology),
        "gpus": [vars(gpu) for gpu in host.gpus],
        "reason": host.reason,
    }
