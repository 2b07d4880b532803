"""The sends that wait for room among the messages in flight: in turn, bounded, not for ever.

Those with a timeout of their own wait that long. Others wait as long as brokers acknowledge
something within the producer's timeout, for then it is the application that is fast; that timeout
counts for them from when there is room.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from client.config import ProducerOptions
from client.errors import BufferFull, SendError
from client.limits import WAITING_PER_IN_FLIGHT
from client.producer.accumulator import Accumulator
from client.producer.outgoing import Outgoing
from client.producer.own_time import OwnTime
from remoting.limits import STALL_SECONDS


class _Waiter(NamedTuple):
    future: asyncio.Future[None]
    items: Sequence[Outgoing]
    size: int

    @property
    def patient(self) -> bool:
        """Whether it waits as long as anything is stored."""
        return self.items[0].timeout is None


class Room:
    """The waiting sends of one producer; ``waiting`` has them in turn."""

    def __init__(
        self, accumulator: Accumulator, group: str, options: ProducerOptions, time: OwnTime
    ) -> None:
        self._accumulator = accumulator
        self._group = group
        self._timeout = options.timeout
        self._most = WAITING_PER_IN_FLIGHT * options.max_in_flight
        self._time = time
        self._loop = asyncio.get_running_loop()
        # Ordered by links: taking the first of a dict looks through all that were taken before.
        self.waiting: OrderedDict[asyncio.Future[None], _Waiter] = OrderedDict()
        self._stored_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, items: Sequence[Outgoing]) -> None:
        """Take room for messages that leave together.

        Raises:
            BufferFull: there was none in time, or too many wait already.
            SendError: the producer was closed.
        """
        size = sum([item.size for item in items])
        if not self.waiting and self._accumulator.has_room(len(items), size):
            self._accumulator.reserve(len(items), size)
            return
        if len(self.waiting) >= self._most:
            raise BufferFull(
                f"{len(self.waiting)} sends wait for room already",
                topic=items[0].topic,
                group=self._group,
                hint="use send_many, send fewer at a time, or raise max_in_flight",
            )
        waiter = _Waiter(self._loop.create_future(), items, size)
        self.waiting[waiter.future] = waiter
        try:
            await self._granted(waiter)
        except BaseException as error:
            self._leave(waiter)
            if isinstance(error, TimeoutError):
                raise BufferFull(
                    f"{self._accumulator.messages} messages in flight left no room in time",
                    topic=items[0].topic,
                    group=self._group,
                    hint="send more slowly, or raise max_in_flight",
                ) from None
            raise

    async def _granted(self, waiter: _Waiter) -> None:
        if waiter.patient:
            if self._timer is None:
                self._timer = self._loop.call_later(self._timeout, self._look)
            await waiter.future
            for item in waiter.items:
                item.deadline = self._time.now() + self._timeout
        else:
            async with asyncio.timeout(waiter.items[0].deadline - self._time.now()):
                await waiter.future

    def _leave(self, waiter: _Waiter) -> None:
        future = waiter.future
        self.waiting.pop(future, None)
        if future.done() and not future.cancelled() and future.exception() is None:
            # There was room for it, and its task was cancelled before it could use that.
            self._accumulator.release(len(waiter.items), waiter.size)
        self.admit()

    def stored(self) -> None:
        """Something was acknowledged."""
        if self.waiting:
            self._stored_at = self._time.now()

    def admit(self) -> None:
        """There may be room: give it to those who wait, in turn."""
        while self.waiting:
            waiter = next(iter(self.waiting.values()))
            if not waiter.future.done():
                if not self._accumulator.has_room(len(waiter.items), waiter.size):
                    return
                self._accumulator.reserve(len(waiter.items), waiter.size)
                waiter.future.set_result(None)
            del self.waiting[waiter.future]

    def _look(self) -> None:
        """End the wait of patient ones whose time is over while nothing was stored."""
        assert self._timer is not None
        late = self._loop.time() - self._timer.when()
        if late > STALL_SECONDS:
            # The loop stalled: what was acknowledged meanwhile has to be read first.
            self._timer = self._loop.call_later(late, self._look)
            return
        self._timer = None
        now = self._time.now()
        stuck_at = self._stored_at + self._timeout
        ends = [
            (max(waiter.items[0].deadline, stuck_at), waiter)
            for waiter in self.waiting.values()
            if waiter.patient
        ]
        self._end([waiter for end, waiter in ends if end <= now])
        later = min([end for end, _ in ends if end > now], default=None)
        if later is not None:
            self._timer = self._loop.call_later(later - now, self._look)

    def close(self) -> None:
        """The producer was closed: nobody gets any more room."""
        if self._timer is not None:
            self._timer.cancel()
        self._end(list(self.waiting.values()), closed=True)

    def _end(self, waiters: Iterable[_Waiter], *, closed: bool = False) -> None:
        for waiter in waiters:
            del self.waiting[waiter.future]
            if not waiter.future.done():
                topic = waiter.items[0].topic
                waiter.future.set_exception(
                    SendError("the producer was closed before it could be sent", topic=topic)
                    if closed
                    else TimeoutError()
                )
