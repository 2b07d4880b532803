"""Who waits until a message is on the disk (SYNC mode). Only the loop's thread comes here.

All that arrives in one turn of the loop is one request to the flusher; all that arrives while it
syncs is the next one. An answer that waited longer than ``syncFlushTimeout`` goes out as "stored,
less durable"; the message still becomes visible when the disk has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from broker.store.stats import StoreStats

Callback = Callable[[bool], None]


class Waiter(NamedTuple):
    """Somebody who wants to know when the log is on the disk up to ``end_offset``."""

    end_offset: int
    deadline: float
    callback: Callback


class GroupCommit:
    """The waiters of one store."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        request_sync: Callable[[], None],
        timeout_ms: int,
        stats: StoreStats,
    ) -> None:
        """``request_sync`` has the flusher sync soon."""
        self._loop = loop
        self._request_sync = request_sync
        self._timeout = timeout_ms / 1000
        self._stats = stats
        self._waiters: list[Waiter] = []
        self._asked = False
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    def ask(self) -> None:
        """Have the log synced at the end of this turn of the loop."""
        if not self._asked:
            self._asked = True
            self._loop.call_soon(self._ask_now)

    def _ask_now(self) -> None:
        self._asked = False
        self._request_sync()

    def add(self, end_offset: int, callback: Callback) -> None:
        """Tell ``callback`` True when the disk has the log up to here, False if it never comes."""
        deadline = self._loop.time() + self._timeout
        self._waiters.append(Waiter(end_offset, deadline, callback))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)
        self.ask()

    def reached(self, durable_end: int) -> None:
        """The log is on the disk up to here."""
        waiters = self._waiters
        # One after the other as a rule; whoever asked out of order waits for the next sync.
        ready = 0
        while ready < len(waiters) and waiters[ready].end_offset <= durable_end:
            ready += 1
        self._waiters = waiters[ready:]
        for waiter in waiters[:ready]:
            waiter.callback(True)

    def fail(self) -> None:
        """The disk has failed, or the store closes: nobody's wait will end well."""
        waiters, self._waiters = self._waiters, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in waiters:
            waiter.callback(False)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        late = 0
        while late < len(self._waiters) and self._waiters[late].deadline <= now:
            late += 1
        expired, self._waiters = self._waiters[:late], self._waiters[late:]
        if self._waiters:
            self._timer = self._loop.call_at(self._waiters[0].deadline, self._expire)
        self._stats.sync_timeouts += len(expired)
        for waiter in expired:
            waiter.callback(False)
