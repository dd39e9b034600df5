"""Prepared environments for the tasks of a playbook."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fixtures import host, place
from tests.support.nodes import Fleet, Node

__all__ = ["host", "pair", "place"]


@pytest.fixture
def pair(tmp_path: Path) -> Fleet:
    """Two nodes with miniature packages."""
    return Fleet(tmp_path, *(Node.small(tmp_path, name) for name in ("canary", "other")))
