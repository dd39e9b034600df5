"""`tune`: let FlashInfer measure its MoE tactics on this GPU, and keep the result as a local set.

Writes below the directory that is named; the measuring runs in the target's interpreter.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sm120patch import manifest, versions
from sm120patch.compiling.running import end_group
from sm120patch.environment import Environment, discover, locate
from sm120patch.errors import HostError, NotApplicableError, UsageError
from sm120patch.operations.writing import check_name, write_new
from sm120patch.tuning import cache, child, local, record
from sm120patch.tuning.record import Record, Shape


@dataclass(frozen=True)
class Tuned:
    """A local set as it was written."""

    set_id: str
    record: Record
    catalogue: Path
    written: tuple[str, ...]


def read_record(path: Path) -> Record:
    """Read a record of an earlier run. Raises UsageError that lists every fault."""
    try:
        with path.open("rb") as stream:
            text = stream.read(record.MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    return _checked(record.read(text), str(path))


def _checked(found: Record | list[str], origin: str) -> Record:
    if isinstance(found, Record):
        return found
    raise UsageError(
        "\n".join([f"{origin} is no usable record:", *(f"  - {f}" for f in found)]),
        hint="measure again with `sm120patch tune`; values are never filled in",
        code="bad-record",
        details={"faults": found},
    )


def measure(
    env: str | None,
    python: str | None,
    shapes: Sequence[Shape],
    max_tokens: int,
    environ: Mapping[str, str],
    timeout: float,
) -> Record:
    """Run the autotuner of the environment's FlashInfer over `shapes`; minutes, and the GPU.

    Raises NotApplicableError where nothing would read the result or the GPU is not SM120, HostError
    when it cannot be run.
    """
    environment = discover(locate(env, python, environ), environ)
    request = {
        "shapes": [asdict(s) for s in shapes],
        "max_tokens": max_tokens,
        "json": reads_json(environment),
    }
    answer = _run(environment.python, request, environ, timeout)
    if "other_gpu" in answer:
        raise NotApplicableError(
            f"{answer['other_gpu']}; the NVFP4 tactics that are measured are those of SM120 (12.x):"
            " nothing was compiled or measured",
            hint="tune on the SM120 GPU that serves; CUDA_VISIBLE_DEVICES chooses among several",
            code="other-gpu",
        )
    if "error" in answer:
        raise HostError(f"{environment.python}: {answer['error']}", hint="tune on the GPU's host")
    return _checked(record.read(json.dumps(answer).encode()), "the autotuner's result")


def reads_json(environment: Environment) -> bool:
    """Tell which of its two forms the installed FlashInfer would read: the JSON cache, or the file.

    SGLang tunes by itself and keeps a JSON cache from 0.5.12 on, and a tuning file never wins over
    that. Raises NotApplicableError where neither is read.
    """
    flashinfer = environment.installations.get("flashinfer-python")
    if flashinfer is None:
        raise HostError(
            f"flashinfer-python is not installed in {environment.prefix}:"
            f" {environment.missing.get('flashinfer-python', 'not found')}"
        )
    sglang = environment.installations.get("sglang")
    version = None if sglang is None else versions.installed(sglang.version)
    old = sglang is None or (version is not None and version in versions.parse(local.SGLANG))
    if not old and cache.is_read_by(flashinfer.version):
        return True
    try:
        record.range_for(flashinfer.version)
    except ValueError as error:
        if cache.is_read_by(flashinfer.version):
            return True
        raise NotApplicableError(str(error), hint="install a pair that SGLang pins") from error
    if not old:
        raise NotApplicableError(
            f"SGLang {sglang and sglang.version} keeps what it tunes in a JSON cache, and"
            f" FlashInfer {flashinfer.version} reads none",
            hint="install the FlashInfer that this SGLang pins",
        )
    return False


def _run(
    python: Path, request: Mapping[str, object], environ: Mapping[str, str], timeout: float
) -> dict[str, Any]:
    code = Path(child.__file__).read_text(encoding="utf-8")
    # With the variable set FlashInfer would answer from a file what is to be measured.
    variables = {name: value for name, value in environ.items() if name != local.VARIABLE}
    command = [str(python), "-I", "-c", code, json.dumps(request)]
    status, output, errors = _ended(command, variables, timeout)
    try:
        answer = json.loads(output.rpartition(child.BEGIN)[2].partition(child.END)[0])
    except ValueError:
        answer = None
    if status == 0 and isinstance(answer, dict):
        return answer
    lines = errors.strip().splitlines()
    raise HostError(
        f"FlashInfer's autotuner failed in {python} (exit status {status}):"
        f" {(lines or ['no message'])[-1]}",
        hint="nothing was written; the last lines it wrote are in `details` with --output json",
        details={"output": lines[-30:]},
    )


def _ended(
    command: list[str], variables: Mapping[str, str], timeout: float
) -> tuple[int, str, str]:
    """Run to the end: exit status, stdout, stderr. Whatever it compiles ends with it."""
    try:
        process = subprocess.Popen(
            command,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise HostError(f"cannot run {command[0]}: {error.strerror}") from error
    with process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise HostError(
                f"FlashInfer's autotuner did not end within {timeout:.0f} s in {command[0]} and was"
                " stopped; nothing was written",
                code="tune-timeout",
                hint="its first run compiles the MoE module, which takes longest; what it finished"
                " is kept: repeat with a longer --timeout",
            ) from None
        finally:
            end_group(process)
    status = process.returncode
    return status, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace")


def keep(found: Record, set_id: str, catalogue: Path, today: str, *, force: bool = False) -> Tuned:
    """Write the set of a record; `today` is the ISO date of the comparison with upstream.

    Raises UsageError when a file exists already and `force` is not given.
    """
    check_name(set_id)
    files = local.files(found, set_id, today)

    def payload(name: str) -> bytes:
        return files[f"patches/{name}"]

    manifest.parse(files[f"manifests/{set_id}.toml"], f"{set_id}.toml", payload)
    write_new(files, catalogue, force=force)
    _forget_payloads(catalogue / "patches" / set_id, {Path(name).name for name in files})
    return Tuned(set_id, found, catalogue, tuple(sorted(files)))


def _forget_payloads(directory: Path, wanted: Collection[str]) -> None:
    """Remove the payloads of an earlier run: the manifest does not name them any more."""
    for place in directory.iterdir():
        if place.name not in wanted and re.search(r"-[0-9a-f]{12}\.(json|py)$", place.name):
            with contextlib.suppress(OSError):  # they take room and nothing else
                place.unlink()
