"""The verifier against real SGLang 0.5.9, which runs on the CPU here, with a tiny random model.

SGLang's model file is published a little differently for these tests: every pass of a batch
sleeps. A set that shortens the sleep is a real improvement of code that really runs, its twin that
adds another one a real regression, both far above the noise of a busy machine.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sm120patch.model import Engagement, sha256_hex
from sm120patch.plan import Launch
from sm120patch.unified import make_diff
from sm120patch.verify import processes
from sm120patch.verify.answers import examine
from sm120patch.verify.clients import Pass, drive
from sm120patch.verify.commandline import arms
from sm120patch.verify.correctness import judge
from sm120patch.verify.engagement import process_seen
from sm120patch.verify.loadgen import Request, Target, ask, measure
from sm120patch.verify.metrics import Sample, calculate
from sm120patch.verify.origin import foreign, origin_of
from sm120patch.verify.profile import Workload, load, parse
from sm120patch.verify.server import Server, running
from sm120patch.verify.spawn import ServerError
from tests.support import real_sglang
from tests.support.command import Ran, run
from tests.support.environments import tree_digest
from tests.support.manifests import head
from tests.support.serving import Running
from tests.support.simulated import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.skipif(not real_sglang.supported(), reason="the recipe is for Python 3.11"),
]

MODEL = "sglang/srt/models/qwen3_moe.py"
LONG, SHORT = 0.08, 0.02  # seconds; a step takes 5 to 30 ms of a CPU, after what else it does
# Only in batches: the correctness questions, most of them asked alone, take no longer for it.
SLEEP = "        forward_batch.batch_size > 4 and __import__('time').sleep({})  # {}\n"
PLANTED, AWAKE = SLEEP.format(LONG, "planted"), SLEEP.format(SHORT, "awake")
DROWSY = SLEEP.format(3 * LONG, "drowsy")
CALL = "        hidden_states = self.model(\n            input_ids,\n            positions,\n"
AFTER_CALL = "        aux_hidden_states = None\n        if self.capture_aux_hidden_states:\n"
MADE = "        self.capture_aux_hidden_states = False\n"
SAYS_SO = '        logger.info("forward pass with less sleep")\n'

WORKLOAD = """
input_len = 32
output_len = 16
concurrency = 8
prompts = 8
repeats = 3
warmup = 8
"""


def planted(text: str) -> str:
    assert (text.count(CALL), text.count(AFTER_CALL), text.count(MADE)) == (1, 1, 1)
    return text.replace(CALL, PLANTED + CALL)


EDITS = {
    "awake": lambda text: text.replace(PLANTED, AWAKE).replace(MADE, MADE + SAYS_SO),
    "drowsy": lambda text: text.replace(AFTER_CALL, DROWSY + AFTER_CALL),
}
"""Set -> what it does to the model file; either applies with and without the other."""
MANIFEST = """{head}[host]
compute-capability = ["12.0"]
[verification]
goal = "{goal}"
margin = 0.03
[[change]]
id = "sleep"
target = "sglang"
summary = "Sleep less or more"
description = "A rehearsal."
[[change.variant]]
versions = ">=0.5.9,<0.5.10"
kind = "diff"
path = "{path}"
payload = "{name}/sleep.patch"
sha256 = "{sha256}"
{condition}
"""
CONDITIONS = {
    "awake": f'absent = ["{PLANTED.strip()}"]',
    "drowsy": f'present = {{ "{DROWSY.strip()}" = 1 }}',
}
ENGAGED = """
[[engagement]]
target = "sglang"
versions = ">=0.5.9,<0.5.10"
log = 'forward pass with less sleep'
"""
GOALS = {"awake": "speed", "drowsy": "no-regression"}


def write_catalogue(root: Path, upstream: str) -> Path:
    (root / "manifests").mkdir(parents=True)
    for name, edit in EDITS.items():
        diff = make_diff(MODEL, upstream.encode(), edit(upstream).encode()).encode()
        (root / "patches" / name).mkdir(parents=True)
        (root / "patches" / name / "sleep.patch").write_bytes(diff)
        text = MANIFEST.format(
            head=head(name),
            name=name,
            goal=GOALS[name],
            path=MODEL,
            sha256=sha256_hex(diff),
            condition=CONDITIONS[name],
        )
        (root / "manifests" / f"{name}.toml").write_text(
            text + (ENGAGED if name == "awake" else "")
        )
    return root


class Host:
    """An environment with real SGLang, the catalogue, and how its server is started."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.prefix = root / "env"
        self.site = real_sglang.environment(self.prefix, {MODEL: planted})
        self.upstream = self.model
        self.catalogue = write_catalogue(root / "catalogue", self.upstream)
        self.port = free_port()
        self.profile = root / "sm120patch.toml"
        real_sglang.write_profile(self.profile, self.port, WORKLOAD, "blocks = 3")
        self.pristine = self.packages()

    @property
    def model(self) -> str:
        return (self.site / MODEL).read_text()

    def packages(self) -> dict[str, str]:
        """Digest of every file of both packages."""
        return {
            f"{name}/{path}": digest
            for name in ("sglang", "flashinfer")
            for path, digest in tree_digest(self.site / name).items()
        }

    def words(self, *arguments: str, shipped: bool = False) -> list[str]:
        catalogue = [] if shipped else ["--catalogue", str(self.catalogue)]
        return [*arguments, "--env", str(self.prefix), *catalogue, "--output", "json"]

    def run(self, *arguments: str, shipped: bool = False) -> Ran:
        return run(*self.words(*arguments, shipped=shipped), cwd=self.root, timeout=600)

    def apply(self, name: str, *, shipped: bool = False) -> Ran:
        return self.run("apply", name, "--gpu", "12.0", shipped=shipped)

    def labels(self, *, shipped: bool = False) -> dict[str, str]:
        return {s["id"]: s["label"] for s in self.run("status", shipped=shipped).result["sets"]}

    def log(self, start: str) -> str:
        """Log of one start of the server: `1-baseline`, `2-patched`."""
        (path,) = (self.prefix / ".sm120patch" / "logs").glob(f"*.{start}.log")
        return path.read_text("utf-8", "replace")

    def leftovers(self) -> list[str]:
        found = real_sglang.processes_in(self.root)
        return [*found, "port"] if processes.answers("127.0.0.1", self.port) else found


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    assert made.leftovers() == []
    assert real_sglang.spoiled() == []


# --- the server and the load generator ---------------------------------------------------------


@dataclass(frozen=True)
class Serving:
    """A running server of an unpatched environment."""

    host: Host
    server: Server

    @property
    def target(self) -> Target:
        return Target(self.server.url)

    def cached(self, prompt: list[int]) -> int:
        """Tokens of a prompt that the server did not have to compute."""
        body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 1}}
        request = urllib.request.Request(
            f"{self.server.url}/generate",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            count: int = json.load(reply)["meta_info"]["cached_tokens"]
        return count


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    host = Host(tmp_path_factory.mktemp("serving"))
    profile = load(host.profile, python=str(host.prefix / "bin/python"), prefix=str(host.prefix))
    command = arms(profile, Launch()).baseline
    with running(profile, command, swapped_at=processes.boot_clock(), label="serving") as server:
        yield Serving(host, server)
    assert host.leftovers() == []


def test_the_server_tells_what_engagement_and_evidence_need(serving: Serving) -> None:
    info = serving.server.info
    assert info["version"] == "0.5.9"
    assert info["enable_flashinfer_allreduce_fusion"] is False
    assert info["model_path"] == str(real_sglang.parts().model)
    assert "The server is fired up" in serving.host.log("serving")
    family = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in serving.server.family}
    assert {"sglang::schedul", "sglang::detoken"} <= family
    serving.server.check_alive("testing")


@pytest.mark.parametrize("endpoint", ["generate", "openai"])
def test_tokens_and_times_of_streamed_replies(serving: Serving, endpoint: str) -> None:
    target = Target(serving.server.url, endpoint, model=str(serving.server.info["model_path"]))
    workload = Workload("w", input_len=48, output_len=24, concurrency=8, prompts=8)
    result = measure(target, workload, seed=1, tag=endpoint, repeat=1)
    assert result.failures == [] and not result.cut
    assert result.metrics["completed"] == 8
    assert result.metrics["total_output_tokens"] == 8 * 24
    for sample in result.samples:
        assert sample.output_tokens == 24
        # A busy server joins events, and a token of half a character has no text: the first
        # event may hold several tokens, on the other end point each event counts as one.
        assert 0 < len(sample.itls) < 24
        assert 0 < sample.ttft < sample.ttft + sum(sample.itls) <= sample.latency
    # No reply can be quicker than the sleeps in the passes that it took.
    assert result.duration >= max(sample.latency for sample in result.samples) >= 12 * LONG


def test_questions_are_answered_with_probabilities_that_repeat(serving: Serving) -> None:
    """Random weights answer nothing right; their tokens can be compared all the same."""
    exams = [examine(serving.target, tag) for tag in ("first", "second")]
    result = judge(exams[:1], exams[1:])
    assert result.ok, result.faults
    assert {"arithmetic", "copy", "count", "recall"} <= set(result.agreement)
    for name, found in result.agreement.items():
        assert found.tokens > 0 and found.lost is None, name
        assert found.agreed == found.tokens and max(found.gaps, default=0.0) < 0.05, name
    (long,) = [note for note in result.not_examined if note.startswith("long-recall")]
    assert "longer than the model's context length (4096 tokens)" in long
    counted = [a.prompt_tokens for a in exams[0].of("recall")]
    assert all(n is not None and 1000 < n < 4096 for n in counted)


@pytest.mark.parametrize("endpoint", ["generate", "openai"])
def test_both_endpoints_give_the_same_probabilities(serving: Serving, endpoint: str) -> None:
    target = Target(serving.server.url, endpoint, model=str(serving.server.info["model_path"]))
    request = Request("copper lantern", 8, f"p-{endpoint}", ignore_eos=True, logprobs=True)
    (sample,) = ask(target, [request])
    (other,) = ask(serving.target, [replace(request, rid=f"q-{endpoint}")])
    assert len(sample.chosen) == 8 == len(other.chosen)
    assert [t.logprob for t in sample.chosen] == pytest.approx(
        [t.logprob for t in other.chosen], abs=0.02
    )


def test_the_server_is_asked_which_copy_it_imports(serving: Serving) -> None:
    origin = origin_of(serving.server.processes, ["flashinfer", "sglang"])
    site = serving.host.site
    assert origin.pid == serving.server.pid
    assert dict(origin.places) == {n: str(site / n) for n in ("flashinfer", "sglang")}
    assert foreign(origin, {"sglang": str(site / "sglang")}) == []


def test_what_the_engine_has_loaded_is_seen_in_its_processes(serving: Serving) -> None:
    probe = Engagement("sglang", ">=0", loaded=r"/libtorch_cpu\.so$")
    (seen,) = process_seen([probe], serving.server.processes, time.time())
    assert seen.ok and str(real_sglang.parts().imports) in seen.found
    module = Engagement("sglang", ">=0", jit_module="trtllm_comm")
    (seen,) = process_seen([module], serving.server.processes, time.time())
    assert not seen.ok and "has loaded trtllm_comm.so" in seen.found


def test_greedy_answers_stop_where_asked_and_repeat(serving: Serving) -> None:
    requests = [
        Request("copper lantern", 12, f"again-{n}", ignore_eos=False, keep_text=True)
        for n in range(2)
    ]
    first, second = ask(serving.target, requests)
    assert first.ok and first.text.strip() and first.text == second.text


def test_a_repeat_begins_with_an_empty_prefix_cache(serving: Serving) -> None:
    prompt = list(range(2000, 2064))
    serving.cached(prompt)
    assert serving.cached(prompt) > 32, "otherwise there is nothing to be flushed"
    workload = Workload("w", input_len=8, output_len=2, concurrency=1, prompts=1)
    for repeat in range(3):
        assert measure(serving.target, workload, seed=1, tag="f", repeat=repeat).failures == []
        assert serving.cached(prompt) == 0


def bench_serving(serving: Serving, workload: Workload, out: Path) -> dict[str, Any]:
    """Run SGLang's own client as its documentation does; return its line with all details."""
    model = str(real_sglang.parts().model)
    words = [str(serving.host.prefix / "bin/python"), "-m", "sglang.bench_serving"]
    words += ["--backend", "sglang", "--base-url", serving.server.url, "--model", model]
    words += ["--tokenizer", model, "--dataset-name", "random-ids", "--tokenize-prompt"]
    words += ["--random-input-len", str(workload.input_len), "--random-range-ratio", "1.0"]
    words += ["--random-output-len", str(workload.output_len), "--flush-cache", "--seed", "1"]
    words += ["--num-prompts", str(workload.prompts), "--disable-tqdm", "--output-details"]
    words += ["--max-concurrency", str(workload.concurrency), "--output-file", str(out)]
    words += ["--warmup-requests", str(workload.concurrency)]
    environ = {**os.environ, **real_sglang.SERVER_ENV}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    line: dict[str, Any] = json.loads(out.read_text().splitlines()[-1])
    assert line["completed"] == workload.prompts, "it exits with 0 when requests have failed"
    return line


def samples_of(line: dict[str, Any]) -> list[Sample]:
    """The requests that bench_serving made, as our generator would have noted them."""
    noted = zip(line["ttfts"], line["itls"], line["output_lens"], strict=True)
    return [
        Sample(ok=True, ttft=ttft, latency=ttft + sum(itls), itls=tuple(itls), output_tokens=tokens)
        for ttft, itls, tokens in noted
    ]


def test_figures_agree_with_those_of_bench_serving(serving: Serving, tmp_path: Path) -> None:
    workload = Workload("w", input_len=64, output_len=16, concurrency=8, prompts=16)
    measure(serving.target, workload, seed=1, tag="warm", repeat=0)
    ours = [measure(serving.target, workload, seed=1, tag="b", repeat=n) for n in (1, 2)]
    line = bench_serving(serving, workload, tmp_path / "bench.jsonl")
    ours += [measure(serving.target, workload, seed=1, tag="a", repeat=n) for n in (3, 4)]

    # Same definitions: what it noted of its requests gives its own figures.
    again = calculate(samples_of(line), line["duration"], workload.input_len)
    exact = ["completed", "total_input_tokens", "total_output_tokens"]
    exact += [name for name in again if re.search("_(throughput|ttft_ms|itl_ms)$", name)]
    exact = [name for name in exact if name in line]
    assert len(exact) == 16
    assert {name: again[name] for name in exact} == pytest.approx({n: line[n] for n in exact})
    # When the last event of a request came it does not say: a moment after the last token.
    for name in ("mean_e2e_latency_ms", "median_tpot_ms", "concurrency"):
        assert again[name] == pytest.approx(line[name], rel=0.1), name

    # Same server, same load: both clients see the same, as far as equal runs agree at all.
    assert line["total_output_tokens"] == ours[0].metrics["total_output_tokens"]
    for name in ("output_throughput", "median_e2e_latency_ms", "median_itl_ms"):
        found = [repeat.metrics[name] for repeat in ours]
        assert min(found) / 1.5 <= line[name] <= max(found) * 1.5, (name, found, line[name])


def test_bench_serving_can_measure_in_place_of_our_own_client(serving: Serving) -> None:
    text = serving.host.profile.read_text() + '\n[driver]\nkind = "bench_serving"\n'
    prefix = serving.host.prefix
    profile = parse(text, origin="p", python=str(prefix / "bin/python"), prefix=str(prefix))
    workload = Workload("w", input_len=64, output_len=16, concurrency=8, prompts=16)
    ours = [measure(serving.target, workload, seed=1, tag="d", repeat=n) for n in (1, 2, 3)]
    info, alive = serving.server.info, partial(serving.server.check_alive, "testing")
    result = drive(Pass(profile, serving.target, workload, 1, info, None, alive))
    assert (result.metrics["completed"], result.metrics["failed"]) == (16, 0)
    assert result.metrics["total_output_tokens"] == 16 * 16
    assert result.metrics["total_input_tokens"] == 16 * 64
    missing = set(ours[0].metrics) - set(result.metrics)
    assert missing <= {"max_itl_ms"}, "the names are theirs"
    found = [repeat.metrics["output_throughput"] for repeat in ours]
    assert min(found) / 1.5 <= result.metrics["output_throughput"] <= max(found) * 1.5


def test_an_engine_that_was_killed_is_noticed_while_requests_wait(serving: Serving) -> None:
    """Comes last: SGLang's front end goes on accepting requests that nobody will answer."""
    (engine,) = [
        pid
        for pid in serving.server.family
        if Path(f"/proc/{pid}/comm").read_text().startswith("sglang::schedul")
    ]
    workload = Workload("w", input_len=16, output_len=2000, concurrency=2, prompts=2)

    def watch() -> None:
        serving.server.check_alive("serving w")
        os.kill(engine, signal.SIGKILL)

    with pytest.raises(ServerError, match=r"sglang::schedul \(PID \d+\) of the server died") as got:
        measure(serving.target, workload, seed=1, tag="k", repeat=1, watch=watch)
    assert "Decode batch" in got.value.details["tail"]


# --- whole commands ----------------------------------------------------------------------------


def test_an_improvement_is_applied_and_a_regression_taken_back(host: Host) -> None:
    done = host.apply("awake")
    assert done.code == 0, done.out + done.err
    found = done.result["verification"]
    assert (found["verdict"], found["kind"], found["clock"]) == ("improved", "rehearsal", "wall")
    assert found["intervals"]["tiny"]["low"] > 1
    assert host.labels() == {"awake": "applied (rehearsal)", "drowsy": "absent"}
    assert host.model == EDITS["awake"](host.upstream)
    with_awake = host.packages()

    done = host.apply("drowsy")
    assert done.code == 8, done.out + done.err
    found = done.result["verification"]
    assert (found["verdict"], found["kind"]) == ("regressed", "rehearsal")
    assert found["correctness"]["faults"] == []
    assert found["correctness"]["agreement"]["count"]["agreed"] > 0
    assert found["intervals"]["tiny"]["high"] < 1
    assert host.labels() == {"awake": "applied (rehearsal)", "drowsy": "rejected"}
    assert host.packages() == with_awake

    assert host.run("revert", "--all").code == 0
    assert host.packages() == host.pristine
    # What lets the tests' environment import from the shared cache runs code at every start.
    assert {f["kind"] for f in host.run("audit").result["findings"]} == {"carrier"}


def test_the_fusion_is_not_engaged_where_nothing_is_reduced(host: Host) -> None:
    """One process without a GPU takes the flag and never runs the patched code."""
    done = host.apply("allreduce-fusion", shipped=True)
    assert done.code == 8, done.out + done.err
    found = done.result["verification"]
    assert (found["verdict"], found["kind"]) == ("not-engaged", "rehearsal")
    assert "the log never says" in " ".join(found["reasons"])
    assert "no process of the server has loaded trtllm_comm.so" in found["reasons"]
    assert found["imports"]["sglang"] == str(host.site / "sglang")
    assert found["server_differences"] == {"enable_flashinfer_allreduce_fusion": [False, True]}
    assert found["blocks_run"] == ["baseline", "baseline", "patched"]
    assert host.packages() == host.pristine
    assert host.labels(shipped=True)["allreduce-fusion"] == "rejected"


def test_an_interrupt_under_load_ends_every_process_and_puts_all_back(host: Host) -> None:
    command = Running(host.words("apply", "drowsy", "--gpu", "12.0"), host.root)
    try:
        command.wait_said("baseline: tiny: warming up", timeout=240)
        assert len(host.leftovers()) >= 4, "front end, scheduler, detokenizer and the port"
        command.send(signal.SIGINT)
        done = command.finish(timeout=60)
    finally:
        command.kill()
    assert done.code == 130, done.out + done.err
    assert host.leftovers() == []
    assert "Remaining number of requests 0" in host.log("1-baseline"), "it ended by itself"
    assert host.packages() == host.pristine
    assert host.labels() == {"awake": "absent", "drowsy": "absent"}
