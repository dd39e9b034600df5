"""Which client measures, what it is started with, and how its output is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sm120patch.errors import UsageError
from sm120patch.verify.dotted import descend
from sm120patch.verify.driver import BadOutput, Driver, filled, read_bench_line, read_output
from sm120patch.verify.profile import Profile, parse

BENCH_055 = {
    "tag": None, "backend": "sglang", "dataset_name": "random-ids", "request_rate": float("inf"),
    "max_concurrency": 8, "server_info": {"version": "0.5.5"}, "duration": 2.5, "completed": 16,
    "total_input_tokens": 1024, "total_output_tokens": 256, "request_throughput": 6.4,
    "input_throughput": 409.6, "output_throughput": 102.4, "mean_e2e_latency_ms": 1100.0,
    "median_ttft_ms": 40.0, "p99_ttft_ms": 80.0, "median_tpot_ms": 30.0, "p99_itl_ms": 50.0,
    "concurrency": 7.9, "accept_length": None,
}  # fmt: skip
"""As 0.5.5 writes it; later releases add names."""


def profile(driver: str = "", url: str = "http://127.0.0.1:30000") -> Profile:
    text = f'[server]\ncommand = ["serve"]\nurl = "{url}"\n{driver}'
    return parse(text, origin="test", python="/p/bin/python", prefix="/p")


def line(**changes: Any) -> str:
    return json.dumps({**BENCH_055, **changes})


def test_the_figures_of_bench_serving_keep_their_names() -> None:
    older = json.dumps({**BENCH_055, "output_throughput": 1.0})
    found = read_bench_line(f"{older}\n{line(max_output_tokens_per_s=120.0)}\n\n", 16)
    assert found["output_throughput"] == 102.4, "the file is appended to: the last line counts"
    assert (found["median_ttft_ms"], found["max_output_tokens_per_s"]) == (40.0, 120.0)
    assert "request_rate" not in found and "accept_length" not in found and "tag" not in found
    assert found["failed"] == 0


def test_requests_that_bench_serving_lost_are_counted() -> None:
    assert read_bench_line(line(completed=9), 12)["failed"] == 3
    assert read_bench_line(line(completed=12), 12)["failed"] == 0


@pytest.mark.parametrize(
    "text",
    ["", "\n", "no json", "[1]", "{}", line(output_throughput=None), line(completed="16"),
     line(output_throughput=float("nan")), line(output_throughput=True)],
)  # fmt: skip
def test_a_line_without_usable_figures_is_refused(text: str) -> None:
    with pytest.raises(BadOutput):
        read_bench_line(text, 16)


METRICS = {"output_throughput": "runs.0.tps", "completed": "ok"}


@pytest.mark.parametrize(
    "text",
    [
        '{"runs": [{"tps": 5}], "ok": 7}',
        'starting\n{"other": 1}\n{"runs": [{"tps": 5}], "ok": 7}\ndone\n',
        '{\n "runs": [\n {"tps": 5}],\n "ok": 7\n}\n',
    ],
)
def test_a_commands_json_is_found_whole_or_in_its_last_line(text: str) -> None:
    assert read_output(text, METRICS, 8) == {
        "output_throughput": 5.0, "completed": 7.0, "failed": 1.0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no JSON object"),
        ("[1, 2]", "no JSON object"),
        ('{"runs": []}', "at runs.0.tps"),
        ('{"runs": [{"tps": NaN}]}', "at runs.0.tps"),
        ('{"runs": [{"tps": -1}]}', "at runs.0.tps"),
        ('{"runs": [{"tps": "5"}]}', "at runs.0.tps"),
        ('{"runs": [{"tps": 1e999}]}', "at runs.0.tps"),
        ('{"runs": [{"tps": 5}]}', "at ok"),
        ("[" * 100_000, "no JSON object"),
    ],
)
def test_what_is_no_figure_is_named(text: str, says: str) -> None:
    with pytest.raises(BadOutput, match=says):
        read_output(text, METRICS, 8)


def test_placeholders_are_filled_once() -> None:
    values = {"url": "http://{port}", "port": "1"}
    assert filled(["{url}", "-p{port}", "{unknown}", "{}"], values) == [
        "http://{port}", "-p1", "{unknown}", "{}"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('kind = "fast"', "driver.kind: 'fast' is none of native, bench_serving, command"),
        ('kind = "command"', "driver.command: is missing"),
        ('kind = "command"\ncommand = ["x"]', "must say where output_throughput stands"),
        ('args = ["--x"]', "driver.args: belongs to kind bench_serving"),
        ('kind = "bench_serving"\ncommand = ["x"]', "belong to kind command"),
        ('kind = "command"\ncommand = ["{key}"]\nmetrics.output_throughput = "a"',
         "driver.command[0]: unknown placeholder {key}"),
        ('kind = "command"\ncommand = ["x"]\nmetrics = { output_throughput = "a", "A b" = "c" }',
         "driver.metrics.A b: expected a name"),
        ("tokeniser = 1", "driver.tokeniser: unknown key; did you mean tokenizer?"),
        ("timeout = 0", "driver.timeout"),
    ],
)  # fmt: skip
def test_every_fault_of_the_table_is_named(text: str, fault: str) -> None:
    with pytest.raises(UsageError) as caught:
        profile(f"[driver]\n{text}\n")
    assert fault in str(caught.value)


def test_another_client_is_another_question() -> None:
    native, bench = profile(), profile('[driver]\nkind = "bench_serving"\n')
    more = profile('[driver]\nkind = "bench_serving"\nargs = ["--x"]\n')
    assert native.driver == Driver() and profile("[driver]\n").digest == native.digest
    assert len({native.digest, bench.digest, more.digest}) == 3
    (workload, *_) = native.workloads
    assert native.noise_key(workload) != bench.noise_key(workload)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("runs.1.tps", (True, None)),
        ("runs.2", (False, None)),
        ("runs.-1", (False, None)),
        ("runs.²", (False, None)),
        ("runs." + "1" * 5000, (False, None)),
        ("runs.0.tps.x", (False, None)),
        ("no", (False, None)),
    ],
)
def test_a_path_that_leads_nowhere_is_no_value(path: str, found: tuple[bool, object]) -> None:
    assert descend({"runs": [{"tps": 5}, {"tps": None}]}, path) == found
