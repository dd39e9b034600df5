"""Disks that refuse."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Make a directory tree unwritable, for root as well, or skip."""
    if os.geteuid() != 0:
        folders = [directory, *(p for p in directory.rglob("*") if p.is_dir())]
        modes = {folder: folder.stat().st_mode for folder in folders}
        for folder in folders:
            folder.chmod(0o555)
        try:
            yield
        finally:
            for folder, mode in modes.items():
                folder.chmod(mode)
        return
    if not quietly("mount", "--bind", directory, directory):
        pytest.skip("root may not mount here, and nothing else keeps root from writing")
    try:
        if not quietly("mount", "-o", "remount,ro,bind", directory):
            pytest.skip("a bind mount cannot be made read-only here")
        yield
    finally:
        assert quietly("umount", directory)


def quietly(*words: str | Path) -> bool:
    """Run a command; tell whether it worked."""
    if shutil.which(str(words[0])) is None:
        return False
    return subprocess.run(words, capture_output=True, check=False).returncode == 0
