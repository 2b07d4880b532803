"""Shadows the real orjson when the suite runs without it."""

msg = "orjson is blocked by tests/plain"
raise ImportError(msg)
