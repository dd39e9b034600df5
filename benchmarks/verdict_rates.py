"""How often a verification is wrong, how often it cannot decide, and what it costs: by simulation.

    python benchmarks/verdict_rates.py               # print the tables
    python benchmarks/verdict_rates.py --write       # and put them into docs/verdicts.md
    python benchmarks/verdict_rates.py --trials 500  # quicker

Needs numpy (the `dev` extra). The rule is written here a second time, on arrays of trials; before
anything is counted, a sample of the trials is decided by `sm120patch.verify` itself, and both must
agree in verdict and in the number of server starts.

The noise is simulated, from what was recorded of real servers. Throughput of run r after start s,
on the log scale, is drift(s) + start(s) + run(r), and the first run after a start is slower by a
factor between 0.47 and 1. The drift is a straight line plus a slow wander. The host's noise as a
whole is larger or smaller from one verification to the next.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sm120patch.model import EvidenceKind, Goal
from sm120patch.verify import deciding, effect, stats
from sm120patch.verify.commandline import Arm
from sm120patch.verify.record import METRIC, Block, Record
from sm120patch.verify.schedule import Schedule
from sm120patch.verify.verdict import safety_of

DOCUMENT = ROOT / "docs" / "verdicts.md"
Floats = NDArray[np.float64]
Words = NDArray[np.object_]

MARGIN = 0.03
RUNS = 3  # measured after a start; one more warms it up
SCHEDULE = Schedule(least=2, most=10, null=True)
EFFECTS = (0.0, -0.03, -0.10, -0.30, -0.87, 0.05, 0.10, 0.25)
START_MINUTES, RUN_MINUTES = 4.0, 0.7
"""A large model on 8 GPUs, and a run of the published speeds: what a start and a run cost."""
RIGHT = {-0.87: ("regressed",), -0.30: ("regressed",), -0.10: ("regressed",),
         0.0: ("no-regression", "improved"), 0.10: ("no-regression", "improved"),
         0.25: ("no-regression", "improved")}  # fmt: skip
"""Effect -> verdicts that are right. Of -3 %, the margin itself, none is."""


# --- noise -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """Standard deviations on the log scale."""

    name: str
    source: str
    run: float
    start: float
    drift: float
    """Of the straight drift, and of the steps of the wander, from one start to the next."""
    recorded: tuple[float, ...] = ()
    """Throughputs whose deviations are drawn from, instead of a normal distribution."""
    heavy: bool = False
    """Student's t with 3 and 4 degrees of freedom, 5 % stalled runs, 3 % bad starts."""


H200 = (7353.0, 10020.0, 8934.0, 7572.0, 8876.0)
PROFILES = (
    Noise("8 and more concurrent", "recorded: CV below 1 %", 0.008, 0.004, 0.002),
    Noise("8-GPU server", "recorded: equal configurations 2.8 % apart, equal runs 6.9 %",
          0.025, 0.018, 0.005),
    Noise("SGLang on a CPU, quiet", "recorded: CV 5.7 % (single stream 6.2 %)", 0.057, 0.03, 0.01),
    Noise("one H200, 8 s runs", "recorded: five equal runs, CV 13 %; drawn from them",
          0.13, 0.05, 0.01, H200),
    Noise("SGLang on a CPU, busy", "recorded: CV 23 %", 0.23, 0.08, 0.02),
    Noise("heavy tails, 2 %", "assumed", 0.02, 0.01, 0.005, heavy=True),
    Noise("heavy tails, 5 %", "assumed", 0.05, 0.025, 0.01, heavy=True),
)  # fmt: skip
FIRST_RUN = (0.47, 1.0)
SESSIONS = 0.2  # spread of the noise as a whole between verifications (log scale)
SHARED = 0.5  # share of a start's luck that all workloads have in common


def simulate(
    noise: Noise, rng: np.random.Generator, shape: tuple[int, int, int, int]
) -> tuple[Floats, Floats]:
    """Log throughput [trials, workloads, starts, runs] without an effect; the session's factor."""
    trials, _, starts, _ = shape
    session = np.exp(rng.normal(0, SESSIONS, (trials, 1, 1, 1)))
    own, common = math.sqrt(1 - SHARED), math.sqrt(SHARED)
    if noise.heavy:
        run = rng.standard_t(3, shape) * noise.run / 1.3
        run = run - (rng.random(shape) < 0.05) * rng.uniform(0.05, 0.7, shape)
        luck = own * rng.standard_t(4, shape[:3]) + common * rng.standard_t(4, (trials, 1, starts))
        luck = luck * noise.start / 1.2
        bad = (rng.random((trials, 1, starts)) < 0.03) * rng.uniform(0.05, 0.3, (trials, 1, starts))
        luck = luck - bad
    else:
        run = rng.normal(0, noise.run, shape)
        if noise.recorded:
            logs = np.log(noise.recorded)
            run = rng.choice(logs - np.mean(logs), shape) + rng.normal(0, noise.run / 4, shape)
        luck = own * rng.normal(0, noise.start, shape[:3])
        luck = luck + common * rng.normal(0, noise.start, (trials, 1, starts))
    line = rng.normal(0, noise.drift, (trials, 1, 1)) * np.arange(starts)
    wander = np.zeros((trials, 1, starts))
    for index in range(1, starts):
        step = rng.normal(0, noise.drift, (trials, 1))
        wander[:, :, index] = 0.7 * wander[:, :, index - 1] + step
    logs_ = run * session + (luck * session[..., 0] + line + wander)[..., None]
    logs_[..., 0] += np.log(rng.uniform(*FIRST_RUN, shape[:3]))
    return logs_, session[:, 0, 0, 0]


# --- the rule of sm120patch.verify, on arrays --------------------------------------------------


def levels(values: Floats) -> tuple[Floats, Floats]:
    """Huber centres of runs: [trials, starts, runs] -> [trials, starts]; and the runs' scale."""
    trials, _, runs = values.shape
    middle = np.median(values, axis=2, keepdims=True)
    factor = 1.0 if runs % 2 else math.sqrt(2) if runs == 2 else 1 + 1.6 / runs
    apart = np.sort(np.abs(values - middle), axis=2)[:, :, runs % 2 :] * factor
    scale = 1.4826 * np.median(apart.reshape(trials, -1), axis=1)[:, None, None]
    for _ in range(3):
        clipped = np.clip(values, middle - 1.5 * scale, middle + 1.5 * scale)
        middle = clipped.mean(axis=2, keepdims=True)
    return middle[:, :, 0], scale[:, 0, 0]


@dataclass(frozen=True)
class Bounds:
    """Of one workload, for all trials, on the log scale."""

    effect: Floats
    low: Floats
    high: Floats
    sure_low: Floats
    sure_high: Floats
    error: Floats
    rough: Floats
    starts: int


def bounds(
    values: Floats, arms: Floats, look: effect.Look, floor: Floats | None = None, floor_df: int = 0
) -> Bounds:
    """As `effect.interval`; `floor` is the standard deviation that is on record, a trial each."""
    found, scale = levels(values)
    count = len(arms)
    columns = [np.ones(count), arms]
    if count >= 6:
        columns.append(np.arange(count) - (count - 1) / 2)
    design = np.stack(columns, axis=1)
    inverse = np.linalg.inv(design.T @ design)
    weights = found @ design @ inverse
    squares = ((found - weights @ design.T) ** 2).sum(axis=1)
    df = count - design.shape[1]
    point = weights[:, 1]
    counts = 1 / (arms == 0).sum() + 1 / (arms == 1).sum()
    within = scale**2 / values.shape[2]
    rough = 2.9 * np.sqrt((effect.ROUGH**2 + 1.5 * within) * counts)
    if look.number == 0 or df <= 0:
        nothing = np.full(len(point), np.nan)
        return Bounds(point, point - rough, point + rough, point - rough, point + rough,
                      nothing, rough, count)  # fmt: skip
    variance, freedom = squares / df, np.full(len(point), float(df))
    if floor is not None and floor_df:
        weight = min(floor_df, 2 * df)
        fits = variance <= 2.5 * floor**2
        variance = np.where(fits, (squares + weight * floor**2) / (df + weight), variance)
        freedom = np.where(fits, df + weight, freedom)
    error = np.sqrt(variance * inverse[1, 1])
    near, sure = (np.minimum(_student(t, freedom) * error, rough)
                  for t in (look.margin_tail, look.sure_tail))  # fmt: skip
    return Bounds(
        point, point - near, point + near, point - sure, point + sure, error, rough, count
    )


def _student(tail: float, freedom: Floats) -> Floats:
    known = {df: stats.student(tail, float(df)) for df in np.unique(freedom)}
    return np.array([known[df] for df in freedom])


def verdicts(found: Sequence[Bounds], margin: float) -> Words:
    """As `verdict.decide` for the goal `no-regression`."""
    limit, safety = math.log(1 - margin), math.log(safety_of(margin))
    passes = np.all([(b.low >= limit) & (b.sure_low >= safety) for b in found], axis=0)
    gains = np.any([b.sure_low > 0 for b in found], axis=0)
    loses = np.any([(b.high < limit) & (b.sure_high < 0) for b in found], axis=0)
    words = np.full(len(passes), "inconclusive", dtype=object)
    words[passes] = "no-regression"
    words[passes & gains] = "improved"
    words[loses] = "regressed"
    return words


def hopeless(found: Sequence[Bounds], look: effect.Look, final: int, margin: float) -> Any:
    """As `deciding`: no workload that is open is expected to come off the limit."""
    limit, safety = math.log(1 - margin), math.log(safety_of(margin))
    every = np.ones(len(found[0].effect), dtype=bool)
    for b in found:
        if b.starts >= final:
            return ~every
        error, rough = (x * math.sqrt(b.starts / final) for x in (b.error, b.rough))
        move = np.sqrt(np.maximum(b.error**2 - error**2, 0))
        near, sure = (np.minimum(stats.student(t, final - 3) * error, rough)
                      for t in (look.margin_tail, look.sure_tail))  # fmt: skip
        can_pass = (b.effect + move - near >= limit) & (b.effect + move - sure >= safety)
        can_fail = (b.effect - move + near < limit) & (b.effect - move + sure < 0)
        open_ = ~((b.low >= limit) & (b.sure_low >= safety))
        every &= ~open_ | (~can_pass & ~can_fail)
    return every


def arms_of(schedule: Schedule) -> Floats:
    return np.array([float(arm is Arm.PATCHED) for arm in schedule.order])


@dataclass(frozen=True)
class Case:
    """Simulated verifications of one patch on one kind of host."""

    runs: Floats
    """Throughput logs [trials, workloads, starts, measured runs], the effect included."""
    floor: Floats | None = None
    """[trials, workloads]: noise on record, or None."""
    floor_df: int = 0


def case(noise: Noise, size: float, schedule: Schedule, rng: np.random.Generator, *, trials: int,
         workloads: int, floor_starts: int = 0) -> Case:  # fmt: skip
    """Verifications with the warm-up left out; `floor_starts` baseline starts are on record."""
    arms = arms_of(schedule)
    logs, _ = simulate(noise, rng, (trials, workloads, len(arms), RUNS + 1))
    runs = logs[..., 1:] + math.log1p(size) * arms[None, None, :, None]
    if not floor_starts:
        return Case(runs)
    # Another session on the same host: its noise as a whole differs, and so does its drift.
    past, _ = simulate(noise, rng, (trials, workloads, floor_starts, RUNS + 1))
    found = np.stack(
        [levels(past[:, w, :, 1:])[0].std(axis=1, ddof=1) for w in range(workloads)], 1
    )
    return Case(runs, found, floor_starts - 1)


def sequential(data: Case, schedule: Schedule, margin: float = MARGIN) -> tuple[Words, Floats]:
    """Verdict and number of starts of every trial, as the runner would end it."""
    arms = arms_of(schedule)
    trials, workloads = data.runs.shape[:2]
    words = np.full(trials, "", dtype=object)
    cost = np.zeros(trials)
    last = np.full(trials, "inconclusive", dtype=object)
    for number in range(2, len(arms) + 1):
        done = [Arm.PATCHED if arm else Arm.BASELINE for arm in arms[:number]]
        if not (0 < sum(arms[:number]) < number):
            continue
        pairs = schedule.pairs(done)
        look = schedule.look(pairs, workloads)
        found = [
            bounds(data.runs[:, w, :number], arms[:number], look,
                   None if data.floor is None else data.floor[:, w], data.floor_df)
            for w in range(workloads)
        ]  # fmt: skip
        last = verdicts(found, margin)
        ends = last != "inconclusive"
        if pairs >= 2:
            ends |= hopeless(found, look, len(arms), margin)
        new = (words == "") & ends
        words[new], cost[new] = last[new], number
    rest = words == ""
    words[rest], cost[rest] = last[rest], len(arms)
    return words, cost


def fixed(noise: Noise, size: float, pairs: int, rng: np.random.Generator, *, trials: int,
          workloads: int, margin: float = MARGIN) -> Words:  # fmt: skip
    """Verdicts of the same rule with so many pairs, looked at once, at the end."""
    schedule = Schedule(1, pairs, null=False)
    data = case(noise, size, schedule, rng, trials=trials, workloads=workloads)
    arms, look = arms_of(schedule), effect.Look(1, 1, workloads)
    return verdicts([bounds(data.runs[:, w], arms, look) for w in range(workloads)], margin)


# --- the product itself ------------------------------------------------------------------------


def by_product(data: Case, trial: int, schedule: Schedule, margin: float) -> tuple[str, int]:
    """Verdict and number of starts of one trial as `sm120patch.verify` decides it."""
    names = [f"w{w}" for w in range(data.runs.shape[1])]
    floors = {}
    if data.floor is not None:
        floors = {name: effect.Floor(float(data.floor[trial, w]), data.floor_df, "recorded")
                  for w, name in enumerate(names)}  # fmt: skip
    record = Record(names, 1, EvidenceKind.REAL, floors=floors)
    seen = None
    for number, arm in enumerate(schedule.order):
        block = Block(arm)
        for w, name in enumerate(names):
            runs = data.runs[trial, w, number]
            block.repeats[name] = [{METRIC: math.exp(float(value))} for value in runs]
        record.blocks.append(block)
        seen = deciding.look(record, schedule, Goal.NO_REGRESSION, margin)
        if seen.stop:
            break
    assert seen is not None
    return seen.decision.verdict.value, len(record.blocks)


def agree(trials: int = 12, seed: int = 3) -> int:
    """Decide trials of every profile both ways; their number. AssertionError when they differ."""
    checked = 0
    for noise in PROFILES:
        for size in EFFECTS:
            for floor_starts, null in ((0, True), (8, False)):
                schedule = Schedule(SCHEDULE.least, SCHEDULE.most, null)
                rng = np.random.default_rng([seed, checked])
                data = case(noise, size, schedule, rng, trials=trials, workloads=2,
                            floor_starts=floor_starts)  # fmt: skip
                words, cost = sequential(data, schedule)
                for trial in range(trials):
                    product = by_product(data, trial, schedule, MARGIN)
                    assert product == (words[trial], cost[trial]), (noise.name, size, trial)
                    checked += 1
    return checked


# --- peers at the same number of runs ----------------------------------------------------------


def mann_whitney(one: Floats, other: Floats) -> Floats:
    """Two-sided p of the U test by the normal approximation with continuity, a trial each."""
    count = one.shape[1]
    ranks = np.concatenate([one, other], axis=1).argsort(axis=1).argsort(axis=1) + 1
    u = ranks[:, :count].sum(axis=1) - count * (count + 1) / 2
    deviation = math.sqrt(count * count * (2 * count + 1) / 12)
    z = (np.abs(u - count * count / 2) - 0.5) / deviation
    return np.array([math.erfc(max(value, 0.0) / math.sqrt(2)) for value in z])


def inference_doctor(one: Floats, other: Floats, limit: float) -> Words:
    """90 % Welch interval of the log ratio against a limit: PASS, FAIL or INCONCLUSIVE."""
    va, vb = (x.var(axis=1, ddof=1) / x.shape[1] for x in (one, other))
    freedom = (va + vb) ** 2 / (va**2 / (one.shape[1] - 1) + vb**2 / (other.shape[1] - 1))
    half = _student(0.05, np.maximum(np.floor(freedom), 1.0)) * np.sqrt(va + vb)
    point = other.mean(axis=1) - one.mean(axis=1)
    words = np.full(len(point), "INCONCLUSIVE", dtype=object)
    words[point - half >= math.log(1 - limit)] = "PASS"
    words[point + half < math.log(1 - limit)] = "FAIL"
    return words


@dataclass
class Rates:
    """Shares of trials for one rule."""

    different: float = 0.0
    """Says that there is a difference where there is none."""
    inconclusive: tuple[float, ...] = ()
    """Of patches of 0, -20 and +20 % against a limit of 10 %."""
    wrong: float = 0.0
    """Passes -20 %, or fails 0 or +20 %: the largest of them."""


DOCTOR = "inference-doctor, A…A B…B"
SIZES = (0.0, -0.20, 0.20)
LIMIT = 0.10


def beside_peers(noise: Noise, starts: int, trials: int, seed: int) -> dict[str, Rates]:
    """The rules at the same number of runs: `starts` an arm with a warm-up and RUNS runs each.

    Ours discards the warm-ups; the peers take every run, as they do. `one start` gives them what
    is common: one start an arm, all runs after each other.
    """
    interleaved = Schedule(1, starts, null=False)
    arms, count = arms_of(interleaved), starts * (RUNS + 1)
    found: dict[str, Rates] = {}

    def add(name: str, size: float, different: Any, words: Words) -> None:
        rates = found.setdefault(name, Rates())
        undecided = float(np.isin(words, ("INCONCLUSIVE", "inconclusive")).mean())
        rates.inconclusive += (undecided,)
        bad = ("PASS", "no-regression", "improved") if size < 0 else ("FAIL", "regressed")
        rates.wrong = max(rates.wrong, float(np.isin(words, bad).mean()))
        if size == 0.0 and different is not None:
            rates.different = float(np.mean(different))

    for index, size in enumerate(SIZES):
        rng = np.random.default_rng([seed, index])
        shift = math.log1p(size)
        logs = simulate(noise, rng, (trials, 1, 2 * starts, RUNS + 1))[0][:, 0]
        ours = bounds((logs + shift * arms[None, :, None])[:, :, 1:], arms, effect.Look())
        differs = (ours.sure_low > 0) | (ours.sure_high < 0)
        add("sm120patch", size, differs, verdicts([ours], LIMIT))
        halves = logs.reshape(trials, 2, count)
        single = simulate(noise, rng, (trials, 1, 2, count))[0][:, 0]
        mixed = [logs[:, arms == arm].reshape(trials, count) for arm in (0, 1)]
        for place, (one, other) in {
            "A…A B…B": (halves[:, 0], halves[:, 1]),
            "one start": (single[:, 0], single[:, 1]),
            "A B B A": (mixed[0], mixed[1]),
        }.items():
            add(f"inference-doctor, {place}", size, None,
                inference_doctor(one, other + shift, LIMIT))  # fmt: skip
            p = mann_whitney(one, other + shift)
            add(f"Mann-Whitney, {place}", size, p < 0.05, np.full(trials, "none", dtype=object))
    return found


# --- the document ------------------------------------------------------------------------------


def safety_table(trials: int) -> tuple[list[str], dict[str, float]]:
    lines = table("noise | workloads | noise floor | null: improved | null: regressed |"
                  " -10 %: passes | -10 %: regressed | null: passes | +25 %: improved")  # fmt: skip
    worst = {"improved": 0.0, "accepted": 0.0, "rejected": 0.0}
    for index, noise in enumerate(PROFILES):
        for workloads, recorded in ((1, 0), (3, 0), (3, 8)):
            schedule = Schedule(SCHEDULE.least, SCHEDULE.most, null=not recorded)
            shares = []
            for size in (0.0, -0.10, 0.25):
                rng = np.random.default_rng(
                    [11, index, workloads, recorded, round(100 * size + 90)]
                )
                data = case(noise, size, schedule, rng, trials=trials, workloads=workloads,
                            floor_starts=recorded)  # fmt: skip
                shares.append(sequential(data, schedule)[0])
            null, loss, gain = shares
            improved, rejected = (np.mean(null == word) for word in ("improved", "regressed"))
            accepted = np.mean(np.isin(loss, ("improved", "no-regression")))
            worst["improved"] = max(worst["improved"], improved)
            worst["rejected"] = max(worst["rejected"], rejected)
            worst["accepted"] = max(worst["accepted"], accepted)
            cells = [improved, rejected, accepted, np.mean(loss == "regressed"),
                     np.mean(np.isin(null, ("improved", "no-regression"))),
                     np.mean(gain == "improved")]  # fmt: skip
            floor = "recorded" if recorded else "null run"
            lines.append(f"| {noise.name} | {workloads} | {floor} | "
                         + " | ".join(percent(cell) for cell in cells) + " |")  # fmt: skip
    return lines, worst


def always_baseline_first(trials: int) -> tuple[float, float]:
    """Largest shares with A B A B: null patches improved, -10 % let through."""
    schedule = Schedule(SCHEDULE.least, SCHEDULE.most, SCHEDULE.null, "ABAB")
    improved = accepted = 0.0
    for index, noise in enumerate(PROFILES):
        for size, words in ((0.0, ("improved",)), (-0.10, ("improved", "no-regression"))):
            rng = np.random.default_rng([23, index, round(100 * size + 90)])
            data = case(noise, size, schedule, rng, trials=trials, workloads=1)
            share = float(np.isin(sequential(data, schedule)[0], words).mean())
            improved = max(improved, share) if size == 0.0 else improved
            accepted = max(accepted, share) if size else accepted
    return improved, accepted


def cost_table(trials: int) -> tuple[list[str], list[float]]:
    lines = table("workloads | noise floor | right verdict | starts: median | mean | most |"
                  " fixed design of that power | median / fixed")  # fmt: skip
    ratios = []
    powers: dict[int, dict[int, float]] = {}
    for workloads, recorded in ((1, 0), (3, 0), (1, 8), (3, 8)):
        schedule = Schedule(SCHEDULE.least, SCHEDULE.most, null=not recorded)
        costs, right = [], []
        for index, noise in enumerate(PROFILES):
            for size, words in RIGHT.items():
                rng = np.random.default_rng(
                    [13, index, workloads, recorded, round(100 * size + 90)]
                )
                data = case(noise, size, schedule, rng, trials=trials, workloads=workloads,
                            floor_starts=recorded)  # fmt: skip
                found, cost = sequential(data, schedule)
                costs.append(cost)
                right.append(float(np.isin(found, words).mean()))
        power = statistics.fmean(right)
        pairs = fixed_pairs(powers.setdefault(workloads, {}), workloads, power, trials)
        every = np.concatenate(costs)
        ratio = float(np.median(every)) / (2 * pairs)
        ratios.append(ratio)
        lines.append(
            f"| {workloads} | {'recorded' if recorded else 'null run'} | {percent(power)} | "
            f"{np.median(every):.0f} | {every.mean():.1f} | {every.max():.0f} | "
            f"{pairs} pairs, {2 * pairs} starts | {ratio:.2f} |"
        )
    return lines, ratios


def size_table(trials: int) -> list[str]:
    lines = table("patch | improved | no-regression | regressed | inconclusive | starts: median")
    for size in sorted(EFFECTS):
        words, costs = [], []
        for index, noise in enumerate(PROFILES):
            rng = np.random.default_rng([19, index, round(100 * size + 90)])
            data = case(noise, size, SCHEDULE, rng, trials=trials, workloads=3)
            found, cost = sequential(data, SCHEDULE)
            words.append(found)
            costs.append(cost)
        every = np.concatenate(words)
        shares = [percent(np.mean(every == word)) for word in
                  ("improved", "no-regression", "regressed", "inconclusive")]  # fmt: skip
        median = np.median(np.concatenate(costs))
        lines.append(f"| {100 * size:+.0f} % | " + " | ".join(shares) + f" | {median:.0f} |")
    return lines


def fixed_pairs(known: dict[int, float], workloads: int, power: float, trials: int) -> int:
    """Fewest pairs with which the fixed design is right as often."""
    for pairs in range(2, 30):
        if pairs not in known:
            known[pairs] = statistics.fmean(
                float(
                    np.isin(
                        fixed(noise, size, pairs, np.random.default_rng([17, index, pairs]),
                              trials=max(200, trials // 4), workloads=workloads),
                        words,
                    ).mean()
                )
                for index, noise in enumerate(PROFILES)
                for size, words in RIGHT.items()
            )  # fmt: skip
        if known[pairs] >= power:
            return pairs
    raise SystemExit("no fixed design of up to 30 pairs has this power")


def peer_table(starts: int, trials: int) -> tuple[list[str], Mapping[str, Rates]]:
    names = ["sm120patch", *(f"{rule}, {place}" for rule in ("Mann-Whitney", "inference-doctor")
                             for place in ("A…A B…B", "A B B A", "one start"))]  # fmt: skip
    rows: dict[str, list[Rates]] = {name: [] for name in names}
    for index, noise in enumerate(PROFILES):
        for name, rates in beside_peers(noise, starts, trials, 100 * starts + index).items():
            rows[name].append(rates)
    lines = table(f'{starts * (RUNS + 1)} runs an arm | false "different" | inconclusive: null |'
                  " -20 % | +20 % | most wrong verdicts")  # fmt: skip
    means: dict[str, Rates] = {}
    for name, found in rows.items():
        open_ = tuple(statistics.fmean(column) for column in zip(*(r.inconclusive for r in found),
                                                                  strict=True))  # fmt: skip
        means[name] = Rates(statistics.fmean(r.different for r in found), open_,
                            max(r.wrong for r in found))  # fmt: skip
        different = "" if "doctor" in name else percent(means[name].different)
        rest = ["", "", "", ""] if "Mann" in name else [
            *(percent(share) for share in open_), percent(means[name].wrong)]  # fmt: skip
        lines.append(f"| {name} | {different} | " + " | ".join(rest) + " |")
    return lines, means


def by_noise_table(starts: int, trials: int) -> list[str]:
    lines = table('noise | false "different": sm120patch | Mann-Whitney |'
                  " inconclusive, null: sm120patch | inference-doctor")  # fmt: skip
    for index, noise in enumerate(PROFILES):
        found = beside_peers(noise, starts, trials, 100 * starts + index)
        ours, doctor = found["sm120patch"], found["inference-doctor, A…A B…B"]
        cells = [ours.different, found["Mann-Whitney, A…A B…B"].different,
                 ours.inconclusive[0], doctor.inconclusive[0]]  # fmt: skip
        lines.append(f"| {noise.name} | " + " | ".join(percent(cell) for cell in cells) + " |")
    return lines


def percent(share: Any) -> str:
    value = 100 * float(share)
    return f"{value:.1f} %" if value < 9.95 else f"{value:.0f} %"


PAGE = """# How often the verdict is wrong, and what it costs

<!-- written by `python benchmarks/verdict_rates.py --write` -->

By simulation, with seeds fixed; {agreed} trials were decided by `sm120patch.verify` itself as well,
all of them with the same verdict after the same number of server starts. Nothing here ran on a GPU:
the noise is made from what was recorded of real servers, and from heavier tails.

{profiles}

On top of that the first run after a start has 0.47 to 1 times the speed of the others, the host
drifts in a line and wanders, half of a start's luck is shared by all workloads, and the noise as a
whole is larger or smaller from one verification to the next. The spread between starts is an
assumption where only runs were recorded.

## Is it safe?

Margin {margin}, at least {least} and at most {most} pairs of starts with {runs} runs each, looked
at after every pair and stopped as soon as it is clear; {safety_trials} trials a cell. The largest
shares of all cells:

- null patches taken for improvements: **{improved}**, to stay below 1 %;
- patches that cost 10 % let through: **{accepted}**, to stay below 1 %;
- null patches rejected: {rejected}.

With the order A B A B instead of A B B A: {other_improved} and {other_accepted} (one workload).

{safety}

What it does not do is decide everything: where equal starts differ by 3 % and more, a null patch
can hardly be shown to cost less than 3 %, least of all at three workloads at once. Then the verdict
is `inconclusive`, the set stays `staged`, and the advice names the number of starts or a wider
margin.

## What does it cost?

Patches of -87, -30, -10, 0, +10 and +25 % on all seven kinds of host, {trials} trials each. A fixed
design uses the same rule without looking before the end, and has to choose its number of pairs
before noise and effect are known; given is the smallest that is right as often. Counted are server
starts, the null run included: a start of a large model takes minutes.

{costs}

By what the patch does, three workloads with a null run:

{sizes}

The median is at most **{ratio:.2f}** of the fixed design. Runs end early where the effect is clear,
and where no further start is expected to decide; the long ones are close to the margin. A collapse
also ends within its start, seconds into the load, which is not counted here.

## Beside other rules, at the same number of runs

Means over the seven kinds of noise, {trials} trials each. `A…A B…B`: the same starts, one arm after
the other, every run taken; `A B B A`: interleaved; `one start`: what is common, one server start an
arm. "Different" is said of two equal servers; the other columns are against a limit of 10 %, for
patches of 0, -20 and +20 %. Mann-Whitney is the test of benchstat (p < 0.05), inference-doctor's
rule the 90 % Welch interval; ours says "different" at 99 % and holds its 90 % interval against the
limit. The rules are written anew, not taken from those tools.

With {n} runs an arm, what remains of the false "different" of sequential Mann-Whitney is
**{different:.2f}**, of inference-doctor's inconclusive verdicts **{open_all:.2f}** (all three
patches; null patches alone: {open_null:.2f}).

{peers}

{few}

With one start an arm the other rules decide more often, because they take the luck of that one
start for an effect: that is where their false "different" come from. With the few starts of the
second table ours decides little on noisy hosts: three starts an arm cannot say more, and of
inference-doctor's inconclusive verdicts {few_all:.2f} remain, which is not the half that was aimed
at. By kind of noise, {n} runs an arm, peers `A…A B…B`:

{by_noise}
"""


def document(trials: int) -> str:
    """The whole page; takes some minutes."""
    safety, worst = safety_table(2 * trials)
    costs, ratios = cost_table(trials)
    peers, few = [peer_table(starts, trials) for starts in (6, 3)]
    ours, doctor = peers[1]["sm120patch"], peers[1][DOCTOR]
    other = always_baseline_first(2 * trials)
    kinds = table("noise | where from | between runs | between starts | drift a start")
    for n in PROFILES:
        spreads = " | ".join(percent(spread) for spread in (n.run, n.start, n.drift))
        kinds.append(f"| {n.name} | {n.source} | {spreads} |")
    return PAGE.format(
        agreed=agree(),
        profiles="\n".join(kinds),
        margin=percent(MARGIN),
        least=SCHEDULE.least,
        most=SCHEDULE.most,
        runs=RUNS,
        trials=trials,
        safety_trials=2 * trials,
        safety="\n".join(safety),
        **{name: percent(share) for name, share in worst.items()},
        other_improved=percent(other[0]),
        other_accepted=percent(other[1]),
        costs="\n".join(costs),
        sizes="\n".join(size_table(trials)),
        ratio=max(ratios),
        n=6 * (RUNS + 1),
        different=ours.different / peers[1]["Mann-Whitney, A…A B…B"].different,
        open_all=inconclusive(peers[1], "sm120patch") / inconclusive(peers[1], DOCTOR),
        few_all=inconclusive(few[1], "sm120patch") / inconclusive(few[1], DOCTOR),
        open_null=ours.inconclusive[0] / doctor.inconclusive[0],
        peers="\n".join(peers[0]),
        few="\n".join(few[0]),
        by_noise="\n".join(by_noise_table(6, trials)),
    )


def inconclusive(rates: Mapping[str, Rates], name: str) -> float:
    """Mean over the three patches."""
    return statistics.fmean(rates[name].inconclusive)


def table(heads: str) -> list[str]:
    return [f"| {heads} |", "|" + "---|" * (heads.count(" | ") + heads.count(" |\n") + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000, help="a cell")
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.name}")
    options = parser.parse_args()
    text = document(options.trials)
    if options.write:
        DOCUMENT.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
