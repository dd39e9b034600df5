"""What the comparison of two nodes needs beyond states: measurements, caches, checks. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from sm120patch.fleet.node import Check, Details, Level, Measurement, Module, SetFacts
from sm120patch.fleet.words import moment
from sm120patch.recorded import Record, look, number, record, records, text, texts
from sm120patch.report.measured import ARMS, Measured, blocks_of, measured
from sm120patch.verify.record import VOLATILE

BASELINE, PATCHED = ARMS
KEPT = frozenset(("applied", "verified", "staged", "rejected"))
"""Events whose measurement is of a content; `experiment` is of launch options."""
GPU_FIGURES = ("power_w", "sm_mhz", "mem_mhz", "temp_c")
LIMIT = "power_limit_w"
AT_WORK = "at_work"
_MOST_LEVELS = 100
_MOST_REPEATS = 1000
_MOST_FIELDS = 2000


def details(answers: Mapping[str, Record | None], sets: Mapping[str, SetFacts]) -> Details:
    """Collect them from the results of the commands; None stands for one that was not run."""
    doctor, caches = answers.get("doctor"), answers.get("caches")
    return Details(
        measurement=_newest(answers.get("history"), sets),
        modules=None if caches is None else tuple(_modules(caches)),
        cache_notes=() if caches is None else tuple(_cache_notes(caches)),
        checks={} if doctor is None else _checks(doctor),
        idle_flags=() if doctor is None else tuple(_idle(doctor)),
        collected=tuple(name for name, answer in answers.items() if answer is not None),
    )


def _newest(history: Record | None, sets: Mapping[str, SetFacts]) -> Measurement | None:
    """Newest verification that has figures; the history begins with the newest event."""
    for event in records(history, "events"):
        data = record(event, "evidence", "data")
        if text(event, "kind") in KEPT and record(data, "arms"):
            return _measurement(event, data, sets)
    return None


def _measurement(event: Record, data: Record, sets: Mapping[str, SetFacts]) -> Measurement:
    arm = _arm_on_disk(event)
    number_ = text(event, "evidence", "id", most=40)
    resting = {s.evidence for s in sets.values() if s.evidence}
    readings = [record(b, "telemetry") for _, name, b in blocks_of(data) if name == arm]
    return Measurement(
        at=moment(text(event, "evidence", "at", most=64)),
        event=text(event, "id", most=40),
        kind=text(event, "evidence", "kind", most=40),
        verdict=text(event, "evidence", "verdict", most=40),
        current=number_ in resting if resting else arm == BASELINE,
        levels=tuple(_levels(data, arm)),
        command=text(data, "commands", arm, most=8000),
        server=_server(data, arm),
        gpus=_gpus(readings),
        throttled=_throttled(readings),
        profile=text(event, "evidence", "profile", most=64),
    )


def _arm_on_disk(event: Record) -> str:
    """Arm whose content the event left on disk."""
    end = text(event, "data", "end")
    if end in ("a", "b"):
        return PATCHED if end == "b" else BASELINE
    return BASELINE if text(event, "kind") == "rejected" else PATCHED


def _levels(data: Record, arm: str) -> Iterator[Level]:
    for workload in measured(data)[:_MOST_LEVELS]:
        starts = _starts(workload, arm)
        if starts:
            yield Level(
                workload.name[:100], workload.shape[:300], text(data, "client", most=40), starts,
                _floor(data, workload.name),
            )  # fmt: skip


def _starts(workload: Measured, arm: str) -> tuple[tuple[float, ...], ...]:
    found: dict[int, list[float]] = {}
    for point in workload.points[:_MOST_REPEATS]:
        if point.arm == arm:
            found.setdefault(point.block, []).append(point.value)
    return tuple(tuple(values) for values in found.values())


def _floor(data: Record, workload: str) -> tuple[float, float] | None:
    deviation = number(data, "noise", workload, "floor", "sd")
    freedom = number(data, "noise", workload, "floor", "df")
    if deviation is None or freedom is None or not 0 < deviation < 10 or freedom <= 0:
        return None
    return deviation, freedom


def _server(data: Record, arm: str) -> dict[str, str]:
    info = record(data, "arms", arm, "server_info")
    kept = [key for key in info if key not in VOLATILE and key != "seed"][:_MOST_FIELDS]
    scalars = (str, int, float, bool, type(None))
    return {key[:100]: _scalar(info[key]) for key in kept if isinstance(info[key], scalars)}


def _scalar(value: object) -> str:
    return "null" if value is None else text(value, most=300)


def _gpus(readings: list[Record]) -> dict[str, float]:
    """Means over the GPUs that were at work; one that idles at its lowest clock says nothing."""
    found = {}
    working = [gpu for reading in readings for gpu in _at_work(reading)]
    for name in (*GPU_FIGURES, LIMIT):
        keys = (name,) if name == LIMIT else (name, "mean")
        known = [value for gpu in working if (value := number(gpu, *keys)) is not None]
        if known:
            found[name] = statistics.fmean(known)
    if working:
        found[AT_WORK] = len(working) / len(readings)
    return found


def _at_work(reading: Record) -> list[Record]:
    gpus = records(reading, "gpus")[:64]
    loads = [number(gpu, "util", "mean") for gpu in gpus]
    return [gpu for gpu, load in zip(gpus, loads, strict=True) if load is None or load >= 1]


def _throttled(readings: list[Record]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for reading in readings:
        for gpu in records(reading, "gpus")[:64]:
            for reason in list(record(gpu, "throttled"))[:20]:
                share = number(gpu, "throttled", reason) or 0.0
                if share > 0:
                    worst[reason[:60]] = max(share, worst.get(reason[:60], 0.0))
    return worst


def _modules(caches: Record) -> Iterator[Module]:
    for item in records(caches, "touched")[:500]:
        yield Module(
            text(item, "module", most=200), text(item, "arch", most=40), text(item, "live", most=40)
        )


def _cache_notes(caches: Record) -> Iterator[str]:
    yield from (word[:300] for word in texts(caches, "traps", most=50))
    yield from (word[:300] for word in texts(caches, "problems", most=50))
    for process in records(caches, "processes")[:50]:
        if look(process, "restart_needed") is True:
            library = text(process, "library", most=200)
            yield f"process {text(process, 'pid')} still runs {library}: restart needed"


def _checks(doctor: Record) -> dict[str, Check]:
    found = {}
    for check in records(doctor, "checks")[:200]:
        name = text(check, "id", most=60)
        if name:
            found[name] = Check(text(check, "status", most=20), text(check, "summary", most=500))
    return found


def _idle(doctor: Record) -> Iterator[str]:
    for flag in records(doctor, "flags")[:100]:
        value = text(flag, "value", most=100)
        shown = f"{text(flag, 'name', most=100)}={value}" if value else text(flag, "name", most=100)
        yield f"{shown} ({text(flag, 'place', most=100)}): {text(flag, 'reason', most=300)}"
