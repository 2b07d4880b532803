"""Events that a consumer logs and passes to its ``on_event`` callback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from remoting.protocol.queue import MessageQueue
from remoting.runtime import DOCS
from remoting.runtime.log import Log

if TYPE_CHECKING:
    from client.errors import ConsumerStopped, GroupConflict


_log = Log("client")


@dataclass(frozen=True, slots=True)
class OffsetMoved:
    """The requested offset is not in the queue (deleted, or past its end).

    Reading continues at ``new``.

    Attributes:
        queue: the queue.
        wanted: the requested offset.
        new: the offset the broker returned instead.
    """

    queue: MessageQueue
    wanted: int
    new: int


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """A topic was deleted at a PocketMQ broker: the group's offsets and waiting retries are void.

    If the topic is created again, its queues are read from their beginning.

    Attributes:
        group: the group.
        topic: the topic.
    """

    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class QueueWaiting:
    """A queue can't be read at the moment; the consumer keeps trying.

    Attributes:
        queue: the queue.
        error: the latest error.
    """

    queue: MessageQueue
    error: Exception


@dataclass(frozen=True, slots=True)
class QueueResumed:
    """A queue reported as waiting can be read again."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class QueueGained:
    """This member reads a queue from now on.

    Attributes:
        queue: the queue.
        start: the first offset and the reason for it.
    """

    queue: MessageQueue
    start: Start


@dataclass(frozen=True, slots=True)
class QueueLost:
    """This member no longer reads a queue: it has stopped, committed and released it."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """The group's members have changed since the last rebalance.

    Attributes:
        group: the group.
        members: the client ids of all members, sorted.
    """

    group: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MembersDiffer:
    """Two members of the group differ in something on which all members must agree.

    Attributes:
        group: the group of both.
        conflict: the two members, and the difference.
    """

    docs: ClassVar[str] = DOCS + "consumer-groups.md#one-group-one-subscription"

    group: str
    conflict: GroupConflict


@dataclass(frozen=True, slots=True)
class GroupTrouble:
    """A broker has found a problem of the group; reported once until it is resolved.

    Attributes:
        group: the group.
        kind: the kind of problem, e.g. ``unpulledQueue``
            (``remoting.protocol.bodies.description.FindingKind``).
        text: one sentence: the problem, the members, and what to do.
        members: the client ids concerned.
        topic, queue_id: the queue concerned; None for the whole group or topic.
        docs: URL of the explanation.
    """

    group: str
    kind: str
    text: str
    members: tuple[str, ...]
    topic: str | None
    queue_id: int | None
    docs: str


@dataclass(frozen=True, slots=True)
class NoQueues:
    """This member is idle: no queue of its topics is assigned to it.

    Attributes:
        group: the member's group.
        members, queues: their numbers; with more members than queues some are idle.
    """

    docs: ClassVar[str] = DOCS + "consumer-groups.md#one-owner-per-queue"

    group: str
    members: int
    queues: int


@dataclass(frozen=True, slots=True)
class QueuesUnknown:
    """The strategy assigned queues that don't exist to this member; they are not read.

    Attributes:
        group: the member's group.
        queues: the queues.
    """

    group: str
    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class QueuesUnread:
    """Members that don't subscribe to a topic get a share of its queues, and nobody reads these.

    That is RocketMQ's rule. PocketMQ's consumers leave such members out only if all members of the
    group are PocketMQ's. Subscribe all members to the topic, or give it a group of its own.

    Attributes:
        group: the group.
        topic: the topic, to which this member may not subscribe either.
        members: the client ids of the members that don't subscribe to it.
        foreign: the client ids of the members that are not PocketMQ's.
        queues: the queues that nobody reads; empty if this member doesn't subscribe to the topic,
            or if its strategy is ``STICKY``.
    """

    docs: ClassVar[str] = DOCS + "consumer-groups.md#one-group-one-subscription"

    group: str
    topic: str
    members: tuple[str, ...]
    foreign: tuple[str, ...]
    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class RebalanceFailed:
    """The owners of a topic's queues can't be determined now, or this member's share is too large.

    The member keeps the queues of the topic that it has.

    Attributes:
        group: the member's group.
        topic: the topic.
        error: the cause. The rebalance is retried soon.
    """

    group: str
    topic: str
    error: Exception


@dataclass(frozen=True, slots=True)
class LockLost:
    """The broker no longer holds a queue's lock for this member, which requests it again.

    An orderly consumer starts no handler for the queue until it holds the lock again.
    """

    docs: ClassVar[str] = DOCS + "consumer-groups.md#one-owner-per-queue"

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class SubscriptionUnstable:
    """A broker has lost this member's subscription again, right after receiving it.

    Another member of the group subscribes differently: each overwrites the other's subscription.

    Attributes:
        group: the member's group.
        broker: the broker's address.
    """

    docs: ClassVar[str] = DOCS + "consumer-groups.md#one-group-one-subscription"

    group: str
    broker: str


@dataclass(frozen=True, slots=True)
class MessageDeadLettered:
    """A message was moved to the group's dead-letter queue.

    Attributes:
        queue, offset, message_id: the message; for a retried message its position in the retry
            topic.
        group: the group.
        reason: the last error or reason of its handler.
    """

    docs: ClassVar[str] = DOCS + "consumer-groups.md#dead-letters"

    queue: MessageQueue
    offset: int
    message_id: str
    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class QueueBlocked:
    """An orderly queue is blocked: its first message fails again and again.

    Attributes:
        queue, offset, message_id: the message.
        failures: how often it has failed so far.
        error: the last error of the handler.
    """

    docs: ClassVar[str] = DOCS + "consumer-groups.md#one-failing-message-stops-its-queue"

    queue: MessageQueue
    offset: int
    message_id: str
    failures: int
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class ConsumptionPaused:
    """Many messages in a row failed with the same error: no handler is called until ``resume``.

    Attributes:
        group: the consumer's group.
        failures: the number of failed messages.
        error: the last error.
        reason: the above in one sentence.
    """

    docs: ClassVar[str] = DOCS + "consuming.md#the-circuit-breaker"

    group: str
    failures: int
    error: BaseException
    reason: str


@dataclass(frozen=True, slots=True)
class HandlerTimedOut:
    """A handler exceeded ``consume_timeout``: its messages are retried whatever its outcome.

    An ``async def`` handler is cancelled; a ``def`` handler can't be, and occupies its worker until
    it returns.

    Attributes:
        queue, offset: the first of its messages.
        messages: their number.
        seconds: how long it has run.
    """

    queue: MessageQueue
    offset: int
    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ConsumerFailed:
    """A background task of the consumer failed: it leaves its group and raises ``ConsumerStopped``.

    Attributes:
        group: the member's group.
        error: raised by ``run()``, iteration and the end of ``async with``.
    """

    group: str
    error: ConsumerStopped


@dataclass(frozen=True, slots=True)
class LoopBlocked:
    """An ``async def`` handler blocked the event loop: heartbeats and pulls were delayed.

    Attributes:
        group: the consumer's group.
        seconds: how long.
    """

    group: str
    seconds: float


Event: TypeAlias = (
    OffsetMoved
    | TopicDeleted
    | QueueWaiting
    | QueueResumed
    | QueueGained
    | QueueLost
    | GroupChanged
    | MembersDiffer
    | GroupTrouble
    | NoQueues
    | QueuesUnknown
    | QueuesUnread
    | RebalanceFailed
    | LockLost
    | SubscriptionUnstable
    | MessageDeadLettered
    | QueueBlocked
    | ConsumptionPaused
    | HandlerTimedOut
    | LoopBlocked
    | ConsumerFailed
)
EventHandler: TypeAlias = Callable[[Event], None]


Reason = Literal["stored", "first", "end", "timestamp", "offset", "retry", "fallback", "reset"]


@dataclass(frozen=True, slots=True)
class Start:
    """The offset where a queue starts, and the reason for it.

    Attributes:
        offset: of the first message to read.
        reason: ``stored``: the group's committed offset. ``fallback``: the broker's rule for queues
            whose first messages are still in memory, which overrides ``start_from``. ``first``,
            ``end``, ``timestamp``, ``offset``: from ``start_from``; the group has committed
            nothing. ``retry``: the group's retry topic. ``reset``: set by an administrator.
        text: the same as text, e.g. ``fallback 0: 17 messages``.
    """

    offset: int
    reason: Reason
    text: str

    def __str__(self) -> str:
        return self.text


def deliver(event: Event, on_event: EventHandler | None, group: str) -> None:
    """Call ``on_event``; its exceptions are logged, so that they don't stop the consumer."""
    if on_event is not None:
        try:
            on_event(event)
        except Exception:  # noqa: BLE001 - any error of the callback
            _log.exception("on_event failed", group=group)
