"""Why a set can or cannot work on this host: checks, topology, outlook of sets, idle flags."""

from __future__ import annotations

from sm120patch.doctor.checks import Check, Status
from sm120patch.doctor.flags import IdleFlag, Setting
from sm120patch.doctor.gathering import Source, gather
from sm120patch.doctor.outlook import Outlook, SetOutlook
from sm120patch.doctor.readings import Readings
from sm120patch.doctor.topology import Topology

__all__ = [
    "Check",
    "IdleFlag",
    "Outlook",
    "Readings",
    "SetOutlook",
    "Setting",
    "Source",
    "Status",
    "Topology",
    "gather",
]
