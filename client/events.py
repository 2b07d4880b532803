"""Events that a consumer logs and passes to its ``on_event`` callback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from remoting.docs import DOCS
from remoting.log import Log
from remoting.protocol.queue import MessageQueue

if TYPE_CHECKING:
    from client.errors import ConsumerStopped, GroupConflict


_log = Log("client")


@dataclass(frozen=True, slots=True)
class OffsetMoved:
    """The wanted offset is not in the queue (deleted, or past its end): reading goes on at ``new``.

    Attributes:
        queue: where.
        wanted: the offset that was asked for.
        new: the offset the broker gave instead.
    """

    queue: MessageQueue
    wanted: int
    new: int


@dataclass(frozen=True, slots=True)
class QueueWaiting:
    """A queue can't be read at the moment; it is tried again until it can.

    Attributes:
        queue: which.
        error: why.
    """

    queue: MessageQueue
    error: Exception


@dataclass(frozen=True, slots=True)
class QueueResumed:
    """A queue that was waiting is read again."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class QueueGained:
    """This member reads a queue from now on.

    Attributes:
        queue: which.
        start: where it begins and why.
    """

    queue: MessageQueue
    start: Start


@dataclass(frozen=True, slots=True)
class QueueLost:
    """This member no longer reads a queue: it has stopped, committed and given it back."""

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """The group has other members than at the last rebalance.

    Attributes:
        group: which.
        members: the client ids of all, sorted.
    """

    group: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MembersDiffer:
    """Two members of the group differ in something that all have to agree on.

    Attributes:
        group: theirs.
        conflict: who the two are, and how they differ.
    """

    docs: ClassVar[str] = DOCS + "consumer-groups.md#one-group-one-subscription"

    group: str
    conflict: GroupConflict


@dataclass(frozen=True, slots=True)
class GroupTrouble:
    """A broker finds something wrong with the group; reported once until it has passed.

    Attributes:
        group: which.
        kind: what, e.g. ``unpulledQueue`` (``remoting.protocol.bodies.description.FindingKind``).
        text: a sentence: what, with whom, and what to do.
        members: the client ids it is about.
        topic, queue_id: the queue it is about; None for the whole group or topic.
        docs: where it is explained.
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
    """This member is idle: it owns no queue of its topics.

    Attributes:
        group: whose member it is.
        members, queues: how many there are; with more members than queues some are idle.
    """

    docs: ClassVar[str] = DOCS + "consumer-groups.md#one-owner-per-queue"

    group: str
    members: int
    queues: int


@dataclass(frozen=True, slots=True)
class QueuesUnknown:
    """The strategy gives this member queues that don't exist; they are not read.

    Attributes:
        group: whose member it is.
        queues: which.
    """

    group: str
    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class RebalanceFailed:
    """The owners of a topic's queues can't be determined now; this member keeps its queues.

    Attributes:
        group: whose member it is.
        topic: which.
        error: why. It is tried again soon.
    """

    group: str
    topic: str
    error: Exception


@dataclass(frozen=True, slots=True)
class LockLost:
    """The broker no longer holds a queue's lock for this member; it asks for it again.

    An orderly consumer starts no handler of the queue until it has it back.
    """

    docs: ClassVar[str] = DOCS + "consumer-groups.md#one-owner-per-queue"

    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class SubscriptionUnstable:
    """A broker has forgotten this member's subscription again, right after it received it.

    Another member of the group subscribes differently: each overwrites the other's subscription.

    Attributes:
        group: whose member it is.
        broker: the broker's address.
    """

    docs: ClassVar[str] = DOCS + "consumer-groups.md#one-group-one-subscription"

    group: str
    broker: str


@dataclass(frozen=True, slots=True)
class MessageDeadLettered:
    """A message was put aside, into the group's dead-letter queue.

    Attributes:
        queue, offset, message_id: which; of a retried one, its place in the retry topic.
        group: whose dead letter it is.
        reason: what its handler raised or said last.
    """

    docs: ClassVar[str] = DOCS + "consumer-groups.md#dead-letters"

    queue: MessageQueue
    offset: int
    message_id: str
    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class QueueBlocked:
    """An orderly queue stands still: its first message fails again and again.

    Attributes:
        queue, offset, message_id: where.
        failures: how often it failed by now.
        error: what the handler raised last.
    """

    docs: ClassVar[str] = DOCS + "consumer-groups.md#one-failing-message-stops-its-queue"

    queue: MessageQueue
    offset: int
    message_id: str
    failures: int
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class ConsumptionPaused:
    """The handler failed for many messages in a row, alike: it isn't called until ``resume``.

    Attributes:
        group: whose handler.
        failures: for how many messages.
        error: what it raised last.
        reason: all of this in a sentence.
    """

    docs: ClassVar[str] = DOCS + "consuming.md#the-circuit-breaker"

    group: str
    failures: int
    error: BaseException
    reason: str


@dataclass(frozen=True, slots=True)
class HandlerTimedOut:
    """A handler had its messages for ``consume_timeout``: they are retried without its outcome.

    An ``async def`` is cancelled; a ``def`` can't be, and keeps its place until it returns.

    Attributes:
        queue, offset: the first of its messages.
        messages: how many it had.
        seconds: how long.
    """

    queue: MessageQueue
    offset: int
    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ConsumerFailed:
    """A background task of the consumer died: it leaves its group and raises ``ConsumerStopped``.

    Attributes:
        group: whose member it was.
        error: what ``run()``, iteration and the end of ``async with`` raise.
    """

    group: str
    error: ConsumerStopped


@dataclass(frozen=True, slots=True)
class LoopBlocked:
    """An ``async def`` handler kept the event loop for itself: heartbeats and pulls had to wait.

    Attributes:
        group: whose handler.
        seconds: how long.
    """

    group: str
    seconds: float


Event: TypeAlias = (
    OffsetMoved
    | QueueWaiting
    | QueueResumed
    | QueueGained
    | QueueLost
    | GroupChanged
    | MembersDiffer
    | GroupTrouble
    | NoQueues
    | QueuesUnknown
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
    """Where a queue begins and why.

    Attributes:
        offset: of the first message wanted.
        reason: ``stored``: the group's own offset. ``fallback``: the broker's rule for young
            queues, although the group's ``start_from`` says otherwise. ``first``, ``end``,
            ``timestamp``, ``offset``: the group has no offset, so ``start_from`` counts.
            ``retry``: the group's retry topic. ``reset``: an administrator has set it.
        text: the same for people, e.g. ``fallback 0: 17 messages``.
    """

    offset: int
    reason: Reason
    text: str

    def __str__(self) -> str:
        return self.text


def deliver(event: Event, on_event: EventHandler | None, group: str) -> None:
    """Call the application's ``on_event``; a fault of it must not stop the consuming."""
    if on_event is not None:
        try:
            on_event(event)
        except Exception:  # noqa: BLE001 - see above
            _log.exception("on_event failed", group=group)
