"""What stands on the GPU machine: scratch environments, model, catalogue, how a server starts.

Every environment is a copy: hard links of the unpacked packages, as uv makes them.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rehearsal
from machine import SAFE, Run, tail

CUDA = os.environ.get("CUDA_HOME", "/usr/local/cuda")
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "CUDA_HOME": CUDA,
    "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
    "TOKENIZERS_PARALLELISM": "false",
}
_GPU_FACTS = (
    "index", "name", "uuid", "driver_version", "vbios_version", "memory.total", "clocks.sm",
    "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit", "power.draw",
    "temperature.gpu", "pstate",
)  # fmt: skip
_IDLE = ("not-applicable", "upstream", "absent")
_KEPT = ("outcome", "findings", "versions", "event", "launch")


@dataclass(frozen=True)
class Host:
    """The machine as the parts of a run use it."""

    run: Run
    python: str
    """Interpreter that has torch."""
    shared: tuple[Path, ...]
    """Directories that every environment imports from as well."""
    targets: Path
    """SGLang and FlashInfer as published."""
    tool: Path
    """Environment of sm120patch."""
    model: Path
    gpus: tuple[str, ...]

    @property
    def dry(self) -> bool:
        """No GPU here."""
        return self.run.dry

    def prefix(self, name: str) -> Path:
        """Environment of that name."""
        return self.run.root / f"env-{name}"

    def site(self, name: str) -> Path:
        """Its site-packages."""
        (found,) = self.prefix(name).glob("lib/python3*/site-packages")
        return found

    def catalogue(self, name: str) -> Path:
        """Rehearsal sets for that environment."""
        return self.run.root / f"catalogue-{name}"

    def exe(self, name: str) -> str:
        """Its interpreter."""
        return str(self.prefix(name) / "bin" / "python")

    def port(self, wanted: int) -> int:
        """Port of a server: the wanted one on a machine of our own, any free one elsewhere."""
        if not self.dry:
            return wanted
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            number: int = found.getsockname()[1]
        return number

    # --- sm120patch ----------------------------------------------------------------------------

    def patcher(
        self,
        step: str,
        env: str,
        *words: str,
        limit: float,
        home: Path | None = None,
        also: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """Run sm120patch on an environment; note and return what it answered.

        The whole answer goes to `results/<step>.json`; a limit that has to be enforced is
        enforced with ^C, so that the files are put back.
        """
        import signal

        argv = [str(self.tool / "bin" / "sm120patch"), *words, "--env", str(self.prefix(env)),
                "--output", "json"]  # fmt: skip
        if words[0] != "tune":
            places = [name for name in (env, *also) if self.catalogue(name).exists()]
            for name in places:
                argv += ["--extra-catalogue", str(self.catalogue(name))]
        if self.dry and words[0] in ("plan", "apply", "verify", "status"):
            argv += ["--gpu", "9.0"]
        variables = {"HOME": str(home or self.home)}
        done = self.run.command(step, argv, limit, env=variables, cwd=self.run.root,
                                stop=signal.SIGINT, keep=False)  # fmt: skip
        try:
            answer: dict[str, Any] = json.loads(done["output"])
            self.run.answer_file(step).write_text(json.dumps(answer, indent=1))
        except ValueError:
            answer = {}
        result = answer.get("result") or {}
        brief = _brief(result) if isinstance(result, dict) else {}
        verification = result.get("verification") if isinstance(result, dict) else None
        if isinstance(verification, dict):
            brief["verdict"] = verification.get("verdict")
            brief["reasons"] = verification.get("reasons")
        messages = [e.get("message", "")[-3000:] for e in answer.get("errors", [])]
        self.run.note(step, command="sm120patch " + " ".join(words), rc=done["rc"],
                      seconds=done["seconds"], late=done["late"], **brief, messages=messages,
                      errors=done["errors"][-1500:],
                      output="" if answer else done["output"][-3000:])  # fmt: skip
        return {"rc": done["rc"], "result": result, "verification": verification or {}}

    @property
    def home(self) -> Path:
        """Home of the servers: FlashInfer's and Triton's caches are there."""
        return self.run.root / "home"

    # --- servers -------------------------------------------------------------------------------

    def server(self, tp: int, *, memory: float = 0.4) -> list[str]:
        """Command of a server, with the placeholders of a profile."""
        if self.dry:
            scenario = "root-complex-2gpu"
            return ["{tool_python}", "-m", "sm120patch.simhost", "--prefix", "{prefix}",
                    "--scenario", scenario, "--port", "{port}"]  # fmt: skip
        words = ["{python}", "-m", "sglang.launch_server", "--model-path", str(self.model)]
        words += ["--host", "127.0.0.1", "--port", "{port}", "--tp", str(tp)]
        words += ["--dtype", "bfloat16", "--random-seed", "42", "--skip-server-warmup"]
        words += ["--attention-backend", "triton", "--moe-runner-backend", "triton"]
        words += ["--sampling-backend", "pytorch", "--grammar-backend", "none"]
        words += ["--cuda-graph-backend-prefill", "disabled"]
        words += ["--cuda-graph-bs-decode", "1", "4", "16", "64"]
        words += ["--mem-fraction-static", str(memory), "--max-total-tokens", "262144"]
        # Enough for the long question of a verification.
        words += ["--max-running-requests", "64", "--context-length", "16384"]
        # The same question computed in the same way each time, whatever was asked before.
        return [*words, "--disable-radix-cache"] if tp > 1 else words

    def resolved(self, words: Sequence[str], env: str, port: int) -> list[str]:
        """A server command for a start of our own, outside of a verification."""
        places = {"{python}": self.exe(env), "{tool_python}": str(self.tool / "bin" / "python"),
                  "{prefix}": str(self.prefix(env)), "{port}": str(port)}  # fmt: skip
        return [places.get(word, word) for word in words]

    def variables(self, gpus: str) -> dict[str, str]:
        """Variables of a server; they never switch multicast on."""
        return {**QUIET, "HOME": str(self.home), "CUDA_VISIBLE_DEVICES": gpus, **SAFE}

    def profile(
        self,
        name: str,
        env: str,
        *,
        port: int,
        tp: int,
        gpus: str,
        workloads: Mapping[str, Mapping[str, int]],
        blocks: int,
        max_time: float,
        null_run: bool | None = None,
    ) -> Path:
        """Write a verification profile; its evidence is a rehearsal's by what it runs on."""
        path = self.run.root / f"{name}.toml"
        lines = ["[server]", f"command = {json.dumps([*self.server(tp), '{set_args}'])}",
                 f'url = "http://127.0.0.1:{port}"', "ready_timeout = 300", "stop_timeout = 15",
                 f"home = {json.dumps(str(self.home))}",
                 f"log = {json.dumps(str(self.run.root / 'logs' / f'{name}.log'))}",
                 "[server.env]"]  # fmt: skip
        lines += [f"{k} = {json.dumps(v)}" for k, v in self.variables(gpus).items() if k != "HOME"]
        for workload, values in workloads.items():
            asked = {**values, "prompts": int(values["prompts"] * self.run.longer)}
            lines += [f"[workload.{workload}]", *(f"{k} = {v}" for k, v in asked.items())]
        lines += ["[verify]", f"blocks = {blocks}", f"max_time = {int(max_time)}"]
        lines += [] if self.run.margin is None else [f"margin = {self.run.margin}"]
        lines += [] if null_run is None else [f"null_run = {str(null_run).lower()}"]
        path.write_text("\n".join(lines) + "\n")
        return path


def _brief(result: Mapping[str, Any]) -> dict[str, Any]:
    """What is noted of an answer: sets by their label, those that have to do with this run."""
    found = {key: result[key] for key in _KEPT if key in result}
    sets = [s for s in result.get("sets") or [] if isinstance(s, dict) and "label" in s]
    found["sets"] = {s["id"]: s["label"] for s in sets if s["label"] not in _IDLE}
    found["others"] = {label: sum(s["label"] == label for s in sets) for label in _IDLE}
    return found


# --- setting it up -----------------------------------------------------------------------------


def unpack(run: Run, pack: Path) -> None:
    """Lay out the directories of the run, and the packages of the pack once."""
    for folder in ("results", "home", "logs"):
        (run.root / folder).mkdir(parents=True, exist_ok=True)
    if not (run.root / "targets").exists():
        with tarfile.open(pack / "site312.tar.xz") as archive:
            archive.extractall(run.root, filter="tar")


def describe_places(run: Run, python: str, gpus: int) -> Host:
    """What stands where; the environments come one by one."""
    torch_site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    host = Host(
        run=run,
        python=python,
        shared=(run.root / "rest", Path(torch_site)),
        targets=run.root / "targets",
        tool=run.root / "tool",
        model=run.root / "model",
        gpus=tuple(map(str, range(gpus))),
    )
    return host


def make_environment(host: Host, name: str) -> Path:
    """A scratch environment with the packages as published; return its site-packages."""
    prefix = host.prefix(name)
    _venv(host.python, prefix)
    site = host.site(name)
    for source in host.targets.iterdir():
        if source.is_dir():
            shutil.copytree(source, site / source.name, copy_function=os.link, symlinks=True)
        else:
            os.link(source, site / source.name)
    (site / "rehearsal-shared.pth").write_text("".join(f"{path}\n" for path in host.shared))
    return site


def _venv(python: str, prefix: Path) -> None:
    subprocess.run([python, "-m", "venv", "--without-pip", str(prefix)], check=True)


def make_model(host: Host) -> None:
    """Write checkpoint and tokenizer, with the packages of the shared directories."""
    if host.dry or (host.model / "model.safetensors").exists():
        return
    script = Path(__file__).with_name("make_model.py")
    path = os.pathsep.join(map(str, host.shared))
    host.run.command("make-model", [host.python, str(script), str(host.model)], 150,
                     env={"PYTHONPATH": path})  # fmt: skip


def compile_shared(host: Host) -> None:
    """Compile bytecode in advance, so that the first start does not pay for it."""
    _compileall(host, "compileall", host.run.root / "rest", host.targets)


def compile_torch(host: Host) -> None:
    """The same for the packages of the machine, whose image may have left it out."""
    _compileall(host, "compileall-machine", host.shared[1])


def _compileall(host: Host, step: str, *folders: Path) -> None:
    if not host.dry:
        words = [host.python, "-m", "compileall", "-q", "-j", "12", *map(str, folders)]
        host.run.command(step, words, 90)


def describe(host: Host, guard: Mapping[str, Any] | None) -> None:
    """Versions, clocks, power, links and kernel of the machine."""
    run = host.run
    facts: dict[str, Any] = {
        "torch": guard,
        "python": sys.version,
        "kernel": tail(Path("/proc/version")),
    }
    if not host.dry:
        queries = {
            "gpus": ["nvidia-smi", f"--query-gpu={','.join(_GPU_FACTS)}", "--format=csv"],
            "topology": ["nvidia-smi", "topo", "-m"],
            "nvlink": ["nvidia-smi", "nvlink", "--status"],
            "nvcc": [f"{CUDA}/bin/nvcc", "--version"],
            "cpu": ["lscpu"],
            "tool": [str(host.tool / "bin/sm120patch"), "--version"],
        }  # fmt: skip
        for name, argv in queries.items():
            facts[name] = run.command(f"facts-{name}", argv, 30, keep=False)["output"][:6000]
    run.know(**facts, releases=rehearsal.RELEASES)
