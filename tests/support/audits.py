"""Audits as values, for what is made of them: every state, every kind, hostile names."""

from __future__ import annotations

from sm120patch.audit.findings import (
    EnvironmentReport,
    FileReport,
    FileState,
    Finding,
    HostReport,
    Kind,
    PackageReport,
    SetReport,
    Skipped,
)

SITE = "/opt/venv/lib/python3.11/site-packages"
COMMUNICATOR = "sglang/srt/layers/communicator.py"


def file(path: str, state: FileState, *changes: str, shipped: bool = True) -> FileReport:
    target = "sglang" if path.startswith("sglang/") else "flashinfer-python"
    return FileReport(target, path, state, "1" * 64, "2" * 64 if shipped else None, changes)


def environment() -> EnvironmentReport:
    """One environment with a verified set, a simulated one, a staged one and a foreign edit."""
    sglang = PackageReport(
        "sglang", "0.5.9", "wheel", SITE, f"{SITE}/sglang-0.5.9.dist-info/RECORD", 100, 9000,
        (
            file(COMMUNICATOR, FileState.OURS, "sm120-checks/runtime-gate"),
            file("sglang/srt/both.py", FileState.OURS, "sm120-checks/x", "gdn-backend-assert/y"),
            file("sglang/srt/edited.py", FileState.FOREIGN),
            file("sglang/srt/new.py", FileState.ADDED, shipped=False),
            FileReport("sglang", "sglang/gone.py", FileState.MISSING, None, "3" * 64),
        ),
    )  # fmt: skip
    flashinfer = PackageReport("flashinfer-python", "0.6.3", "wheel", SITE, "RECORD", 50, 4000)
    return EnvironmentReport(
        "/opt/venv", "venv", "3.11", (), (sglang, flashinfer),
        (
            SetReport("sm120-checks", "applied", "applied", counts=True, revision=1),
            SetReport("gdn-backend-assert", "applied", "applied (simulated)", False, revision=2),
            SetReport("ue8m0-off", "staged", "staged", counts=False, revision=1),
        ),
        (
            Finding(Kind.FOREIGN, "sglang", "sglang/srt/edited.py", "edited", hint="reinstall"),
            Finding(Kind.UNVERIFIED, "-", "ue8m0-off", "not verified", ("ue8m0-off",)),
            Finding(Kind.COPIES, "sglang", "/opt/other/sglang", "a second copy"),
        ),
        ledger=True,
    )  # fmt: skip


def host(root: str = "/") -> HostReport:
    """A host with that environment, an empty one, and something that could not be looked into."""
    return HostReport(
        root,
        (EnvironmentReport("/opt/empty", "venv", "3.12"), environment()),
        (Skipped("/mnt/nfs", "network mount"),),
        (Finding(Kind.UNKNOWN, "-", "/home/x", "cannot be read"),),
        42,
    )


def every_kind() -> HostReport:
    """One finding of every kind, with names that want to break out of any format."""
    evil = 'a"b\\c\n\x1b[2J<x>&\udcff{}'
    findings = tuple(Finding(kind, "sglang", f"sglang/{evil}.py", evil) for kind in Kind)
    package = PackageReport("sglang", evil, "wheel", "/é", "-", 1, 1)
    return HostReport(
        "/", (EnvironmentReport(f"/opt/{evil}", "venv", "", (), (package,), (), findings),)
    )
