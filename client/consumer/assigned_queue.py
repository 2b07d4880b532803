"""The queues assigned to a push consumer, from assignment to revocation.

A queue is assigned, started (its fetcher pulls), draining (nothing more is pulled or dispatched;
running handlers may finish) and revoked. ``AssignedQueue`` owns the state of one queue: process
queue, fetcher, lock and commit point.

Queues with messages to dispatch wait in the ready queue. A worker removes the first one, takes some
of its messages and puts it back. Commit points are stored by pull requests, which carry them at no
extra cost, every ``commit_period``, and when a queue is lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from client.consumer.fetcher import Fetcher, FetcherOwner
from client.consumer.offset_store import commit_last
from client.consumer.options import PushOptions
from client.consumer.outcome import MessageOutcome
from client.consumer.process_queue import ProcessQueue, Run
from client.consumer.rates import ConsumerRates
from client.consumer.received import ReceivedMessage
from client.errors import AlreadySettled, PocketMQError
from client.events import Event, QueueBlocked
from client.group.member import GroupMember
from client.group.start_offsets import OffsetStore
from client.group.view import EVERYTHING
from client.limits import LOCK_RETRY
from client.network.context import ClientContext
from client.serde import Serde
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from remoting.runtime.tasks import Supervisor

if TYPE_CHECKING:
    from client.events import Start

T = TypeVar("T")

_log = Log("client")


class AssignmentState(Enum):
    """Lifecycle state of a queue at this consumer."""

    ASSIGNED = auto()
    STARTED = auto()
    DRAINING = auto()
    REVOKED = auto()


class AssignedQueue(FetcherOwner, Generic[T]):
    """One queue, from assignment to revocation; the ``Settler`` of its messages.

    Args:
        consumer: all queues of the consumer.
        start: the offset to start at.

    Attributes:
        process_queue: the queue's messages and their outcomes.
        settler: this object, for the fetcher.
        handling: runs whose handler is running or whose outcomes are being carried out.
        in_hand: offsets of messages in a ``with`` block.
        uncommitted: runs for which the handler has returned no decision (``auto_commit=False``).
        blocked: the event that reports a failing message blocking the queue; None: not blocked.
        blocked_since_ms: when it became blocked, in ms since the Unix epoch.
        handled_at: event loop time at which a worker last ended, or the iteration got a message;
            before that the time of the assignment.
    """

    def __init__(self, consumer: AssignedQueues[T], queue: MessageQueue, start: Start) -> None:
        options = consumer.options
        self.queue = queue
        self.state = AssignmentState.ASSIGNED
        self.process_queue: ProcessQueue[ReceivedMessage[T]] = ProcessQueue(
            queue,
            max_messages=options.prefetch_messages,
            max_bytes=options.prefetch_bytes,
            max_span=options.max_span if options.order is None else None,
            counts=consumer.rates.of(queue.topic),
        )
        self.process_queue.start(start.offset)
        self.settler = self
        self.handling: set[Run[ReceivedMessage[T]]] = set()
        self.in_hand: set[int] = set()
        self.uncommitted: list[Run[ReceivedMessage[T]]] = []
        self.blocked: QueueBlocked | None = None
        self.blocked_since_ms = 0
        self._consumer = consumer
        self._fetcher: Fetcher[T, ProcessQueue[ReceivedMessage[T]]]
        self._stored = start.offset if start.reason in {"stored", "reset"} else None
        # One commit at a time: a broker may execute concurrent requests in either order, so that
        # the older offset would remain.
        self._commits = asyncio.Lock()
        self._is_ready = False
        self._withheld = False
        self._claimed = False
        self._rest: asyncio.TimerHandle | None = None
        self._locked = True
        self._regaining = False
        self._loop = asyncio.get_running_loop()
        self.handled_at = self._loop.time()
        self._thread = threading.get_ident()
        self._changed = asyncio.Event()
        if consumer.suspended:
            self.process_queue.pause()

    # Lifecycle

    def start(self, expression: TagExpression) -> None:
        """Start the fetcher; ``fetched`` is not called before this returns."""
        self.state = AssignmentState.STARTED
        consumer = self._consumer
        self._fetcher = Fetcher(
            consumer.context,
            consumer.group,
            self.process_queue,
            expression,
            consumer.options,
            consumer.serde,
            self,
        )
        self._fetcher.start(consumer.tasks)

    def subscribe(self, expression: TagExpression) -> None:
        """Use another tag expression from the next pull on."""
        if self.state is AssignmentState.STARTED and self._fetcher.expression != expression:
            # Cancel the pull in flight: the broker filters it by the old expression.
            self._fetcher.cancel()
            self.start(expression)

    def pause(self) -> None:
        """Stop pulling and dispatching until ``resume``."""
        self.process_queue.pause()

    def resume(self) -> None:
        """Pull and dispatch again."""
        self.process_queue.resume()
        self._fetcher.wake()
        self.offer()

    def drain(self) -> None:
        """Stop pulling and dispatching for good; running handlers may finish."""
        self.state = AssignmentState.DRAINING
        self.process_queue.drop()
        if not self._fetcher.commit_in_flight:
            self._fetcher.cancel()

    def revoke(self) -> None:
        """Detach the queue, which now belongs to another member.

        Outcomes of handlers that are still running are ignored.
        """
        self.state = AssignmentState.REVOKED
        self.process_queue.active.clear()
        if self._rest is not None:
            self._rest.cancel()
        self._consumer.remove(self)

    @property
    def pulled_at(self) -> float:
        """See ``Fetcher``."""
        return self._fetcher.pulled_at

    # Running handlers

    def begin(self, run: Run[ReceivedMessage[T]]) -> None:
        """Record that a handler runs for these messages, or their outcomes are carried out."""
        self.handling.add(run)

    def worked(self, began: float, ended: float) -> None:
        """Record that a worker has handled some messages."""
        self.handled_at = ended
        self.process_queue.counts.handling_time += ended - began

    def end(self, run: Run[ReceivedMessage[T]]) -> None:
        """Undo ``begin``."""
        self.handling.discard(run)
        self._notify_changed()

    def _notify_changed(self) -> None:
        """Make the callers of ``until`` check their condition again."""
        self._changed.set()
        self._changed.clear()

    async def until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait until ``condition()`` is true, at most until ``deadline`` (event loop time).

        Returns:
            Whether the condition holds.
        """
        try:
            async with asyncio.timeout_at(deadline):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            return condition()
        return True

    # Outcomes (``Settler``); callable from any thread

    def settle(self, message: ReceivedMessage[T], outcome: MessageOutcome) -> None:
        """See ``Settler``."""
        run = self.process_queue.run_of(message.offset)
        if run is None and self.process_queue.dropped:
            _log.warning(
                "outcome came too late: the queue is another member's now",
                queue=str(message.queue),
                offset=message.offset,
            )
            return
        if run is None or message.offset in self.process_queue.outcomes:
            raise AlreadySettled(
                f"the message at offset {message.offset} has an outcome already",
                queue=message.queue,
                group=self._consumer.group,
                hint="settle each message once",
            )
        self.process_queue.outcomes[message.offset] = outcome
        if self._consumer.on_outcome is not None:
            self._on_loop(self._consumer.on_outcome, self, run)

    def settled(self, message: ReceivedMessage[T]) -> bool:
        """See ``Settler``."""
        offset = message.offset
        return offset in self.process_queue.outcomes or self.process_queue.run_of(offset) is None

    def outcome(self, message: ReceivedMessage[T]) -> MessageOutcome | None:
        """See ``Settler``."""
        return self.process_queue.outcomes.get(message.offset)

    def failures(self, message: ReceivedMessage[T]) -> int:
        """See ``Settler``."""
        return self.process_queue.failures.get(message.offset, 0)

    def hold(self, message: ReceivedMessage[T]) -> None:
        """See ``Settler``."""
        self.in_hand.add(message.offset)

    def end_hold(self, message: ReceivedMessage[T]) -> None:
        """See ``Settler``."""
        self.in_hand.discard(message.offset)
        self._on_loop(self._notify_changed)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        if threading.get_ident() == self._thread:
            function(*arguments)
        else:
            with suppress(RuntimeError):  # the loop is closed, as after a stop
                self._loop.call_soon_threadsafe(function, *arguments)

    # The ready queue

    def offer(self) -> None:
        """Enter the ready queue if messages may be dispatched, and wake a worker."""
        if self.put_back():
            self._consumer.on_ready()

    def put_back(self) -> bool:
        """Enter the ready queue like ``offer``, without waking anyone. Returns whether it did.

        For a worker that has just taken messages from the queue: it looks for work again anyway.
        """
        if self._is_ready or self._withheld or not self.process_queue.ready:
            return False
        self._is_ready = True
        self._consumer.ready_queue.append(self)
        return True

    def leave_ready_queue(self) -> bool:
        """Record the removal from the ready queue. Returns whether messages may be dispatched."""
        self._is_ready = False
        return not self._withheld and self.process_queue.ready

    def make_room(self) -> None:
        """After messages were settled, wake the fetcher if it waits for room."""
        if self._fetcher.stalled and not self.process_queue.full:
            self._fetcher.wake()

    # Ordered queues: one handler at a time, only with the lock held, and a rest after failures

    def claim(self) -> bool:
        """Claim the queue exclusively until ``release``.

        Returns:
            False if it is claimed, rests after a failure, or its lock is not held.
        """
        if self._claimed or self._rest is not None or not self.may_start():
            return False
        self._claimed = True
        self._withheld = True
        return True

    def release(self, *, wake: bool) -> None:
        """End a claim, so that the next message can be taken.

        Args:
            wake: wake a worker; False when called by a worker, which looks for work again anyway.
        """
        self._claimed = False
        self._refresh(wake=wake)

    def rest(self, seconds: float) -> None:
        """Dispatch nothing for ``seconds``."""
        if self.state is not AssignmentState.REVOKED:
            self._rest = self._loop.call_later(seconds, self._rested)
            self._refresh()

    def _rested(self) -> None:
        self._rest = None
        self._refresh()

    def _refresh(self, *, wake: bool = True) -> None:
        self._withheld = self._claimed or self._rest is not None or not self._locked
        if wake:
            self.offer()
        else:
            self.put_back()

    def may_start(self) -> bool:
        """Return whether an ordered handler may start: the queue is assigned and its lock held."""
        if self.process_queue.dropped:
            return False
        if self._locked and not self._consumer.holds_lock(self.queue):
            self._lock_lost()
        return self._locked

    def lock_changed(self, held: bool) -> None:
        """Handle a change of the queue's lock."""
        if not held:
            self._lock_lost()
        elif not self._locked and not self._regaining:
            self._regaining = True
            self._consumer.tasks.spawn(self._regain(), f"going on with {self.queue}")

    def _lock_lost(self) -> None:
        if self._locked:
            self._locked = False
            self._refresh()
            self._loop.call_later(LOCK_RETRY, self._check_lock)

    def _check_lock(self) -> None:
        if self._locked or self.state is AssignmentState.REVOKED:
            return
        if self._consumer.holds_lock(self.queue):
            self.lock_changed(True)
        else:
            self._loop.call_later(LOCK_RETRY, self._check_lock)

    async def _regain(self) -> None:
        """Resume a queue whose lock was regained.

        Another member may have consumed messages meanwhile: if the stored offset is ahead of the
        commit point, restart there.
        """
        stored: int | None = None
        try:
            stored = await self._consumer.store.stored(self.queue)
        except PocketMQError as error:
            _log.warning("locked queue waits", queue=str(self.queue), error=str(error))
            holds = False
        else:
            holds = self._consumer.holds_lock(self.queue)
        self._regaining = False
        if self.process_queue.dropped:
            return
        if not holds:
            self._loop.call_later(LOCK_RETRY, self._check_lock)
            return
        point = self.process_queue.commit_point
        if stored is not None and (point is None or stored > point):
            _log.info(
                "queue was moved by another", queue=str(self.queue), here=point, stored=stored
            )
            self._fetcher.cancel()
            self.process_queue.start(stored)
            self.uncommitted.clear()
            if self._consumer.on_outcome is not None:
                # The message that the iteration holds is forgotten: its outcome frees nothing.
                self._claimed = False
                self.handling.clear()
            self._stored = None
            self.start(self._fetcher.expression)
        self._locked = True
        self._refresh()

    def block(self, why: QueueBlocked, now_ms: int) -> bool:
        """Mark the queue as blocked by a failing message. Returns whether it wasn't before."""
        first = self.blocked is None
        if first:
            self.blocked_since_ms = now_ms
        self.blocked = why
        return first

    def unblock(self) -> None:
        """Mark the queue as no longer blocked."""
        self.blocked = None

    # Offsets

    async def commit(self) -> None:
        """Store the commit point. A failure is logged; the next commit tries again."""
        try:
            async with self._commits:
                await self._commit_with(self._consumer.store.commit)
        except PocketMQError as error:
            _log.warning(
                "offset not committed",
                group=self._consumer.group,
                queue=str(self.queue),
                error=str(error),
            )

    async def commit_last(self) -> None:
        """Store the commit point of a draining queue, with retries.

        Raises:
            PocketMQError: the broker could not be reached within ``LAST_COMMIT_TIMEOUT``.
        """
        store = self._consumer.store
        await self._fetcher.wait_for_commit()
        self._fetcher.cancel()
        async with self._commits:
            if self._fetcher.has_committed:
                self._stored = None
            await self._commit_with(partial(commit_last, store))
        await store.save()

    async def _commit_with(self, commit: Callable[[MessageQueue, int], Awaitable[None]]) -> None:
        if self.state is AssignmentState.REVOKED:
            return  # the commit point passes the messages that are handled again elsewhere
        point = self.process_queue.commit_point
        # Without the lock another member may be consuming the queue, and its offset must stand.
        if point is not None and point != self._stored and self._locked:
            await commit(self.queue, point)
            self._stored = point

    # Called by the fetcher (``FetcherOwner``)

    def offset_to_commit(self) -> int | None:
        """Return a commit point to send with the next pull; None: nothing new.

        A queue's first commit is never sent with a pull: ``Offsets.commit`` orders first commits.
        """
        if not self._locked or self._stored is None or not self._consumer.options.shared:
            return None
        point = self.process_queue.commit_point
        return point if point and point != self._stored else None

    def fetched(self, _: ProcessQueue[ReceivedMessage[T]], seconds: float) -> None:
        """Enter the ready queue after messages were pulled."""
        counts = self.process_queue.counts
        counts.pulls += 1
        counts.pull_time += seconds
        if self.state is not AssignmentState.REVOKED:
            self.offer()

    def reconnected(self, _: MessageQueue) -> None:
        """See ``FetcherOwner``."""
        self._stored = None

    def restart(self, queue: MessageQueue, offset: int) -> None:
        """See ``FetcherOwner``."""
        self._consumer.member.restart({queue: offset})

    async def group_unknown(self, address: str) -> None:
        """Send a heartbeat to a broker that doesn't know the group."""
        await self._consumer.member.heartbeat_broker(address)

    def tell(self, event: Event) -> None:
        """Pass an event on to the application."""
        self._consumer.tell(event)


class AssignedQueues(Generic[T]):
    """All assigned queues of one consumer.

    Args:
        member: the group member that the queues are assigned to.
        tasks: owns the fetchers' tasks.
        store: stores the offsets.
        tell: passes events to the application.

    Attributes:
        ready_queue: queues with messages to dispatch.
        on_ready: called when a queue enters the ready queue.
        on_outcome: called when an outcome is recorded; None: the caller of the handler checks for
            outcomes itself.
        suspended: nothing is pulled or dispatched.
        rates: counts their messages.
    """

    def __init__(
        self,
        context: ClientContext,
        member: GroupMember,
        options: PushOptions,
        serde: Serde[T],
        tasks: Supervisor,
        store: OffsetStore,
        tell: Callable[[Event], None],
    ) -> None:
        self.context = context
        self.member = member
        self.group = member.group
        self.options = options
        self.serde = serde
        self.tasks = tasks
        self.store = store
        self.tell = tell
        self.suspended = False
        self.rates = ConsumerRates(asyncio.get_running_loop().time)
        self.ready_queue: deque[AssignedQueue[T]] = deque()
        self.on_ready: Callable[[], None]
        self.on_outcome: Callable[[AssignedQueue[T], Run[ReceivedMessage[T]]], None] | None
        self._queues: dict[MessageQueue, AssignedQueue[T]] = {}

    def serve(
        self,
        on_ready: Callable[[], None],
        on_outcome: Callable[[AssignedQueue[T], Run[ReceivedMessage[T]]], None] | None = None,
    ) -> None:
        """Set the callbacks of the dispatcher; must be called before the first queue is gained."""
        self.on_ready = on_ready
        self.on_outcome = on_outcome

    def __iter__(self) -> Iterator[AssignedQueue[T]]:
        return iter(list(self._queues.values()))

    def find(self, queue: MessageQueue) -> AssignedQueue[T] | None:
        """Return the queue's state; None: it isn't assigned."""
        return self._queues.get(queue)

    def gain(self, queue: MessageQueue, start: Start) -> AssignedQueue[T]:
        """Add an assigned queue and start reading it."""
        assigned = self._queues[queue] = AssignedQueue(self, queue, start)
        assigned.start(self.member.expression(queue.topic) or EVERYTHING)
        return assigned

    def remove(self, assigned: AssignedQueue[T]) -> None:
        """Remove a revoked queue, unless it has been assigned again meanwhile."""
        if self._queues.get(assigned.queue) is assigned:
            del self._queues[assigned.queue]

    def holds_lock(self, queue: MessageQueue) -> bool:
        """Return whether a queue's lock is certainly held; True for broadcasting, without locks."""
        return not self.options.shared or self.member.holds_lock(queue)

    def subscribe(self, topic: str, expression: TagExpression) -> None:
        """Change the tag expression of a topic's queues, from their next pull on."""
        for assigned in self._queues.values():
            if assigned.queue.topic == topic:
                assigned.subscribe(expression)

    def suspend(self) -> None:
        """Stop pulling and dispatching for all queues until ``resume``."""
        self.suspended = True
        for assigned in self._queues.values():
            assigned.pause()

    def resume(self) -> None:
        """Pull and dispatch again."""
        self.suspended = False
        for assigned in self._queues.values():
            assigned.resume()

    def next(self) -> AssignedQueue[T] | None:
        """Remove the next dispatchable queue from the ready queue and return it; None: none."""
        ready = self.ready_queue
        while ready:
            assigned = ready.popleft()
            if assigned.leave_ready_queue():
                return assigned
        return None

    async def commit_by_time(self) -> None:
        """Store the commit points of all queues every ``commit_period`` until cancelled."""
        while True:
            await asyncio.sleep(self.options.commit_period)
            await asyncio.gather(*(assigned.commit() for assigned in self))
            await self.store.save()
