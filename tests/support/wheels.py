"""Published wheels for the tests: downloaded once into a cache outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PAIRS = {
    "0.5.8": "0.6.1",
    "0.5.9": "0.6.3",
    "0.5.10.post1": "0.6.7.post3",
    "0.5.12.post1": "0.6.11.post1",
}
"""SGLang release -> the FlashInfer release its metadata pins."""


def cache_dir() -> Path:
    override = os.environ.get("SM120PATCH_WHEEL_CACHE")
    if override:
        return Path(override)
    return Path(os.environ["SM120PATCH_TEST_REAL_HOME"]) / ".cache" / "sm120patch" / "wheels"


def wheel(distribution: str, version: str) -> Path:
    """Path of the published wheel; downloads it when the cache lacks it."""
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    stem = distribution.replace("-", "_")
    if not (found := sorted(cache.glob(f"{stem}-{version}-*.whl"))):
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache),
             f"{distribution}=={version}"],
            check=True,
            env={**os.environ, "HOME": os.environ["SM120PATCH_TEST_REAL_HOME"]},
        )  # fmt: skip
        found = sorted(cache.glob(f"{stem}-{version}-*.whl"))
    return found[0]
