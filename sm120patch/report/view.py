"""Everything the page shows, as plain values: an event with its evidence in, a view out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sm120patch.evidence import Event, Evidence
from sm120patch.recorded import Record, items, number, record, records, text, texts
from sm120patch.report.charts import (
    EffectChart,
    SpreadChart,
    TimeChart,
    effect_chart,
    spread_chart,
    time_chart,
)
from sm120patch.report.measured import ARMS, Measured, block_order, blocks_of, measured
from sm120patch.report.power import GpuRow, PowerChart, gpu_rows, power_chart
from sm120patch.report.requests import RequestChart, request_charts

OUTCOMES = {
    "applied": "The set was applied: every file holds the patched content.",
    "verified": "The set stays applied: its content was measured again.",
    "staged": "The files hold the patched content, but the set does not count as applied.",
    "rejected": "The set was rejected: every file holds its content from before.",
    "experiment": "An experiment over launch options: no file was changed.",
}
MEANINGS = {
    "improved": "faster, beyond what the noise of this run could explain",
    "no-regression": "not slower than the margin allows",
    "regressed": "slower than the margin allows",
    "inconclusive": "this run could not tell",
    "broken": "the patched server does not work",
    "not-engaged": "the patched code was not seen running, so its speed says nothing",
    "unconfirmed": "it passed, but the GPU is unknown",
}
_MOST_DIFF = 3000
_FIGURES = (
    ("output_throughput", "output tokens/s", True),
    ("total_throughput", "input and output tokens/s", True),
    ("median_ttft_ms", "time to first token, median, ms", False),
    ("p99_ttft_ms", "time to first token, 99th percentile, ms", False),
    ("median_tpot_ms", "time per output token, median, ms", False),
    ("p99_itl_ms", "inter-token latency, 99th percentile, ms", False),
    ("failed", "failed requests a repeat", False),
)


@dataclass(frozen=True)
class Changed:
    """One file that differs between the arms; `diff` leads from the baseline to the patched."""

    target: str
    path: str
    before: str
    after: str
    diff: str | None
    """None when the contents are no longer kept."""


@dataclass(frozen=True)
class Subject:
    """What a page is about."""

    event: Event
    evidence: Evidence
    prefix: str
    changed: tuple[Changed, ...]


@dataclass(frozen=True)
class Figure:
    """One figure of both arms, in words; `change` is empty where there is none."""

    name: str
    baseline: str
    patched: str
    change: str
    better: bool | None


@dataclass(frozen=True)
class WorkloadView:
    """One workload: charts and figures."""

    name: str
    shape: str
    words: str
    spread: SpreadChart | None
    time: TimeChart | None
    requests: tuple[RequestChart, ...]
    excluded: tuple[str, ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Line:
    """One line of a diff and what it is: `add`, `del`, `hunk`, `file` or empty."""

    kind: str
    text: str


@dataclass(frozen=True)
class FileView:
    """One changed file."""

    title: str
    digests: str
    lines: tuple[Line, ...]
    note: str


@dataclass(frozen=True)
class AnswerView:
    """One greedy question as both arms answered it first."""

    probe: str
    baseline: str
    patched: str
    baseline_mark: str
    patched_mark: str


@dataclass(frozen=True)
class Page:
    """All of the page."""

    title: str
    other: str
    """What the second arm is called: `patched`, or `variant` where options were tried."""
    verdict: str
    tone: str
    """`good`, `bad` or `open`: decides the colour of the verdict, never its words."""
    meaning: str
    outcome: str
    kind: str
    reasons: tuple[str, ...]
    advice: str
    facts: tuple[tuple[str, str], ...]
    margin: float
    effect: EffectChart | None
    workloads: tuple[WorkloadView, ...]
    power: PowerChart | None
    gpu_rows: tuple[GpuRow, ...]
    order: str
    faults: tuple[str, ...]
    comparable: tuple[str, ...]
    tolerance: str
    agreement: tuple[tuple[str, str, str], ...]
    not_examined: tuple[str, ...]
    answers: tuple[AnswerView, ...]
    engagement: tuple[tuple[str, str], ...]
    commands: tuple[tuple[str, str], ...]
    differences: tuple[tuple[str, str, str], ...]
    versions: tuple[tuple[str, str], ...]
    host: tuple[tuple[str, str], ...]
    gpus: tuple[tuple[str, str, str], ...]
    files: tuple[FileView, ...]
    made: str


def build(subject: Subject) -> Page:
    """Collect what the page shows. Nothing recorded makes it raise."""
    event, evidence = subject.event, subject.evidence
    data = dict(evidence.data)
    workloads = measured(data)
    margin = min(max(number(data, "margin") or 0.0, 0.0), 1.0)
    sets = ", ".join(texts(event.data, "requested") or event.sets or evidence.sets)
    title = sets or text(data, "experiment", "name") or event.kind
    other = "variant" if event.kind == "experiment" else ARMS[1]
    return Page(
        title=title,
        other=other,
        verdict=evidence.verdict,
        tone=_tone(evidence),
        meaning=MEANINGS.get(evidence.verdict, ""),
        outcome=OUTCOMES.get(event.kind, ""),
        kind=evidence.kind,
        reasons=tuple(texts(data, "reasons")),
        advice=text(data, "advice"),
        facts=tuple(_facts(subject, data)),
        margin=margin,
        effect=effect_chart(workloads, margin),
        workloads=tuple(_workload(w, other, _excluded(data, w.name)) for w in workloads),
        power=power_chart(data),
        gpu_rows=gpu_rows(data),
        order=" ".join("A" if arm == ARMS[0] else "B" for arm in block_order(data)),
        faults=tuple(texts(data, "correctness", "faults")),
        comparable=tuple(texts(data, "correctness", "comparable")),
        tolerance=text(data, "correctness", "tolerance"),
        agreement=tuple(_agreement(data)),
        not_examined=tuple(texts(data, "correctness", "not_examined")),
        answers=tuple(_answers(data)),
        engagement=tuple(_engagement(data)),
        commands=tuple(
            (name, text(data, "commands", arm))
            for arm, name in zip(ARMS, (ARMS[0], other), strict=True)
        ),
        differences=tuple(_differences(data)),
        versions=tuple(_versions(data)),
        host=tuple(_host(data)),
        gpus=tuple(_gpus(data)),
        files=tuple(_file(changed) for changed in subject.changed),
        made=f"sm120patch {event.tool}" if event.tool else "sm120patch",
    )


def _tone(evidence: Evidence) -> str:
    if evidence.passed:
        return "good"
    return "open" if evidence.verdict in ("inconclusive", "unconfirmed") else "bad"


def _facts(subject: Subject, data: Record) -> list[tuple[str, str]]:
    event, evidence = subject.event, subject.evidence
    goal, margin = text(data, "goal"), number(data, "margin")
    seconds = number(data, "duration")
    return _told(
        ("recorded", f"{evidence.at}, event {event.id} of {subject.prefix}"),
        ("asked for", text(event.data, "command")),
        ("must show", goal + (f", margin {margin:.1%}" if margin is not None else "")),
        ("took", "" if seconds is None else f"{seconds:.0f} s, clock: {text(data, 'clock')}"),
        ("client", text(data, "client")),
        ("seed", text(data, "seed")),
        ("profile", f"{text(data, 'profile', 'path')}  ({evidence.profile[:16]})"),
        ("also on disk", ", ".join(evidence.baseline_sets)),
        (
            "content on disk" if event.kind == "experiment" else "patched content",
            evidence.content_digest[:16],
        ),
    )


def _told(*pairs: tuple[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in pairs if value.strip()]


def _workload(workload: Measured, other: str, excluded: tuple[str, ...]) -> WorkloadView:
    return WorkloadView(
        name=workload.name,
        shape=workload.shape,
        words=_comparison(workload, other),
        spread=spread_chart(workload),
        time=time_chart(workload),
        requests=request_charts(workload),
        excluded=excluded,
        figures=tuple(f for f in (_figure(workload, *row) for row in _FIGURES) if f is not None),
    )


def _comparison(workload: Measured, other: str) -> str:
    medians = [workload.median(arm) for arm in ARMS]
    shown = ["not measured" if m is None else f"{m:.1f} tok/s" for m in medians]
    return f"baseline {shown[0]}, {other} {shown[1]} (medians of the repeats)"


def _figure(workload: Measured, name: str, words: str, more_is_better: bool) -> Figure | None:
    before, after = (workload.figure(arm, name) for arm in ARMS)
    if before is None and after is None:
        return None
    change, better = "", None
    if before and after is not None and name != "failed":
        share = (after / before - 1) * 100
        change, better = f"{share:+.1f} %", (share > 0) == more_is_better if share else None
    shown = ["-" if value is None else f"{value:.1f}" for value in (before, after)]
    return Figure(words, shown[0], shown[1], change, better)


def _answers(data: Record) -> list[AnswerView]:
    """The first answer of each arm to every probe, side by side."""
    found: dict[str, dict[str, Record]] = {}
    for arm in ARMS:
        for answer in records(data, "correctness", "answers", arm)[:500]:
            found.setdefault(text(answer, "probe"), {}).setdefault(arm, answer)
    return [
        AnswerView(
            probe,
            *(text(arms.get(arm), "text", most=200).strip() for arm in ARMS),
            *(_mark(arms.get(arm)) for arm in ARMS),
        )
        for probe, arms in found.items()
    ]


def _mark(answer: Record | None) -> str:
    if answer is None:
        return "not asked"
    if flaw := text(answer, "flaw"):
        return flaw
    return "right" if answer.get("passed") is True else "not the expected text"


def _agreement(data: Record) -> list[tuple[str, str, str]]:
    """Probe, tokens in common, and how far the log-probabilities are apart."""
    rows = []
    for probe in list(record(data, "correctness", "agreement"))[:50]:
        found = record(data, "correctness", "agreement", probe)
        equal = f"{text(found, 'agreed')} of {text(found, 'tokens')} tokens"
        both = [number(found, name) for name in ("logprob_distance", "own_logprob_distance")]
        shown = ["unknown" if value is None else f"{value:.4f}" for value in both]
        rows.append((probe, equal, f"{shown[0]} (baseline to itself: {shown[1]})"))
    return rows


def _excluded(data: Record, workload: str) -> tuple[str, ...]:
    """What was measured of a workload and does not count, and why."""
    return tuple(
        f"{arm}, server start {start}: {text(entry, 'reason')}"
        for start, arm, block in blocks_of(data)
        for entry in records(block, "excluded")
        if text(entry, "workload") == workload
    )[:50]


def _engagement(data: Record) -> list[tuple[str, str]]:
    seen = [(text(entry, "probe"), text(entry, "found")) for entry in records(data, "engagement")]
    imports = record(data, "imports")
    return seen + [(f"imports {name} from", text(place)) for name, place in sorted(imports.items())]


def _differences(data: Record) -> list[tuple[str, str, str]]:
    found = []
    for field in sorted(record(data, "server_differences"))[:200]:
        pair = items(data, "server_differences", field)
        if len(pair) == 2:
            found.append((field, text(pair[0], most=300), text(pair[1], most=300)))
    return found


def _versions(data: Record) -> list[tuple[str, str]]:
    named = [(name, text(value)) for name, value in sorted(record(data, "versions").items())]
    served = text(data, "arms", ARMS[1], "server_info", "version")
    return _told(*named, ("the server says", served), ("driver", text(data, "host", "driver")))


def _host(data: Record) -> list[tuple[str, str]]:
    declared = record(data, "host", "declared")
    shown = "; ".join(
        f"{key} {text(value)}" for key, value in sorted(declared.items()) if text(value)
    )
    return _told(
        ("topology", ", ".join(texts(data, "host", "topology"))),
        ("declared host", shown),
        ("model", text(data, "server", "model_path")),
        ("tensor parallel", text(data, "server", "tp_size")),
        ("no GPU seen", text(data, "host", "reason")),
    )


def _gpus(data: Record) -> list[tuple[str, str, str]]:
    real = records(data, "host", "gpus")
    found = real or records(data, "server", "gpus")
    return [
        (text(gpu, "name"), text(gpu, "compute_capability"), text(gpu, "pci_bus_id"))
        for gpu in found[:64]
    ]


def _file(changed: Changed) -> FileView:
    note = "" if changed.diff else "The contents are no longer kept, so the lines cannot be shown."
    lines = (changed.diff or "").splitlines()
    if len(lines) > _MOST_DIFF:
        note = f"{len(lines) - _MOST_DIFF} more lines are not shown."
    return FileView(
        f"{changed.path}  ({changed.target})",
        f"sha256 {changed.before[:16]} to {changed.after[:16]}",
        tuple(_lines(lines[:_MOST_DIFF])),
        note,
    )


def _lines(lines: Sequence[str]) -> list[Line]:
    kinds = {"+": "add", "-": "del", "@": "hunk"}
    return [
        Line("file" if n < 2 else kinds.get(line[:1], ""), line) for n, line in enumerate(lines)
    ]
