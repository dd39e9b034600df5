"""The commented `sm120patch.toml` that `init` writes, from a running server or generic. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from sm120patch.redaction import REDACTED, is_secret, redact_arguments
from sm120patch.verify.profile import DEFAULT_WORKLOADS, UNSET_MODEL

_GENERIC = ("{python}", "-m", "sglang.launch_server", "--model-path", UNSET_MODEL,
            "--tp", "8", "--host", "127.0.0.1", "--port", "30000")  # fmt: skip
_COPIED = ("SGLANG_", "SGL_", "FLASHINFER_", "CUDA_", "NCCL_", "TORCH", "PYTORCH_", "TRITON_",
           "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TVM_", "OMP_", "LD_LIBRARY_PATH",
           "PYTHONPATH")  # fmt: skip
_DEFAULT_PORT = 30000  # SGLang's own default

_HEAD = """\
# Verification profile of sm120patch: how your server is started and what is measured.
# `apply` and `verify` start it without and with the sets in turn, ask it a few questions, measure
# the workloads below and decide by interval. Unknown keys are errors.

[server]
# start: sm120patch starts and stops the server. external: see the end of this file.
mode = "start"
# An argument list, no shell. {python} is the interpreter of the patched environment, {prefix}
# its directory, {port} the port of `url`. {set_args} is where the options of a patch set go:
# only the patched arm gets them, and they are removed from this line for the baseline.
"""

_TAIL = """\
# Time limits in seconds: until /health answers 200, and from SIGTERM to SIGKILL.
ready_timeout = 900
stop_timeout = 60
# cwd = "/srv/sglang"
# log = "/var/log/sglang/verify.log"    # one file per start is written beside this name
# The user that serves, and where its JIT caches are, when that is not you:
# user = "sglang"
# home = "/home/sglang"
# workspace = "/home/sglang"            # FLASHINFER_WORKSPACE_BASE
# Name of a variable that holds the API key; write {api_key} in `command` where it belongs.
# api_key_env = "SGLANG_API_KEY"
# What this server is: real, simulated or rehearsal. It can only lower the worth of the
# evidence: a server that calls itself simulated is simulated whatever is written here.
# kind = "real"
"""

_VERIFY = """
[verify]
# endpoint = "generate"                 # SGLang's own; or "openai" for /v1/completions
# model = "name"                        # openai only; default: the first of /v1/models
seed = 1
# Most server starts an arm (default: five times what the set asks for; the run ends as soon as
# it is clear), and the share of throughput a set may cost (default: as the set says).
# blocks = 10
# margin = 0.03
# Start the baseline against itself first; default: where the noise of this host is not on record.
# null_run = true
# A server without a token for so many seconds hangs.
# hang_timeout = 300
# Do not ask for log-probabilities with the questions, where a server cannot stand it.
# logprobs = false
# Give up after this many seconds; the verdict is then inconclusive.
# max_time = 7200

# The client that measures: our own, or bench_serving of the patched environment, or any command
# that prints JSON (docs/profile.md).
# [driver]
# kind = "bench_serving"

# For a server that somebody else runs (systemd, a container), use this instead of `command`.
# {set_args} and {set_env} (KEY=VALUE each) must reach the server; it must listen on this host.
# [server]
# mode = "external"
# restart_command = ["/usr/local/bin/restart-sglang", "{set_args}"]
# url = "http://127.0.0.1:30000"
"""


def template(
    command: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    cwd: str | None = None,
    user: str | None = None,
    home: str | None = None,
) -> str:
    """Text of a profile that `load` accepts.

    `command` and `environ` are those of a running server, when there is one. Secrets in them
    are never written: a secret option becomes `{api_key}`, a secret variable a comment.
    """
    words, secret = _command(command or _GENERIC)
    port = _port(command or _GENERIC)
    lines = [_HEAD + f"command = {_list(words)}", f'url = "http://127.0.0.1:{port}"']
    lines += [f"{key} = {_text(value)}" for key, value in
              (("cwd", cwd), ("user", user), ("home", home)) if value]  # fmt: skip
    if secret:
        lines.append('api_key_env = "SGLANG_API_KEY"    # was on the command line; not copied')
    text = "\n".join(lines) + "\n" + _tail(cwd=cwd, user=user, home=home)
    return text + _env(environ or {}) + _workloads() + _VERIFY


def _command(command: Sequence[str]) -> tuple[list[str], bool]:
    """Words of the profile's command for those of a server, and whether a secret was among them."""
    words: list[str] = []
    secret = False
    previous = ""
    # Those of a running server come without their secrets already.
    for index, (word, shown) in enumerate(zip(command, redact_arguments(command), strict=True)):
        name, equals, _ = word.partition("=")
        if index == 0 and re.fullmatch(r"python[0-9.]*", word.rpartition("/")[2]):
            words.append("{python}")
        elif previous == "--port":
            words.append("{port}")
        elif equals and name == "--port":
            words.append("--port={port}")
        elif REDACTED in shown:
            option = f"{name}=" if equals and name.startswith("-") else ""
            words.append(f"{option}{{api_key}}")
            secret = True
        else:
            words.append(word)
        previous = word
    return [*words, "{set_args}"], secret


def _port(command: Sequence[str]) -> int:
    joined = "\0".join(command)
    found = re.search(r"(?:^|\0)--port[\0=]([0-9]{1,5})(?:\0|$)", joined)
    return int(found[1]) if found and 0 < int(found[1]) < 65536 else _DEFAULT_PORT


def _tail(**given: str | None) -> str:
    lines = [
        line
        for line in _TAIL.splitlines()
        if not any(value and line.startswith(f"# {key} =") for key, value in given.items())
    ]
    return "\n".join(lines) + "\n"  # fmt: skip


def _env(environ: Mapping[str, str]) -> str:
    lines = ["", "# Variables on top of those of the shell that runs sm120patch.", "[server.env]"]
    for name in sorted(environ):
        if not name.startswith(_COPIED) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            continue
        if is_secret(name, environ[name]):
            lines.append(f"# {name} was set; not copied. Set it in the shell before `apply`.")
        else:
            lines.append(f"{name} = {_text(environ[name])}")
    return "\n".join(lines) + "\n"


def _workloads() -> str:
    lines = ["", "# What is measured: tokens in and out, requests at a time, requests a repeat."]
    for w in DEFAULT_WORKLOADS:
        lines += [
            f"[workload.{w.name}]",
            f"input_len = {w.input_len}",
            f"output_len = {w.output_len}",
            f"concurrency = {w.concurrency}",
            f"prompts = {w.prompts}",
            "# repeats = 3    # measured repeats per server start; default: as the set says",
            f"# warmup = {w.prompts}     # unmeasured requests before; default: a whole repeat",
            "",
        ]
    return "\n".join(lines[:-1]) + "\n"


def _list(words: Sequence[str]) -> str:
    """One line per option with its values, so that the file reads like a command line."""
    rows: list[list[str]] = [[]]
    for word in words:
        if rows[-1] and (word.startswith("-") or word == "{set_args}"):
            rows.append([])
        rows[-1].append(_text(word))
    return "[\n" + "".join(f"  {', '.join(row)},\n" for row in rows) + "]"


def _text(value: str) -> str:
    """TOML basic string; bytes that are not UTF-8 become question marks."""
    clean = value.encode("utf-8", "replace").decode("utf-8").replace("\0", "")
    return json.dumps(clean, ensure_ascii=False).replace("\x7f", "\\u007f")
