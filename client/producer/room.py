"""Sends that wait for room among the messages in flight.

A send with a timeout of its own waits that long. Others wait as long as brokers acknowledge
something within the producer's timeout, for then it is the application that is fast; their timeout
begins when there is room.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from client.producer.columns import MessageColumns
from remoting.limits import STALL_SECONDS

Waiter = asyncio.Future[None]


class RoomQueue:
    """The sends of one producer that wait, in turn.

    Args:
        timeout: the producer's, in seconds.
        now: the clock of deadlines.
        take: takes room for messages, if there is any.
        give_back: gives back what was taken.

    Attributes:
        waiting: the messages of each.
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
        # Ordered by links: taking the first of a dict looks through all that were taken before.
        self.waiting: OrderedDict[Waiter, MessageColumns] = OrderedDict()
        self._stored_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, columns: MessageColumns) -> None:
        """Wait until room is taken for these messages.

        Raises:
            TimeoutError: there was none in time.
            SendError: the producer was closed.
        """
        waiter: Waiter = self._loop.create_future()
        self.waiting[waiter] = columns
        try:
            if columns.timeout is None:
                if self._timer is None:
                    self._timer = self._loop.call_later(self._timeout, self._end_stuck)
                await waiter
                columns.deadline = self._now() + self._timeout
            else:
                async with asyncio.timeout(columns.deadline - self._now()):
                    await waiter
        except BaseException:
            self.waiting.pop(waiter, None)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                # There was room for it, and its task was cancelled before it could use that.
                self._give_back(columns)
            self.admit()
            raise

    def admit(self) -> None:
        """There may be room: give it to those who wait, in turn."""
        while self.waiting:
            waiter, columns = next(iter(self.waiting.items()))
            if not waiter.done():
                if not self._take(columns):
                    return
                waiter.set_result(None)
            del self.waiting[waiter]

    def stored(self) -> None:
        """A broker has acknowledged something."""
        self._stored_at = self._now()

    def _end_stuck(self) -> None:
        """End the waits without a timeout of their own whose time passed with nothing stored."""
        assert self._timer is not None
        late = self._loop.time() - self._timer.when()
        if late > STALL_SECONDS:
            # The loop stalled: what was acknowledged meanwhile has to be read first.
            self._timer = self._loop.call_later(late, self._end_stuck)
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
                self._turn_away(waiter, TimeoutError())
        later = min([end for end, _ in ends if end > now], default=None)
        if later is not None:
            self._timer = self._loop.call_later(later - now, self._end_stuck)

    def close(self, error: Callable[[str], Exception]) -> None:
        """Fail everything that waits, with an error for its topic."""
        if self._timer is not None:
            self._timer.cancel()
        for waiter, columns in list(self.waiting.items()):
            self._turn_away(waiter, error(columns.topic))

    def _turn_away(self, waiter: Waiter, error: Exception) -> None:
        del self.waiting[waiter]
        if not waiter.done():
            waiter.set_exception(error)
