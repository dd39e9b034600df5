"""Gathers what doctor goes by, each reading with a time limit of its own.

Reads NVML, sysfs, /proc and the disk through child processes, or a recorded tree in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm120patch.doctor.readings import Readings
from sm120patch.host import bounded, machine, nvml
from sm120patch.host.bounded import Answer, Question


@dataclass(frozen=True)
class Source:
    """Where readings come from: this host, or a tree that was recorded on another."""

    root: Path = Path("/")
    nvml: Callable[[], Mapping[str, Any]] = nvml.facts
    limit: float = bounded.LIMIT
    """Seconds that one reading may take."""

    def ask(self, questions: Sequence[Question]) -> dict[Question, Answer]:
        """Answer questions of `host.probing`."""
        return bounded.ask(questions, self.root, self.limit)


def gather(source: Source, environ: Mapping[str, str], places: Mapping[str, str]) -> Readings:
    """Read everything. `environ` is that of the serving process, `places` purpose -> directory."""
    facts = source.nvml()
    uuids = [str(gpu["uuid"]) for gpu in facts["gpus"]]
    addresses = [address_of(gpu["pci_bus_id"]) for gpu in facts["gpus"]]
    identity: Question = ("identity", *uuids)
    toolkit = toolkit_question(environ)
    questions: list[Question] = [("machine",), identity, ("memory",), ("servers",), toolkit]
    questions += [("disk", place) for place in places.values()]
    questions += [("pci", address) for address in addresses]
    found = source.ask(questions)
    known = found[identity]
    named = (known.get("machine_id") or "unknown", known.get("source") or "unknown")
    virtual = bool(found[("machine",)].get("hypervisor"))
    return Readings(
        host=machine.assemble(facts, named, virtual=virtual),
        cuda=facts.get("cuda"),
        devices=tuple(facts.get("devices", ())),
        machine=found[("machine",)],
        pci=tuple(found[("pci", address)] for address in addresses),
        memory=found[("memory",)],
        disks={purpose: found[("disk", place)] for purpose, place in places.items()},
        toolkit=found[toolkit],
        servers=found[("servers",)],
        environ=environ,
    )


def toolkit_question(environ: Mapping[str, str]) -> Question:
    """What FlashInfer's rules for the toolkit go by, as a question."""
    names = {"CUDA_HOME": "", "CUDA_PATH": "", "PATH": "", "FLASHINFER_NVCC": "", "CXX": "c++"}
    return ("toolkit", *(environ.get(name) or default for name, default in names.items()))


def address_of(bus_id: str) -> str:
    """NVML's `00000000:01:00.0` in the spelling of sysfs: `0000:01:00.0`."""
    return bus_id.lower()[-12:]
