"""Waiting for what has no event to await, such as the state of another process."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 0.005


async def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Poll until a condition holds, and return what it returned, which may be awaitable."""
    async with asyncio.timeout(seconds):
        while True:
            met = condition()
            if inspect.isawaitable(met):
                met = await met
            if met:
                return met
            await asyncio.sleep(POLL_SECONDS)


def wait_until(
    condition: Callable[[], Any], what: str = "nothing happens", *, seconds: float = 60.0
) -> None:
    """Poll until a condition holds, in a thread that may block; ``what`` is the error's text."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_SECONDS)
