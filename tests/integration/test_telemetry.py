"""Telemetry through real processes: the shipped meter on this host, and meters that misbehave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from sm120patch.host import meter, nvml
from sm120patch.verify.telemetry import POINTS, Meter, declared, in_words, metering
from tests.support.serving import wait_for

TALKS = """
import json, time
print(json.dumps({"gpus": [{"name": "A", "power_limit_w": 600.0}, {"name": "B"}]}), flush=True)
print("driver chatter that is no JSON", flush=True)
while True:
    rows = [[250.0, 2400, 9000, 98, 50, 1 << 30, 61, 0x04], [None] * 8]
    print(json.dumps({"t": time.monotonic(), "values": rows}), flush=True)
    time.sleep(0.01)
"""


def test_this_host_answers_or_says_why_not() -> None:
    begin = time.monotonic()
    with metering() as found:
        wait_for(lambda: found.readings or "not answered" not in (found.reason or ""))
    summary = found.between(begin, time.monotonic())
    if nvml.facts()["gpus"]:
        assert summary["source"] == "nvml"
    else:
        assert summary["source"] == "none" and summary["reason"]
    json.dumps(summary, allow_nan=False)


def test_readings_are_summed_up_for_a_span() -> None:
    with metering([sys.executable, "-c", TALKS]) as found:
        wait_for(lambda: len(found.readings) >= 5)
        start = time.monotonic()
        count = len(found.readings)
        wait_for(lambda: len(found.readings) >= count + 5)
        end = time.monotonic()
        summary = found.between(start, end)
        assert found.between(start - 100, start - 90)["source"] == "none"
    first, second = summary["gpus"]
    assert first["power_w"] == {"mean": 250.0, "min": 250.0, "max": 250.0}
    assert first["throttled"] == {"power-cap": 1.0}
    assert second["power_w"] is None and second["throttled"] == {}
    series = summary["series"]
    assert len(series["t"]) == len(series["power_w"][0]) == summary["readings"]


def test_a_start_is_summed_up_in_words() -> None:
    row = [250.0, 2400, 9000, 98, 50, 1 << 30, 61, 0x04]
    gpus = [{"name": "A", "power_limit_w": 600.0}, {"name": "A", "power_limit_w": 600.0}]
    found = Meter(reason=None, gpus=gpus, began=0.0)
    found.readings = [(float(t), [row, [*row[:7], 0]]) for t in range(10)]
    text = in_words(found.between(0, 100))
    assert text == "2 GPUs: 250 W of 600 W, 98 % busy, 2400 MHz; throttled: power-cap 100 %"
    assert in_words(found.between(200, 300)) is None
    simulated = declared({"simulated": True, "gpus": [{"name": "X", "power_watts": 125.0}]})
    assert simulated is not None and in_words(simulated) == "1 GPU: 125 W"


def test_a_driver_that_hangs_holds_nothing_up() -> None:
    begin = time.monotonic()
    with metering([sys.executable, "-c", "import time; time.sleep(600)"]) as found:
        summary = found.between(begin, time.monotonic())
    assert summary == {"source": "none", "reason": "NVML has not answered yet"}
    assert time.monotonic() - begin < 60, "and not the 600 s of the meter"
    own = os.getpid()
    listing = subprocess.run(["ps", "-o", "args=", "--ppid", str(own)], capture_output=True)
    assert b"time.sleep(600)" not in listing.stdout, "the meter is ended"


def test_a_meter_that_cannot_be_run_is_a_reason(tmp_path: Path) -> None:
    with metering([str(tmp_path / "missing")]) as found:
        assert found.between(0, time.monotonic())["source"] == "none"
    assert "cannot run" in (found.reason or "")


def test_a_long_series_is_thinned() -> None:
    found = Meter(reason=None, gpus=[{"name": "A"}], began=0.0)
    found.readings = [(float(t), [[1.0 * t, *[None] * 7]]) for t in range(10_000)]
    summary = found.between(0, 1e9)
    assert summary["readings"] == 10_000
    series = summary["series"]
    assert len(series["t"]) <= POINTS
    assert summary["gpus"][0]["power_w"]["max"] == 9999.0


def test_the_fields_of_a_reading_are_those_of_the_meter() -> None:
    assert len(meter.FIELDS) == 8


def test_a_simulated_host_declares_its_power() -> None:
    info = {"simulated": True, "gpus": [{"name": "X", "power_watts": 125.0}, "nonsense"]}
    found = declared(info)
    assert found is not None and found["source"] == "declared"
    assert found["gpus"][0]["power_w"]["mean"] == 125.0
    assert declared({**info, "simulated": False}) is None
