"""Reads power, clocks, load and memory of every GPU again and again. Reads the driver only.

Runs as a script in a process of its own, because a call into a sick driver may never return: one
JSON line for the GPUs, then one for each reading, until nobody reads them any more. A host
without library, driver or GPU gets one line with the reason.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

FIELDS = ("power_w", "sm_mhz", "mem_mhz", "util", "mem_util", "mem_bytes", "temp_c", "reasons")
"""Order of the numbers of one GPU in a reading; null where the driver does not tell."""

_CLOCK_SM, _CLOCK_MEM, _TEMPERATURE_GPU = 1, 2, 0  # nvmlClockType_t, nvmlTemperatureSensors_t


def main(interval: float) -> None:
    """Print readings until the reader is gone."""
    try:
        import pynvml
    except ImportError:
        _say({"reason": "nvidia-ml-py is not installed"})
        return
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    except pynvml.NVMLError as error:
        _say({"reason": f"no NVIDIA driver: {error}"})
        return
    if not handles:
        _say({"reason": "the NVIDIA driver sees no GPU"})
        return
    _say({"gpus": [_describe(pynvml, handle) for handle in handles]})
    while True:
        moment = time.monotonic()  # the same clock in every process of this host
        _say({"t": moment, "values": [_read(pynvml, handle) for handle in handles]})
        time.sleep(max(0.0, moment + interval - time.monotonic()))


def _describe(pynvml: Any, handle: Any) -> dict[str, Any]:
    name = _try(pynvml, lambda: pynvml.nvmlDeviceGetName(handle))
    limit = _try(pynvml, lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    return {"name": text, "power_limit_w": None if limit is None else limit / 1000}


def _read(pynvml: Any, handle: Any) -> list[float | None]:
    """One value for each of FIELDS."""
    milliwatts = _try(pynvml, lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
    rates = _try(pynvml, lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    memory = _try(pynvml, lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    return [
        None if milliwatts is None else milliwatts / 1000,
        _try(pynvml, lambda: pynvml.nvmlDeviceGetClockInfo(handle, _CLOCK_SM)),
        _try(pynvml, lambda: pynvml.nvmlDeviceGetClockInfo(handle, _CLOCK_MEM)),
        None if rates is None else rates.gpu,
        None if rates is None else rates.memory,
        None if memory is None else int(memory),
        _try(pynvml, lambda: pynvml.nvmlDeviceGetTemperature(handle, _TEMPERATURE_GPU)),
        _try(pynvml, lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
    ]


def _try(pynvml: Any, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except pynvml.NVMLError:
        return None


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main(float(sys.argv[1]))
