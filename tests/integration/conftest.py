"""Prepared environments for whole commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fixtures import host, place
from tests.support.place import Checkout

__all__ = ["checkout", "host", "place"]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """The same as `place`, with SGLang from a git checkout."""
    return Checkout(tmp_path)
