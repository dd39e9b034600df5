"""Judges the readings of a host, one check a matter. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from sm120patch.doctor.readings import Readings
from sm120patch.host.toolkit import ArchRules, arch_list_faults, version_pair

JOB_BYTES = int(1.4 * 2**30)
"""Memory of one compile job: the process tree of `trtllm_comm` took up to 1.38 GiB."""
BUILD_BYTES = 2 * 2**30
"""Room for builds. `trtllm_comm` took 35 MB; a server's whole cache is far larger."""
LITTLE_BYTES = 200 * 2**20

SM12X = ("12.0", "12.1")


class Status(str, Enum):
    """Outcome of a check."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"
    """Could not be looked at; never to be read as ok."""


@dataclass(frozen=True)
class Check:
    """What was found in one matter."""

    id: str
    status: Status
    summary: str
    hint: str | None = None
    facts: Mapping[str, object] = field(default_factory=dict)


def gpus(readings: Readings, named: str | None = None) -> Iterator[Check]:
    """GPUs, compute capability, driver. `named`: the capability that sets are judged for."""
    host = readings.host
    if not host.gpus:
        hint = "sets are judged by version alone; name the GPU they are for with --gpu 12.0"
        if named is not None:
            hint = f"sets are judged for {named}, as --gpu says"
        yield Check("gpus", Status.PROBLEM, f"no GPU: {host.reason}", hint)
        return
    names = {gpu.name: [g.index for g in host.gpus if g.name == gpu.name] for gpu in host.gpus}
    text = ", ".join(f"{len(indices)} x {name}" for name, indices in names.items())
    yield Check("gpus", Status.OK, text, facts={"names": names})
    yield _capability(readings)
    mig = [gpu.index for gpu, d in zip(host.gpus, readings.devices, strict=False) if d.get("mig")]
    if mig:
        hint = "peer access between MIG slices does not exist; use whole GPUs"
        listed = ", ".join(map(str, mig))
        yield Check("mig", Status.WARNING, f"MIG is on for GPU {listed}", hint, {"gpus": mig})
    module = str(readings.machine.get("module") or "")
    kind = "open kernel modules" if "Open Kernel Module" in module else ""
    shown = ", ".join(filter(None, [f"driver {host.driver}", kind]))
    runs = f"{shown}, runs CUDA up to {readings.cuda}" if readings.cuda else shown
    facts = {"driver": host.driver, "cuda": readings.cuda, "module": module}
    parameters = readings.machine.get("parameters")
    yield Check("driver", Status.OK, runs, facts={**facts, "registry": parameters or ""})


def _capability(readings: Readings) -> Check:
    found = readings.host.compute_capabilities
    facts = {"capabilities": list(found)}
    if not set(found) & set(SM12X):
        listed = " and ".join(found)
        hint = "the patch sets are for SM12x; the states of most are not-applicable here"
        return Check("capability", Status.INFO, f"{listed}: no SM12x GPU", hint, facts)
    if len(found) > 1:
        text = f"{' and '.join(found)} in one host: a set for one of them is not for the others"
        return Check("capability", Status.WARNING, text, None, facts)
    kind = "SM120 (RTX PRO 6000, RTX 50)" if found == ("12.0",) else "SM121 (DGX Spark)"
    return Check("capability", Status.OK, f"{found[0]}: {kind}", None, facts)


def toolkit(readings: Readings, rules: ArchRules | None) -> Iterator[Check]:
    """The toolkit that FlashInfer would use, and whether it can build for these GPUs."""
    answer = readings.toolkit
    if answer.value is None:
        yield Check("toolkit", Status.UNKNOWN, f"the CUDA toolkit: {answer.reason}")
        return
    home, rule, version = answer.get("home"), answer.get("rule"), answer.get("version")
    facts = {key: answer.get(key) for key in ("home", "rule", "nvcc", "version", "compiler")}
    hint = "set CUDA_HOME to the toolkit, for the server as well"
    if not home or version is None:
        where = f"{home} ({rule}) has no bin/nvcc that runs" if home else str(rule)
        text = f"FlashInfer finds no compiler: {where}"
        yield Check("toolkit", Status.PROBLEM, text, hint, facts)
    elif missing := [name for name, found in answer.get("libraries").items() if not found]:
        text = f"{home} ({rule}) has no {' and no '.join(missing)} in lib64: links will fail"
        fatal = "libcudart.so" in missing
        # The driver's own libcuda.so, where the linker finds it, does instead of the stub.
        status = Status.PROBLEM if fatal else Status.WARNING
        yield Check("toolkit", status, text, hint, facts)
    else:
        yield Check("toolkit", Status.OK, f"{home} ({rule})", None, facts)
    if version is not None:
        yield _nvcc(str(version), readings, rules or ArchRules((12, 8)))
    yield from _tools(readings)


def _nvcc(version: str, readings: Readings, rules: ArchRules) -> Check:
    capabilities = readings.host.compute_capabilities
    wanted = rules.minimum_121 if "12.1" in capabilities else rules.minimum_120
    text = f"nvcc {version}"
    facts = {"version": version, "minimum": ".".join(map(str, wanted))}
    if version_pair(version) < wanted:
        need = f"{text}; this FlashInfer needs {facts['minimum']} for SM12x"
        return Check("nvcc", Status.PROBLEM, need, "install a newer CUDA toolkit", facts)
    if readings.cuda and version_pair(version)[0] > version_pair(readings.cuda)[0]:
        newer = f"{text} is newer than the CUDA {readings.cuda} that the driver runs"
        hint = "use a toolkit of the driver's major release, or update the driver"
        return Check("nvcc", Status.WARNING, newer, hint, facts)
    return Check("nvcc", Status.OK, f"{text} (>= {facts['minimum']})", None, facts)


def _tools(readings: Readings) -> Iterator[Check]:
    found = {name: readings.toolkit.get(name) for name in ("ninja", "cxx")}
    absent = [name for name, path in found.items() if path is None]
    if absent:
        named = " and ".join({"ninja": "ninja", "cxx": "C++ compiler"}[name] for name in absent)
        hint = "install it, and see that the PATH of the server has it"
        yield Check("build-tools", Status.PROBLEM, f"no {named} on PATH", hint, found)
    else:
        yield Check("build-tools", Status.OK, f"{found['ninja']}, {found['cxx']}", None, found)


def architectures(readings: Readings, rules: ArchRules | None) -> Iterator[Check]:
    """FLASHINFER_CUDA_ARCH_LIST, and whether anything is compiled at all."""
    environ, capabilities = readings.environ, readings.host.compute_capabilities
    if value := environ.get("FLASHINFER_DISABLE_JIT"):
        text = f"FLASHINFER_DISABLE_JIT={value}: FlashInfer compiles nothing, patched or not"
        yield Check("jit", Status.PROBLEM, text, "unset it for the server")
    listed = environ.get("FLASHINFER_CUDA_ARCH_LIST")
    facts = {"list": listed}
    if listed is None and capabilities:
        text = "FLASHINFER_CUDA_ARCH_LIST is not set: the GPUs decide"
        yield Check("arch-list", Status.OK, text, None, facts)
    elif listed is None:
        text = "FLASHINFER_CUDA_ARCH_LIST is not set and there is no GPU: nothing can be built"
        yield Check("arch-list", Status.WARNING, text, "to build here, set it to 12.0a", facts)
    else:
        faults = arch_list_faults(listed, capabilities, rules or ArchRules((12, 8)))
        status = Status.PROBLEM if faults else Status.OK
        text = "; ".join([f"FLASHINFER_CUDA_ARCH_LIST={listed}", *faults])
        yield Check("arch-list", status, text, "unset it, or name 12.0a" if faults else None, facts)


def resources(readings: Readings) -> Iterator[Check]:
    """Disk and memory for a compile."""
    yield _memory(readings)
    for purpose, answer in readings.disks.items():
        name = f"disk-{purpose}"
        if answer.value is None:
            yield Check(name, Status.UNKNOWN, f"the disk for {purpose}: {answer.reason}")
            continue
        free, place = int(answer.get("free")), answer.get("place")
        text = f"{_size(free)} free in {place} for {purpose}"
        facts = {"free_bytes": free, "place": place}
        if not answer.get("writable"):
            hint = "run as the user that serves, or name another place"
            yield Check(name, Status.WARNING, f"{place} cannot be written", hint, facts)
        elif free < LITTLE_BYTES:
            yield Check(name, Status.PROBLEM, text, "make room first", facts)
        elif free < BUILD_BYTES:
            yield Check(name, Status.WARNING, text, "a server's builds may not fit", facts)
        else:
            yield Check(name, Status.OK, text, None, facts)


def _memory(readings: Readings) -> Check:
    answer = readings.memory
    rooms = [r for r in (answer.get("available"), answer.get("group")) if isinstance(r, int)]
    if not rooms:
        return Check("build-memory", Status.UNKNOWN, f"memory: {answer.reason or 'not told'}")
    room = min(rooms)
    jobs = readings.environ.get("MAX_JOBS", "")
    # Without MAX_JOBS it is ninja that decides: two more than there are processors.
    cpus = answer.get("cpus")
    asked = (
        int(jobs)
        if re.fullmatch("[0-9]{1,6}", jobs)
        else (cpus + 2 if isinstance(cpus, int) else None)
    )
    fit = room // JOB_BYTES
    facts = {"available_bytes": room, "job_bytes": JOB_BYTES, "jobs": asked, "jobs_that_fit": fit}
    text = f"{_size(room)} of memory: room for {fit} compile jobs of {_size(JOB_BYTES)}"
    if fit < 1:
        return Check("build-memory", Status.PROBLEM, text, "free memory before a build", facts)
    if asked is not None and asked > fit:
        hint = f"set MAX_JOBS={fit} for the server"
        return Check("build-memory", Status.WARNING, f"{text}, {asked} would run", hint, facts)
    return Check("build-memory", Status.OK, text, None, facts)


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
