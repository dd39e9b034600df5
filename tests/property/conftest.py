"""Prepared environments for whole commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Two small packages and five sets for them."""
    return Place(tmp_path)
