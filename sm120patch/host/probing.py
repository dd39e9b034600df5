"""Answers one question after the other about this host, or about a tree that was recorded.

Runs as a script in a process of its own, because any of these reads may hang (see `bounded`).
Reads sysfs, /proc and the disk, and runs `nvcc --version`; writes nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

_ACS = 0x000D
"""PCI Express extended capability: access control services."""
_ACS_REDIRECT = 0x0004 | 0x0008
"""Bits of its control register: redirect peer requests, and their completions, upstream."""
_LINK = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
_BRIDGE_CLASS = "0x0604"
_LIBRARY_DIRS = ("lib64", "lib64/stubs")
"""Where FlashInfer lets the linker look."""


def machine(root: Path) -> dict[str, Any]:
    """Virtualization, sockets, NUMA nodes, IOMMU groups and kernel options."""
    flags = next((x for x in _text(root / "proc/cpuinfo").splitlines() if x[:5] == "flags"), "")
    nodes = root / "sys/devices/system/node"
    groups = root / "sys/kernel/iommu_groups"
    return {
        "hypervisor": "hypervisor" in flags.split(),
        "vendor": _text(root / "sys/class/dmi/id/sys_vendor"),
        "product": _text(root / "sys/class/dmi/id/product_name"),
        "nodes": {
            path.name.removeprefix("node"): _text(path / "cpulist")
            for path in sorted(nodes.glob("node[0-9]*"))
        },
        "iommu_groups": len(_names(groups)),
        "cmdline": _text(root / "proc/cmdline"),
        "module": _text(root / "proc/driver/nvidia/version").partition("\n")[0],
        "parameters": _registry(_text(root / "proc/driver/nvidia/params")),
    }


def _registry(text: str) -> str:
    lines = dict(line.partition(":")[::2] for line in text.splitlines())
    return lines.get("RegistryDwords", "").strip().strip('"')


def identity(root: Path, *uuids: str) -> dict[str, Any]:
    """Machine identifier and where it is from; `uuids` are those of the GPUs."""
    from sm120patch.host.machine import identify

    return dict(zip(("machine_id", "source"), identify(uuids, root), strict=True))


def pci(root: Path, address: str) -> dict[str, Any]:
    """The way of a device up to its root complex: every link, bridge, and what hinders peers."""
    link = root / "sys/bus/pci/devices" / address
    if not link.exists():
        raise FileNotFoundError(f"no PCI device {address} in sysfs")
    real = Path(os.path.realpath(link))
    hops = [real]
    for parent in real.parents:
        if not (parent / "class").is_file():
            break
        hops.append(parent)
    return {
        "root": hops[-1].parent.name,
        "hops": [_hop(path) for path in hops],
        "numa_node": _text(real / "numa_node"),
        "iommu_group": _iommu_group(real),
        "iommu_type": _text(Path(os.path.realpath(real / "iommu_group")) / "type"),
    }


def _hop(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {"address": path.name}
    facts.update({name: _text(path / name) for name in _LINK})
    facts["bridge"] = _text(path / "class").startswith(_BRIDGE_CLASS)
    if facts["bridge"]:
        facts["acs"] = acs_redirect(_bytes(path / "config"))
    return facts


def acs_redirect(config: bytes) -> bool | None:
    """Tell from a bridge's configuration space whether it sends peer transfers upstream.

    None where that is not readable: without privileges the kernel shows 64 bytes of 4096.
    """
    if len(config) <= 0x100:
        return None
    offset = 0x100
    for _ in range(96):  # a loop in a damaged list must end
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return False
        if header & 0xFFFF == _ACS:
            control = int.from_bytes(config[offset + 6 : offset + 8], "little")
            return bool(control & _ACS_REDIRECT)
        offset = header >> 20
        if offset < 0x100 or offset + 8 > len(config):
            return False
    return None


def _iommu_group(device: Path) -> str:
    group = device / "iommu_group"
    return Path(os.path.realpath(group)).name if group.is_symlink() or group.exists() else ""


def memory(root: Path) -> dict[str, Any]:
    """Bytes of memory that a compile could use: free on the host, and in the control group."""
    lines = (line.split() for line in _text(root / "proc/meminfo").splitlines())
    found = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) >= 2}
    return {
        "total": found.get("MemTotal"),
        "available": found.get("MemAvailable"),
        "group": _group_room(root),
        "cpus": len(os.sched_getaffinity(0)) if root == Path("/") else None,
    }


def _group_room(root: Path) -> int | None:
    """Bytes left below the limits of the control group, None without a limit."""
    rooms = []
    for place in _groups(root):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            words = (_text(place / limit), _text(place / used))
            if all(re.fullmatch("[0-9]{1,19}", word) for word in words):
                rooms.append(int(words[0]) - int(words[1]))
    return min(rooms, default=None)


def _groups(root: Path) -> Iterator[Path]:
    base = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3 and (fields[1] == "" or "memory" in fields[1].split(",")):
            place = base / fields[1] / fields[2].lstrip("/")
            yield from (p for p in (place, *place.parents) if p == base or base in p.parents)


def disk(root: Path, place: str) -> dict[str, Any]:
    """Bytes free for this user where `place` is, or would be made."""
    path = root / place.lstrip("/")
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    return {
        "place": f"/{path.relative_to(root)}" if path != root else "/",
        "free": found.f_bavail * found.f_frsize,
        "writable": os.access(path, os.W_OK | os.X_OK),
    }


def toolkit(root: Path, home: str, cuda_path: str, search: str, nvcc: str, cxx: str) -> Any:
    """The CUDA toolkit that FlashInfer's own rules come to, and the tools beside it."""
    from sm120patch.host import toolkit as rules

    def there(path: str) -> Path:
        return root / path.lstrip("/")

    def which(name: str) -> str | None:
        places = [name] if "/" in name else [f"{p}/{name}" for p in search.split(":") if p]
        return next((p for p in places if _runs(there(p))), None)

    found = rules.cuda_home(home, cuda_path, which("nvcc"), there(rules.DEFAULT_HOME).exists())
    asked = rules.nvcc_of(found.path) if found.path else ""
    return {
        "home": found.path,
        "rule": found.rule,
        "nvcc": asked if asked and there(asked).is_file() else None,
        "version": _nvcc_version(str(there(asked))) if asked else None,
        "compiler": which(nvcc) if nvcc else None,
        "libraries": {
            name: any((there(f"{found.path}/{place}") / name).exists() for place in _LIBRARY_DIRS)
            for name in ("libcudart.so", "libcuda.so")
        },
        "ninja": which("ninja"),
        "cxx": which(cxx),
    }


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _nvcc_version(nvcc: str) -> str | None:
    from sm120patch.host.toolkit import release

    try:
        done = subprocess.run([nvcc, "--version"], capture_output=True, check=False)
    except OSError:
        return None
    return release(done.stdout.decode("utf-8", "replace"))


def servers(root: Path) -> dict[str, Any]:
    """The SGLang servers that run here, without secrets; a tree has none.

    `programs` are interpreter and script; `contained` tells that it has a file system of its own.
    """
    if root != Path("/"):
        return {"servers": []}
    from sm120patch.host.processes import programs_of, running_sglang_servers

    found = []
    for server in running_sglang_servers():
        try:
            contained = not Path(f"/proc/{server.pid}/root").samefile("/")
        except OSError:
            contained = False
        more = {"programs": list(programs_of(server.pid, server.cmdline)), "contained": contained}
        found.append({**server._asdict(), "cmdline": list(server.cmdline), **more})
    return {"servers": found}


def mentions(_root: Path, directory: str, *names: str) -> dict[str, Any]:
    """Which names occur anywhere in the Python files below a directory."""
    left = {name.encode() for name in names}
    for parent, _directories, files in os.walk(directory):
        for name in files:
            if left and name.endswith(".py"):
                data = _bytes(Path(parent) / name)
                left = {wanted for wanted in left if wanted not in data}
    return {"found": sorted(name for name in names if name.encode() not in left)}


def overlay(_root: Path, directory: str) -> dict[str, Any]:
    """What lies in a directory of tuned fused-MoE files: sub-directories, and their files."""
    base = Path(directory)
    return {
        "exists": base.is_dir(),
        "configs": {p.name: _names(p) for p in sorted((base / "configs").glob("triton_*"))},
    }


def _text(path: Path) -> str:
    return _bytes(path).decode("utf-8", "replace").strip().strip("\0")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _names(path: Path) -> list[str]:
    try:
        return sorted(child.name for child in path.iterdir())
    except OSError:
        return []


QUESTIONS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "machine": machine,
    "identity": identity,
    "pci": pci,
    "memory": memory,
    "disk": disk,
    "toolkit": toolkit,
    "servers": servers,
    "mentions": mentions,
    "overlay": overlay,
}


def main(root: str, questions: str) -> None:
    """Print one JSON line a question, in order."""
    sys.path.append(str(Path(__file__).absolute().parents[2]))
    for name, *arguments in json.loads(questions):
        try:
            answer: dict[str, Any] = {"value": QUESTIONS[name](Path(root), *arguments)}
        except Exception as error:  # the other questions must still be answered
            answer = {"value": None, "reason": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
