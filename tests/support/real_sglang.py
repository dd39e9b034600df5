"""Real SGLang on the CPU for the tests: built once from published packages, then shared.

The parts lie in a cache outside the repository, under a digest of the recipe: what SGLang
imports, SGLang and FlashInfer as pip unpacks them, and a model with random weights. Every test
gets a virtual environment of its own, whose packages are hard links into the cache.
"""

from __future__ import annotations

import base64
import csv
import fcntl
import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.environments import create_venv, install_wheel, record_line
from tests.support.wheels import cache_dir

SGLANG = "0.5.9"
FLASHINFER = "0.6.3"
_USED = (
    "sglang.bench_serving",
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.models.registry",
)
_RECIPE = Path(__file__).parent / "real_host"

SERVER_ENV = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    # More threads than that only get into each other's way on a small model.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Parts:
    """The cached parts; nothing below may be written to."""

    root: Path

    @property
    def imports(self) -> Path:
        """Everything that SGLang imports, and the stand-ins for what it does not need."""
        return self.root / "imports"

    @property
    def targets(self) -> Path:
        """SGLang and FlashInfer with their published RECORDs."""
        return self.root / "targets"

    @property
    def model(self) -> Path:
        """Model and tokenizer."""
        return self.root / "model"


def supported() -> bool:
    """Tell whether this interpreter is the one the recipe is for."""
    return sys.version_info[:2] == (3, 11) and sys.platform == "linux"


def parts() -> Parts:
    """Return the parts; the first call on a machine builds them (1 to 2 minutes, 1.2 GB).

    Several processes may call at once: one builds, the others wait for it. A build that was cut
    off leaves nothing that counts as built.
    """
    home = cache_dir().parent / "real-sglang"
    home.mkdir(parents=True, exist_ok=True)
    done = home / _digest()
    with (home / f"{done.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            draft = home / f"{done.name}.draft"
            shutil.rmtree(draft, ignore_errors=True)
            _build(Parts(draft))
            draft.rename(done)
    return Parts(done)


def environment(prefix: Path, release: Mapping[str, Callable[[str], str]] | None = None) -> Path:
    """Create a virtual environment with real SGLang; return its site-packages.

    `release` maps paths to what the upstream of this test wrote differently: the file is changed
    and RECORD agrees with it, as if it had been published like that.
    """
    made = parts()
    site = create_venv(prefix)
    # Linked, as uv does it: who writes through a link spoils the cache, see `spoiled`.
    shutil.copytree(made.targets, site, dirs_exist_ok=True, copy_function=_share)
    _link(site, [made.imports])
    for path, change in (release or {}).items():
        _publish(site, path, change((site / path).read_text()).encode())
    return site


def spoiled() -> list[str]:
    """Files in the cache that are not as published: somebody wrote through a hard link."""
    wrong = []
    for record in parts().targets.glob("*.dist-info/RECORD"):
        with record.open(newline="") as rows:
            for path, wanted, _size in csv.reader(rows):
                data = (record.parent.parent / path).read_bytes() if wanted else b""
                found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
                if wanted and wanted != f"sha256={found.decode()}":
                    wrong.append(path)
    return wrong


def server_command() -> list[str]:
    """Command of a profile that serves the model on the CPU."""
    words = ["{python}", "-m", "sglang.launch_server", "--model-path", str(parts().model)]
    words += ["--device", "cpu", "--host", "127.0.0.1", "--port", "{port}"]
    words += ["--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
    words += ["--grammar-backend", "none", "--dtype", "bfloat16", "--random-seed", "42"]
    words += ["--disable-overlap-schedule", "--sleep-on-idle", "--skip-server-warmup"]
    words += ["--context-length", "4096"]
    words += ["--max-total-tokens", "65536", "--max-running-requests", "64"]
    return [*words, "{set_args}"]


def write_profile(path: Path, port: int, workload: str, verify: str) -> None:
    """Write a verification profile for a rehearsal on the real server.

    The server's working directory is that of the profile: it tells its processes from others.
    """
    variables = "\n".join(f"{name} = {json.dumps(value)}" for name, value in SERVER_ENV.items())
    path.write_text(f"""
[server]
kind = "rehearsal"
command = {json.dumps(server_command())}
url = "http://127.0.0.1:{port}"
ready_timeout = 240
stop_timeout = 60
cwd = {json.dumps(str(path.parent))}
[server.env]
{variables}
[workload.tiny]
{workload}
[verify]
{verify}
""")


def processes_in(directory: Path) -> list[str]:
    """Living processes that were started in a directory: name and PID."""
    import psutil

    found = []
    for process in psutil.process_iter(["name", "cwd", "status"]):
        if process.info["cwd"] == str(directory) and process.info["status"] != "zombie":
            found.append(f"{process.info['name']} ({process.pid})")
    return found


def _digest() -> str:
    recipe = [SGLANG, FLASHINFER, sys.version, inspect.getsource(_build)]
    digest = hashlib.sha256("\n".join(recipe).encode())
    for path in sorted(_RECIPE.iterdir()):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _build(new: Parts) -> None:
    environ = {**os.environ, **SERVER_ENV, "HOME": os.environ["SM120PATCH_TEST_REAL_HOME"]}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-compile", "--no-warn-conflicts"]
    pip += ["--target", str(new.imports), "--requirement", str(_RECIPE / "requirements.txt")]
    subprocess.run(pip, check=True, env=environ)
    shutil.copy2(_RECIPE / "import_stubs.py", new.imports)
    new.targets.mkdir()
    install_wheel(new.targets, "sglang", SGLANG)
    install_wheel(new.targets, "flashinfer-python", FLASHINFER)
    # Apart from the packages of the tests: with their `pynvml` FlashInfer looks usable to SGLang.
    scratch = new.root / "scratch"
    _link(create_venv(scratch), [new.imports, new.targets])
    python = [str(scratch / "bin" / "python"), "-W", "ignore"]
    # Importing once shows that the recipe holds, and compiles what is used: a tenth of it all.
    subprocess.run([*python, "-c", f"import {', '.join(_USED)}"], check=True, env=environ)
    subprocess.run([*python, _RECIPE / "make_model.py", new.model], check=True, env=environ)
    shutil.rmtree(scratch)


def _link(site: Path, folders: list[Path]) -> None:
    """Have the interpreter of a virtual environment import from other folders, and the stubs."""
    lines = [*map(str, folders), "import import_stubs; import_stubs.install()"]
    (site / "real_host.pth").write_text("\n".join(lines) + "\n")


def _share(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _publish(site: Path, path: str, data: bytes) -> None:
    record = next(site.glob(f"{path.partition('/')[0]}-*.dist-info/RECORD"))
    lines = record.read_text().splitlines(keepends=True)
    new = [record_line(path, data) if line.startswith(f"{path},") else line for line in lines]
    for file, content in ((site / path, data), (record, "".join(new).encode())):
        file.unlink()  # the cache holds the other link
        file.write_bytes(content)
