"""The queues of one group member: each is being taken, owned, or being given up.

To take a queue, the member locks it, then determines its start offset (in this order, because the
previous owner commits before it unlocks), then the consumer reads it. To give it up, the consumer
finishes and commits, then the member unlocks it. Each change of a queue is a separate task, so that
no queue delays another. Many changes start in portions, so that the event loop runs other tasks.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping

from client.config import GroupOptions
from client.errors import PocketMQError
from client.events import Event, LockLost, QueueGained, QueueLost, QueueResumed, QueueWaiting, Start
from client.group.locks import LockKeeper
from client.group.reports import Running
from client.group.start_offsets import StartOffsets
from client.limits import (
    CHANGE_PATIENCE,
    CHANGED_AT_ONCE,
    LOST_GRACE,
    ORDERED_DRAIN_TIMEOUT,
    REPORT_PERIOD,
    START_RETRY_MAX,
)
from client.network.context import ClientContext
from client.wire.backoff import Backoff
from remoting.protocol.bodies.clients import ConsumeMessageDirectlyResult
from remoting.protocol.bodies.description import BlockedQueue
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from remoting.runtime.tasks import Supervisor

_log = Log("client")


class AssignmentListener(ABC):
    """The callbacks of a consumer, which reads the queues that its member gains.

    Attributes:
        ordered: whether a queue may be read only while its lock is held.
    """

    ordered = False

    @abstractmethod
    def gained(self, queue: MessageQueue, start: Start) -> None:
        """Start reading a queue at ``start.offset``."""

    @abstractmethod
    async def lost(self, queue: MessageQueue, *, deadline: float) -> None:
        """Stop reading, let running handlers finish, commit, drop the queue.

        Args:
            deadline: event loop time until which handlers may run. Afterwards the queue is released
                to its next owner.
        """

    def locked(self, queue: MessageQueue, held: bool) -> None:  # noqa: B027 - optional
        """Handle that a queue's lock was taken or lost; without it no ordered handler may start."""

    @abstractmethod
    def tell(self, event: Event) -> None:
        """Pass an event to the application."""

    def blocked(self) -> list[BlockedQueue]:
        """Return the queues blocked by a failing message, for the heartbeats."""
        return []

    def handle_now(  # noqa: B027 - optional
        self, record: bytes, broker: str
    ) -> Awaitable[ConsumeMessageDirectlyResult] | None:
        """Call the handler with a message that isn't its turn; None if there is no handler.

        The awaitable raises RecordError if ``record`` can't be read.
        """

    @abstractmethod
    def running(self) -> Running:
        """Return the consumer's state, for administration requests."""


class AssignmentManager:
    """Takes and gives up queues for one member.

    Args:
        tasks: owns the queues' tasks.
        options: locks are used if ``shared``; ``handover_timeout`` limits the wait for the lock of
            an unordered queue, in seconds.
        rebalance: rebalances, which may call ``change``; returns when that is done.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        listener: AssignmentListener,
        tasks: Supervisor,
        starts: StartOffsets,
        options: GroupOptions,
        rebalance: Callable[[], Awaitable[None]],
    ) -> None:
        self._listener = listener
        self._rebalance = rebalance
        self._group = group
        self._tasks = tasks
        self._starts = starts
        self._shared = options.shared
        self._handover_timeout = options.handover_timeout
        self._drain_timeout = (
            ORDERED_DRAIN_TIMEOUT if listener.ordered else options.handover_timeout
        )
        self._loop = asyncio.get_running_loop()
        self._locks = LockKeeper(context, group, tasks, self, at_slaves=not listener.ordered)
        self._wanted: frozenset[MessageQueue] = frozenset()
        self._changing: asyncio.Task[None] | None = None
        self._taking: dict[MessageQueue, asyncio.Task[None]] = {}
        self._giving_up: dict[MessageQueue, asyncio.Task[None]] = {}
        self._owned: dict[MessageQueue, Start] = {}
        self._forced: dict[MessageQueue, Start] = {}
        self._reported_at: dict[MessageQueue, float] = {}

    @property
    def owned(self) -> frozenset[MessageQueue]:
        """The queues that the consumer reads."""
        return frozenset(self._owned)

    @property
    def held(self) -> frozenset[MessageQueue]:
        """The queues that are owned or being taken."""
        return frozenset(self._owned) | frozenset(self._taking)

    def holds_lock(self, queue: MessageQueue) -> bool:
        """Return whether the queue's lock is certainly held."""
        return self._locks.holds(queue)

    def connected(self, address: str) -> None:
        """Request the locks again at a broker that was connected to."""
        self._locks.probe(address)

    def change(self, wanted: Collection[MessageQueue]) -> None:
        """Take and give up queues until the member owns exactly these."""
        self._wanted = frozenset(wanted)
        if self._changing is not None:
            self._changing.cancel()
        self._changing = self._tasks.spawn(
            self._change(self._loop.time() + self._drain_timeout), "changing queues"
        )

    async def _change(self, deadline: float) -> None:
        queues = sorted(self.held - self._wanted) + sorted(self._wanted - self.held)
        for first in range(0, len(queues), CHANGED_AT_ONCE):
            changes = []
            for queue in queues[first : first + CHANGED_AT_ONCE]:
                # While earlier portions were waited for, another task may have given up this queue
                # or taken it.
                held = queue in self._owned or queue in self._taking
                if held and queue not in self._wanted:
                    self._give_up(queue, deadline)
                    changes.append(self._giving_up[queue])
                elif queue in self._wanted and not held and queue not in self._giving_up:
                    self._take(queue)
                    changes.append(self._taking[queue])
            if changes:
                await asyncio.wait(changes, timeout=CHANGE_PATIENCE)

    def restart(self, starts: Mapping[MessageQueue, Start]) -> None:
        """Give up queues and take them again at new start offsets."""
        for queue, start in starts.items():
            held = queue in self._owned or queue in self._taking
            if held or queue in self._giving_up:
                self._forced[queue] = start
            if held:
                self._give_up(queue, self._loop.time() + self._drain_timeout)

    async def give_up_all(self, deadline: float) -> None:
        """Give up all queues; the locks of queues that don't finish in time are left to expire.

        Args:
            deadline: event loop time until which handlers may run.
        """
        self._wanted = frozenset()
        if self._changing is not None:
            self._changing.cancel()
        await self._change(deadline)
        if self._giving_up:
            left = max(0.0, deadline + LOST_GRACE - self._loop.time())
            _, late = await asyncio.wait(self._giving_up.values(), timeout=left)
            for task in late:
                task.cancel()

    # Taking

    def _take(self, queue: MessageQueue) -> None:
        assert queue not in self._owned
        assert queue not in self._taking
        self._taking[queue] = self._tasks.spawn(self._taken(queue), f"taking {queue}")

    async def _taken(self, queue: MessageQueue) -> None:
        try:
            start = await self._locked_start(queue)
        finally:
            self._reported_at.pop(queue, None)
            if self._taking.get(queue) is asyncio.current_task():
                del self._taking[queue]
        self._owned[queue] = start
        _log.info("queue gained", group=self._group, queue=str(queue), start=start.text)
        self._listener.gained(queue, start)
        self._listener.tell(QueueGained(queue, start))

    async def _locked_start(self, queue: MessageQueue) -> Start:
        if not self._shared:
            return await self._start_of(queue)
        ordered = self._listener.ordered
        while True:
            patience = None if ordered else self._handover_timeout
            if not await self._locks.acquire(queue, patience):
                await self._rebalance()
                _log.warning(
                    "previous owner doesn't release the lock, taking it by force: messages that it "
                    "is handling may be handled twice",
                    group=self._group,
                    queue=str(queue),
                )
                await self._locks.take(queue)
            start = await self._start_of(queue)
            if not ordered or self._locks.holds(queue):
                return start

    async def _start_of(self, queue: MessageQueue) -> Start:
        backoff = Backoff(most=START_RETRY_MAX)
        while True:
            try:
                start = self._forced.get(queue)
                if start is None:
                    start = await self._starts.find(queue)
                else:
                    await self._starts.store.commit(queue, start.offset)
                    del self._forced[queue]
            except PocketMQError as error:
                self.waits(queue, error)
                await asyncio.sleep(backoff.next())
            else:
                if queue in self._reported_at:
                    self._listener.tell(QueueResumed(queue))
                return start

    # Giving up

    def _give_up(self, queue: MessageQueue, deadline: float) -> None:
        taking = self._taking.pop(queue, None)
        if taking is not None:
            taking.cancel()
        else:
            del self._owned[queue]
        self._giving_up[queue] = self._tasks.spawn(
            self._given_up(queue, deadline, was_read=taking is None), f"giving up {queue}"
        )

    async def _given_up(self, queue: MessageQueue, deadline: float, *, was_read: bool) -> None:
        try:
            if not was_read or await self._finished(queue, deadline):
                await self._locks.release([queue])
            else:
                self._locks.forget(queue)
            if was_read:
                _log.info("queue lost", group=self._group, queue=str(queue))
                self._listener.tell(QueueLost(queue))
        finally:
            del self._giving_up[queue]
        if queue in self._wanted:
            self._take(queue)
        else:
            self._forced.pop(queue, None)

    async def _finished(self, queue: MessageQueue, deadline: float) -> bool:
        """Let the consumer finish. Returns whether another member may read the queue now."""
        try:
            async with asyncio.timeout_at(deadline + LOST_GRACE):
                await self._listener.lost(queue, deadline=deadline)
        except TimeoutError:
            _log.error(
                "consumer doesn't stop reading a lost queue in time",
                group=self._group,
                queue=str(queue),
                ordered=self._listener.ordered,
            )
            return not self._listener.ordered
        except PocketMQError as error:
            _log.warning(
                "last commit failed, messages will be handled again",
                group=self._group,
                queue=str(queue),
                error=str(error),
            )
        return True

    # Called by the lock keeper (``LockListener``)

    def lock_changed(self, queue: MessageQueue, held: bool) -> None:
        """See ``LockListener``."""
        if queue not in self._owned:
            return
        if not held:
            _log.warning("queue lock lost", group=self._group, queue=str(queue))
            self._listener.tell(LockLost(queue))
        self._listener.locked(queue, held)

    def waits(self, queue: MessageQueue, error: PocketMQError) -> None:
        """See ``LockListener``; logs once per ``REPORT_PERIOD``."""
        now = self._loop.time()
        last = self._reported_at.get(queue)
        if queue not in self._taking or (last is not None and now - last < REPORT_PERIOD):
            return
        self._reported_at[queue] = now
        _log.warning("queue waits", group=self._group, queue=str(queue), error=str(error))
        if last is None:
            self._listener.tell(QueueWaiting(queue, error))
