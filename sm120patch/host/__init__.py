"""The host: which machine and GPUs, who uses the environment, which servers run. Reads only."""

from __future__ import annotations

from sm120patch.host.machine import Gpu, Host, Link, describe, probe
from sm120patch.host.processes import (
    Listener,
    LiveProcess,
    ServerProcess,
    gone_libraries,
    listening_pid,
    mapping_libraries,
    processes_using,
    programs_of,
    running_sglang_servers,
)

__all__ = [
    "Gpu",
    "Host",
    "Link",
    "Listener",
    "LiveProcess",
    "ServerProcess",
    "describe",
    "gone_libraries",
    "listening_pid",
    "mapping_libraries",
    "probe",
    "processes_using",
    "programs_of",
    "running_sglang_servers",
]
