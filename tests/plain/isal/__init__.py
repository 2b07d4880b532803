"""Shadows the real isal when the suite runs without it."""

msg = "isal is blocked by tests/plain"
raise ImportError(msg)
