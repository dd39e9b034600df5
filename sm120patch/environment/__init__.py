"""The target environment: its interpreter, what that imports, what upstream shipped, what is there.

Reads disk only, except `writable`. Nothing of the target is imported into this process.
"""

from __future__ import annotations

from sm120patch.environment.asking import Question
from sm120patch.environment.editable import Checkout, NoCheckout
from sm120patch.environment.installation import (
    Environment,
    Installation,
    discover,
    start,
    verify_records,
)
from sm120patch.environment.interpreter import locate
from sm120patch.environment.records import Difference, Record, RecordTable
from sm120patch.environment.snapshot import immutable, read_back, take_snapshot, writable

__all__ = [
    "Checkout",
    "Difference",
    "Environment",
    "Installation",
    "NoCheckout",
    "Question",
    "Record",
    "RecordTable",
    "discover",
    "immutable",
    "locate",
    "read_back",
    "start",
    "take_snapshot",
    "verify_records",
    "writable",
]
