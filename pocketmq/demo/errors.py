"""What the demo finds."""

from __future__ import annotations


class DemoFailed(Exception):
    """What came out is not what went in."""
