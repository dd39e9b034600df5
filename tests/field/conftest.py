"""Prepared environments, as in the integration tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import checkout, host, place
from tests.support.field import Field
from tests.support.jitplace import JitPlace

__all__ = ["checkout", "host", "place"]


@pytest.fixture
def field(tmp_path: Path) -> Field:
    """A small environment for sets and releases that the test makes up."""
    return Field(tmp_path)


@pytest.fixture
def jitplace(tmp_path: Path) -> JitPlace:
    """An environment whose FlashInfer compiles."""
    return JitPlace(tmp_path)
