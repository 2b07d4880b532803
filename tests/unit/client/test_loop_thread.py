"""The event loop in its own thread, on which the blocking client runs."""

from __future__ import annotations

import asyncio
import threading

from client.blocking.thread import LoopThread


def test_what_still_runs_when_the_thread_stops_is_cancelled_and_ends_first() -> None:
    started, ended = threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    thread = LoopThread("test")
    thread.spawn(work())
    assert started.wait(10)
    thread.stop()
    assert thread.stopped
    assert ended.is_set()
