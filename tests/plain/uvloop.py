"""Shadows the real uvloop when the suite runs without it."""

msg = "uvloop is blocked by tests/plain"
raise ImportError(msg)
