"""What the GPUs of this host are, as far as plans and states depend on it.

Asks the driver; writes nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sm120patch.errors import UsageError
from sm120patch.host import driver

if TYPE_CHECKING:
    from sm120patch.host.machine import Host


def capability_of(gpu: str | None, declared: str | None = None) -> str | None:
    """Compute capability to plan for: `--gpu`, a declared (simulated) one, or the driver's answer.

    None when nobody knows, or when GPUs of several capabilities are installed.
    """
    if gpu is not None:
        if not re.fullmatch(r"[0-9]{1,2}\.[0-9]", gpu):
            raise UsageError(
                f"--gpu takes a compute capability such as 12.0, found {gpu!r}",
                hint="RTX PRO 6000 Blackwell and RTX 5090 are 12.0, DGX Spark is 12.1",
            )
        return gpu
    if declared is not None:
        return declared
    host = probe()
    found = host.compute_capabilities if host is not None else ()
    return found[0] if len(found) == 1 else None


def device_names() -> tuple[str, ...] | None:
    """Names of this host's GPUs as the driver spells them; None when there is no driver."""
    host = probe()
    return (tuple(gpu.name for gpu in host.gpus) or None) if host is not None else None


def probe() -> Host | None:
    """What the driver says of this host; without one nothing is loaded to ask it."""
    if not driver.is_present():
        return None
    from sm120patch.host import machine

    return machine.probe()
