"""Names, times and their words, as the files of facts and the reports use them. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone


def is_name(name: str) -> bool:
    """Tell whether a node may be called so."""
    usual = 0 < len(name) <= 253 and name.isprintable()
    return usual and not any(c.isspace() or c == "/" for c in name)


def moment(words: str) -> datetime | None:
    """Point in time from RFC 3339 with an offset; None for anything else."""
    try:
        found = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", words))
        return found.astimezone(timezone.utc) if found.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def age_words(age: timedelta) -> str:
    """`40 min`, `7.5 h` or `12.0 days`; what lies ahead, by another clock, is `0 min`."""
    minutes = max(age.total_seconds() / 60, 0.0)
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.1f} h" if minutes < 48 * 60 else f"{minutes / 1440:.1f} days"
