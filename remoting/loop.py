"""The event loop: uvloop where it can be had (a third faster for one request at a time), else
asyncio's own. Imported late, so that a process without a loop never pays for uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A fresh loop, uvloop's when it can be imported."""
    try:
        import uvloop  # noqa: PLC0415 - optional, and only needed by a process that runs a loop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` on a new loop and return its result; like ``asyncio.run`` otherwise."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
