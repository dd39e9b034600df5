from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm120patch.plan import Launch
from sm120patch.simhost import scenario_facts, scenario_names
from sm120patch.simhost.answers import tokens_for
from sm120patch.simhost.gates import look
from sm120patch.simhost.scenarios import scenario
from sm120patch.simhost.speed import RequestId, SpeedModel, interpolate
from sm120patch.verify.answers import examine
from sm120patch.verify.commandline import Arm, arms
from sm120patch.verify.loadgen import Target, measure
from sm120patch.verify.probes import LONG_CONTEXT, probes
from sm120patch.verify.profile import Workload
from sm120patch.verify.server import Server, running
from tests.support.simulated import (
    FLAG,
    GATE_CLOSED,
    GATE_OPEN,
    JIT_CLOSED,
    JIT_OPEN,
    LAUNCH,
    fake_environment,
    free_port,
    simulated_profile,
    swapper,
    write,
)
from tests.support.wheels import PAIRS

WORK = Workload("w", input_len=16, output_len=40, concurrency=8, prompts=24)


# --- looking into the environment --------------------------------------------------------------


@pytest.mark.parametrize(
    ("communicator", "jit", "closed"),
    [
        (GATE_OPEN, JIT_OPEN, []),
        (GATE_CLOSED, JIT_OPEN, ["the condition does not name SM120"]),
        (GATE_OPEN, JIT_CLOSED, ["major versions"]),
        # The condition alone, as the public recipe has it: a NameError at the first forward.
        (GATE_OPEN.replace("_is_sm120_supported = ", "_is_other = "), JIT_OPEN, ["never assigned"]),
        (GATE_OPEN.replace(", is_sm120_supported\n", "\n"), JIT_OPEN, ["not imported"]),
        # The list of another module.
        (GATE_OPEN, JIT_CLOSED[::-1].replace("]01 ,9[", "]21 ,01 ,9[", 1)[::-1], ["major"]),
        ("def broken(:\n", JIT_OPEN, ["does not parse"]),
        ("", JIT_OPEN, ["function is not there"]),
    ],
)  # fmt: skip
def test_every_gate_must_be_open(tmp_path, communicator, jit, closed):
    site = fake_environment(tmp_path)
    write(site, communicator, jit)
    sight = look(tmp_path)
    assert (sight.sglang, sight.flashinfer) == ("0.5.9", "0.6.3")
    assert sight.patched is not bool(closed)
    assert len(sight.closed) == len(closed)
    assert all(part in line for part, line in zip(closed, sight.closed, strict=True))


def test_an_empty_environment_is_not_patched(tmp_path):
    sight = look(tmp_path)
    assert not sight.patched and sight.sglang is None


@pytest.mark.network
@pytest.mark.parametrize(("sglang", "flashinfer"), PAIRS.items())
def test_published_packages_have_their_gates_closed(real_env, sglang, flashinfer):
    sight = look(real_env(sglang, flashinfer))
    assert (sight.sglang, sight.flashinfer) == (sglang, flashinfer)
    names = {gate.name for gate in sight.gates}
    assert {"runtime gate", "JIT architecture list"} <= names
    assert ("workspace preflight" in names) is (sglang == "0.5.12.post1")
    assert ("multicast requirement" in names) is (sglang == "0.5.10.post1")
    assert not any(gate.open for gate in sight.gates)


# --- declared speed ----------------------------------------------------------------------------


def test_published_figures_are_what_the_model_delivers():
    host = scenario("vm-8gpu-no-p2p")
    rate = {
        engaged: SpeedModel(host, 1, engaged=engaged).throughput(512) for engaged in (False, True)
    }
    assert rate == {False: pytest.approx(1867), True: pytest.approx(236)}
    assert interpolate(host.points, 1) == 11.1
    assert 210 < interpolate(host.points, 128) < 1867
    assert interpolate(host.points, 10_000) == 1867


def test_timing_depends_on_seed_arm_and_id_only():
    host = scenario("noisy")

    def stamps(seed: int = 1, engaged: bool = False, rid: str = "b1.w-r1-i3") -> tuple[float, ...]:
        return SpeedModel(host, seed, engaged=engaged).timing(rid, 4, 10).stamps

    assert stamps() == stamps()
    others = [stamps(seed=2), stamps(engaged=True), stamps(rid="b2.w-r1-i3"),
              stamps(rid="b1.w-r2-i3"), stamps(rid="b1.w-r1-i2")]  # fmt: skip
    assert stamps() not in others and len(set(others)) == len(others)


def test_a_request_starts_when_a_slot_falls_free():
    model = SpeedModel(scenario("null"), 1, engaged=False)
    timings = [model.timing(f"b1.w-r1-i{n}", 2, 5) for n in range(4)]
    assert timings[0].start == timings[1].start == 0
    ends = sorted(t.stamps[-1] for t in timings[:2])
    assert [t.start for t in timings[2:]] == pytest.approx(ends)


def test_ids_of_strangers_are_lone_requests():
    assert RequestId.parse("b2.c64-r1-i17") == RequestId("b2", "b2.c64-r1", 17)
    assert RequestId.parse("x" * 500).index == 0
    assert RequestId.parse("../../etc-i99999999999").index == 0


def test_answers_fit_the_questions_of_the_verification():
    for probe in probes():
        text = "".join(tokens_for(probe.prompt, probe.output_len, stop=True, garbage=False))
        assert probe.passes(text), (probe.name, text)


def test_every_scenario_has_facts_with_a_source():
    for name in scenario_names():
        facts = scenario_facts(name)
        assert facts.compute_capability == "12.0" and facts.gpus > 0
        assert facts.description and facts.source
    assert (scenario_facts("vm-8gpu-no-p2p").gpus, scenario_facts("root-complex-2gpu").gpus) == (
        8,
        2,
    )
    with pytest.raises(KeyError, match="root-complex-2gpu"):
        scenario_facts("nonsense")


# --- the real process --------------------------------------------------------------------------


@pytest.fixture
def patched(tmp_path: Path) -> Iterator[Server]:
    swapped_at = swapper(fake_environment(tmp_path))(Arm.PATCHED)
    profile = simulated_profile(tmp_path, "root-complex-2gpu")
    command = arms(profile, LAUNCH).patched
    with running(profile, command, swapped_at=swapped_at, label="1") as server:
        yield server


def post(url: str, body: object) -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=20) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_the_server_speaks_sglang(patched):
    info = patched.info
    assert info["simulated"] is True and info["clock"] == "virtual" and info["patched"] is True
    assert (info["scenario"], info["seed"], info["version"]) == ("root-complex-2gpu", 1, "0.5.9")
    assert info["enable_flashinfer_allreduce_fusion"] is True and info["tp_size"] == 2
    gpus = info["gpus"]
    assert isinstance(gpus, list) and [g["compute_capability"] for g in gpus] == ["12.0", "12.0"]
    assert patched.log is not None
    assert "FlashInfer workspace initialized for rank 1, world_size 2" in patched.log.read_text()

    status, body = post(patched.url + "/generate", {"text": "1 + 2 =", "sampling_params": {}})
    reply = json.loads(body)
    assert status == 200 and reply["text"].startswith(" 3")
    assert reply["meta_info"]["finish_reason"] and reply["meta_info"]["completion_tokens"] == 2

    status, body = post(patched.url + "/v1/completions", {"prompt": "1 + 2 =", "max_tokens": 4})
    assert status == 200 and json.loads(body)["choices"][0]["text"].startswith(" 3")
    with urllib.request.urlopen(patched.url + "/v1/models", timeout=20) as answer:
        assert json.load(answer)["data"][0]["id"] == "simulated/model"
    assert post(patched.url + "/flush_cache", {})[0] == 200


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"\xff\xfe", {}, {"text": 5}, {"text": "x", "sampling_params": 3},
     {"text": "x", "sampling_params": {"max_new_tokens": "many"}},
     {"text": "x", "sampling_params": {"max_new_tokens": 10**12}},
     {"input_ids": [1], "sampling_params": {"max_new_tokens": -1}}],
)  # fmt: skip
def test_nonsense_is_a_bad_request(patched, body):
    assert post(patched.url + "/generate", body)[0] == 400


@pytest.mark.parametrize("endpoint", ["generate", "openai"])
def test_the_load_generator_sees_the_declared_throughput(patched, endpoint):
    target = Target(patched.url, endpoint=endpoint, virtual=True)
    repeat = measure(target, WORK, seed=1, tag="b1.w", repeat=1)
    declared = SpeedModel(scenario("root-complex-2gpu"), 1, engaged=True).throughput(8)
    assert repeat.metrics["failed"] == 0
    assert repeat.metrics["output_throughput"] == pytest.approx(declared, rel=0.03)
    assert repeat.metrics["total_output_tokens"] == 24 * 40
    again = measure(target, WORK, seed=1, tag="b1.w", repeat=1)
    assert again.metrics == repeat.metrics


def test_the_wall_clock_follows_the_time_scale(patched):
    """A client that knows nothing of virtual time sees real, scaled waiting."""
    repeat = measure(Target(patched.url), WORK, seed=1, tag="b1.w", repeat=1)
    assert repeat.metrics["failed"] == 0
    assert repeat.metrics["mean_tpot_ms"] > 0


def test_the_questions_are_answered_right(patched):
    examination = examine(Target(patched.url, virtual=True), "b1.probe")
    assert all(answer.passed for answer in examination.answers)
    assert all(a.chosen for a in examination.of("count")), "beside others they are asked for too"
    assert min(a.prompt_tokens or 0 for a in examination.of("long-recall")) > LONG_CONTEXT


def test_probabilities_are_not_asked_for_where_the_profile_says_so(patched):
    examination = examine(Target(patched.url, virtual=True, logprobs=False), "b1.probe")
    assert all(answer.passed and not answer.chosen for answer in examination.answers)


@pytest.mark.parametrize(
    ("arm", "flagged", "says"),
    [
        (Arm.PATCHED, True, "FlashInfer workspace initialized for rank 0"),
        (Arm.BASELINE, True, "falling back to standard implementation"),
        (Arm.PATCHED, False, None),
        (Arm.BASELINE, False, None),
    ],
)
def test_engaged_needs_patch_and_option(tmp_path, arm, flagged, says):
    swapped_at = swapper(fake_environment(tmp_path))(arm)
    profile = simulated_profile(tmp_path, "null")
    command = arms(profile, LAUNCH if flagged else Launch(strip={FLAG: 0})).patched
    with running(profile, command, swapped_at=swapped_at, label="1") as server:
        assert server.info["enable_flashinfer_allreduce_fusion"] is flagged
        assert server.log is not None
        log = server.log.read_text()
    found = [text for text in ("FlashInfer workspace initialized", "falling back") if text in log]
    assert len(found) == (says is not None)
    assert says is None or says in log


def test_the_newer_option_counts_as_well(tmp_path):
    site = fake_environment(tmp_path)
    (site / "sglang-0.5.9.dist-info").rename(site / "sglang-0.5.14.dist-info")
    swapped_at = swapper(site)(Arm.PATCHED)
    profile = simulated_profile(tmp_path, "null")
    launch = Launch(("--flashinfer-allreduce-fusion-backend", "trtllm"), {}, {FLAG: 0})
    with running(
        profile, arms(profile, launch).patched, swapped_at=swapped_at, label="1"
    ) as server:
        assert server.info["flashinfer_allreduce_fusion_backend"] == "trtllm"
        assert server.log is not None
        assert "FlashInfer AllReduce Fusion enabled" in server.log.read_text()


def test_options_of_the_real_server_are_accepted_and_the_seed_is_honoured(tmp_path):
    fake_environment(tmp_path)
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "sm120patch.simhost", "--prefix", str(tmp_path), "--scenario",
         "null", "--port", str(port), "--seed", "9", "--time-scale", "50", "--tp", "4",
         "--model-path", "/m", "--mem-fraction-static", "0.9", "--attention-backend", "x"],
        stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 20
        info = None
        while info is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info") as reply:
                    info = json.load(reply)
            except OSError:
                time.sleep(0.05)
    finally:
        process.terminate()
    assert info is not None
    assert (info["seed"], info["time_scale"], info["tp_size"]) == (9, 50, 4)
    assert info["model_path"] == "/m"
    assert process.wait(timeout=10) == 0
