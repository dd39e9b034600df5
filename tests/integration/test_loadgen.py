from __future__ import annotations

import contextlib
import json
import random
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from sm120patch.verify.events import MAX_LINE
from sm120patch.verify.loadgen import Request, Target, ask, measure
from sm120patch.verify.metrics import Sample, calculate
from sm120patch.verify.profile import Workload

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
CLOSING = b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
WORK = Workload("w", input_len=4, output_len=4, concurrency=2, prompts=4)


class Script:
    """What a scripted server answers, and what it was asked."""

    def __init__(self, answer: Callable[[str, dict[str, object]], list[bytes | float]]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, str], dict[str, object]]] = []


@contextlib.contextmanager
def serving(
    answer: Callable[[str, dict[str, object]], list[bytes | float]],
) -> Iterator[tuple[str, Script]]:
    """Raw TCP server: sends the pieces of an answer, sleeps where a piece is a number."""
    script = Script(answer)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            first = self.rfile.readline().decode()
            if not first:  # connected and gone again
                return
            path = first.split(" ")[1]
            headers = {}
            while (line := self.rfile.readline().strip()) != b"":
                name, _, value = line.decode().partition(": ")
                headers[name.lower()] = value
            data = self.rfile.read(int(headers.get("content-length", 0)))
            body = json.loads(data) if data else {}
            script.asked.append((path, headers, body))
            with contextlib.suppress(OSError):
                for piece in script.answer(path, body):
                    if isinstance(piece, float):
                        time.sleep(piece)
                    else:
                        self.wfile.write(piece)
                        self.wfile.flush()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", script
        server.shutdown()
        thread.join()


def event(tokens: object, text: object = "x", **more: object) -> bytes:
    body = {"text": text, "meta_info": {"completion_tokens": tokens, **more}}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def good(path: str, body: dict[str, object]) -> list[bytes | float]:
    return [OK, *(event(n, "x" * n) for n in (1, 2, 4)), b"data: [DONE]\n\n"]


# --- what is sent and counted ------------------------------------------------------------------


def test_every_prompt_is_sent_once_and_counted():
    with serving(good) as (url, script):
        repeat = measure(Target(url), WORK, seed=3, tag="b1.w", repeat=2)
    assert repeat.metrics["completed"] == 4 and not repeat.cut and not repeat.failures
    assert repeat.metrics["total_output_tokens"] == 16
    assert repeat.metrics["total_input_tokens"] == 16
    assert all(len(sample.itls) == 3 and sample.output_tokens == 4 for sample in repeat.samples)
    assert all(0 < sample.ttft <= sample.latency for sample in repeat.samples)
    paths = [path for path, _, _ in script.asked]
    assert paths[0] == "/flush_cache" and paths.count("/generate") == 4
    generated = [(headers, body) for path, headers, body in script.asked if path == "/generate"]
    assert {body["rid"] for _, body in generated} == {f"b1.w-r2-i{n}" for n in range(4)}
    assert {headers["x-sm120patch-concurrency"] for headers, _ in generated} == {"2"}
    sampling = generated[0][1]["sampling_params"]
    assert sampling == {"temperature": 0.0, "max_new_tokens": 4, "ignore_eos": True}
    assert all(len(body["input_ids"]) == 4 for _, body in generated)


def test_prompts_depend_on_seed_workload_and_repeat_only():
    def prompts(**changes: object) -> set[str]:
        arguments: dict[str, object] = {"seed": 1, "tag": "b1.w", "repeat": 1, **changes}
        with serving(good) as (url, script):
            measure(Target(url), WORK, **arguments)
        return {str(body["input_ids"]) for path, _, body in script.asked if path == "/generate"}

    base = prompts()
    assert len(base) == 4
    assert prompts(tag="b2.w") == base
    assert prompts(seed=2) & base == set() and prompts(repeat=2) & base == set()


def test_openai_endpoints_are_asked_in_their_own_words():
    def answer(path: str, body: dict[str, object]) -> list[bytes | float]:
        if path != "/v1/completions":
            return [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"]
        chunk = b'data: {"choices": [{"text": "word "}]}\n\n'
        usage = b'data: {"choices": [], "usage": {"completion_tokens": 4}}\n\n'
        return [OK, b": comment\n\n", chunk, chunk, usage, b"data: [DONE]\n\n"]

    with serving(answer) as (url, script):
        target = Target(url, endpoint="openai", model="m", api_key="k")
        repeat = measure(target, WORK, seed=3, tag="t", repeat=1)
    assert repeat.metrics["completed"] == 4
    assert {(s.output_tokens, len(s.itls)) for s in repeat.samples} == {(4, 1)}
    _, headers, body = next(a for a in script.asked if a[0] == "/v1/completions")
    assert headers["authorization"] == "Bearer k" and headers["x-request-id"].startswith("t-r1-i")
    assert body["model"] == "m" and body["max_tokens"] == 4 and body["ignore_eos"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert len(str(body["prompt"]).split()) == 4


def test_virtual_stamps_replace_the_wall_clock():
    def answer(path: str, body: dict[str, object]) -> list[bytes | float]:
        return [OK, event(1, "a", virtual_time={"start": 10.0, "stamps": [11.0]}), 0.05,
                event(4, "abcd", virtual_time={"start": None, "stamps": [12.0, 13.5, 14.0]}),
                b"data: [DONE]\n\n"]  # fmt: skip

    with serving(answer) as (url, _):
        repeat = measure(Target(url, virtual=True), WORK, seed=3, tag="t", repeat=1)
        (wall,) = ask(Target(url), [Request("p", 4, "r")])
    assert repeat.duration == 4.0
    assert repeat.metrics["output_throughput"] == 4.0
    for sample in repeat.samples:
        assert (sample.start, sample.ttft, sample.latency) == (10.0, 1.0, 4.0)
        assert sample.itls == (1.0, 1.5, 0.5)
    assert wall.ok and wall.latency < 4


def test_text_is_kept_for_probes_only():
    with serving(good) as (url, _):
        kept, dropped = ask(
            Target(url), [Request("p", 4, "a", keep_text=True), Request("p", 4, "b")]
        )
    assert kept.text == "xxxx" and dropped.text == ""


@pytest.mark.parametrize("texts", [("a", "ab", "abcd"), ("a", "b", "cd")])
def test_text_comes_whole_or_in_pieces(texts):
    events = [OK, *(event(n, text) for n, text in zip((1, 2, 4), texts, strict=True))]
    with serving(lambda path, body: events) as (url, _):
        (sample,) = ask(Target(url), [Request("p", 4, "r", keep_text=True)])
    assert sample.text == "abcd"


# --- hostile replies ---------------------------------------------------------------------------

_HOSTILE = {
    "server error": [b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\nboom"],
    "not HTTP": [b"SSH-2.0-OpenSSH_9.6\r\n"],
    "closed at once": [],
    "closed in the middle": [OK, event(1), event(2)],
    "cut chunk": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\ndata: {"],
    "bad chunk size": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
    "short body": [b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\ndata: {}"],
    "no events": [OK, b"data: [DONE]\n\n"],
    "not JSON": [OK, b"data: {oops\n\n"],
    "JSON that is no object": [OK, b"data: [1, 2]\n\n"],
    "deep JSON": [OK, b"data: " + b"[" * 100_000 + b"\n\n"],
    "long integer": [OK, b'data: {"text": "x", "meta_info": {"completion_tokens": '
                     + b"9" * 6000 + b"}}\n\n"],
    "huge line": [OK, b"data: ", b"x" * (MAX_LINE + 10)],
    "error event": [OK, b'data: {"error": {"message": "out of memory"}}\n\n'],
    "no count": [OK, b'data: {"text": "x"}\n\n', b"data: [DONE]\n\n"],
    "count is NaN": [OK, b'data: {"text": "x", "meta_info": {"completion_tokens": NaN}}\n\n'],
    "count is infinite": [OK, b'data: {"text":"x","meta_info":{"completion_tokens":Infinity}}\n\n'],
    "count is text": [OK, event("4")],
    "count is true": [OK, event(True)],
    "count is negative": [OK, event(-1)],
    "count goes down": [OK, event(3), event(2)],
    "too many tokens": [OK, event(10**9)],
    "too few tokens": [OK, event(1), event(2), b"data: [DONE]\n\n"],
    "meta is a list": [OK, b'data: {"text": "x", "meta_info": []}\n\n'],
    "binary": [OK, bytes(range(256)) * 8 + b"\n\n"],
}  # fmt: skip


@pytest.mark.parametrize("name", _HOSTILE)
def test_a_hostile_reply_is_a_failed_sample(name):
    with serving(lambda path, body: _HOSTILE[name]) as (url, _):
        repeat = measure(Target(url), WORK, seed=1, tag="t", repeat=1)
    assert repeat.metrics["failed"] == 4 and repeat.metrics["completed"] == 0
    assert repeat.metrics["output_throughput"] == 0
    assert all(0 < len(error) <= 300 for error in repeat.failures)


@pytest.mark.parametrize(
    "stamps",
    [None, {}, {"stamps": "x"}, {"stamps": [1.0, 2.0]}, {"stamps": [-1.0]}, {"stamps": [True]},
     {"stamps": [float("nan")]}, {"stamps": [float("inf")]}, {"stamps": [1e300]},
     {"stamps": [10**400]}, {"start": "x", "stamps": [1.0]}, {"start": 5.0, "stamps": [1.0]}],
)  # fmt: skip
def test_hostile_virtual_stamps_are_failed_samples(stamps):
    events = [OK, event(1, virtual_time=stamps), b"data: [DONE]\n\n"]
    with serving(lambda path, body: events) as (url, _):
        (sample,) = ask(Target(url, virtual=True), [Request("p", 1, "r")])
    assert not sample.ok


@pytest.mark.parametrize(
    "pieces",
    [[b'data: {"choices": 3}\n\n'], [b'data: {"choices": [3]}\n\n', b"data: [DONE]\n\n"],
     [b'data: {"choices": [{"text": "a"}]}\n\n'] * 9,
     [b'data: {"choices": [], "usage": {"completion_tokens": 99}}\n\n'],
     [b'data: {"choices": [], "usage": 7}\n\n']],
)  # fmt: skip
def test_hostile_openai_replies_are_failed_samples(pieces):
    with serving(lambda path, body: [OK, *pieces]) as (url, _):
        (sample,) = ask(Target(url, endpoint="openai"), [Request("p", 4, "r")])
    assert not sample.ok


def test_one_failure_among_many_is_counted_and_explained():
    def answer(path: str, body: dict[str, object]) -> list[bytes | float]:
        failing = str(body.get("rid", "")).endswith("i2")
        return [b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"] if failing else good(path, body)

    with serving(answer) as (url, _):
        repeat = measure(Target(url), WORK, seed=1, tag="t", repeat=1)
    assert repeat.metrics["completed"] == 3 and repeat.metrics["failed"] == 1
    assert repeat.failures[0].startswith("HTTP 503")


def test_a_request_that_never_ends_times_out():
    with serving(lambda path, body: [OK, event(1), 30.0]) as (url, _):
        (sample,) = ask(Target(url, request_timeout=0.3), [Request("p", 4, "r")])
    assert not sample.ok and "Timeout" in sample.error


def test_the_deadline_cuts_a_repeat_off():
    with serving(lambda path, body: [OK, event(1), 30.0]) as (url, _):
        deadline = time.monotonic() + 0.3
        repeat = measure(Target(url), WORK, seed=1, tag="t", repeat=1, deadline=deadline)
        answers = ask(Target(url), [Request("p", 4, "r")] * 3, deadline=deadline)
    assert repeat.cut and repeat.metrics["completed"] == 0
    assert len(answers) == 3 and not any(sample.ok for sample in answers)


def test_what_the_watch_raises_ends_a_repeat_that_nobody_answers():
    def watch() -> None:
        raise LookupError("gone")

    with serving(lambda path, body: [OK, event(1), 30.0]) as (url, _):
        with pytest.raises(LookupError, match="gone"):
            measure(Target(url), WORK, seed=1, tag="t", repeat=1, watch=watch)
        with pytest.raises(LookupError, match="gone"):
            ask(Target(url), [Request("p", 4, "r")], watch=watch)


@pytest.mark.parametrize(("refusal", "asked"), [(b"400 Bad Request", 3), (b"404 Not Found", 1)])
def test_a_flush_that_comes_too_early_is_repeated(refusal: bytes, asked: int):
    """SGLang answers 400 while the last step of a request is still under way."""
    flushes: list[str] = []

    def answer(path: str, body: dict[str, object]) -> list[bytes | float]:
        if path != "/flush_cache":
            return good(path, body)
        flushes.append(path)
        return [b"HTTP/1.1 " + (refusal if len(flushes) < 3 else b"200 OK"), CLOSING]

    with serving(answer) as (url, script):
        repeat = measure(Target(url), WORK, seed=1, tag="t", repeat=1)
    assert repeat.metrics["completed"] == 4
    assert [path for path, _, _ in script.asked[:asked]] == ["/flush_cache"] * asked
    assert len(flushes) == asked


def test_nobody_listening_is_a_failed_sample():
    from tests.support.simulated import free_port

    repeat = measure(Target(f"http://127.0.0.1:{free_port()}"), WORK, seed=1, tag="t", repeat=1)
    assert repeat.metrics["failed"] == 4


# --- metrics -----------------------------------------------------------------------------------


def random_samples(seed: int, count: int = 40) -> list[Sample]:
    rng = random.Random(seed)
    samples = []
    for _ in range(count):
        tokens = rng.randrange(1, 60)
        ttft = rng.uniform(0.05, 2)
        itls = tuple(rng.uniform(0.005, 0.2) for _ in range(tokens - 1))
        ok = rng.random() > 0.1
        start = 100 + rng.uniform(0, 5)
        latency = ttft + sum(itls) + rng.uniform(0, 0.01)
        samples.append(Sample(ok, "" if ok else "x", start, ttft, latency, itls, tokens))
    return samples


def test_metrics_are_those_of_bench_serving():
    """Figures of `calculate_metrics` of sglang 0.5.9, run with numpy on the same samples."""
    expected = {
        "completed": 32, "total_input_tokens": 8192, "total_output_tokens": 921,
        "request_throughput": 4.266667, "input_throughput": 1092.266667,
        "output_throughput": 122.8, "total_throughput": 1215.066667,
        "mean_e2e_latency_ms": 3675.790439, "median_e2e_latency_ms": 3691.487405,
        "std_e2e_latency_ms": 1602.096233, "p90_e2e_latency_ms": 5741.133339,
        "p99_e2e_latency_ms": 6952.813856, "mean_ttft_ms": 863.313885,
        "median_ttft_ms": 834.601029, "std_ttft_ms": 585.686961, "p99_ttft_ms": 1887.642873,
        "mean_tpot_ms": 100.596187, "median_tpot_ms": 102.619249, "std_tpot_ms": 9.753756,
        "p99_tpot_ms": 120.523762, "mean_itl_ms": 101.060071, "median_itl_ms": 99.797428,
        "std_itl_ms": 56.503505, "p95_itl_ms": 189.402951, "p99_itl_ms": 197.738492,
        "max_itl_ms": 199.518312, "concurrency": 15.683373, "max_output_tokens_per_s": 215,
        "max_concurrent_requests": 27,
    }  # fmt: skip
    metrics = calculate(random_samples(7), 7.5, 256)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-5)


def test_metrics_of_nothing_are_zero():
    for samples in ([], [Sample(ok=False, error="x")]):
        metrics = calculate(samples, 0.0, 256)
        assert set(metrics.values()) <= {0, 1} and metrics["output_throughput"] == 0


def test_a_time_far_away_costs_no_memory():
    samples = [
        Sample(True, start=0.0, ttft=1.0, latency=1e11, itls=(1e11,), output_tokens=2),
        Sample(True, start=9e11, ttft=1.0, latency=2.0, itls=(1.0,), output_tokens=2),
    ]
    assert calculate(samples, 1e12, 1)["max_output_tokens_per_s"] == 1
