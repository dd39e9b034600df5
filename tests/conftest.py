"""Guards and shared fixtures: no test sees the real home, every path is temporary."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("SM120PATCH_TEST_REAL_HOME", str(Path.home()))
# A shell starts what it puts in the background with ^C ignored, and so would be all that we start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def isolated_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """HOME, XDG and FlashInfer's workspace point into a temporary directory for every test."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "VIRTUAL_ENV",
                 "FLASHINFER_WORKSPACE_BASE", "PYTHONPYCACHEPREFIX", "SM120PATCH_ENV"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def real_env(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    """Factory: (sglang version, flashinfer version) -> prefix with the published wheels."""
    from tests.support.environments import real_environment

    def make(sglang: str, flashinfer: str) -> Path:
        prefix = tmp_path / f"env-{sglang}"
        real_environment(prefix, sglang, flashinfer)
        return prefix

    yield make
