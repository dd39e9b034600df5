"""Another client measures: SGLang's bench_serving, or any command that prints JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.command import Ran
from tests.support.serving import BAD, GOOD, QUICK, Host, assert_applied, assert_rejected, wait_for

CLIENT = """
import argparse, json, sys, urllib.request

parser = argparse.ArgumentParser()
for name in ("url", "out", "concurrency", "prompts", "seed", "repeat", "mode"):
    parser.add_argument("--" + name)
o = parser.parse_args()
with urllib.request.urlopen(o.url + "/server_info") as reply:
    info = json.load(reply)
speed = 100.0 + int(o.seed) % 3 * 0.1
speed *= {ratio} if info["patched"] else 1.0
found = {{"runs": [{{"tps": speed, "concurrency": int(o.concurrency)}}], "ok": int(o.prompts)}}
if o.mode == "nan":
    found["runs"][0]["tps"] = float("nan")
if o.mode == "lost" and info["patched"]:
    found["ok"] //= 2
if o.mode == "fails":
    sys.exit("no such tokenizer")
if o.mode == "babbles":
    print("all is well")
elif o.out:
    open(o.out, "w").write(json.dumps(found))
else:
    print("measuring", o.repeat)
    print(json.dumps(found))
"""

BENCH = """
import argparse, json, urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("--base-url")
parser.add_argument("--output-file")
parser.add_argument("--num-prompts", type=int)
options, rest = parser.parse_known_args()
with urllib.request.urlopen(options.base_url + "/server_info") as reply:
    info = json.load(reply)
speed = 110.0 if info["patched"] else 100.0
line = {"completed": options.num_prompts, "output_throughput": speed, "duration": 1.0,
        "request_rate": float("inf"), "tag": __spec__.name + " " + " ".join(rest)}
with open(options.output_file, "a") as stream:
    stream.write(json.dumps(line) + chr(10))
print("seen:", line["tag"])
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def by_command(
    host: Host, ratio: float = 1.1, mode: str = "good", words: str = "", more: str = ""
) -> Ran:
    (host.root / "client.py").write_text(CLIENT.format(ratio=ratio))
    words = words or '"--concurrency", "{concurrency}", "--prompts", "{prompts}"'
    driver = f"""
[driver]
kind = "command"
command = [{json.dumps(sys.executable)}, {json.dumps(str(host.root / "client.py"))},
  "--url", "{{url}}", "--seed", "{{seed}}", "--repeat", "{{repeat}}", "--mode", "{mode}", {words}]
metrics = {{ output_throughput = "runs.0.tps", completed = "ok" }}
{more}
"""
    path = host.profile(GOOD, verify=f"{QUICK}\n{driver}")
    return host.run("apply", "fusion", "--profile", path)


def test_a_commands_figures_decide(host: Host) -> None:
    done = by_command(host)
    assert_applied(host, done, "improved")
    found = done.result["verification"]
    assert found["client"] == "command"
    (block, *_) = found["arms"]["patched"]["blocks"]
    values = [figures["output_throughput"] for figures in block["workloads"]["tiny"]]
    assert values == pytest.approx([110.0] * len(values), rel=0.005)
    assert found["intervals"]["tiny"]["ratio"] == pytest.approx(1.1, rel=0.005)


def test_a_regression_that_a_command_measured_is_put_back(host: Host) -> None:
    assert_rejected(host, by_command(host, ratio=0.8), "regressed")


def test_a_command_may_write_its_json_to_a_file(host: Host) -> None:
    words = '"--concurrency", "{concurrency}", "--prompts", "{prompts}", "--out", "{out}"'
    assert_applied(host, by_command(host, words=words), "improved")


def test_requests_that_only_the_patched_server_loses_are_broken(host: Host) -> None:
    done = by_command(host, ratio=3.0, mode="lost")
    assert_rejected(host, done, "broken")
    assert "4 of 8 requests failed" in " ".join(done.result["verification"]["reasons"])


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("fails", "ended with status 1"),
        ("babbles", "printed no JSON object"),
        ("nan", "no finite number at runs.0.tps"),
    ],
)
def test_a_client_that_cannot_measure_is_no_verdict(host: Host, mode: str, says: str) -> None:
    done = by_command(host, mode=mode)
    assert done.code == 10 and done.error["code"] == "driver-failed", done.out
    assert says in done.error["message"] and done.error["hint"]
    if mode == "fails":
        assert "no such tokenizer" in done.error["message"]
    assert host.facts() == host.pristine and host.servers() == [] and host.litter() == []


def test_a_client_that_hangs_is_ended_with_all_it_started(host: Host) -> None:
    marker = host.root / "pid"
    script = f"echo $$ > {marker}; sleep 300 & wait"
    driver = f"""
[driver]
kind = "command"
timeout = 2
command = ["/bin/sh", "-c", {json.dumps(script)}]
metrics = {{ output_throughput = "x" }}
"""
    done = host.run("apply", "fusion", "--profile", host.profile(GOOD, verify=QUICK + driver))
    assert done.code == 10 and "took longer than 2 s" in done.error["message"]
    group = int(marker.read_text())

    def gone() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    wait_for(gone)
    assert host.facts() == host.pristine and host.servers() == []


def test_a_client_that_does_not_exist_is_named(host: Host) -> None:
    driver = '\n[driver]\nkind = "command"\ncommand = ["/nonexistent/client"]\n'
    driver += 'metrics = { output_throughput = "x" }\n'
    done = host.run("apply", "fusion", "--profile", host.profile(GOOD, verify=QUICK + driver))
    assert done.code == 10 and "/nonexistent/client" in done.error["message"]


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("sglang/bench_serving.py", "sglang.bench_serving"),
        ("sglang/benchmark/serving.py", "sglang.benchmark.serving"),
    ],
)
def test_bench_serving_of_the_environment_is_used(host: Host, path: str, module: str) -> None:
    (host.site / path).parent.mkdir(exist_ok=True)
    (host.site / path).write_text(BENCH)
    driver = '\n[driver]\nkind = "bench_serving"\nargs = ["--extra-request-body", "{}"]\n'
    scenario = host.profile(BAD, verify=QUICK + driver)
    done = host.run("apply", "fusion", "--profile", scenario)
    assert done.code == 0, done.err
    found = done.result["verification"]
    assert (found["verdict"], found["client"]) == ("improved", "bench_serving")
    assert found["intervals"]["tiny"]["ratio"] == pytest.approx(1.1), "not the scenario's 0.93"
    failing = host.site / path
    failing.write_text("import sys; print(__spec__.name, *sys.argv[1:]); sys.exit(3)")
    assert host.run("revert", "--all").code == 0
    done = host.run("apply", "fusion", "--profile", scenario)
    said = done.error["message"]
    assert done.code == 10 and f"{module} --backend sglang --base-url" in said
    for words in (
        "--dataset-name random-ids", "--random-range-ratio 1.0", "--flush-cache", "--seed 1001",
        "--random-input-len 16", "--random-output-len 24", "--num-prompts 8", "--max-concurrency 4",
        "--tokenizer simulated/model", "--tokenize-prompt", "--extra-request-body {}",
    ):  # fmt: skip
        assert words in said, words
