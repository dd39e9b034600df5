"""Asks NVML about GPUs, their links and the processes on them. Reads the driver only.

Runs as a script in a process of its own, because a call into a sick driver may never return;
`facts` in the parent bounds it. A host without library, driver or GPU is a normal answer.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TIMEOUT = 20.0
"""Seconds. Without persistence mode the first call wakes every GPU, about a second each."""

_PATHS = {0: "INTERNAL", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t in the words of `nvidia-smi topo -m`."""

_P2P = {
    0: "ok",
    1: "chipset-not-supported",
    2: "gpu-not-supported",
    3: "topology-not-supported",
    4: "disabled",
    5: "not-supported",
}
"""nvmlGpuP2PStatus_t."""

_READ, _NVLINK = 0, 2
"""nvmlGpuP2PCapsIndex_t; the binding defines the first of them as a tuple."""


def facts(timeout: float = TIMEOUT) -> Mapping[str, Any]:
    """Ask in a child process.

    The answer has `gpus`, `links`, `processes`, `driver` and `reason`, and beside each GPU, in
    `devices`, what its link and mode are; `cuda` is the newest CUDA that the driver runs.
    """
    import subprocess

    from sm120patch.host.bounded import abandon

    empty: dict[str, Any] = {
        "gpus": [], "links": [], "processes": [], "devices": [], "driver": None, "cuda": None,
    }  # fmt: skip
    command = [sys.executable, "-I", str(Path(__file__).absolute())]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        return {**empty, "reason": f"cannot run {sys.executable}: {error.strerror}"}
    try:
        output, errors = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        abandon(child)
        return {**empty, "reason": f"NVML did not answer within {timeout:.0f} s"}
    try:
        answer = json.loads(output)
    except ValueError:
        last = errors.decode("utf-8", "replace").strip().splitlines()[-1:]
        return {**empty, "reason": f"NVML gave no answer: {last[0] if last else 'no message'}"}
    return {**empty, **answer}


def collect() -> dict[str, Any]:
    """Ask NVML in this process."""
    try:
        import pynvml
    except ImportError:
        return {"reason": "nvidia-ml-py is not installed"}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"reason": f"no NVIDIA driver: {error}"}
    try:
        return _inventory(pynvml)
    except pynvml.NVMLError as error:
        return {"reason": f"NVML fails: {error}"}
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _inventory(pynvml: Any) -> dict[str, Any]:
    handles = [
        pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
    ]
    gpus, processes, devices = [], [], []
    for index, handle in enumerate(handles):
        gpus.append(
            {
                "index": index,
                "name": _text(pynvml.nvmlDeviceGetName(handle)),
                "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
                "compute_capability": "{}.{}".format(
                    *pynvml.nvmlDeviceGetCudaComputeCapability(handle)
                ),
                "memory_bytes": _memory(pynvml, handle),
                "pci_bus_id": _text(pynvml.nvmlDeviceGetPciInfo(handle).busId),
            }
        )
        devices.append(_device(pynvml, handle))
        with contextlib.suppress(pynvml.NVMLError):
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                processes.append([index, process.pid, process.usedGpuMemory])
    return {
        "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
        "gpus": gpus,
        "links": [
            [one, other, *_link(pynvml, handles[one], handles[other])]
            for one in range(len(handles))
            for other in range(one + 1, len(handles))
        ],
        "processes": processes,
        "devices": devices,
        "cuda": _cuda_version(pynvml),
        "reason": None if gpus else "the NVIDIA driver sees no GPU",
    }


def _device(pynvml: Any, handle: Any) -> dict[str, int]:
    """PCIe link as the GPU sees it, and MIG mode; what the driver does not tell is left out."""
    found = {}
    for key, function in (
        ("generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
        ("max_generation", "nvmlDeviceGetMaxPcieLinkGeneration"),
        ("width", "nvmlDeviceGetCurrPcieLinkWidth"),
        ("max_width", "nvmlDeviceGetMaxPcieLinkWidth"),
    ):
        with contextlib.suppress(pynvml.NVMLError, AttributeError):
            found[key] = int(getattr(pynvml, function)(handle))
    with contextlib.suppress(pynvml.NVMLError, AttributeError):
        found["mig"] = int(pynvml.nvmlDeviceGetMigMode(handle)[0])
    return found


def _cuda_version(pynvml: Any) -> str | None:
    try:
        number = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError:
        return None
    return f"{number // 1000}.{number % 1000 // 10}"


def _memory(pynvml: Any, handle: Any) -> int | None:
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:
        # GPUs that share the memory of the host (GB10) report none.
        return None


def _link(pynvml: Any, one: Any, other: Any) -> tuple[str, str]:
    path = p2p = "unknown"
    with contextlib.suppress(pynvml.NVMLError):
        level = pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other)
        path = _PATHS.get(int(getattr(level, "value", level)), path)
    with contextlib.suppress(pynvml.NVMLError):
        p2p = _P2P.get(_status(pynvml, one, other, _READ), p2p)
        # The common ancestor is that of the PCIe devices, whatever else connects them.
        if _status(pynvml, one, other, _NVLINK) == 0:
            path = "NVLINK"
    return path, p2p


def _status(pynvml: Any, one: Any, other: Any, capability: int) -> int:
    status = pynvml.nvmlDeviceGetP2PStatus(one, other, capability)
    return int(getattr(status, "value", status))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(collect()))
