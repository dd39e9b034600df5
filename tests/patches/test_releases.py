"""Every SGLang release with the FlashInfer it pins: planned by the planner, judged from outside.

What a pair needs is written down here, from a reading of the published files; the judge walks the
gates and knows nothing of catalogue, engine or planner.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sm120patch import catalogue as catalogues
from sm120patch.catalogue import Catalogue
from sm120patch.model import (
    FileSnapshot,
    Snapshot,
    State,
    TargetSnapshot,
    Variant,
    sha256_hex,
)
from sm120patch.operations.staging import after_history
from sm120patch.plan import History, Outcome, Plan
from sm120patch.planner import Refusal, Request, make_plan
from sm120patch.simhost.gates import Sight, look
from tests.patches import gates
from tests.patches.lines import AUTOTUNE_LIST, LINES, line_edits
from tests.support import wheels
from tests.support.wheels import PINS

pytestmark = pytest.mark.network

RELEASES = tuple(PINS)
FAST = (
    "0.5.0rc0", "0.5.1.post3", "0.5.2rc2", "0.5.3", "0.5.4.post1", "0.5.7", "0.5.9", "0.5.11",
    "0.5.14", "0.5.18", "0.5.21", "0.5.23",
)  # fmt: skip
"""One release of every shape."""


def since(first: str, last: str = RELEASES[-1]) -> frozenset[str]:
    """SGLang releases from `first` to `last`, both included."""
    return frozenset(RELEASES[RELEASES.index(first) : RELEASES.index(last) + 1])


CLOSED_IN = {
    "SG.H1": since("0.5.0rc0", "0.5.3.post3"),
    "SG.A1": since("0.5.0rc0"),
    "SG.A3": since("0.5.14"),
    "SG.A4": since("0.5.11"),
    "FI.A1": since("0.5.0rc0", "0.5.17"),
    "FI.A2": since("0.5.0rc0", "0.5.17") - {"0.5.1.post2", "0.5.1.post3"},
    "FI.A4-M1": since("0.5.8", "0.5.11"),
}
"""Gate -> SGLang releases that, with their pin, keep SM120 out there (upstream-matrix, section 3).

FI.A1 is beside SGLang's path. FI.A4-M1 stands in 0.6.10 to 0.6.14 as well, but nothing comes
through it there: the workspace is allocated by torch.
"""
CHANGES = {
    "SG.H1": "capability-helper",
    "SG.A1": "runtime-gate",
    "SG.A3": "resolver",
    "SG.A4": "preflight",
    "FI.A1": "header-gates",
    "FI.A2": "jit-arch-list",
    "FI.A4-M1": "multicast-optional",
}
HAS_IT = {
    "capability-helper": since("0.5.4"),
    "header-gates": since("0.5.18"),
    "jit-arch-list": since("0.5.18"),
    "multicast-optional": since("0.5.17"),
}
"""Change -> releases that (or whose pin) have it upstream."""
SWITCHES_ITSELF = {"closed": since("0.5.0rc2") - since("0.5.4.post2", "0.5.7"),
                   "open": since("0.5.4.post2", "0.5.7")}  # fmt: skip


class Release:
    """The published files of one pair, and what plans made of them."""

    def __init__(self, sglang: str) -> None:
        self.versions = {"sglang": sglang, "flashinfer-python": PINS[sglang]}
        self.changed: dict[str, bytes] = {}

    def pristine(self, path: str) -> bytes | None:
        target = "sglang" if path.startswith("sglang/") else "flashinfer-python"
        return wheels.published(target, self.versions[target], path)

    def read(self, path: str) -> bytes | None:
        return self.changed.get(path) or self.pristine(path)

    def snapshot(self, paths: Mapping[str, set[str]]) -> Snapshot:
        targets = {}
        for target, version in self.versions.items():
            found = {p: file for p in paths[target] if (file := self._file(p)) is not None}
            targets[target] = TargetSnapshot(target, version, "/env/site", "wheel", found)
        return Snapshot("/env", targets, compute_capability="12.0")

    def _file(self, path: str) -> FileSnapshot | None:
        before, now = self.pristine(path), self.read(path)
        if before is None or now is None:
            return None
        digests = sha256_hex(now), sha256_hex(before)
        return FileSnapshot(path, now, digests[0], 0o644, 1, 1, digests[1], before)


@pytest.fixture(scope="module")
def known() -> Catalogue:
    return catalogues.load()


def attempt(
    known: Catalogue, release: Release, past: History, name: str, *selected: str
) -> Plan | Refusal:
    """Ask the planner, with all files that any variant names."""
    paths: dict[str, set[str]] = {target: set() for target in release.versions}
    for member in known.closure([name]):
        for change in known.get(member).changes:
            paths[change.target] |= {v.path for v in change.variants}
    request = Request("apply", (name,), selected)
    return make_plan(known, release.snapshot(paths), past, request)


def make(known: Catalogue, release: Release, past: History, *selected: str) -> Plan:
    """Plan `allreduce-fusion`; no release may be without a plan."""
    result = attempt(known, release, past, "allreduce-fusion", *selected)
    assert isinstance(result, Plan), result
    return result


def apply(release: Release, plan: Plan) -> None:
    release.changed |= {step.path: step.after for step in plan.files}


def found(release: Release, gate: str) -> str | None:
    at = gates.find(gate, release.read)
    return at[1] if at else None


def payloads(known: Catalogue, release: Release, labels: tuple[str, ...]) -> list[str]:
    chosen = []
    for label in labels:
        set_id, _, change_id = label.partition("/")
        change = known.get(set_id).change(change_id)
        assert change is not None
        variant, _ = catalogues.choose(change, release.versions)
        assert isinstance(variant, Variant)
        chosen.append(variant.payload)
    return chosen


def sums(payloads: list[str]) -> list[list[str]]:
    """Every sorted list of line edits that the payloads may leave together."""
    results: list[list[str]] = [[]]
    for payload in payloads:
        results = [sorted(r + lines) for r in results for lines in LINES[payload]]
    return results


def every(*, fast: tuple[str, ...] = FAST) -> list[Any]:
    return [pytest.param(v, marks=() if v in fast else pytest.mark.slow) for v in RELEASES]


@pytest.mark.parametrize("sglang", every())
def test_every_gate_is_open_and_nothing_else_changed(known: Catalogue, sglang: str) -> None:
    release = Release(sglang)
    needed = {gate for gate, releases in CLOSED_IN.items() if sglang in releases}
    assert {gate: found(release, gate) for gate in needed} == dict.fromkeys(needed, gates.CLOSED)

    plan = make(known, release, History())
    apply(release, plan)
    assert {gate: found(release, gate) for gate in needed} == dict.fromkeys(needed, gates.OPEN)

    places = {at[0] for gate in needed if (at := gates.find(gate, release.read))}
    assert {step.path for step in plan.files} == places
    for step in plan.files:
        assert release.pristine(step.path) == step.before
        if step.path.endswith(".py"):
            compile(step.after, step.path, "exec", dont_inherit=True)
        edits = sorted(line_edits(step.before, step.after))
        assert edits in sums(payloads(known, release, step.changes))


@pytest.mark.parametrize("sglang", every())
def test_what_is_not_patched_has_the_true_reason(known: Catalogue, sglang: str) -> None:
    release = Release(sglang)
    plan = make(known, release, History())
    outcomes = {d.change_id: d.outcome for d in plan.decisions}
    for gate, change_id in CHANGES.items():
        if sglang in CLOSED_IN[gate]:
            expected = Outcome.PATCHED
        elif sglang in HAS_IT.get(change_id, ()):
            expected = Outcome.UPSTREAM
            assert found(release, gate) == gates.OPEN, "upstream, but the gate is not open"
        else:
            expected = Outcome.NOT_NEEDED
        assert outcomes[change_id] is expected, change_id
    assert outcomes["auto-enable"] is outcomes["cluster-clamp"] is Outcome.NOT_SELECTED
    assert plan.states["sm120-checks"] is plan.states["allreduce-fusion"] is State.ABSENT
    upstream = sglang in since("0.5.18")
    expected_state = State.UPSTREAM if upstream else State.ABSENT
    assert plan.states["allreduce-arch-gate"] is expected_state
    if upstream:
        assert all(step.target == "sglang" for step in plan.files)


@pytest.mark.parametrize("sglang", every())
def test_auto_enable_opens_its_condition_where_it_is_selected(
    known: Catalogue, sglang: str
) -> None:
    release = Release(sglang)
    plain = make(known, release, History())
    chosen = make(known, release, History(), "auto-enable")
    more = {s.path: s for s in chosen.files if s.path not in {p.path for p in plain.files}}
    assert all(a == b for a, b in zip(plain.files, rest(chosen, more), strict=True))
    before = found(release, "SG.A2")
    if sglang in SWITCHES_ITSELF["closed"]:
        ((path, step),) = more.items()
        assert before == gates.CLOSED
        apply(release, chosen)
        assert gates.find("SG.A2", release.read) == (path, gates.OPEN)
        edits = sorted(line_edits(step.before, step.after))
        assert edits in sums(payloads(known, release, step.changes))
    else:
        assert more == {}
        assert before == ("open" if sglang in SWITCHES_ITSELF["open"] else None)


def rest(plan: Plan, without: Mapping[str, object]) -> list[Any]:
    return [step for step in plan.files if step.path not in without]


@pytest.mark.parametrize("sglang", every(fast=("0.5.0rc0", "0.5.3", "0.5.9", "0.5.23")))
def test_the_simulated_host_sees_it_too(known: Catalogue, sglang: str, tmp_path: Path) -> None:
    release = Release(sglang)
    site = tmp_path / "lib/python3.11/site-packages"
    seen = {path for places, _ in gates.GATES.values() for path in places} | {
        f"{gates.INCLUDE}/trtllm_allreduce_fusion.cuh", "flashinfer/comm/torch_symmetric_memory.py",
    }  # fmt: skip

    def lay_out() -> Sight:
        for path in seen:
            if (data := release.read(path)) is not None:
                (site / path).parent.mkdir(parents=True, exist_ok=True)
                (site / path).write_bytes(data)
        return look(tmp_path)

    assert not lay_out().patched
    apply(release, make(known, release, History()))
    sight = lay_out()
    assert sight.closed == []
    assert sight.patched


@pytest.mark.parametrize("sglang", every(fast=("0.5.0rc0", "0.5.3", "0.5.11", "0.5.23")))
def test_apply_twice_is_once_and_revert_is_pristine(known: Catalogue, sglang: str) -> None:
    release = Release(sglang)
    plan = make(known, release, History())
    apply(release, plan)
    past = after_history(History(), plan)
    assert make(known, release, past).is_noop
    paths: dict[str, set[str]] = {target: set() for target in release.versions}
    for target, path in past.files:
        paths[target].add(path)
    back = make_plan(known, release.snapshot(paths), past, Request("revert", ("allreduce-fusion",)))
    assert isinstance(back, Plan)
    assert {step.path for step in back.files} == set(release.changed)
    assert all(step.after == release.pristine(step.path) for step in back.files)


@pytest.mark.parametrize("sglang", every())
def test_the_reduction_behind_the_mlp_has_no_gate_of_its_own(sglang: str) -> None:
    # SG.A1b: the flag alone fuses it up to 0.5.7, then it asks the runtime gate
    data = Release(sglang).pristine(gates.COMMUNICATOR)
    asked = gates.asks_before_fusing_the_mlp(data) if data is not None else None
    if sglang in since("0.5.1", "0.5.20"):
        assert asked == ("the runtime gate" if sglang in since("0.5.8") else "nothing")
    else:
        assert asked is None


def test_the_fp4_part_that_needs_sm120a_is_left_out_where_no_gate_is_said_to_be() -> None:
    header = f"{gates.INCLUDE}/trtllm_allreduce_fusion.cuh"
    for sglang, without in (("0.5.1.post3", True), ("0.5.0rc0", False), ("0.5.2rc2", False)):
        data = Release(sglang).pristine(header)
        assert data is not None
        assert gates.without_fp4(data) is without


FLASHINFER = (
    "0.2.9", "0.2.10", "0.2.11", "0.2.11.post1", "0.2.11.post2", "0.2.11.post3", "0.2.12", "0.2.13",
    "0.2.14", "0.2.14.post1", "0.3.0", "0.3.0.post1", "0.3.1", "0.3.1.post1", "0.4.0rc3", "0.4.0",
    "0.4.1", "0.5.0", "0.5.1", "0.5.2", "0.5.3", "0.6.0", "0.6.1", "0.6.2", "0.6.3", "0.6.4",
    "0.6.5", "0.6.6", "0.6.7", "0.6.7.post1", "0.6.7.post2", "0.6.7.post3", "0.6.8", "0.6.8.post1",
    "0.6.9", "0.6.10", "0.6.10.post1", "0.6.11", "0.6.11.post1", "0.6.11.post2", "0.6.11.post3",
    "0.6.12", "0.6.13", "0.6.14", "0.6.15", "0.6.15.post1", "0.6.16", "0.6.16.post1",
    "0.6.16.post2", "0.6.16.post3", "0.6.16.post4", "0.6.17", "0.6.18", "0.6.18.post1", "0.7.0",
    "0.7.0.post1", "0.7.1", "0.7.2", "0.7.2.post1", "0.7.4",
)  # fmt: skip
"""Every FlashInfer release that the set is for; SGLang pins less than half of them."""


@pytest.mark.slow
@pytest.mark.parametrize("version", FLASHINFER)
def test_flashinfer_releases_that_nobody_pins_are_opened_too(
    known: Catalogue, version: str
) -> None:
    release = Release(RELEASES[0])
    release.versions["flashinfer-python"] = version
    result = attempt(known, release, History(), "allreduce-arch-gate", "cluster-clamp")
    assert isinstance(result, Plan), result
    apply(release, result)
    left = {g for g in gates.GATES if g.startswith("FI.") and found(release, g) == gates.CLOSED}
    header = release.read(f"{gates.INCLUDE}/trtllm_allreduce_fusion.cuh")
    assert header is not None
    position = FLASHINFER.index(version)
    allowed = {"FI.A2"} if gates.without_fp4(header) else set()
    if FLASHINFER.index("0.6.10") <= position < FLASHINFER.index("0.6.15"):
        assert release.pristine("flashinfer/comm/torch_symmetric_memory.py") is not None
        allowed = {"FI.A4-M1"}
    assert left == allowed
    upstream = position >= FLASHINFER.index("0.6.17")
    assert (result.files == ()) is upstream


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("0.2.8", "SGLang asks for 0.2.10 since 0.5.0rc0"),
        ("0.2.7", "ships without it"),
        ("0.4.0rc4", "nothing is known about flashinfer-python 0.4.0rc4"),
        ("0.7.5", "nothing is known about flashinfer-python 0.7.5"),
    ],
)
def test_flashinfer_releases_nobody_looked_at_or_nothing_can_open(
    known: Catalogue, version: str, reason: str
) -> None:
    change = known.get("allreduce-arch-gate").change("jit-arch-list")
    assert change is not None
    variant, said = catalogues.choose(change, {"flashinfer-python": version})
    assert variant is None
    assert reason in said


@pytest.mark.parametrize("version", ["0.5.0b1", "0.4.9.post6", "0.5.24", "0.6.0"])
def test_sglang_releases_nobody_looked_at_are_not_planned(known: Catalogue, version: str) -> None:
    installed = {"sglang": version, "flashinfer-python": "0.7.2"}
    for change in known.get("sm120-checks").changes:
        variant, said = catalogues.choose(change, installed)
        assert variant is None
        assert "nothing is known" in said


# --- cutlass-autotune -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sglang", every(fast=("0.5.5.post3", "0.5.6", "0.5.7", "0.5.12.post1", "0.5.14", "0.5.23"))
)
def test_the_cutlass_backend_is_tuned_or_the_reason_named(known: Catalogue, sglang: str) -> None:
    release = Release(sglang)
    before = found(release, "SG.B1")
    result = attempt(known, release, History(), "cutlass-autotune")
    launch = catalogues.launch_for(known.get("cutlass-autotune"), release.versions)
    if sglang in since("0.5.0rc0", "0.5.6.post2"):
        assert isinstance(result, Refusal)
        assert result.kind == "not-applicable"
        assert before is None
        there = b"flashinfer_autotune" in (release.pristine(gates.MODEL_RUNNER) or b"")
        said = "--enable-flashinfer-autotune" if there else "before 0.5.6"
        assert said in result.reasons[0]
        return
    assert isinstance(result, Plan)
    if sglang in since("0.5.13"):
        assert (result.files, launch.args) == ((), ())
        assert result.states == {"cutlass-autotune": State.UPSTREAM}
        assert before == gates.OPEN
        return
    assert before == gates.CLOSED
    (step,) = result.files
    apply(release, result)
    assert found(release, "SG.B1") == gates.OPEN
    compile(step.after, step.path, "exec", dont_inherit=True)
    assert sorted(line_edits(step.before, step.after)) in sums([AUTOTUNE_LIST])
    assert launch.args == ("--moe-runner-backend", "flashinfer_cutlass")
    args = release.pristine(gates.SERVER_ARGS) or b""
    assert all(f'"{option}"'.encode() in args for option in launch.strip)
    assert re.search(rb'^MOE_RUNNER_BACKEND_CHOICES = [^\]]*"flashinfer_cutlass"', args, re.M)
    (probe,) = catalogues.engagement_for(known.get("cutlass-autotune"), release.versions)
    said = gates.messages(step.after)["info"]
    assert probe.log is not None
    assert len([text for text in said if re.search(probe.log, text)]) == 1


# --- launch and engagement ------------------------------------------------------------------------

COMM_FUSION = "sglang/srt/layers/flashinfer_comm_fusion.py"
OPTIONS = ("sglang/srt/server_args.py", "sglang/srt/arg_groups/fields/exec_.py")


@pytest.mark.parametrize("sglang", every())
def test_launch_options_exist_in_the_release(known: Catalogue, sglang: str) -> None:
    release = Release(sglang)
    launch = catalogues.launch_for(known.get("allreduce-fusion"), release.versions)
    source = b"\n".join(data for path in OPTIONS if (data := release.pristine(path)))
    option, *values = launch.args
    field = option.removeprefix("--").replace("-", "_").encode()
    probes = catalogues.engagement_for(known.get("allreduce-fusion"), release.versions)
    (probe,) = [p for p in probes if p.target == "sglang"]
    assert probe.server_info == {field.decode(): values[0] if values else True}
    assert re.search(rb"^    %s: " % field, source, re.M), "a field, so that server_info has it"
    if values:
        choices = re.search(rb"^    %s: A\[\s+Optional\[Literal\[([^\]]+)" % field, source, re.M)
        assert choices is not None
        assert f'"{values[0]}"'.encode() in choices[1]
    else:
        assert f'"{option}"'.encode() in source
    assert option in launch.strip


@pytest.mark.parametrize("sglang", every())
def test_probes_match_what_the_release_logs(known: Catalogue, sglang: str) -> None:
    release = Release(sglang)
    probes = catalogues.engagement_for(known.get("allreduce-fusion"), release.versions)
    (probe,) = [p for p in probes if p.target == "sglang"]
    assert probe.log is not None
    assert probe.log_absent is not None
    source = release.pristine(COMM_FUSION)
    assert source is not None
    said = gates.messages(source, rank="3", world_size="8", backend="trtllm", backend_name="trtllm")
    wanted = [text for text in said["info"] if re.search(probe.log, text)]
    assert len(wanted) == 1
    assert not re.search(probe.log_absent, wanted[0])
    other = gates.messages(source, rank="3", world_size="8", backend="mnnvl", backend_name="mnnvl")
    backends = any("backend" in text for text in wanted)
    assert any(re.search(probe.log, text) for text in other["info"]) is not backends
    for part in probe.log_absent.split("|"):
        assert any(part in text for text in said["warning"]), part
    unmatched = [t for t in said["warning"] if not re.search(probe.log_absent, t)]
    assert all(HARMLESS.search(text) for text in unmatched), unmatched


HARMLESS = re.compile(r"Failed to cleanup|share one NVLink clique|transport workaround: forcing")
"""Warnings that do not mean that the fused kernels are off: MNNVL alone needs the clique."""


@pytest.mark.parametrize("sglang", every())
def test_the_module_that_must_be_loaded_is_the_one_that_is_patched(
    known: Catalogue, sglang: str
) -> None:
    release = Release(sglang)
    probes = catalogues.engagement_for(known.get("allreduce-fusion"), release.versions)
    modules = [p.jit_module for p in probes if p.jit_module]
    changes = known.get("allreduce-arch-gate").changes
    chosen = [catalogues.choose(c, release.versions)[0] for c in changes if not c.optional]
    assert bool(modules) is any(isinstance(choice, Variant) for choice in chosen)
    places = ("flashinfer/jit/comm.py", "flashinfer/comm/trtllm_ar.py")
    sources = b"".join(release.pristine(path) or b"" for path in places)
    assert all(f'"{module}"'.encode() in sources for module in modules)
