"""The queue of sends that wait because the bound of messages or bytes in flight is reached.

A send with an explicit timeout waits at most that long. Any other send waits until no message has
been acknowledged for the producer's timeout: as long as acknowledgements arrive, the brokers work
and the application merely sends faster than they store. Its send timeout starts when there is room.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from client.producer.columns import MessageColumns
from remoting.limits import STALL_SECONDS

Waiter = asyncio.Future[None]


class RoomQueue:
    """The waiting sends of one producer, first in, first out.

    Args:
        timeout: the producer's timeout in seconds.
        now: returns the producer's clock in seconds.
        take: reserves room for the messages; returns False if there is none.
        give_back: releases reserved room.

    Attributes:
        waiting: the messages of each waiting send, in order of arrival.
    """

    def __init__(
        self,
        timeout: float,
        now: Callable[[], float],
        take: Callable[[MessageColumns], bool],
        give_back: Callable[[MessageColumns], None],
    ) -> None:
        self._timeout = timeout
        self._now = now
        self._take = take
        self._give_back = give_back
        self._loop = asyncio.get_running_loop()
        # Not a dict: finding its first entry scans the slots of all entries deleted before it.
        self.waiting: OrderedDict[Waiter, MessageColumns] = OrderedDict()
        self._stored_at = 0.0
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0

    async def wait(self, columns: MessageColumns) -> None:
        """Wait until room is reserved for these messages.

        Raises:
            TimeoutError: there was no room in time.
            SendError: the producer was closed.
        """
        waiter: Waiter = self._loop.create_future()
        self.waiting[waiter] = columns
        try:
            if columns.timeout is None:
                if self._timer is None:
                    self._end_stuck_in(self._timeout)
                await waiter
                columns.deadline = self._now() + self._timeout
            else:
                async with asyncio.timeout(columns.deadline - self._now()):
                    await waiter
        except BaseException:
            self.waiting.pop(waiter, None)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                # Room was reserved, but the task was cancelled before it could use it.
                self._give_back(columns)
            self.admit()
            raise

    def admit(self) -> None:
        """Reserve room for the waiting sends, in order, as far as there is any."""
        while self.waiting:
            waiter, columns = next(iter(self.waiting.items()))
            if not waiter.done():
                if not self._take(columns):
                    return
                waiter.set_result(None)
            del self.waiting[waiter]

    def stored(self) -> None:
        """Record that a broker has just stored a message."""
        self._stored_at = self._now()

    def _end_stuck_in(self, seconds: float) -> None:
        # Not the handle's when(): uvloop's for less than half a millisecond has none.
        self._timer_at = self._loop.time() + seconds
        self._timer = self._loop.call_later(seconds, self._end_stuck)

    def _end_stuck(self) -> None:
        """Fail the sends without explicit timeout if nothing was stored for too long."""
        late = self._loop.time() - self._timer_at
        if late > STALL_SECONDS:
            # The event loop stalled: first let it read the acknowledgements that have arrived.
            self._end_stuck_in(late)
            return
        self._timer = None
        now = self._now()
        stuck_at = self._stored_at + self._timeout
        ends = [
            (max(columns.deadline, stuck_at), waiter)
            for waiter, columns in self.waiting.items()
            if columns.timeout is None
        ]
        for end, waiter in ends:
            if end <= now:
                self._reject(waiter, TimeoutError())
        later = min([end for end, _ in ends if end > now], default=None)
        if later is not None:
            self._end_stuck_in(later - now)

    def close(self, error: Callable[[str], Exception]) -> None:
        """Fail all waiting sends with ``error(topic)``."""
        if self._timer is not None:
            self._timer.cancel()
        for waiter, columns in list(self.waiting.items()):
            self._reject(waiter, error(columns.topic))

    def _reject(self, waiter: Waiter, error: Exception) -> None:
        del self.waiting[waiter]
        if not waiter.done():
            waiter.set_exception(error)
