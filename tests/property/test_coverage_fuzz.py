"""Every reader of foreign bytes under a fuzzer that sees which code its input reaches."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import CHECKOUT
from tests.support.hostile import TARGETS

SECONDS = 4
"""For each reader; `tools/fuzz.py` runs for as long as it is told."""
needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this Python"
)


def fuzz(name: str, corpus: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, CHECKOUT / "tools" / "fuzz.py", name, corpus, *options]
    limits = ("-timeout=60", "-rss_limit_mb=2048", f"-artifact_prefix={corpus.parent}/")
    return subprocess.run(
        [*words, *limits], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.slow
@needs_atheris
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_nothing_escapes_from_a_reader(tmp_path: Path, name: str) -> None:
    done = fuzz(name, tmp_path / "corpus", f"-max_total_time={SECONDS}")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done " in done.stderr, "it has run to its end"


@needs_atheris
def test_the_fuzzer_runs_and_learns(tmp_path: Path) -> None:
    done = fuzz("path", tmp_path / "corpus", "-runs=200")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done 200 runs" in done.stderr and "cov:" in done.stderr
