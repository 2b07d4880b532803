"""A push consumer's queues, each owned by one object from assignment to revocation.

A queue is assigned, started (its fetcher reads it), draining (nothing more is read or handed out,
running handlers may finish) and revoked. ``AssignedQueue`` owns all that belongs to it: messages,
fetcher, lock and commit point.

Queues with messages to hand out wait in the ready queue. A worker takes the first one, takes some
of its messages and puts it back. Commit points go to the offset store with pulls, which costs no
request, every ``commit_period``, and when a queue is lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from client.consumer.fetcher import Fetcher, FetcherOwner
from client.consumer.offset_store import commit_last
from client.consumer.options import PushOptions
from client.consumer.outcome import MessageOutcome
from client.consumer.process_queue import ProcessQueue, Run
from client.consumer.received import ReceivedMessage
from client.context import ClientContext
from client.errors import AlreadySettled, PocketMQError
from client.events import Event, QueueBlocked
from client.group.member import GroupMember
from client.group.start_offsets import OffsetStore
from client.group.view import EVERYTHING
from client.limits import LOCK_RETRY
from client.serde import Serde
from remoting.log import Log
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue
from remoting.tasks import Supervisor

if TYPE_CHECKING:
    from client.events import Start

T = TypeVar("T")

_log = Log("client")


class AssignmentState(Enum):
    """How far a queue is in its life at this consumer."""

    ASSIGNED = auto()
    STARTED = auto()
    DRAINING = auto()
    REVOKED = auto()


class AssignedQueue(FetcherOwner, Generic[T]):
    """One queue, from assignment to revocation; outcomes of its messages come here (``Settler``).

    Args:
        consumer: all queues of this one's consumer.
        start: where to begin.

    Attributes:
        process_queue: its messages and their outcomes.
        settler: this one, for its fetcher.
        handling: runs that a handler has, or whose outcomes are being carried out.
        in_hand: offsets of messages in a ``with`` block.
        uncommitted: runs that a handler left open (``auto_commit=False``).
        blocked: how a failing message blocks it; None: it isn't blocked.
        blocked_since_ms: since when.
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
        # Of two commits at once a broker may make the older one last.
        self._commits = asyncio.Lock()
        self._is_ready = False
        self._withheld = False
        self._claimed = False
        self._resting = False
        self._locked = True
        self._regaining = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._changed = asyncio.Event()
        if consumer.suspended:
            self.process_queue.pause()

    # Life

    def start(self, expression: TagExpression) -> None:
        """Begin to read; messages come after this returned."""
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
        """Read other messages from the next pull on."""
        if self.state is AssignmentState.STARTED:
            # A pull that is on its way leaves out what only the new expression wants.
            self._fetcher.cancel()
            self.start(expression)

    def pause(self) -> None:
        """Pull nothing and hand out nothing."""
        self.process_queue.pause()

    def resume(self) -> None:
        """Go on after ``pause``."""
        self.process_queue.resume()
        self._fetcher.wake()
        self.offer()

    def drain(self) -> None:
        """Pull and hand out nothing more; running handlers may finish."""
        self.state = AssignmentState.DRAINING
        self.process_queue.drop()
        if not self._fetcher.commit_in_flight:
            self._fetcher.cancel()

    def revoke(self) -> None:
        """The queue is another member's: outcomes of handlers that still run no longer count."""
        self.state = AssignmentState.REVOKED
        self.process_queue.active.clear()
        self._consumer.remove(self)

    # Handlers at work

    def begin(self, run: Run[ReceivedMessage[T]]) -> None:
        """A handler has these messages, or their outcomes are being carried out."""
        self.handling.add(run)

    def end(self, run: Run[ReceivedMessage[T]]) -> None:
        """The opposite of ``begin``."""
        self.handling.discard(run)
        self._let_look()

    def _let_look(self) -> None:
        """Let those in ``until`` look again."""
        self._changed.set()
        self._changed.clear()

    async def until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait until ``condition`` holds, or until a time of the loop. False: it doesn't hold."""
        try:
            async with asyncio.timeout_at(deadline):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            return condition()
        return True

    # Outcomes (``Settler``); from any thread

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

    def failures(self, message: ReceivedMessage[T]) -> int:
        """See ``Settler``."""
        return self.process_queue.failures.get(message.offset, 0)

    def hold(self, message: ReceivedMessage[T]) -> None:
        """See ``Settler``."""
        self.in_hand.add(message.offset)

    def let_go(self, message: ReceivedMessage[T]) -> None:
        """See ``Settler``."""
        self.in_hand.discard(message.offset)
        self._on_loop(self._let_look)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        if threading.get_ident() == self._thread:
            function(*arguments)
        else:
            self._loop.call_soon_threadsafe(function, *arguments)

    # The ready queue

    def offer(self) -> None:
        """Enter the ready queue if messages may be handed out, and wake who hands them out."""
        if not self._is_ready and not self._withheld and self.process_queue.ready:
            self._is_ready = True
            self._consumer.ready_queue.append(self)
            self._consumer.on_ready()

    def put_back(self) -> None:
        """The same by who has just taken from it, and wakes others himself if they are needed."""
        if not self._is_ready and not self._withheld and self.process_queue.ready:
            self._is_ready = True
            self._consumer.ready_queue.append(self)

    def leave_ready_queue(self) -> bool:
        """It is no longer in the ready queue; whether messages may be handed out."""
        self._is_ready = False
        return not self._withheld and self.process_queue.ready

    def make_room(self) -> None:
        """Messages were settled: pull again if that was waiting for room."""
        if self._fetcher.stalled and not self.process_queue.full:
            self._fetcher.wake()

    # Ordered queues: one handler at a time, only while the lock is held, rests after failures

    def claim(self) -> bool:
        """Have the queue to oneself until ``release``. False: nothing of it may be handled now."""
        if self._claimed or self._resting or not self.may_start():
            return False
        self._claimed = True
        self._withheld = True
        return True

    def release(self, *, wake: bool) -> None:
        """Let the queue's next message be taken.

        Args:
            wake: wake who hands out messages; a worker looks for its next queue itself.
        """
        self._claimed = False
        self._refresh(wake=wake)

    def rest(self, seconds: float) -> None:
        """Hand out nothing for so long."""
        self._resting = True
        self._refresh()
        self._loop.call_later(seconds, self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._refresh()

    def _refresh(self, *, wake: bool = True) -> None:
        self._withheld = self._claimed or self._resting or not self._locked
        if wake:
            self.offer()
        else:
            self.put_back()

    def may_start(self) -> bool:
        """Whether an ordered handler may start: the queue is still here, and its lock held."""
        if self.process_queue.dropped:
            return False
        if self._locked and not self._consumer.holds_lock(self.queue):
            self._lock_lost()
        return self._locked

    def lock_changed(self, held: bool) -> None:
        """The lock was lost, or taken again."""
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
        """Go on with a queue whose lock was away: another member may have moved the group on."""
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
            self._stored = None
            self.start(self._fetcher.expression)
        self._locked = True
        self._refresh()

    def block(self, why: QueueBlocked, now_ms: int) -> bool:
        """A failing message blocks it. Returns whether that is new."""
        first = self.blocked is None
        if first:
            self.blocked_since_ms = now_ms
        self.blocked = why
        return first

    def unblock(self) -> None:
        """The failing message is done."""
        self.blocked = None

    # Offsets

    async def commit(self) -> None:
        """Store how far it has come. A failure is logged, and the next commit tries again."""
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
        """Store how far a draining queue has come; a broker that is away gets some time.

        Raises:
            PocketMQError: it did not come back.
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
        point = self.process_queue.commit_point
        # Without its lock the queue's progress is another member's to say.
        if point is not None and point != self._stored and self._locked:
            await commit(self.queue, point)
            self._stored = point

    # What its fetcher reports (``FetcherOwner``)

    def offset_to_commit(self) -> int | None:
        """A new commit point for a pull to carry.

        A queue's first one is left out: it has to wait for those of other queues, see
        ``Offsets.commit``.
        """
        if not self._locked or self._stored is None or not self._consumer.options.shared:
            return None
        point = self.process_queue.commit_point
        return point if point and point != self._stored else None

    def fetched(self, _: ProcessQueue[ReceivedMessage[T]]) -> None:
        """Messages came."""
        if self.state is not AssignmentState.REVOKED:
            self.offer()

    async def group_unknown(self, address: str) -> None:
        """The broker doesn't know the group."""
        await self._consumer.member.heartbeat_broker(address)

    def tell(self, event: Event) -> None:
        """Pass an event on to the application."""
        self._consumer.tell(event)


class AssignedQueues(Generic[T]):
    """All queues of one consumer.

    Args:
        member: whose queues they are.
        tasks: owns the fetchers' tasks.
        store: where offsets go.
        tell: passes events on to the application.

    Attributes:
        ready_queue: queues with messages to hand out.
        on_ready: called when the ready queue has a new one.
        on_outcome: called for each outcome; None: whoever has the message looks for it.
        suspended: nothing is pulled and nothing handed out.
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
        self.ready_queue: deque[AssignedQueue[T]] = deque()
        self.on_ready: Callable[[], None]
        self.on_outcome: Callable[[AssignedQueue[T], Run[ReceivedMessage[T]]], None] | None
        self._queues: dict[MessageQueue, AssignedQueue[T]] = {}

    def serve(
        self,
        on_ready: Callable[[], None],
        on_outcome: Callable[[AssignedQueue[T], Run[ReceivedMessage[T]]], None] | None = None,
    ) -> None:
        """Tell who hands out messages; before the first queue comes."""
        self.on_ready = on_ready
        self.on_outcome = on_outcome

    def __iter__(self) -> Iterator[AssignedQueue[T]]:
        return iter(list(self._queues.values()))

    def find(self, queue: MessageQueue) -> AssignedQueue[T] | None:
        """The queue, if it is assigned."""
        return self._queues.get(queue)

    def gain(self, queue: MessageQueue, start: Start) -> AssignedQueue[T]:
        """Begin to read a queue."""
        assigned = self._queues[queue] = AssignedQueue(self, queue, start)
        assigned.start(self.member.expression(queue.topic) or EVERYTHING)
        return assigned

    def remove(self, assigned: AssignedQueue[T]) -> None:
        """A queue was revoked."""
        if self._queues.get(assigned.queue) is assigned:
            del self._queues[assigned.queue]

    def holds_lock(self, queue: MessageQueue) -> bool:
        """Whether a queue's lock is surely held; broadcasting needs none."""
        return not self.options.shared or self.member.holds_lock(queue)

    def subscribe(self, topic: str, expression: TagExpression) -> None:
        """Read other messages of a topic's queues from their next pull on."""
        for assigned in self._queues.values():
            if assigned.queue.topic == topic:
                assigned.subscribe(expression)

    def suspend(self) -> None:
        """Pull nothing and hand out nothing."""
        self.suspended = True
        for assigned in self._queues.values():
            assigned.pause()

    def resume(self) -> None:
        """Go on after ``suspend``."""
        self.suspended = False
        for assigned in self._queues.values():
            assigned.resume()

    def next(self) -> AssignedQueue[T] | None:
        """Take the first queue with messages to hand out from the ready queue."""
        ready = self.ready_queue
        while ready:
            assigned = ready.popleft()
            if assigned.leave_ready_queue():
                return assigned
        return None

    async def commit_by_time(self) -> None:
        """Store how far all queues have come, again and again."""
        while True:
            await asyncio.sleep(self.options.commit_period)
            await asyncio.gather(*(assigned.commit() for assigned in self))
            await self.store.save()
