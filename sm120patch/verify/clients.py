"""Runs another client for a measured repeat: SGLang's bench_serving, or any command with JSON.

Starts the client in a session of its own and ends it with all it started; reads what it wrote.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sm120patch.errors import HostError
from sm120patch.redaction import redact_output
from sm120patch.verify.driver import BadOutput, filled, read_bench_line, read_output
from sm120patch.verify.loadgen import Repeat, Target, Watch
from sm120patch.verify.profile import Profile, Workload

_TURN = 0.2  # seconds
_WATCH = 1.0
_LIMIT = 16 << 20  # bytes of output that are read
_WHERE = (
    "import importlib.util, json; s = importlib.util.find_spec('sglang');"
    "print(json.dumps(list(s.submodule_search_locations) if s else []))"
)


@dataclass(frozen=True)
class Pass:
    """One repeat that another client is to run."""

    profile: Profile
    target: Target
    workload: Workload
    repeat: int
    info: Mapping[str, object]
    """What the server says about itself: names model and tokenizer."""
    deadline: float | None
    watch: Watch


def drive(this: Pass) -> Repeat:
    """Run the profile's client once; its figures, with no single requests.

    Raises HostError when the client fails or prints nothing usable while the server is well, and
    whatever `watch` raises when it is not. At the deadline the client is ended, `cut` is set.
    """
    driver = this.profile.driver
    with tempfile.TemporaryDirectory(prefix="sm120patch-client-") as scratch:
        out = Path(scratch, "out.json")
        log = Path(scratch, "log")
        bench = driver.kind == "bench_serving"
        words = bench_command(this, out) if bench else command_line(this, out)
        began = time.monotonic()
        code = _run(this, words, log)
        if code is None:
            return Repeat((), time.monotonic() - began, {"failed": 0.0}, cut=True)
        said = _read(log)
        if code != 0:
            this.watch()
            raise _failed(this, f"ended with status {code}", said)
        try:
            if bench:
                figures = read_bench_line(_read(out), this.workload.prompts)
            else:
                text = _read(out) if any("{out}" in w for w in driver.command) else said
                figures = read_output(text, driver.metrics, this.workload.prompts)
        except BadOutput as error:
            this.watch()
            raise _failed(this, str(error), said) from None
        duration = figures.get("duration", time.monotonic() - began)
        return Repeat((), duration, {"duration": duration, **figures})


def bench_command(this: Pass, out: Path) -> list[str]:
    """Command line of `sglang.bench_serving`, equal for both arms and all versions.

    Random token ids of exact lengths need no download; the same seed in both arms gives the same
    prompts, and the prefix cache is flushed, or a second run would look twice as fast.
    """
    workload, target = this.workload, this.target
    words = [this.profile.python, "-m", _module(this.profile.python, this.profile.prefix)]
    words += ["--backend", "sglang-oai" if target.endpoint == "openai" else "sglang"]
    words += ["--base-url", target.base_url, "--model", _model(this), "--tokenizer"]
    words += [_tokenizer(this), "--dataset-name", "random-ids", "--random-range-ratio", "1.0"]
    words += ["--random-input-len", str(workload.input_len)]
    words += ["--random-output-len", str(workload.output_len)]
    words += ["--num-prompts", str(workload.prompts)]
    words += ["--max-concurrency", str(workload.concurrency), "--warmup-requests", "1"]
    words += ["--flush-cache", "--disable-tqdm", "--seed", str(_seed(this))]
    # Token ids as they are: decoded and encoded again they would be another number of tokens.
    words += ["--tokenize-prompt"] if target.endpoint != "openai" else []
    return [*words, "--output-file", str(out), *this.profile.driver.args]


def command_line(this: Pass, out: Path) -> list[str]:
    """The profile's own command with its placeholders replaced."""
    server, workload = this.profile.server, this.workload
    values = {
        "url": this.target.base_url,
        "host": server.host,
        "port": str(server.port),
        "model": _model(this),
        "tokenizer": _tokenizer(this),
        "workload": workload.name,
        "concurrency": str(workload.concurrency),
        "prompts": str(workload.prompts),
        "input_len": str(workload.input_len),
        "output_len": str(workload.output_len),
        "seed": str(_seed(this)),
        "repeat": str(this.repeat),
        "out": str(out),
        "python": this.profile.python,
        "prefix": this.profile.prefix,
    }
    return filled(this.profile.driver.command, values)


def _seed(this: Pass) -> int:
    """Other prompts in every repeat, the same in both arms."""
    return (this.profile.seed * 1000 + this.repeat) % 2**31


def _model(this: Pass) -> str:
    for found in (this.target.model, this.info.get("model_path")):
        if isinstance(found, str) and found:
            return found
    return "default"


def _tokenizer(this: Pass) -> str:
    for found in (this.profile.driver.tokenizer, this.info.get("tokenizer_path")):
        if isinstance(found, str) and found:
            return found
    return _model(this)


@cache
def _module(python: str, _prefix: str) -> str:
    """`sglang.benchmark.serving` where there is one (0.5.15 on), else the older place."""
    try:
        done = subprocess.run(
            [python, "-c", _WHERE], stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
            check=False,
        )  # fmt: skip
        places = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        places = []
    newer = any(Path(place, "benchmark", "serving.py").is_file() for place in places)
    return "sglang.benchmark.serving" if newer else "sglang.bench_serving"


def _run(this: Pass, words: Sequence[str], log: Path) -> int | None:
    """Exit status of the client; None when the deadline came first."""
    key = this.target.api_key
    environ = {**os.environ, **this.profile.server.env, **({"OPENAI_API_KEY": key} if key else {})}
    limit = time.monotonic() + this.profile.driver.timeout
    try:
        with log.open("wb") as stream:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
                env=environ, cwd=this.profile.server.cwd, start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        raise _failed(this, f"cannot be started: {error}", "") from error
    try:
        looked = time.monotonic()
        while process.poll() is None:
            now = time.monotonic()
            if this.deadline is not None and now >= this.deadline:
                return None
            if now >= limit:
                raise _failed(this, f"took longer than {this.profile.driver.timeout:g} s", "")
            if now - looked >= _WATCH:
                this.watch()
                looked = now
            time.sleep(_TURN)
        return process.returncode
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(_LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""


def _failed(this: Pass, what: str, said: str) -> HostError:
    end = os.linesep.join(redact_output(said, os.environ).splitlines()[-15:])
    return HostError(
        f"the client that measures {this.workload.name} ({this.profile.driver.kind}) {what}"
        + (f"; it said:{os.linesep}{end}" if end else ""),
        hint=f"run it by hand, or take the native one: leave [driver] out of {this.profile.origin}",
        code="driver-failed",
        details={"kind": this.profile.driver.kind, "tail": end},
    )
