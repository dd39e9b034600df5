"""Record what doctor reads of a host, for replay: NVML's answer and the files of sysfs and /proc.

usage: python record_host.py > host.json    (needs nvidia-ml-py; run as root for config space)
UUIDs are replaced; look through the rest before you pass it on.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

NVML = Path(__file__).resolve().parents[2] / "sm120patch" / "host" / "nvml.py"
DEVICE_FILES = (
    "current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "numa_node",
    "class", "vendor", "device",
)  # fmt: skip
PLACES = (
    "proc/cmdline", "proc/driver/nvidia/version", "proc/driver/nvidia/params", "proc/meminfo",
    "sys/class/dmi/id/sys_vendor", "sys/class/dmi/id/product_name", "sys/module/nvidia/version",
    "sys/devices/system/node/online",
)  # fmt: skip


def main() -> int:
    answer = json.loads(subprocess.check_output([sys.executable, "-I", str(NVML)]))
    answer["processes"] = []
    for gpu in answer["gpus"]:
        gpu["uuid"] = f"GPU-{gpu['index']:08x}"
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for name in PLACES:
        keep(files, Path("/") / name)
    for node in sorted(Path("/sys/devices/system/node").glob("node[0-9]*")):
        keep(files, node / "cpulist")
        keep(files, node / "distance")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    files["proc/cpuinfo"] = next((x for x in lines if x.startswith("flags")), "") + "\n"
    for gpu in answer["gpus"]:
        device(files, links, gpu["pci_bus_id"].lower()[-12:])
    json.dump({"nvml": answer, "files": files, "links": links}, sys.stdout, indent=1)
    return 0


def device(files: dict[str, str], links: dict[str, str], address: str) -> None:
    link = Path("/sys/bus/pci/devices") / address
    if not link.exists():
        return
    real = link.resolve()
    links[str(link)[1:]] = str(link.readlink())
    for place in (real, *real.parents):
        if not (place / "class").is_file():
            break
        for name in DEVICE_FILES:
            keep(files, place / name)
        config = (place / "config").read_bytes()
        files[f"base64:{str(place)[1:]}/config"] = base64.b64encode(config).decode()
        group = place / "iommu_group"
        if group.is_symlink():
            links[str(group)[1:]] = str(group.readlink())
            keep(files, group.resolve() / "type")


def keep(files: dict[str, str], path: Path) -> None:
    if path.is_file():
        files[str(path)[1:]] = path.read_text(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
