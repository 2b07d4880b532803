"""The queues a push consumer holds: pulled ahead, handed to whoever handles them, committed.

Each queue has a fetcher that fills its process queue. Queues that have something stand in a row;
who handles messages takes the first of the row, takes some of its messages, and puts it back. What
was settled is told here, so that the fetcher goes on when there is room, and the commit point goes
to the offset store: with the pulls (for nothing), each ``commit_period``, and when a queue is lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from client.consumer.breaker import Breaker
from client.consumer.fetcher import Fetcher
from client.consumer.offset_store import Store, commit_last
from client.consumer.options import PushOptions
from client.consumer.outcome import MessageOutcome
from client.consumer.process_queue import ProcessQueue, Run
from client.consumer.received import ReceivedMessage
from client.context import ClientContext
from client.errors import AlreadySettled, PocketMQError, RemoteError
from client.events import ConsumptionPaused, Event
from client.serde import Serde
from remoting.log import Log
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue
from remoting.tasks import Supervisor

if TYPE_CHECKING:
    from client.events import Start

T = TypeVar("T")

_log = Log("client")


class AssignedQueue(Generic[T]):
    """One queue at its consumer; also where its messages' outcomes go (``Settler``).

    Attributes:
        shut: nothing of it may be handed out now (orderly: it rests, or has no lock).
        is_ready: it stands in the row.
        handling: runs that somebody has, or whose outcomes are being carried out.
        in_hand: offsets of messages in a ``with`` block.
        on_outcome: told of each outcome at once, where no handler's end brings it.
        committing: its offsets may go to the store (not while an orderly queue has no lock).
        told: the offset the store has.
        commits: held during a commit: of two at once a broker may make the older one last.
    """

    def __init__(self, queue: ProcessQueue[ReceivedMessage[T]], group: str) -> None:
        self.queue = queue
        self.shut = False
        self.is_ready = False
        self.handling: set[Run[ReceivedMessage[T]]] = set()
        self.in_hand: set[int] = set()
        self.on_outcome: Callable[[AssignedQueue[T], Run[ReceivedMessage[T]]], None] | None = None
        self.committing = True
        self.told: int | None = None
        self.commits = asyncio.Lock()
        self.fetcher: Fetcher[T, ProcessQueue[ReceivedMessage[T]]]
        self.fetching: asyncio.Task[None]
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._changed: list[asyncio.Future[None]] = []

    # Settler

    def settle(self, message: ReceivedMessage[T], outcome: MessageOutcome) -> None:
        """See ``Settler``."""
        run = self.queue.run_of(message.offset)
        if run is None and self.queue.dropped:
            _log.warning(
                "outcome came too late: the queue is another member's now",
                queue=str(message.queue),
                offset=message.offset,
            )
            return
        if run is None or message.offset in self.queue.outcomes:
            raise AlreadySettled(
                f"the message at offset {message.offset} has an outcome already",
                queue=message.queue,
                group=self._group,
                hint="settle each message once",
            )
        self.queue.outcomes[message.offset] = outcome
        if self.on_outcome is not None:
            self._here(self.on_outcome, self, run)

    def settled(self, message: ReceivedMessage[T]) -> bool:
        """See ``Settler``."""
        offset = message.offset
        return offset in self.queue.outcomes or self.queue.run_of(offset) is None

    def failures(self, message: ReceivedMessage[T]) -> int:
        """See ``Settler``."""
        return self.queue.failures.get(message.offset, 0)

    def hold(self, message: ReceivedMessage[T]) -> None:
        """See ``Settler``."""
        self.in_hand.add(message.offset)

    def let_go(self, message: ReceivedMessage[T]) -> None:
        """See ``Settler``."""
        self.in_hand.discard(message.offset)
        self._here(self.changed)

    def _here(self, function: Callable[..., None], *arguments: Any) -> None:
        if threading.get_ident() == self._thread:
            function(*arguments)
        else:
            self._loop.call_soon_threadsafe(function, *arguments)

    # Waiting for it to be quiet

    def changed(self) -> None:
        """Let those in ``until`` look again."""
        for future in self._changed:
            if not future.done():
                future.set_result(None)
        self._changed.clear()

    async def until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait until ``condition`` holds or the loop's time is ``deadline``. False: it doesn't."""
        try:
            async with asyncio.timeout_at(deadline):
                while not condition():
                    future: asyncio.Future[None] = self._loop.create_future()
                    self._changed.append(future)
                    await future
        except TimeoutError:
            return condition()
        return True


class AssignedQueues(Generic[T]):
    """All queues of one consumer.

    Args:
        tasks: owns the fetchers' tasks.
        store: where offsets go.
        tell: the application's ear for events.

    Attributes:
        breaker: pauses all of them when the handler fails for one message after the other.
        on_ready: called when something can be taken.
        on_forgotten: called with the address of a broker that doesn't know of the group.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        options: PushOptions,
        serde: Serde[T],
        tasks: Supervisor,
        store: Store,
        tell: Callable[[Event], None],
    ) -> None:
        self._context = context
        self._group = group
        self._options = options
        self._serde = serde
        self._tasks = tasks
        self._store = store
        self.tell = tell
        self.on_ready: Callable[[], None]
        self.on_forgotten: Callable[[str], Awaitable[None]]
        self.suspended = False
        self.breaker = Breaker(group, options.breaker, self._tripped)
        self._held: dict[MessageQueue, AssignedQueue[T]] = {}
        self._row: deque[AssignedQueue[T]] = deque()

    def __iter__(self) -> Iterator[AssignedQueue[T]]:
        return iter(list(self._held.values()))

    def find(self, queue: MessageQueue) -> AssignedQueue[T] | None:
        """The held queue, if it is held."""
        return self._held.get(queue)

    # Queues come and go

    def gain(
        self, queue: MessageQueue, start: Start, expression: TagExpression
    ) -> AssignedQueue[T]:
        """Begin to read a queue; messages come after this returned."""
        options = self._options
        process_queue: ProcessQueue[ReceivedMessage[T]] = ProcessQueue(
            queue,
            max_messages=options.prefetch_messages,
            max_bytes=options.prefetch_bytes,
            max_span=options.max_span if options.order is None else None,
        )
        process_queue.start(start.offset)
        process_queue.paused = self.suspended
        held: AssignedQueue[T] = AssignedQueue(process_queue, self._group)
        held.told = start.offset if start.reason in {"stored", "reset"} else None
        self._held[queue] = held
        self._fetch(held, expression)
        return held

    def _fetch(self, held: AssignedQueue[T], expression: TagExpression) -> None:
        held.fetcher = Fetcher(
            self._context,
            self._group,
            held.queue,
            expression,
            self._options,
            self._serde,
            self,
            _started,
            settler=held,
            progress=(lambda: self._progress(held)) if self._options.shared else None,
        )
        held.fetching = self._tasks.spawn(held.fetcher.run(), f"reading {held.queue.queue}")

    def subscribe(self, topic: str, expression: TagExpression) -> None:
        """Read other messages of a topic's queues from their next pull on."""
        for held in self._held.values():
            if held.queue.queue.topic == topic and not held.queue.dropped:
                # A pull that is on its way leaves out what only the new expression wants.
                held.fetching.cancel()
                self._fetch(held, expression)

    def restart(self, held: AssignedQueue[T], offset: int) -> None:
        """Go on with a queue at another place; what was read ahead is forgotten."""
        held.fetching.cancel()
        held.queue.start(offset)
        held.told = None
        self._fetch(held, held.fetcher.expression)

    def stop(self, held: AssignedQueue[T]) -> None:
        """Pull no more of a queue and hand out no more; what is being handled may end."""
        held.queue.drop()
        if not held.fetcher.carrying:
            held.fetching.cancel()

    def forget(self, held: AssignedQueue[T]) -> None:
        """The queue is another's: whatever is still being handled no longer counts."""
        held.queue.active.clear()
        if self._held.get(held.queue.queue) is held:
            del self._held[held.queue.queue]

    def suspend(self) -> None:
        """Pull nothing and hand out nothing."""
        self.suspended = True
        for held in self._held.values():
            held.queue.paused = True

    def _tripped(self, why: ConsumptionPaused) -> None:
        self.suspend()
        self.tell(why)

    def resume(self) -> None:
        """Go on."""
        self.breaker.reset()
        self.suspended = False
        for held in self._held.values():
            held.queue.paused = False
            held.fetcher.wake()
            self.offer(held)

    # Messages

    def next(self) -> AssignedQueue[T] | None:
        """The queue whose turn it is; ``offer`` puts it back into the row."""
        row = self._row
        while row:
            held = row.popleft()
            held.is_ready = False
            if not held.shut and held.queue.ready:
                return held
        return None

    @property
    def ready(self) -> bool:
        """Whether the row has anything, as far as is known."""
        return bool(self._row)

    def offer(self, held: AssignedQueue[T]) -> None:
        """Put a queue into the row if something of it may be handed out."""
        if not held.is_ready and not held.shut and held.queue.ready:
            held.is_ready = True
            self._row.append(held)
            self.on_ready()

    def put_back(self, held: AssignedQueue[T]) -> None:
        """The same from who has just taken from it and sees to the rest himself."""
        if not held.is_ready and not held.shut and held.queue.ready:
            held.is_ready = True
            self._row.append(held)

    @staticmethod
    def settled(held: AssignedQueue[T]) -> None:
        """Messages of a queue were settled: there may be room again."""
        if held.fetcher.stalled and not held.queue.full:
            held.fetcher.wake()

    # Offsets

    def _progress(self, held: AssignedQueue[T]) -> int | None:
        """What to commit with a pull: a new commit point, but not a queue's first one, which has
        to wait for those of other queues (see ``Offsets.commit``)."""
        if not held.committing or held.told is None:
            return None
        point = held.queue.commit_point
        return point if point and point != held.told else None

    async def commit(self, queues: Iterable[AssignedQueue[T]]) -> None:
        """Store how far these have come. What fails is logged, and tried again next time."""
        await asyncio.gather(*(self._commit(held) for held in queues))
        await self._store.save()

    async def commit_all(self) -> None:
        """The same for every queue."""
        await self.commit(list(self._held.values()))

    async def _commit(self, held: AssignedQueue[T]) -> None:
        try:
            async with held.commits:
                await self._commit_with(held, self._store.commit)
        except PocketMQError as error:
            _log.warning(
                "offset not committed",
                group=self._group,
                queue=str(held.queue.queue),
                error=str(error),
            )

    async def commit_last(self, held: AssignedQueue[T]) -> None:
        """Store how far a queue has come that was stopped; a broker that is away gets some time.

        Raises:
            PocketMQError: it did not come back.
        """
        await held.fetcher.landed()
        held.fetching.cancel()
        async with held.commits:
            if held.fetcher.carried:
                held.told = None
            await self._commit_with(held, partial(commit_last, self._store))
        await self._store.save()

    async def _commit_with(
        self, held: AssignedQueue[T], commit: Callable[[MessageQueue, int], Awaitable[None]]
    ) -> None:
        point = held.queue.commit_point
        if point is not None and point != held.told and held.committing:
            await commit(held.queue.queue, point)
            held.told = point

    # What fetchers tell

    def fetched(self, sink: ProcessQueue[ReceivedMessage[T]]) -> None:
        """Messages of a queue came."""
        held = self._held.get(sink.queue)
        if held is not None and held.queue is sink:
            self.offer(held)

    def refused(self, queue: MessageQueue, error: RemoteError) -> None:
        """A broker refuses to be read from: told of as a waiting queue, and tried again."""

    async def forgotten(self, address: str) -> None:
        """A broker doesn't know of the group."""
        await self.on_forgotten(address)


async def _started(queue: MessageQueue) -> NoReturn:
    raise AssertionError(queue)
