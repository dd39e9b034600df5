"""Prepares what a GPU machine without network needs, in one directory below 64 MiB.

    python benchmarks/gpu/prepare.py OUT [--wheels DIR]

OUT/site312.tar.xz   everything that real SGLang imports, for CPython 3.12 (50 MiB, two minutes)
OUT/tool/*.whl       sm120patch as it is in this checkout, and what it needs (8 MiB)
OUT/gpu/*.py         the scripts of this directory

The machine has Python 3.12 with torch 2.11.0+cu130, triton 3.6 and nvcc 13.0. Downloads go to
`--wheels` (2 GB with sglang-kernel, most of which is left out) and are not repeated.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_GLIBC = (39, 35, 34, 31, 28, 27, 24, 17)
_PLATFORMS = [
    *(f"manylinux_2_{n}_x86_64" for n in _GLIBC),
    "manylinux2014_x86_64", "manylinux_2_12_x86_64", "manylinux2010_x86_64",
    "manylinux_2_5_x86_64", "manylinux1_x86_64",
]  # fmt: skip
_KERNELS = "sgl_kernel/"
_LEFT_OUT = ("sgl_kernel/sm100/", "sgl_kernel/flash_ops", "sgl_kernel/flashmla_ops")
"""Kernels for other GPUs, and 1.8 GB of attention that the Triton backend does not use."""


def main() -> int:
    """Write everything below OUT."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--wheels", type=Path, default=Path.home() / ".cache/sm120patch/gpu-wheels")
    parser.add_argument("--only-tool", action="store_true", help="the pack is there already")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.only_tool:
        pack(download(HERE / "packages.txt", options.wheels), options.out / "site312.tar.xz")
    tool(options.wheels, options.out / "tool")
    shutil.copytree(HERE, options.out / "gpu", dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("__pycache__", "results"))  # fmt: skip
    size = sum(p.stat().st_size for p in options.out.rglob("*") if p.is_file())
    print(f"{options.out}: {size / 2**20:.1f} MiB")
    return 0


def download(listing: Path, wheels: Path) -> list[Path]:
    """Wheels for CPython 3.12 of every line of `listing`."""
    wheels.mkdir(parents=True, exist_ok=True)
    lines = listing.read_text().splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    found = []
    for name in names:
        stem = name.split("==")[0].replace("-", "_").lower()
        version = name.split("==")[1]

        def there(stem: str = stem, version: str = version) -> list[Path]:
            known = [
                p for p in wheels.glob("*.whl") if p.name.lower().startswith(f"{stem}-{version}-")
            ]
            return sorted(known)

        if not there():
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                       "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp",
                       "--abi", "cp312", "--abi", "abi3", "--abi", "none",
                       "-d", str(wheels)]  # fmt: skip
            command += [word for platform in _PLATFORMS for word in ("--platform", platform)]
            subprocess.run([*command, name], check=True)
        found.append(there()[0])
    return found


def pack(wheels: list[Path], target: Path) -> None:
    """Unpack the wheels into one site-packages and compress it.

    SGLang and FlashInfer go below `targets`, the rest below `rest`: what is patched is copied
    for each environment, the rest is shared.
    """
    with tempfile.TemporaryDirectory() as scratch:
        for wheel in wheels:
            name = wheel.name.split("-")[0]
            part = "targets" if name in ("sglang", "flashinfer_python") else "rest"
            with zipfile.ZipFile(wheel) as archive:
                members = [m for m in archive.namelist() if not m.startswith(_LEFT_OUT)]
                archive.extractall(Path(scratch, part), members)
        placeholder = Path(scratch, "rest", _KERNELS, "flash_ops.py")
        placeholder.write_text('"""Left out of this pack."""\n')
        draft = target.with_suffix(".new")
        with tarfile.open(draft, "w:xz", preset=6) as archive:
            for part in sorted(Path(scratch).iterdir()):
                archive.add(part, arcname=part.name)
        draft.replace(target)


def tool(wheels: Path, target: Path) -> None:
    """Put this checkout as a wheel, and the wheels that it needs, into `target`."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for wheel in download(HERE / "tool-packages.txt", wheels):
        shutil.copy2(wheel, target)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(target),
        str(ROOT),
    ]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    raise SystemExit(main())
