"""Shadows the real uvloop when the suite runs without it."""

from asyncio import new_event_loop  # noqa: F401 - threads that import at once may see this half

msg = "uvloop is blocked by tests/plain"
raise ImportError(msg)
