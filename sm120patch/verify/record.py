"""Everything that one verification measured, and its summary as JSON-ready data. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sm120patch.model import Answers, EvidenceKind
from sm120patch.redaction import is_secret
from sm120patch.verify import effect, stats
from sm120patch.verify.answers import Examination
from sm120patch.verify.commandline import Arm
from sm120patch.verify.correctness import Correctness, judge
from sm120patch.verify.engagement import Seen
from sm120patch.verify.tally import Tally
from sm120patch.verify.verdict import Findings

METRIC = "output_throughput"
"""The metric whose ratio decides; all others are recorded beside it."""

VOLATILE = frozenset(("pid", "started_at", "random_seed", "internal_states", "gpus", "patched",
                       "gates_closed", "last_gen_throughput", "max_total_num_tokens"))  # fmt: skip

_IDENTITY = ("scenario", "seed", "time_scale", "topology", "virtualized", "model_path", "tp_size")


@dataclass
class Block:
    """One server start of one arm."""

    arm: Arm
    info: Mapping[str, object] = field(default_factory=dict)
    ready_seconds: float = 0.0
    examinations: list[Examination] = field(default_factory=list)
    repeats: dict[str, list[Mapping[str, float]]] = field(default_factory=dict)
    samples: dict[str, list[Mapping[str, object]]] = field(default_factory=dict)
    """Single requests of every repeat of `repeats`, see `samples.kept`."""
    began: float = 0.0
    """Seconds since the verification began, when the server was started."""
    swapped_at: float = 0.0
    """Epoch seconds at which its content was in place."""
    seconds: float = 0.0
    """From the start of the server to its end."""
    telemetry: Mapping[str, object] = field(default_factory=dict)
    """What the GPUs did while it was measured, see `telemetry.Meter.between`."""
    warmups: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """Workload -> the unmeasured requests before it: `seconds`, `stall_s`, `output_throughput`."""
    excluded: list[Mapping[str, object]] = field(default_factory=list)
    """Repeats that do not count: `workload`, `reason`, `output_throughput`."""

    def values(self, workload: str) -> list[float]:
        """Measured values of the deciding metric."""
        return [metrics[METRIC] for metrics in self.repeats.get(workload, [])]


@dataclass(frozen=True)
class Collapse:
    """A repeat of the patched arm that was broken off: it was far slower than the baseline."""

    workload: str
    factor: float
    """Times as long as the slowest repeat of the baseline needed for as many tokens."""
    seconds: float
    """After how long, its longest silence and stalls left out."""
    tokens: int
    cold: bool
    """Seen while warming up."""

    def __str__(self) -> str:
        where = " while warming up" if self.cold else ""
        return (
            f"{self.workload}: collapsed{where}: {self.tokens} tokens in {self.seconds:.0f} s,"
            f" {self.factor:.1f} times as long as the baseline ever took for them"
        )


@dataclass
class Record:
    """All blocks so far and what went wrong."""

    workloads: Sequence[str]
    seed: int
    kind: EvidenceKind
    answers: Answers = Answers.TOLERANCE
    blocks: list[Block] = field(default_factory=list)
    patched_faults: list[str] = field(default_factory=list)
    not_engaged: list[str] = field(default_factory=list)
    engagement: dict[str, Seen] = field(default_factory=dict)
    """Probe -> what the last look at a patched server found."""
    origin: dict[str, str] = field(default_factory=dict)
    """Package -> directory from which the server imports it, or why nobody knows."""
    baseline_failure: str | None = None
    unfinished: str | None = None
    collapse: Collapse | None = None
    courses: dict[tuple[str, str], list[Tally]] = field(default_factory=dict)
    """(workload, `warmup` or `repeat`) -> how the tokens of the baseline came."""
    floors: Mapping[str, effect.Floor] = field(default_factory=dict)
    """Noise of workloads on this host as earlier verifications recorded it."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Default workloads that the server has no room for -> why."""
    look: effect.Look = field(default_factory=effect.Look)
    """The look at the data that `intervals` are for."""

    def of(self, arm: Arm) -> list[Block]:
        """Blocks of one arm in the order in which they ran."""
        return [block for block in self.blocks if block.arm is arm]

    def note_info(self, block: Block, info: Mapping[str, object]) -> None:
        """Keep what the server says about itself; a simulated one makes it all simulated."""
        block.info = trimmed(info)
        if info.get("simulated") is True:
            self.kind = EvidenceKind.SIMULATED

    def starts(self, workload: str) -> list[effect.Start]:
        """Every server start that has measured a workload."""
        return [
            effect.Start(block.arm is Arm.PATCHED, position, tuple(values))
            for position, block in enumerate(self.blocks)
            if (values := block.values(workload))
        ]

    def floor(self, workload: str) -> effect.Floor | None:
        """Noise that is known without this run: declared by a simulated host, or recorded."""
        info = self.blocks[-1].info if self.blocks else {}
        noise = [info.get("noise_start"), info.get("noise_repeat")]
        if info.get("simulated") is True and all(isinstance(n, int | float) for n in noise):
            repeats = max((len(start.values) for start in self.starts(workload)), default=1)
            deviation = math.hypot(float(str(noise[0])), float(str(noise[1])) / math.sqrt(repeats))
            return effect.Floor(deviation, effect.KNOWN, "declared")
        return self.floors.get(workload)

    def intervals(self) -> dict[str, effect.Interval]:
        """Interval of every workload that both arms have measured, for the present look."""
        found = {}
        for name in self.workloads:
            starts = self.starts(name)
            if {start.patched for start in starts} == {True, False}:
                found[name] = effect.interval(starts, self.look, self.floor(name))
        if self.collapse is not None:
            found[self.collapse.workload] = effect.from_course(1 / self.collapse.factor)
        return found

    def findings(self) -> Findings:
        """What the verdict is drawn from."""
        wrong = self.correctness().faults
        return Findings(
            effects=self.intervals(),
            broken=(*self.patched_faults, *wrong),
            not_engaged=tuple(self.not_engaged),
            baseline_failure=self.baseline_failure,
            unfinished=self.unfinished,
            blocks=len(self.of(Arm.PATCHED)),
            collapses=(str(self.collapse),) if self.collapse else (),
        )

    def summary(self) -> dict[str, object]:
        """Measurements, intervals and servers of both arms."""
        return {
            "metric": METRIC,
            "intervals": {name: i.as_dict() for name, i in self.intervals().items()},
            "noise": {name: self._noise(name) for name in self.workloads},
            "left_out": self.left_out,
            "collapse": vars(self.collapse) if self.collapse else None,
            "arms": {arm.value: self._arm(arm) for arm in Arm},
            "correctness": self._correctness(),
            "engagement": [seen.as_dict() for seen in self.engagement.values()],
            "imports": dict(self.origin),
            "server_differences": self.differences(),
            "baseline_failure": self.baseline_failure,
            "unfinished": self.unfinished,
        }

    def _noise(self, workload: str) -> dict[str, object]:
        variance, freedom = effect.between_starts(self.starts(workload))
        floor = self.floor(workload)
        baseline, _ = effect.start_levels(self.starts(workload))
        null = baseline[1][1] - baseline[0][1] if len(baseline) > 1 else None
        return {
            "variance": variance,
            "df": freedom,
            "null_ratio": None if null is None else math.exp(null),
            "floor": None
            if floor is None
            else {"sd": floor.sd, "df": floor.df, "source": floor.source},
        }

    def _arm(self, arm: Arm) -> dict[str, object]:
        blocks = self.of(arm)
        return {
            "server_info": blocks[-1].info if blocks else {},
            "blocks": [self._block(block) for block in blocks],
            "workloads": {
                name: _overview([m for b in blocks for m in b.repeats.get(name, [])])
                for name in self.workloads
            },
        }

    def _block(self, block: Block) -> dict[str, object]:
        return {
            "start": self.blocks.index(block) + 1,
            "began_s": round(block.began, 2),
            "seconds": round(block.seconds, 2),
            "ready_seconds": block.ready_seconds,
            "workloads": block.repeats,
            "samples": block.samples,
            "warmups": block.warmups,
            "excluded": block.excluded,
            "telemetry": block.telemetry,
        }

    def _examinations(self) -> dict[Arm, list[Examination]]:
        return {arm: [e for b in self.of(arm) for e in b.examinations] for arm in Arm}

    def correctness(self) -> Correctness:
        """Judgement of all answers so far."""
        exams = self._examinations()
        return judge(exams[Arm.BASELINE], exams[Arm.PATCHED], self.answers)

    def _correctness(self) -> dict[str, object]:
        exams, verdict = self._examinations(), self.correctness()
        return {
            "tolerance": self.answers.value,
            "comparable": list(verdict.comparable),
            "faults": list(verdict.faults),
            "agreement": {name: item.as_dict() for name, item in verdict.agreement.items()},
            "not_examined": list(verdict.not_examined),
            "answers": {
                arm.value: [
                    {"probe": a.probe, "passed": a.passed, "flaw": a.flaw, "text": a.text[:200]}
                    for a in (exams[arm][0].answers if exams[arm] else ())
                ]
                for arm in Arm
            },
        }

    def differences(self) -> dict[str, list[object]]:
        """Server fields that differ between the arms: the flag, and whatever should not."""
        infos = [blocks[-1].info if (blocks := self.of(arm)) else {} for arm in Arm]
        if not all(infos):
            return {}
        keys = sorted({*infos[0], *infos[1]} - VOLATILE)
        pairs = {key: [infos[0].get(key), infos[1].get(key)] for key in keys}
        return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def trimmed(info: Mapping[str, object], most: int = 2000) -> dict[str, object]:
    """Scalars of `/server_info` and the GPU list; secrets and long texts left out.

    `most` bounds what a hostile server can have us keep. SGLang 0.5.18 has 472 options, and
    names its version after them.
    """
    kept: dict[str, object] = {}
    for key, value in list(info.items())[:most]:
        text = value if isinstance(value, str) else ""
        if is_secret(key, text):
            continue
        if isinstance(value, str):
            kept[key] = value[:300]
        elif value is None or isinstance(value, bool | int):
            kept[key] = value
        elif isinstance(value, float):
            kept[key] = value if math.isfinite(value) else None
        elif key == "gpus" and isinstance(value, list):
            kept[key] = [trimmed(gpu, 20) for gpu in value[:64] if isinstance(gpu, dict)]
    return kept


def identity(info: Mapping[str, object]) -> dict[str, object]:
    """What stays the same between starts and arms of one server: it names a simulated host."""
    kept = {key: info[key] for key in _IDENTITY if key in info}
    gpus = info.get("gpus")
    if isinstance(gpus, list):
        names = ("name", "compute_capability")
        kept["gpus"] = [{n: gpu.get(n) for n in names} for gpu in gpus if isinstance(gpu, dict)]
    return kept


def _overview(repeats: Sequence[Mapping[str, float]]) -> dict[str, object]:
    """Means over all repeats, the spread of the deciding metric, and the failed requests."""
    if not repeats:
        return {}
    names = [name for name in repeats[0] if all(name in m for m in repeats)]
    means = {name: math.fsum(m[name] for m in repeats) / len(repeats) for name in names}
    values = [metrics[METRIC] for metrics in repeats]
    variation = stats.coefficient_of_variation(values)
    return {
        **means,
        "repeats": len(repeats),
        f"median_{METRIC}": stats.median(values),
        f"cv_{METRIC}": variation if math.isfinite(variation) else None,
    }
