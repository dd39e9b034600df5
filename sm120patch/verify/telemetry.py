"""What the GPUs did while a server was measured: power, clocks, load, throttling, memory.

Starts `host.meter` in a process of its own and ends it; nothing waits for a driver that hangs.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from sm120patch.host import meter

INTERVAL = 0.5
"""Seconds between two readings."""
POINTS = 240
"""Most points of a series that are kept for one server start."""
_READINGS = 200_000  # more than a day; then the oldest half is dropped
_LINE = 1 << 16
_GOODBYE = 1.0  # seconds that a killed meter gets; one that is stuck in the driver stays

_REASONS = {
    0x02: "application-clocks",
    0x04: "power-cap",
    0x08: "hardware-slowdown",
    0x10: "sync-boost",
    0x20: "software-thermal",
    0x40: "hardware-thermal",
    0x80: "power-brake",
    0x100: "display-clocks",
}
"""nvmlClocksEventReasons; 0x01, an idle GPU, is no throttling."""
_SERIES = ("power_w", "sm_mhz", "util")
_SUMMARISED = ("power_w", "sm_mhz", "mem_mhz", "util", "mem_util", "mem_bytes", "temp_c")

Reading = tuple[float, list[list[float | None]]]
"""Time of `time.monotonic`, and for each GPU the numbers of `meter.FIELDS`."""


@dataclass
class Meter:
    """Readings of all GPUs of this host while the `with` block of `metering` runs."""

    reason: str | None = "NVML has not answered yet"
    """Why there are no readings; None when there are."""
    gpus: list[Mapping[str, object]] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def between(self, start: float, end: float) -> dict[str, object]:
        """JSON-ready summary and series of a span of `time.monotonic`.

        `series.t` are seconds since the verification began, the other series have one list a GPU.
        """
        found = [r for r in list(self.readings) if start <= r[0] <= end]
        if not found:
            return {"source": "none", "reason": self.reason or "too short for a reading"}
        return {
            "source": "nvml",
            "reason": None,
            "readings": len(found),
            "gpus": [
                {"index": index, **gpu, **_summary([row[1][index] for row in found])}
                for index, gpu in enumerate(self.gpus)
            ],
            "series": _series(found, len(self.gpus), self.began),
        }

    def take(self, line: bytes) -> None:
        """Take in one line of the meter; anything else is left out."""
        try:
            said = json.loads(line)
        except ValueError:
            return
        if "gpus" in said:
            self.gpus, self.reason = said["gpus"], None
        elif "values" in said:
            if len(self.readings) >= _READINGS:
                del self.readings[: _READINGS // 2]
            self.readings.append((said["t"], said["values"]))
        else:
            self.reason = str(said.get("reason"))


def declared(info: Mapping[str, object]) -> dict[str, object] | None:
    """What a simulated server says about its GPUs, in the form of `Meter.between`."""
    gpus = info.get("gpus")
    if info.get("simulated") is not True or not isinstance(gpus, Sequence):
        return None
    known = [gpu for gpu in gpus if isinstance(gpu, Mapping)]
    return {
        "source": "declared",
        "reason": None,
        "readings": 0,
        "gpus": [
            {
                "index": index,
                "name": gpu.get("name"),
                "power_limit_w": None,
                "power_w": _constant(gpu.get("power_watts")),
                "throttled": {},
            }
            for index, gpu in enumerate(known)
        ],
        "series": {},
    }


def in_words(telemetry: Mapping[str, object]) -> str | None:
    """`8 GPUs: 250 W of 600 W, 98 % busy, 2400 MHz; throttled: power-cap 80 %`; None without any.

    Means over the GPUs of the means over time.
    """
    gpus = telemetry.get("gpus")
    if not isinstance(gpus, list) or not gpus:
        return None
    power, limit = _mean(gpus, "power_w"), _plain(gpus, "power_limit_w")
    busy, clock = _mean(gpus, "util"), _mean(gpus, "sm_mhz")
    words = []
    if power is not None:
        words.append(f"{power:.0f} W" + (f" of {limit:.0f} W" if limit is not None else ""))
    if busy is not None:
        words.append(f"{busy:.0f} % busy")
    if clock is not None:
        words.append(f"{clock:.0f} MHz")
    reasons: dict[str, float] = {}
    for gpu in gpus:
        for reason, share in gpu["throttled"].items():
            reasons[reason] = max(reasons.get(reason, 0.0), share)
    held = ", ".join(f"{reason} {100 * share:.0f} %" for reason, share in reasons.items())
    text = f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}: {', '.join(words) or 'no readings'}"
    return text + (f"; throttled: {held}" if held else "")


def _mean(gpus: Sequence[Mapping[str, object]], name: str) -> float | None:
    means = [entry["mean"] for gpu in gpus if isinstance(entry := gpu.get(name), Mapping)]
    return statistics.fmean(means) if means else None


def _plain(gpus: Sequence[Mapping[str, object]], name: str) -> float | None:
    known = [value for gpu in gpus if isinstance(value := gpu.get(name), float)]
    return statistics.fmean(known) if known else None


@contextlib.contextmanager
def metering(command: Sequence[str] | None = None) -> Iterator[Meter]:
    """Read the GPUs for the length of the block; no GPU is a normal answer, see `reason`.

    `command` replaces the meter in tests.
    """
    script = [sys.executable, "-I", str(Path(meter.__file__).absolute()), str(INTERVAL)]
    found = Meter()
    try:
        child = subprocess.Popen(
            command or script,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # ^C is for us; we end it
        )
    except OSError as error:
        found.reason = f"cannot run {sys.executable}: {error.strerror}"
        yield found
        return
    assert child.stdout is not None
    reader = threading.Thread(target=_listen, args=(child.stdout, found), daemon=True)
    reader.start()
    try:
        yield found
    finally:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_GOODBYE)
        reader.join(_GOODBYE)
        if not reader.is_alive():
            child.stdout.close()


def _listen(stream: IO[bytes], found: Meter) -> None:
    while line := stream.readline(_LINE):
        found.take(line)


def _summary(rows: Sequence[Sequence[float | None]]) -> dict[str, object]:
    summary: dict[str, object] = {}
    for name in _SUMMARISED:
        column = meter.FIELDS.index(name)
        values = [value for row in rows if (value := row[column]) is not None]
        summary[name] = (
            {"mean": statistics.fmean(values), "min": min(values), "max": max(values)}
            if values
            else None
        )
    bits = [int(value) for row in rows if (value := row[meter.FIELDS.index("reasons")]) is not None]
    summary["throttled"] = {
        name: share
        for bit, name in _REASONS.items()
        if bits and (share := sum(bool(b & bit) for b in bits) / len(bits))
    }
    return summary


def _series(found: Sequence[Reading], gpus: int, began: float) -> dict[str, object]:
    step = math.ceil(len(found) / POINTS)
    kept = found[::step]
    series: dict[str, object] = {"t": [round(moment - began, 2) for moment, _ in kept]}
    for name in _SERIES:
        column = meter.FIELDS.index(name)
        series[name] = [[rows[index][column] for _, rows in kept] for index in range(gpus)]
    return series


def _constant(value: object) -> dict[str, object] | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return {"mean": value, "min": value, "max": value}
