"""Times as the commands print them."""

from __future__ import annotations

from datetime import datetime


def iso(at: datetime | None) -> str | None:
    """ISO 8601 to the millisecond; None for no time."""
    return None if at is None else at.isoformat(timespec="milliseconds")
