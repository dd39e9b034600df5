"""Prepared environments for whole commands."""

from __future__ import annotations

from tests.support.fixtures import place

__all__ = ["place"]
