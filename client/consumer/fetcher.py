"""Prefetching of one queue: one pull request after the other, as long as the buffer has room.

The broker holds a pull that finds no message (long polling). Failures are retried with growing
pauses of at most half a second, so that reading resumes soon after the broker is back; events
report when a queue starts and stops waiting. Refusals (no permission, no such group) are retried
too, and passed to the owner, which may raise them to the application.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Final, Generic, TypeVar

from client.config import GroupOptions
from client.consumer.outcome import Settler
from client.consumer.process_queue import PullBuffer
from client.consumer.received import messages_of
from client.errors import NoRoute, PocketMQError, RemoteError, SystemBusy, Unavailable, remote_error
from client.events import Event, OffsetMoved, QueueResumed, QueueWaiting
from client.group.view import check_filter
from client.limits import CARRIED_COMMIT, PULL_TIMEOUT, REPORT_PERIOD, REQUEST_TIMEOUT
from client.network.context import ClientContext
from client.network.remote import read_header, unavailable
from client.network.routes import address_of
from client.serde import Serde
from client.wire.backoff import Backoff, retry_after
from client.wire.offsets import pull_header
from remoting.connection import Connection
from remoting.errors import AnswerTimeout, RemotingError
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import RecordError
from remoting.protocol.headers.pull import PullMessageResponseHeader
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from remoting.runtime.tasks import Supervisor, wait_at_most

T = TypeVar("T")
S = TypeVar("S", bound=PullBuffer)

_log = Log("client")

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Size limit of a pull response in bytes; PocketMQ's and 5.x brokers respect it."""

MIN_HOLD: Final = 0.02
"""Seconds. An empty response that came sooner was not held by the broker: pause before the next."""


OFFSET_RESET: Final = "OFFSET_RESET"
"""Remark of PULL_OFFSET_MOVED when somebody has reset the group at a broker of RocketMQ 5."""

UNKNOWN_TO_BROKER: Final = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST}
)
"""Codes of a broker that lacks the group or its subscription; a heartbeat sends both."""


class FetcherOwner(ABC):
    """The callbacks of a ``Fetcher``.

    Attributes:
        settler: records the outcomes of the messages; None: they have no outcomes.
    """

    settler: Settler | None = None

    async def find_start(self, queue: MessageQueue) -> int:
        """Return the offset to start at if none was set. Raises PocketMQError."""
        raise NotImplementedError

    def offset_to_commit(self) -> int | None:
        """Return the offset to commit with the next pull; None: nothing new."""
        return None

    @abstractmethod
    def fetched(self, sink: Any, seconds: float) -> None:
        """Handle that messages were added to ``sink``, by a pull that took ``seconds``."""

    def refused(  # noqa: B027 - optional: the fetcher itself logs it and retries
        self, queue: MessageQueue, error: RemoteError
    ) -> None:
        """Handle that the broker refuses pulls."""

    def reconnected(self, queue: MessageQueue) -> None:  # noqa: B027 - optional
        """Handle that the broker may have lost the last commits, as after a kill: commit again."""

    def restart(self, queue: MessageQueue, offset: int) -> None:  # noqa: B027 - optional
        """Handle that the group was reset: drop the messages in memory, and begin at ``offset``."""

    @abstractmethod
    async def group_unknown(self, address: str) -> None:
        """Send a heartbeat to a broker that doesn't know the group or its subscription."""

    @abstractmethod
    def tell(self, event: Event) -> None:
        """Pass an event to the application."""


class Fetcher(Generic[T, S]):
    """Reads one queue into a ``PullBuffer``, the sink.

    Attributes:
        stalled: it waits for ``wake``, because the sink is full or paused.
        pulled_at: event loop time of the latest pull; before the first one, of the start.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        sink: S,
        expression: TagExpression,
        options: GroupOptions,
        serde: Serde[T],
        owner: FetcherOwner,
    ) -> None:
        self.expression = expression
        self.stalled = False
        self.sink = sink
        self._context = context
        self._group = group
        self._options = options
        self._serde = serde
        self._owner = owner
        self._queue = sink.queue
        self._broker_id = 0
        self._address = ""
        self._connection: Connection | None = None
        self._room = asyncio.Event()
        self._tags = expression.tags or None
        self._failures: Backoff | None = None
        self._waiting = False
        self._reported_at = float("-inf")
        self._loop = asyncio.get_running_loop()
        self.pulled_at = self._loop.time()
        self._commit_sent_at = float("-inf")
        self._answered = asyncio.Event()
        self._answered.set()
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: Supervisor) -> None:
        """Start the task that reads, until ``cancel``."""
        self._task = tasks.spawn(self.run(), f"reading {self._queue}")

    def cancel(self) -> None:
        """Stop reading; ``start`` may be called again."""
        if self._task is not None:
            self._task.cancel()

    @property
    def has_committed(self) -> bool:
        """Whether any pull has carried a commit."""
        return self._commit_sent_at > float("-inf")

    @property
    def commit_in_flight(self) -> bool:
        """Whether a pull is in flight whose commit the broker may not have executed yet."""
        return (
            not self._answered.is_set()
            and self._loop.time() < self._commit_sent_at + CARRIED_COMMIT
        )

    async def wait_for_commit(self) -> None:
        """Wait until the broker has executed the commit of the pull in flight.

        The caller's commit must not overtake it. The broker commits before it holds the pull, so
        the wait is limited to ``CARRIED_COMMIT`` seconds after sending.
        """
        if self.commit_in_flight:
            left = self._commit_sent_at + CARRIED_COMMIT - self._loop.time()
            await wait_at_most(left, self._answered)

    def wake(self) -> None:
        """Check again for room, after messages were settled or the queue was resumed."""
        self._room.set()

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                await self._step()
            except PocketMQError as error:
                await self._report_failure(error)
            else:
                if self._waiting:
                    self._waiting = False
                    self._failures = None
                    _log.info("queue is read again", queue=str(self._queue))
                    self._owner.tell(QueueResumed(self._queue))

    async def _step(self) -> None:
        sink = self.sink
        if sink.next_pull is None:
            sink.start(await self._owner.find_start(self._queue))
        while sink.full or sink.paused:
            self.stalled = True
            self._room.clear()
            await self._room.wait()
        self.stalled = False
        assert sink.next_pull is not None
        await self._pull(sink.next_pull)

    async def _pull(self, offset: int) -> None:
        began = self.pulled_at = self._loop.time()
        answer, address = await self._request(offset)
        code = answer.code
        if code == ResponseCode.SUCCESS:
            if self._take(answer, offset, address, began):
                # At the queue's end, let the consumers of these messages run before the next pull.
                # Elsewhere pull first, so that the broker works while the messages are handled.
                await asyncio.sleep(0)
            return
        if code == ResponseCode.PULL_OFFSET_MOVED:
            await self._moved(answer, offset, address)
            return
        if code not in {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY}:
            if code in UNKNOWN_TO_BROKER:
                await self._owner.group_unknown(address)
            route = await self._context.routes.to_read(self._queue.topic)
            is_master = address == route.master(self._queue.broker_name)
            if code == ResponseCode.TOPIC_NOT_EXIST and not is_master:
                self._context.routes.invalidate(self._queue.topic)
                raise NoRoute(
                    "the broker's slave doesn't have the topic yet",
                    queue=self._queue,
                    group=self._group,
                    broker=address,
                    hint="it gets it from the master",
                )
            raise remote_error(
                code,
                answer.remark,
                "PULL_MESSAGE",
                queue=self._queue,
                group=self._group,
                broker=address,
                account=self._context.remote.account,
                retry_after=retry_after(answer),
            )
        after = self._header(answer, address).next_begin_offset
        if after != offset:
            self.sink.put((), 0, after)
        elif self._loop.time() - began < MIN_HOLD:
            await self._pause()
            return
        self._failures = None

    async def _pause(self) -> None:
        """Wait; the pause grows with each consecutive failure."""
        if self._failures is None:
            self._failures = Backoff()
        await asyncio.sleep(self._failures.next())

    async def _request(self, offset: int) -> tuple[Command, str]:
        # After a failure, don't let the broker hold the pull, so that recovery is noticed at once.
        suspend = 0.0 if self._waiting else self._options.suspend
        commit = None if self._broker_id else self._owner.offset_to_commit()
        header = pull_header(
            self._queue,
            self._group,
            offset,
            messages=self._options.pull_messages,
            suspend_ms=int(suspend * 1000),
            expression=self.expression.text,
            expression_type=self.expression.kind,
            max_bytes=min(MAX_ANSWER_BYTES, self._options.prefetch_bytes),
            commit=commit,
        )
        route = await self._context.routes.to_read(self._queue.topic)
        address = address_of(route, self._queue, self._broker_id)
        request = self._context.remote.request(RequestCode.PULL_MESSAGE, header)
        timeout = max(PULL_TIMEOUT, suspend + REQUEST_TIMEOUT)
        try:
            connection = self._connection
            if connection is None or connection.closed or address != self._address:
                heartbeats = self._context.heartbeats
                connection = heartbeats.connected(address)
                if connection is None:
                    connection = await heartbeats.connect(address, REQUEST_TIMEOUT)
                # Apache's brokers deliver all messages if a pull brings a wrong expression.
                await check_filter(
                    self._context, self._group, self._queue.topic, self.expression, address
                )
                if self._connection is not None:
                    self._owner.reconnected(self._queue)
                self._connection, self._address = connection, address
            if commit is not None:
                self._commit_sent_at = self._loop.time()
                self._answered.clear()
            return await connection.request(request, timeout=timeout), address
        except RemotingError as error:
            self._broker_id = 0
            self._context.routes.invalidate(self._queue.topic)
            if isinstance(error, AnswerTimeout):
                self._context.heartbeats.probe(address)
            raise unavailable(error, address, queue=self._queue, group=self._group) from error
        finally:
            self._answered.set()

    def _header(self, answer: Command, address: str) -> PullMessageResponseHeader:
        header = read_header(answer, PullMessageResponseHeader, self._queue, address)
        self._broker_id = header.suggest_which_broker_id
        return header

    def _take(self, answer: Command, offset: int, address: str, began: float) -> bool:
        """Add a response's messages to the sink. Returns whether it reached the queue's end."""
        header = self._header(answer, address)
        after = header.next_begin_offset
        try:
            # The broker filters by the tags' hash codes only; compare the tags themselves here.
            messages = messages_of(
                answer.body,
                self._queue,
                self._serde,
                self._owner.settler,
                body_at=answer.body_at,
                tags=self._tags,
            )
        except RecordError as error:
            text = f"a record at or after offset {offset} is damaged: {error}"
            raise remote_error(
                ResponseCode.SYSTEM_ERROR,
                text,
                "the pull's answer",
                queue=self._queue,
                group=self._group,
                broker=address,
            ) from error
        if messages and messages[0].offset < offset:
            messages = [message for message in messages if message.offset >= offset]
        if after <= offset:
            after = messages[-1].offset + 1 if messages else offset + 1
        self._failures = None
        self.sink.put(messages, len(answer.body), after)
        if messages:
            self._owner.fetched(self.sink, self._loop.time() - began)
        return after >= header.max_offset

    async def _moved(self, answer: Command, wanted: int, address: str) -> None:
        new = self._header(answer, address).next_begin_offset
        if new != wanted:
            _log.warning("offset moved", queue=str(self._queue), wanted=wanted, new=new)
            self.sink.put((), 0, new)
            self._owner.tell(OffsetMoved(self._queue, wanted, new))
        if answer.remark == OFFSET_RESET:
            self._owner.restart(self._queue, new)
        # The broker may answer the same for ever.
        await self._pause()

    async def _report_failure(self, error: PocketMQError) -> None:
        """Pause after an error; report it when it is new, then once per ``REPORT_PERIOD``."""
        now = self._loop.time()
        if not isinstance(error, SystemBusy):
            if not self._waiting or now - self._reported_at >= REPORT_PERIOD:
                self._reported_at = now
                _log.warning("queue can't be read", queue=str(self._queue), error=str(error))
            if not self._waiting:
                self._waiting = True
                self._owner.tell(QueueWaiting(self._queue, error))
            if isinstance(error, RemoteError):
                self._owner.refused(self._queue, error)
            elif not isinstance(error, Unavailable):
                raise error
        elif error.retry_after:
            # The broker's quota determines the pause.
            await asyncio.sleep(error.retry_after)
            return
        await self._pause()
