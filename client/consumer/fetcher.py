"""Reading one queue ahead: one pull after the other, for as long as there is room.

The broker holds a pull that finds nothing. Failures are retried with growing pauses of at most half
a second, so that reading goes on soon after the broker is back; the owner is told when a queue
begins and ends waiting. Refusals (no permission, no such group) are retried too, and passed to the
owner, which raises them to the application.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from typing import Any, Final, Generic, TypeVar

from client.config import GroupOptions
from client.consumer.outcome import Settler
from client.consumer.process_queue import PullBuffer
from client.consumer.received import messages_of
from client.context import ClientContext
from client.errors import PocketMQError, RemoteError, SystemBusy, Unavailable, remote_error
from client.events import Event, OffsetMoved, QueueResumed, QueueWaiting
from client.limits import CARRIED_COMMIT, PULL_TIMEOUT, REPORT_PERIOD, REQUEST_TIMEOUT
from client.remote import read_header, unavailable
from client.routes import address_of
from client.serde import Serde
from client.wire.backoff import Backoff
from client.wire.offsets import pull_header
from remoting.connection import Connection
from remoting.errors import AnswerTimeout, RemotingError
from remoting.log import Log
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import RecordError
from remoting.protocol.headers.pull import PullMessageResponseHeader
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue
from remoting.tasks import Supervisor

T = TypeVar("T")
S = TypeVar("S", bound=PullBuffer)

_log = Log("client")

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""What one pull may bring, at brokers that let themselves be told (ours; 5.x)."""

MIN_HOLD: Final = 0.02
"""A pull answered sooner, with nothing, wasn't held: the next one waits a little."""


UNKNOWN_TO_BROKER: Final = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST}
)
"""The broker doesn't know the group or its subscription, which heartbeats carry."""


class FetcherOwner(ABC):
    """What a fetcher asks its owner, and reports to it.

    Attributes:
        settler: where outcomes of the messages go; None: they have none.
    """

    settler: Settler | None = None

    async def find_start(self, queue: MessageQueue) -> int:
        """Where to begin when no offset was set. Raises PocketMQError."""
        raise NotImplementedError

    def offset_to_commit(self) -> int | None:
        """The offset to commit with the next pull; None: nothing new."""
        return None

    @abstractmethod
    def fetched(self, sink: Any) -> None:
        """Messages came."""

    def refused(  # noqa: B027 - the fetcher itself reports it, and tries again
        self, queue: MessageQueue, error: RemoteError
    ) -> None:
        """The broker refuses to be read from."""

    @abstractmethod
    async def group_unknown(self, address: str) -> None:
        """A broker doesn't know the group or its subscription: it needs a heartbeat."""

    @abstractmethod
    def tell(self, event: Event) -> None:
        """Pass an event on to the application."""


class Fetcher(Generic[T, S]):
    """Reads one queue into its sink.

    Attributes:
        stalled: there was no room; it waits for ``wake``.
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
        self._tags = None if expression.is_all else expression.tags
        self._failures: Backoff | None = None
        self._waiting = False
        self._complained_at = float("-inf")
        self._loop = asyncio.get_running_loop()
        self._commit_sent_at = float("-inf")
        self._answered = asyncio.Event()
        self._answered.set()
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: Supervisor) -> None:
        """Read in a task, until ``cancel``."""
        self._task = tasks.spawn(self.run(), f"reading {self._queue}")

    def cancel(self) -> None:
        """Read no more; ``start`` begins again."""
        if self._task is not None:
            self._task.cancel()

    @property
    def has_committed(self) -> bool:
        """Whether any pull has carried a commit."""
        return self._commit_sent_at > float("-inf")

    @property
    def commit_in_flight(self) -> bool:
        """Whether a pull is on its way whose commit the broker may not have made yet."""
        return (
            not self._answered.is_set()
            and self._loop.time() < self._commit_sent_at + CARRIED_COMMIT
        )

    async def wait_for_commit(self) -> None:
        """Wait until the broker has made a pull's commit, which a later one must not overtake."""
        if self.commit_in_flight:
            try:
                async with asyncio.timeout_at(self._commit_sent_at + CARRIED_COMMIT):
                    await self._answered.wait()
            except TimeoutError:
                pass

    def wake(self) -> None:
        """There may be room again, or the queue is no longer paused."""
        self._room.set()

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                await self._step()
            except PocketMQError as error:
                await self._report_failure(error)
            else:
                self._recovered()

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
        began = self._loop.time()
        answer, address = await self._request(offset)
        code = answer.code
        if code == ResponseCode.SUCCESS:
            if self._take(answer, offset, address):
                # At the queue's end who waits is served first; elsewhere the broker has work again
                # while the application has.
                await asyncio.sleep(0)
            return
        if code == ResponseCode.PULL_OFFSET_MOVED:
            await self._moved(answer, offset, address)
            return
        if code not in {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY}:
            if code in UNKNOWN_TO_BROKER:
                await self._owner.group_unknown(address)
            raise remote_error(
                code,
                answer.remark,
                "PULL_MESSAGE",
                queue=self._queue,
                group=self._group,
                broker=address,
            )
        after = self._header(answer, address).next_begin_offset
        if after != offset:
            self.sink.put((), 0, after)
        elif self._loop.time() - began < MIN_HOLD:
            await self._pause()
            return
        self._failures = None

    async def _pause(self) -> None:
        """Wait after a failure, longer after each further one."""
        if self._failures is None:
            self._failures = Backoff(random.Random())  # noqa: S311 - spreads load
        await asyncio.sleep(self._failures.next())

    async def _request(self, offset: int) -> tuple[Command, str]:
        # After a failure the broker doesn't hold the pull, so that recovery is noticed at once.
        suspend = 0.0 if self._waiting else self._options.suspend
        commit = None if self._broker_id else self._owner.offset_to_commit()
        header = pull_header(
            self._queue,
            self._group,
            offset,
            messages=self._options.pull_messages,
            suspend_ms=int(suspend * 1000),
            expression=self.expression.text,
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

    def _take(self, answer: Command, offset: int, address: str) -> bool:
        """Take an answer's messages. Returns whether it reached the end of the queue."""
        header = self._header(answer, address)
        after = header.next_begin_offset
        try:
            # By tag the broker compares hashes only; here the tag itself is compared.
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
            self._owner.fetched(self.sink)
        return after >= header.max_offset

    async def _moved(self, answer: Command, wanted: int, address: str) -> None:
        new = self._header(answer, address).next_begin_offset
        if new == wanted:
            await self._pause()
            return
        _log.warning("offset moved", queue=str(self._queue), wanted=wanted, new=new)
        self.sink.put((), 0, new)
        self._owner.tell(OffsetMoved(self._queue, wanted, new))

    async def _report_failure(self, error: PocketMQError) -> None:
        """Pause after an error, and report it when it is new or lasts."""
        now = self._loop.time()
        if not isinstance(error, SystemBusy):
            if not self._waiting or now - self._complained_at >= REPORT_PERIOD:
                self._complained_at = now
                _log.warning("queue can't be read", queue=str(self._queue), error=str(error))
            if not self._waiting:
                self._waiting = True
                self._owner.tell(QueueWaiting(self._queue, error))
            if isinstance(error, RemoteError):
                self._owner.refused(self._queue, error)
            elif not isinstance(error, Unavailable):
                raise error
        await self._pause()

    def _recovered(self) -> None:
        if self._waiting:
            self._waiting = False
            self._failures = None
            _log.info("queue is read again", queue=str(self._queue))
            self._owner.tell(QueueResumed(self._queue))
