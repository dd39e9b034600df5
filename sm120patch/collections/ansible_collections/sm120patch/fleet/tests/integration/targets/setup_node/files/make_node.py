"""Make what a node has: an environment with two small packages, a catalogue, and profiles.

Runs on a node, from the collection alone: nothing of the project's own tests is at hand there.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

GATE = """\
from sglang.srt.utils import is_cuda, is_sm90_supported, is_sm100_supported

_is_sm90_supported = is_cuda() and is_sm90_supported()
_is_sm100_supported = is_cuda() and is_sm100_supported()


def apply_flashinfer_allreduce_fusion(batch_size):
    return (_is_sm90_supported or _is_sm100_supported) and batch_size > 0
"""
OPEN = """\
from sglang.srt.utils import is_cuda, is_sm90_supported, is_sm100_supported, is_sm120_supported

_is_sm90_supported = is_cuda() and is_sm90_supported()
_is_sm100_supported = is_cuda() and is_sm100_supported()
_is_sm120_supported = is_cuda() and is_sm120_supported()


def apply_flashinfer_allreduce_fusion(batch_size):
    return (_is_sm90_supported or _is_sm100_supported or _is_sm120_supported) and batch_size > 0
"""
JIT = """\
def gen_trtllm_comm_module():
    return flags(supported_major_versions=[9, 10])
"""
COMMUNICATOR = "sglang/srt/layers/communicator.py"
COMM = "flashinfer/jit/comm.py"
# Not the releases themselves: what was published as them is known, and this is something else.
PACKAGES = {
    ("sglang", "0.5.9+small"): {"sglang/__init__.py": "", COMMUNICATOR: GATE},
    ("flashinfer-python", "0.6.3+small"): {
        "flashinfer/__init__.py": "",
        "flashinfer/_build_meta.py": '__version__ = "0.6.3+small"\n',
        COMM: JIT,
    },
}
EDITS = {
    "gate": ("sglang", COMMUNICATOR, GATE, OPEN, "or _is_sm120_supported)"),
    "list": ("flashinfer-python", COMM, JIT, JIT.replace("[9, 10]", "[9, 10, 12]"), "[9, 10, 12]"),
}
"""Set -> package, file, content before and after, and what is there afterwards only."""
FLAG = "--enable-flashinfer-allreduce-fusion"
SCENARIOS = {"gains": "root-complex-2gpu", "regresses": "slow-mild-regression"}
"""Profile -> host that it simulates."""
LAUNCH = f"""
[[launch]]
target = "sglang"
versions = ">=0.5.8,<0.6"
args = ["{FLAG}"]
[launch.strip]
"{FLAG}" = 0
[[engagement]]
target = "sglang"
versions = ">=0.5.8,<0.6"
server-info = {{ enable_flashinfer_allreduce_fusion = true }}
log = 'FlashInfer workspace initialized for rank \\d+'
log-absent = 'falling back to standard implementation'
"""


def main() -> None:
    root = Path(sys.argv[1])
    prefix = root / "env"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--clear", str(prefix)], check=True
    )
    (site,) = prefix.glob("lib/python*/site-packages")
    (prefix / "site-packages").unlink(missing_ok=True)
    (prefix / "site-packages").symlink_to(site)
    for (name, version), files in PACKAGES.items():
        install(site, name, version, files)
    catalogue(root / "catalogue")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    for name, scenario in SCENARIOS.items():
        (root / f"{name}.toml").write_text(profile(scenario, port))


def install(site: Path, name: str, version: str, files: dict[str, str]) -> None:
    """Lay down a package with a true RECORD."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    contents = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": "Wheel-Version: 1.0\n"}
    record = ""
    for path, text in contents.items():
        data = text.encode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)
    (site / info / "RECORD").write_text(record + f"{info}/RECORD,,\n")


def catalogue(root: Path) -> None:
    """Two sets, and `fusion`, which takes both along."""
    for directory in ("manifests", "patches"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    for name in EDITS:
        write_set(root, name, [], change(root, name) + (LAUNCH if name == "gate" else ""))
    write_set(root, "fusion", list(EDITS), "")


def write_set(root: Path, name: str, depends: list[str], changes: str) -> None:
    (root / "manifests" / f"{name}.toml").write_text(f"""\
schema = 1
[patch-set]
id = "{name}"
revision = 1
title = "Set {name}"
description = "For tests."
type = "unofficial"
[upstream]
status = "inappropriate"
reason = "tests"
last-checked = "2026-11-29"
[host]
compute-capability = ["12.0"]
[relations]
depends = {json.dumps(depends)}
[verification]
goal = "no-regression"
margin = 0.03
repeats = 3
blocks = 1
{changes}""")


def change(root: Path, name: str) -> str:
    """Write the payload of a set; return what its manifest says of it."""
    target, path, before, after, present = EDITS[name]
    lines = difflib.unified_diff(
        before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}"
    )
    diff = "".join(lines).encode()
    (root / "patches" / name).mkdir(exist_ok=True)
    (root / "patches" / name / "edit.patch").write_bytes(diff)
    return f"""
[[change]]
id = "edit"
target = "{target}"
summary = "Edit {path}"
description = "For tests."
[[change.variant]]
versions = ">=0.5,<1"
kind = "diff"
path = "{path}"
payload = "{name}/edit.patch"
sha256 = "{hashlib.sha256(diff).hexdigest()}"
present = {{ "{present}" = 1 }}
"""


def profile(scenario: str, port: int) -> str:
    """Start the host that sm120patch can simulate; its environment holds a secret."""
    words = ["{tool_python}", "-m", "sm120patch.simhost", "--prefix", "{prefix}", "--scenario",
             scenario, "--port", "{port}", "{set_args}"]  # fmt: skip
    path = os.environ.get("PYTHONPATH", "")
    return f"""\
[server]
kind = "simulated"
command = {json.dumps(words)}
url = "http://127.0.0.1:{port}"
stop_timeout = 10
[server.env]
PYTHONPATH = {json.dumps(path)}
HF_TOKEN = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
[workload.tiny]
input_len = 16
output_len = 24
concurrency = 4
prompts = 8
repeats = 3
warmup = 2
[verify]
blocks = 1
"""


if __name__ == "__main__":
    main()
