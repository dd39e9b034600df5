"""A miniature of the two packages, and profiles that start the simulated host on it."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sm120patch.model import Engagement, Goal, VerificationPolicy
from sm120patch.plan import Launch
from sm120patch.verify.commandline import Arm
from sm120patch.verify.profile import Profile, parse
from sm120patch.verify.runner import Duty

COMMUNICATOR = "sglang/srt/layers/communicator.py"
JIT = "flashinfer/jit/comm.py"

GATE_CLOSED = """\
from sglang.srt.utils import is_cuda, is_sm90_supported, is_sm100_supported

_is_sm90_supported = is_cuda() and is_sm90_supported()
_is_sm100_supported = is_cuda() and is_sm100_supported()


def apply_flashinfer_allreduce_fusion(batch_size):
    return (_is_sm90_supported or _is_sm100_supported) and batch_size > 0
"""
GATE_OPEN = (
    GATE_CLOSED.replace("is_sm100_supported\n\n", "is_sm100_supported, is_sm120_supported\n\n", 1)
    .replace("\n\n\ndef", "\n_is_sm120_supported = is_cuda() and is_sm120_supported()\n\n\ndef")
    .replace("or _is_sm100_supported)", "or _is_sm100_supported or _is_sm120_supported)")
)
JIT_CLOSED = """\
def gen_trtllm_comm_module():
    return flags(supported_major_versions=[9, 10])


def gen_mixed_comm_module():
    return flags(supported_major_versions=[9, 10])
"""
JIT_OPEN = JIT_CLOSED.replace("[9, 10]", "[9, 10, 12]", 1)

FLAG = "--enable-flashinfer-allreduce-fusion"
LAUNCH = Launch(args=(FLAG,), strip={FLAG: 0})
ENGAGEMENT = Engagement(
    target="sglang",
    versions=">=0.5.8",
    server_info={"enable_flashinfer_allreduce_fusion": True},
    log=r"FlashInfer workspace initialized for rank \d+",
    log_absent="falling back to standard implementation",
)

TINY = """
[workload.tiny]
input_len = 16
output_len = 24
concurrency = 4
prompts = 8
repeats = 3
warmup = 2
"""


def fake_environment(prefix: Path) -> Path:
    """Lay down unpatched miniature packages; return their site-packages."""
    site = prefix / "lib" / "python3.11" / "site-packages"
    for name, version in (("sglang", "0.5.9"), ("flashinfer_python", "0.6.3")):
        (site / f"{name}-{version}.dist-info").mkdir(parents=True)
    write(site, GATE_CLOSED, JIT_CLOSED)
    return site


def write(site: Path, communicator: str, jit: str) -> None:
    for path, text in ((COMMUNICATOR, communicator), (JIT, jit)):
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)


def swapper(site: Path) -> Callable[[Arm], float]:
    """The caller's half of a verification: put the content of an arm in place."""

    def swap(arm: Arm) -> float:
        if arm is Arm.PATCHED:
            write(site, GATE_OPEN, JIT_OPEN)
        else:
            write(site, GATE_CLOSED, JIT_CLOSED)
        return time.time()

    return swap


def duty(goal: Goal = Goal.NO_REGRESSION, blocks: int = 2) -> Duty:
    policy = VerificationPolicy(goal=goal, margin=0.03, repeats=3, blocks=blocks)
    return Duty(policy, LAUNCH, (ENGAGEMENT,), {"sglang": "0.5.9", "flashinfer-python": "0.6.3"})


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def simulated_profile(
    prefix: Path,
    scenario: str,
    *,
    port: int | None = None,
    workloads: str = TINY,
    verify: str = "",
    server: str = "",
    ready_timeout: float = 30,
) -> Profile:
    """Profile that starts `sm120patch.simhost` with the interpreter of the tests."""
    root = Path(__file__).parents[2]
    text = f"""
[server]
command = ["{{tool_python}}", "-m", "sm120patch.simhost", "--prefix", "{{prefix}}",
           "--scenario", "{scenario}", "--port", "{{port}}", "{FLAG}"]
url = "http://127.0.0.1:{port or free_port()}"
kind = "simulated"
ready_timeout = {ready_timeout}
stop_timeout = 10
log = "{prefix}/logs/server.log"
{server}
[server.env]
PYTHONPATH = "{os.pathsep.join([str(root), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])}"
{workloads}
[verify]
{verify}
"""
    return parse(text, origin="test.toml", python=sys.executable, prefix=str(prefix))
