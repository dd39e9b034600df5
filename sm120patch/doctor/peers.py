"""Judges what decides an all-reduce: peer access, ancestors, links, IOMMU, ACS, NUMA. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sm120patch.doctor.checks import Check, Status
from sm120patch.doctor.readings import Readings
from sm120patch.doctor.topology import Slot, Topology, Way

_ONE_SHOT = {2: None, 4: 120, 8: 48}
"""GPUs -> kilobytes up to which one-shot kernels were reported to win; None: no report."""


def checks(readings: Readings, topology: Topology) -> Iterator[Check]:
    """Everything between the GPUs; a host with one has nothing to reduce."""
    if len(topology.slots) < 2:
        if topology.slots:
            yield Check("topology", Status.INFO, "one GPU: there is nothing to reduce")
            yield from _links(topology)
        yield _virtualization(readings, peers=False)
        return
    yield _p2p(topology)
    yield _ancestors(topology)
    yield from _links(topology)
    yield _virtualization(readings, peers=True)
    yield _iommu(readings)
    yield _acs(readings, topology)
    yield _numa(topology)
    yield _message_size(topology)


def _p2p(topology: Topology) -> Check:
    found = Counter(way.p2p for way in topology.ways)
    facts = {"pairs": dict(found)}
    refused = {state: n for state, n in found.items() if state not in ("ok", "unknown")}
    total = len(topology.ways)
    if refused:
        listed = ", ".join(f"{count} of {total} pairs: {state}" for state, count in refused.items())
        hint = (
            "without peer access an all-reduce goes through host memory; in a virtual machine the"
            " host decides"
        )
        return Check("p2p", Status.WARNING, f"no peer access ({listed})", hint, facts)
    if found["unknown"]:
        return Check(
            "p2p", Status.UNKNOWN, "the driver does not say whether peers reach", facts=facts
        )
    text = (
        f"the driver grants peer access to every pair ({total}); that does not prove correct data"
    )
    return Check("p2p", Status.OK, text, None, facts)


def _ancestors(topology: Topology) -> Check:
    shown = Counter(_meeting(way) for way in topology.ways)
    text = ", ".join(f"{count} x {what}" for what, count in sorted(shown.items()))
    pairs = [
        {"gpus": [w.one, w.other], "path": w.path, "p2p": w.p2p, "ancestor": w.ancestor}
        for w in topology.ways
    ]
    paths = {way.path for way in topology.ways}
    facts = {"pairs": pairs}
    if "unknown" in paths:
        return Check("ancestor", Status.UNKNOWN, f"the ways between GPUs: {text}", None, facts)
    if paths & {"NODE", "SYS"}:
        hint = "keep a tensor-parallel group below one root complex where you can"
        return Check("ancestor", Status.WARNING, f"transfers cross the CPU: {text}", hint, facts)
    return Check("ancestor", Status.OK, text, None, facts)


def _meeting(way: Way) -> str:
    kind = way.ancestor.partition(" ")[0]
    where = {"bridge": "switch", "root": "root complex", "none": "nothing"}.get(kind)
    if way.path == "NVLINK":
        return "NVLink"
    return f"{way.path} (in common: {where})" if where else way.path


def _links(topology: Topology) -> Iterator[Check]:
    facts = {"gpus": [_link_facts(slot) for slot in topology.slots]}
    faults = [text for slot in topology.slots if (text := _narrow(slot))]
    if faults:
        hint = "reseat the card, or look at the slot's bifurcation and the riser"
        yield Check("pcie-link", Status.WARNING, "; ".join(faults), hint, facts)
        return
    shown = Counter(_shown(slot) for slot in topology.slots)
    if None in shown:
        silent = [slot for slot in topology.slots if _shown(slot) is None]
        reason = f": {silent[0].reason}" if silent[0].reason else ""
        text = f"GPU {', '.join(str(s.gpu) for s in silent)}: nobody tells the link{reason}"
        yield Check("pcie-link", Status.UNKNOWN, text, None, facts)
        return
    text = ", ".join(f"{count} x {what}" for what, count in shown.items())
    yield Check("pcie-link", Status.OK, text, None, facts)


def _shown(slot: Slot) -> str | None:
    reach = slot.path_generation or slot.able_generation
    return f"PCIe {reach} x{slot.width}" if reach and slot.width else None


def _narrow(slot: Slot) -> str | None:
    if slot.width and slot.able_width and slot.width < slot.able_width:
        return f"GPU {slot.gpu} runs at x{slot.width}, it can x{slot.able_width}"
    reach, able = slot.path_generation, slot.able_generation
    if reach and able and reach < able:
        return f"GPU {slot.gpu} sits behind PCIe {reach}, it can PCIe {able}"
    return None


def _link_facts(slot: Slot) -> dict[str, object]:
    return {
        "gpu": slot.gpu,
        "address": slot.address,
        "root": slot.root,
        "generation": slot.generation,
        "path_generation": slot.path_generation,
        "able_generation": slot.able_generation,
        "width": slot.width,
        "able_width": slot.able_width,
    }


def _virtualization(readings: Readings, *, peers: bool) -> Check:
    answer = readings.machine
    if answer.value is None:
        return Check("virtualization", Status.UNKNOWN, f"virtualization: {answer.reason}")
    named = " ".join(filter(None, [answer.get("vendor"), answer.get("product")]))
    facts = {"virtual": readings.host.virtual, "product": named}
    if not readings.host.virtual:
        text = "bare metal" + (f" ({named})" if named else "")
        return Check("virtualization", Status.OK, text, None, facts)
    text = "virtual machine" + (f" ({named})" if named else "")
    if not peers:
        return Check("virtualization", Status.INFO, text, None, facts)
    hint = "peer access, ACS and IOMMU are set on its host; what is read in here is the guest's"
    return Check("virtualization", Status.WARNING, text, hint, facts)


def _iommu(readings: Readings) -> Check:
    types = {answer.get("iommu_type") or "" for answer in readings.pci if answer.value is not None}
    silent = [answer for answer in readings.pci if answer.value is None]
    words = str(readings.machine.get("cmdline") or "").split()
    options = [word for word in words if "iommu" in word]
    facts = {"types": sorted(types), "options": options}
    if silent and not types:
        return Check("iommu", Status.UNKNOWN, f"the IOMMU: {silent[0].reason}", None, facts)
    if types == {""}:
        groups = readings.machine.get("iommu_groups")
        if groups:
            return Check("iommu", Status.UNKNOWN, "the GPUs are in no IOMMU group", None, facts)
        if readings.host.virtual:
            text = "the IOMMU is that of the virtual machine's host, which is not seen from here"
            return Check("iommu", Status.UNKNOWN, text, None, facts)
        return Check("iommu", Status.OK, "off", None, facts)
    if types == {"identity"}:
        return Check("iommu", Status.OK, "pass-through (identity)", None, facts)
    text = f"translates the GPUs' transfers ({', '.join(sorted(types - {''}))})"
    hint = "peer transfers may fail or go astray; boot with iommu=pt, then test with real data"
    return Check("iommu", Status.WARNING, text, hint, facts)


def _acs(readings: Readings, topology: Topology) -> Check:
    redirected = [way for way in topology.ways if way.redirected]
    unknown = [way for way in topology.ways if way.redirected is None]
    facts = {"redirected_pairs": len(redirected), "unknown_pairs": len(unknown)}
    if redirected:
        text = f"ACS sends the transfers of {len(redirected)} pairs up to the root complex"
        hint = "switch ACS redirection off on those bridges (setpci), or in the firmware"
        return Check("acs", Status.WARNING, text, hint, facts)
    if readings.host.virtual and any(way.path != "NVLINK" for way in topology.ways):
        text = "the bridges are those of the virtual machine's host, which are not seen from here"
        return Check("acs", Status.UNKNOWN, text, None, facts)
    if unknown:
        reasons = [a.reason for a in readings.pci if a.reason]
        text = f"ACS of {len(unknown)} pairs: {reasons[0] if reasons else 'not readable'}"
        return Check("acs", Status.UNKNOWN, text, "run doctor as root to read it", facts)
    return Check("acs", Status.OK, "no bridge on the way redirects", None, facts)


def _numa(topology: Topology) -> Check:
    nodes = {slot.gpu: slot.node for slot in topology.slots}
    facts = {"nodes": nodes}
    known = {node for node in nodes.values() if node is not None}
    if None in nodes.values() and len(known) != 1:
        return Check(
            "numa", Status.UNKNOWN, "the kernel names no NUMA node for the GPUs", facts=facts
        )
    if len(known) > 1:
        counted = Counter(nodes.values())
        text = ", ".join(
            f"{count} GPUs on node {node}" for node, count in sorted(counted.items(), key=str)
        )
        hint = "bind each rank to the node of its GPU; an all-reduce over both crosses the sockets"
        return Check("numa", Status.WARNING, text, hint, facts)
    return Check("numa", Status.OK, f"all on node {next(iter(known))}", None, facts)


def _message_size(topology: Topology) -> Check:
    count = len(topology.slots)
    best = _ONE_SHOT.get(count)
    rule = "an all-reduce moves rows x hidden size x 2 bytes"
    if best is None:
        return Check("message-size", Status.INFO, f"{rule}; no published bound for {count} GPUs")
    rows = best * 1024 // (8192 * 2)
    text = (
        f"{rule}; one-shot kernels were reported to win up to about {best} KB on {count} GPUs:"
        f" {rows} rows of a model with hidden size 8192"
    )
    return Check("message-size", Status.INFO, text, None, {"one_shot_kilobytes": best})
