"""Runs steps on the GPU machine: each with a time limit, everything noted as it happens.

Starts and stops only its own processes. Writes below the directory of the run. NVLink multicast
stays off in every process that is started here, see `SAFE` and `require_no_multicast`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SAFE = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
"""Other tenants share the GPUs' host: a program that uses NVLink multicast may take it down."""
FORBIDDEN = ("--enable-nccl-nvls", "--enable-symm-mem", "--enable-torch-symm-mem", "mnnvl")
"""Options of SGLang that would use it."""
_TAIL = 4000  # characters kept of what a step printed


@dataclass
class Run:
    """One run on the machine: where it writes, until when, and what has happened."""

    root: Path
    seconds: float
    """From `began`: nothing is started that has no time left, nothing runs longer."""
    dry: bool = False
    """No GPU here: the simulated host stands in for the server."""
    margin: float | None = None
    """Share of throughput that a set may cost; None: as the set says."""
    longer: float = 1.0
    """Times the requests of a repeat."""
    began: float = field(default_factory=time.monotonic)
    steps: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    number: int = 1
    """Counts the runs in one directory: a later one adds its steps to those of the earlier."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        try:
            past = json.loads((self.results / "run.json").read_text())
        except (OSError, ValueError):
            return
        self.steps, self.facts = past["steps"], past["facts"]
        self.number = max((step["run"] for step in self.steps), default=0) + 1

    def answer_file(self, name: str) -> Path:
        """Where the answer of a step is kept; a later run keeps what the earlier ones measured."""
        return self.results / (f"{name}.json" if self.number == 1 else f"{name}-{self.number}.json")

    @property
    def left(self) -> float:
        """Seconds left of the whole run."""
        return self.seconds - (time.monotonic() - self.began)

    @property
    def results(self) -> Path:
        """Where everything is that is worth keeping."""
        return self.root / "results"

    def note(self, name: str, **found: Any) -> None:
        """Keep a step; the file is complete after each."""
        at = round(time.monotonic() - self.began, 1)
        with self._lock:
            self.steps.append({"step": name, "at": at, "run": self.number, **found})
            self._save()
        shown = {k: v for k, v in found.items() if k not in ("output", "errors", "result")}
        print(f"[{at:7.1f}] {name} {json.dumps(shown, default=str)[:600]}", flush=True)

    def know(self, **found: Any) -> None:
        """Keep facts about the machine."""
        with self._lock:
            self.facts.update(found)
            self._save()

    def _save(self) -> None:
        self.results.mkdir(parents=True, exist_ok=True)
        draft = self.results / "run.json.new"
        draft.write_text(json.dumps(
            {"dry": self.dry, "facts": self.facts, "steps": self.steps}, indent=1, default=str
        ))  # fmt: skip
        draft.replace(self.results / "run.json")

    def command(
        self,
        name: str,
        argv: Sequence[str],
        limit: float,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stop: signal.Signals = signal.SIGTERM,
        keep: bool = True,
    ) -> dict[str, Any]:
        """Run a command to its end, at most `limit` seconds; note and return what came of it.

        At the limit the command gets `stop`, a few seconds later the whole group is killed.
        """
        refuse_multicast(argv)
        limit = min(limit, self.left)
        if limit < 1:
            self.note(name, skipped="no time left")
            return {"rc": None, "output": "", "errors": "", "seconds": 0.0, "late": True}
        folder = self.root / "steps"
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{len(self.steps):03d}-{name}.{kind}" for kind in ("out", "err")]
        began = time.monotonic()
        with files[0].open("wb") as out, files[1].open("wb") as err:
            process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env=environment(env), cwd=cwd, start_new_session=True,
            )  # fmt: skip
            late = _await(process, limit, stop)
        output, errors = (path.read_text("utf-8", "replace") for path in files)
        found = {
            "rc": process.returncode,
            "seconds": round(time.monotonic() - began, 2),
            "late": late,
            "output": output,
            "errors": errors,
        }
        if keep:
            short = {**found, "output": output[-_TAIL:], "errors": errors[-_TAIL:]}
            self.note(name, command=" ".join(map(str, argv))[:400], **short)
        return found


def _await(process: subprocess.Popen[bytes], limit: float, stop: signal.Signals) -> bool:
    """Wait for the end; True when the limit had to be enforced."""
    try:
        process.wait(limit)
        return False
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(stop)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # ^C has sm120patch stop its server and put every file back.
            process.wait(45 if stop is signal.SIGINT else 10)
        return True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its session: whatever it left behind
        process.wait()


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of every process that is started: ours, those of the step, and multicast off."""
    ours = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**ours, **(extra or {}), **SAFE}


def refuse_multicast(argv: Sequence[str]) -> None:
    """Raise ValueError for a command that asks for NVLink multicast."""
    bad = [word for word in argv if any(option in str(word) for option in FORBIDDEN)]
    if bad:
        raise ValueError(f"{bad} would use NVLink multicast, which stays off here")


def attempt(run: Run, name: str, action: Callable[[], Any]) -> Any:
    """Carry out one part of a run; what it raises is noted, and the run goes on."""
    try:
        return action()
    except Exception:
        run.note(name, failed=traceback.format_exc()[-_TAIL:])
        return None


class Background:
    """A part of the run beside the others; `join` waits for it."""

    def __init__(self, run: Run, name: str, action: Callable[[], Any]) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=self._work, args=(run, name, action), daemon=True)
        self._thread.start()

    def _work(self, run: Run, name: str, action: Callable[[], Any]) -> None:
        self.result = attempt(run, name, action)

    def join(self, limit: float) -> Any:
        """Wait at most `limit` seconds; None when it is not done by then."""
        self._thread.join(max(0.0, limit))
        return None if self._thread.is_alive() else self.result


@contextlib.contextmanager
def serving(
    run: Run,
    name: str,
    argv: Sequence[str],
    port: int,
    limit: float,
    *,
    env: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Any]]:
    """A server for as long as the block runs; `ready` says whether it came up within `limit`.

    A server that ends by itself before is a normal answer: `rc` is its exit status then.
    """
    refuse_multicast(argv)
    log = run.root / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    found: dict[str, Any] = {"ready": False, "rc": None, "log": log}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            env=environment(env), start_new_session=True,
        )  # fmt: skip
    try:
        until = began + min(limit, run.left)
        while time.monotonic() < until and process.poll() is None:
            if answers(port):
                found["ready"] = True
                break
            time.sleep(0.5)
        found["rc"] = process.poll()
        found["seconds"] = round(time.monotonic() - began, 1)
        run.note(f"{name}-start", ready=found["ready"], rc=found["rc"], seconds=found["seconds"],
                 output=tail(log))  # fmt: skip
        yield found
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(port: int) -> bool:
    """Tell whether a server on this host says that it is ready."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def tail(path: Path, characters: int = _TAIL) -> str:
    """End of a text file; empty when there is none."""
    try:
        return path.read_text("utf-8", "replace")[-characters:]
    except OSError:
        return ""


def matching(path: Path, words: Sequence[str], most: int = 40) -> list[str]:
    """Lines of a log that hold one of the words."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line[:400] for line in lines if any(word in line for word in words)][:most]


class Sampler:
    """Clocks, power and temperature of all GPUs, once a second, added to a CSV file."""

    FIELDS = (
        "timestamp", "index", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu",
        "utilization.gpu", "memory.used",
    )  # fmt: skip

    def __init__(self, path: Path) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError), path.open("ab") as stream:
            self._process = subprocess.Popen(
                ["nvidia-smi", f"--query-gpu={','.join(self.FIELDS)}",
                 "--format=csv,noheader,nounits", "-l", "1"],
                stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def stop(self) -> None:
        """End the sampling."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


_GUARD = """
import os, json, torch
from torch._C._distributed_c10d import _SymmetricMemory
from torch._C._autograd import DeviceType
print(json.dumps({
    "torch": torch.__version__, "cuda": torch.version.cuda, "nccl": torch.cuda.nccl.version(),
    "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    "capability": [torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())],
    "multicast": [_SymmetricMemory.has_multicast_support(DeviceType.CUDA, i)
                  for i in range(torch.cuda.device_count())],
}))
"""


def require_no_multicast(run: Run, python: str) -> dict[str, Any]:
    """Ask torch itself whether it would use multicast; raise when it would, or does not say."""
    done = run.command("multicast-guard", [python, "-c", _GUARD], 120)
    answer: dict[str, Any] = json.loads(done["output"].strip().splitlines()[-1])
    if any(answer["multicast"]) or not answer["multicast"]:
        raise RuntimeError(f"torch would use NVLink multicast: {answer['multicast']}")
    return answer
