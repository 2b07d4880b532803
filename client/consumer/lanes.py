"""What an orderly consumer knows of each queue beside its messages: taken, resting, locked.

A queue's lane is open while nobody has its next message, no failed message makes it rest and its
lock is held. Who has lost a lock and got it again asks the store how far the queue has come
meanwhile, and goes on there when another member has moved it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from client.consumer.intake import Held, Intake
from client.consumer.offset_store import Store
from client.consumer.process_queue import Run
from client.consumer.received import ReceivedMessage
from client.errors import PocketMQError
from client.events import QueueBlocked
from client.limits import LOCK_RETRY
from remoting.log import Log
from remoting.protocol.queue import MessageQueue
from remoting.tasks import Supervisor

T = TypeVar("T")

_log = Log("client")


class Lane(Generic[T]):
    """One queue's state beside what is held of it.

    Attributes:
        taken: somebody has its next message.
        resting: a message failed; it comes again when the rest is over.
        locked: its lock is held.
        open: handled, but not committed yet (``auto_commit=False``).
        blocked: how it is blocked; None: it isn't.
        since_ms: since when.
    """

    __slots__ = ("blocked", "locked", "open", "regaining", "resting", "since_ms", "taken")

    def __init__(self) -> None:
        self.taken = False
        self.resting = False
        self.locked = True
        self.regaining = False
        self.since_ms = 0
        self.open: list[Run[ReceivedMessage[T]]] = []
        self.blocked: QueueBlocked | None = None


class Lanes(Generic[T]):
    """The lanes of one consumer.

    Args:
        tasks: owns what asks the store.
        store: where offsets are.
        holds_lock: whether a queue's lock is surely held.
    """

    def __init__(
        self,
        intake: Intake[T],
        tasks: Supervisor,
        store: Store,
        holds_lock: Callable[[MessageQueue], bool],
    ) -> None:
        self._intake = intake
        self._tasks = tasks
        self._store = store
        self._holds_lock = holds_lock
        self._lanes: dict[Held[T], Lane[T]] = {}
        self._loop = asyncio.get_running_loop()

    def __iter__(self) -> Iterator[Lane[T]]:
        return iter(self._lanes.values())

    def gained(self, held: Held[T]) -> None:
        """A queue has come, with its lock."""
        self._lanes[held] = Lane()

    def lost(self, held: Held[T]) -> None:
        """A queue has gone."""
        self._lanes.pop(held, None)

    def find(self, held: Held[T]) -> Lane[T] | None:
        """The lane of a queue that is still here."""
        return self._lanes.get(held)

    # Turns and rests

    def take(self, held: Held[T]) -> Lane[T] | None:
        """Have the queue to oneself until ``release``; None: it may not be handled now."""
        lane = self._lanes.get(held)
        if lane is None or lane.taken or lane.resting or not self.may_start(held, lane):
            return None
        lane.taken = True
        held.shut = True
        return lane

    def release(self, held: Held[T]) -> None:
        """Let the queue's next message be taken."""
        lane = self._lanes.get(held)
        if lane is not None:
            lane.taken = False
            self._refresh(held, lane)

    def rest(self, held: Held[T], lane: Lane[T], seconds: float) -> None:
        """Hand out nothing of the queue for so long."""
        lane.resting = True
        self._refresh(held, lane)
        self._loop.call_later(seconds, self._rested, held, lane)

    def _rested(self, held: Held[T], lane: Lane[T]) -> None:
        lane.resting = False
        if self._lanes.get(held) is lane:
            self._refresh(held, lane)

    def _refresh(self, held: Held[T], lane: Lane[T]) -> None:
        held.shut = lane.taken or lane.resting or not lane.locked
        self._intake.offer(held)

    # Locks

    def may_start(self, held: Held[T], lane: Lane[T]) -> bool:
        """Whether a handler may start: the queue is still here, and its lock held."""
        if held.queue.dropped:
            return False
        if lane.locked and not self._holds_lock(held.queue.queue):
            self._unlocked(held, lane)
        return lane.locked

    def locked(self, held: Held[T], holds: bool) -> None:
        """The lock of a queue was lost, or got again."""
        lane = self._lanes.get(held)
        if lane is None:
            return
        if not holds:
            self._unlocked(held, lane)
        elif not lane.locked and not lane.regaining:
            lane.regaining = True
            self._tasks.spawn(self._regain(held, lane), f"going on with {held.queue.queue}")

    def _unlocked(self, held: Held[T], lane: Lane[T]) -> None:
        if lane.locked:
            lane.locked = False
            held.committing = False
            self._refresh(held, lane)
            self._loop.call_later(LOCK_RETRY, self._look, held, lane)

    def _look(self, held: Held[T], lane: Lane[T]) -> None:
        if lane.locked or self._lanes.get(held) is not lane:
            return
        if self._holds_lock(held.queue.queue):
            self.locked(held, True)
        else:
            self._loop.call_later(LOCK_RETRY, self._look, held, lane)

    async def _regain(self, held: Held[T], lane: Lane[T]) -> None:
        queue = held.queue.queue
        stored: int | None = None
        try:
            stored = await self._store.stored(queue)
        except PocketMQError as error:
            _log.warning("locked queue waits", queue=str(queue), error=str(error))
            holds = False
        else:
            holds = self._holds_lock(queue)
        lane.regaining = False
        if self._lanes.get(held) is not lane or held.queue.dropped:
            return
        if not holds:
            self._loop.call_later(LOCK_RETRY, self._look, held, lane)
            return
        point = held.queue.commit_point
        if stored is not None and (point is None or stored > point):
            _log.info("queue was moved by another", queue=str(queue), here=point, stored=stored)
            self._intake.restart(held, stored)
            lane.open.clear()
        lane.locked = True
        held.committing = True
        self._refresh(held, lane)
