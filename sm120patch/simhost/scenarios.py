"""Declared hosts: topology, speed, noise and behaviour, each with its source. Pure.

Two scenarios carry published figures; they were reported by their authors for SM120 servers
and not measured by this project:

- `vm-8gpu-no-p2p`: 8 GPUs passed into a VM without peer-to-peer. Published: the all-reduce
  fusion took the server from 1867 to 236 tok/s and the GPUs from 250 to 125 W. The report does
  not say at which concurrency; here it is 512. Single stream (11.1 tok/s) and 64 concurrent
  (210 tok/s, published range 195..225) are from another report on such a host (8x RTX PRO 6000,
  GLM-5-NVFP4) and the ratio is assumed to be the same at every concurrency.
- `root-complex-2gpu`: 2 GPUs behind one root complex. Published: +2..+5 % at TP 2, with up to
  6.9 % between identical runs; declared: +5 % and the quieter noise of a machine that is left
  alone. Upstream threads: sglang #15650 and #32330, flashinfer #3903. The absolute speeds
  are declared, not published.

All others are for tests: one for every verdict and every way in which a server fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from sm120patch.known import WAYS


class Behaviour(str, Enum):
    """What the server does apart from being fast or slow."""

    NORMAL = "normal"
    NEVER_READY = "never-ready"
    CRASH_AT_START = "crash-at-start"
    CRASH_WHEN_PATCHED = "crash-when-patched"
    CRASH_UNLESS_PATCHED = "crash-unless-patched"
    DIES_UNDER_LOAD = "dies-under-load"
    """The patched server dies after some requests of a measured repeat."""
    FLAG_IGNORED = "flag-ignored"
    """Flag and patch are there, and the feature falls back all the same."""
    GARBAGE = "garbage"
    """The patched server repeats one token for ever."""
    GARBAGE_FAR_BACK = "garbage-far-back"
    """It does so only behind a prompt of thousands of words."""
    BABBLE = "babble"
    """The patched server says fluent words that answer nothing."""
    SILENT = "silent"
    """The patched server counts tokens, and there is no text."""
    CUT_SHORT = "cut-short"
    """The patched server ends every answer after a quarter of it."""
    SHIFTED = "shifted"
    """The patched server says the same with other probabilities."""


@dataclass(frozen=True)
class Scenario:
    """One declared host."""

    name: str
    description: str
    source: str
    gpus: int
    points: tuple[tuple[int, float], ...]
    """Baseline: (concurrent requests, output tokens per second of the whole server)."""
    ratio: float
    """Throughput with the patched code engaged, as a fraction of the baseline."""
    block_noise: float = 0.002
    """Spread between server starts (standard deviation of the log of the speed)."""
    repeat_noise: float = 0.004
    """Spread between repeats of one server start, likewise."""
    behaviour: Behaviour = Behaviour.NORMAL
    power: tuple[float, float] = (300.0, 300.0)
    """Watts per GPU under load: baseline, patched."""
    topology: str = "PHB"
    """Link between the GPUs in the words of `nvidia-smi topo -m`."""
    virtualized: bool = False
    p2p: bool = True
    """Whether the GPUs reach each other's memory."""
    options: Mapping[str, float] = field(default_factory=dict)
    """`field=value` of `/server_info` -> throughput with it, as a fraction; 0 ends at start."""
    gpu_name: str = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    compute_capability: str = "12.0"
    time_scale: float = 2000.0
    """Virtual seconds that pass in one real second of waiting."""


@dataclass(frozen=True)
class ScenarioFacts:
    """What a planner may know about a simulated host without asking it."""

    name: str
    gpus: int
    gpu_name: str
    compute_capability: str
    topology: str
    virtualized: bool
    description: str
    source: str


_TEST = "declared for tests; no measurement stands behind it"
_ROOT_COMPLEX = Scenario(
    name="root-complex-2gpu",
    description="2 GPUs behind one root complex; the fusion gains 5 %",
    source="published range +2..+5 % at TP 2 (sglang #32330, flashinfer #3903); +5 % declared",
    gpus=2,
    points=((1, 62.0), (64, 1180.0), (512, 2900.0)),
    ratio=1.05,
    topology="PIX",
)


def _variation(name: str, description: str, **changes: object) -> Scenario:
    values = {"name": name, "description": description, "source": _TEST, **changes}
    # Fields of Scenario, declared right below; `replace` itself refuses any other.
    return replace(_ROOT_COMPLEX, **values)  # type: ignore[arg-type]


_SCENARIOS = (
    Scenario(
        name="vm-8gpu-no-p2p",
        description="8 GPUs in a VM without P2P; the fusion takes 1867 tok/s to 236",
        source="published by an operator: 1867 -> 236 tok/s, 250 -> 125 W per GPU",
        gpus=8,
        points=((1, 11.1), (64, 210.0), (512, 1867.0)),
        ratio=236 / 1867,
        power=(250.0, 125.0),
        virtualized=True,
        p2p=False,
    ),
    _ROOT_COMPLEX,
    _variation("null", "the fusion changes nothing", ratio=1.0),
    _variation(
        "tunable",
        "launch options have declared effects",
        ratio=1.0,
        options={
            "moe_runner_backend=flashinfer_cutlass": 1.08,
            "moe_runner_backend=triton": 0.8,
            "moe_runner_backend=deep_gemm": 0.0,
        },
    ),
    _variation(
        "noisy",
        "the fusion changes nothing, and nobody could tell",
        ratio=1.0,
        block_noise=0.1,
        repeat_noise=0.1,
    ),
    _variation("slow-mild-regression", "the fusion costs 7 %", ratio=0.93),
    _variation("garbage", "fast, and one token for ever", ratio=3.0, behaviour=Behaviour.GARBAGE),
    *(
        _variation(behaviour.value, f"fast, and {words}", ratio=3.0, behaviour=behaviour)
        for behaviour, words in (
            (Behaviour.GARBAGE_FAR_BACK, "one token for ever behind a long prompt"),
            (Behaviour.BABBLE, "fluent words that answer nothing"),
            (Behaviour.SILENT, "no text at all"),
            (Behaviour.CUT_SHORT, "answers that end early"),
            (Behaviour.SHIFTED, "other probabilities for the same words"),
        )
    ),
    _variation("never-ready", "/health never says 200", behaviour=Behaviour.NEVER_READY),
    _variation("crash-at-start", "ends at start", behaviour=Behaviour.CRASH_AT_START),
    _variation(
        "crash-when-patched",
        "ends at start when the patch is in",
        behaviour=Behaviour.CRASH_WHEN_PATCHED,
    ),
    _variation(
        "crash-unless-patched",
        "ends at start unless the patch is in",
        behaviour=Behaviour.CRASH_UNLESS_PATCHED,
    ),
    _variation(
        "dies-under-load",
        "ends in the middle of a repeat when the patch is in",
        behaviour=Behaviour.DIES_UNDER_LOAD,
    ),
    _variation(
        "flag-ignored",
        "flag and patch are there, the feature still falls back",
        behaviour=Behaviour.FLAG_IGNORED,
    ),
)


def scenario_names() -> tuple[str, ...]:
    """Names in the order of declaration; the published ones first."""
    return tuple(scenario.name for scenario in _SCENARIOS)


def scenario(name: str) -> Scenario:
    """Declared host of that name; KeyError lists the names there are."""
    for candidate in _SCENARIOS:
        if candidate.name == name:
            return candidate
    raise KeyError(f"no scenario {name!r}; there are {', '.join(scenario_names())}")


def scenario_facts(name: str) -> ScenarioFacts:
    """GPUs, capability, description and source of a scenario; KeyError for an unknown one."""
    found = scenario(name)
    return ScenarioFacts(
        name=found.name,
        gpus=found.gpus,
        gpu_name=found.gpu_name,
        compute_capability=found.compute_capability,
        topology=found.topology,
        virtualized=found.virtualized,
        description=found.description,
        source=found.source,
    )


def scenario_words(name: str) -> tuple[tuple[str, ...], int]:
    """Topology of a scenario in the words of `host.Host.topology`, and its number of GPUs."""
    found = scenario(name)
    words = [f"{found.gpus}-gpus", "virtual-machine" if found.virtualized else "bare-metal"]
    if found.gpus > 1:
        words += ["p2p" if found.p2p else "no-p2p", WAYS.get(found.topology, "path-unknown")]
        words += ["pcie"] if found.topology in WAYS and found.topology != "NVLINK" else []
    return tuple(words), found.gpus
