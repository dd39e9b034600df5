"""Fixtures that several folders of tests name in their `conftest.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.place import Place
from tests.support.serving import Host


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Two small packages and five sets for them."""
    return Place(tmp_path)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """An environment whose server can be simulated; no server may be left at the end."""
    made = Host(tmp_path)
    yield made
    left = made.servers()
    made.kill_servers()
    assert left == [], "a server was left running"
