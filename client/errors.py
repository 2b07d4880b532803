"""The client's exceptions.

There are three families: the caller's own mistake (``UsageError``), something that is temporarily
unavailable (``Unavailable``: trying again may help), and an error response of a broker or name
server (``RemoteError``). ``SendError`` also says whether the message may have been stored. A failed
send always raises a ``SendError``; if the cause has its own class, such as ``NoRoute``, the
exception is an instance of both. Every error names the topic, queue, group and broker it concerns
as far as known, and gives a hint what to do next.
"""

from __future__ import annotations

import re
from datetime import timedelta
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, cast

from remoting.protocol.queue import MessageQueue

if TYPE_CHECKING:
    from client.message import Receipt
    from client.positions import Duration


class ErrorSubject(TypedDict, total=False):
    """What an error is about, for functions that pass it on to ``PocketMQError``."""

    topic: str | None
    queue: MessageQueue | None
    group: str | None


class PocketMQError(Exception):
    """Base of all errors the client raises.

    Args:
        message: what happened, in one sentence.
        topic: the topic it happened to.
        queue: the queue it happened to.
        group: the group it happened to.
        broker: the broker it happened to.
        hint: what to do next.
    """

    def __init__(
        self,
        message: str = "",
        *,
        topic: str | None = None,
        queue: MessageQueue | None = None,
        group: str | None = None,
        broker: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.topic = topic if topic is not None or queue is None else queue.topic
        self.queue = queue
        self.group = group
        self.broker = broker
        self.hint = hint

    def __str__(self) -> str:
        """Return the message, its topic, group and broker, and the hint."""
        about: list[tuple[str, object]] = []
        if self.queue is not None:
            about.append(("queue", self.queue))
        elif self.topic is not None:
            about.append(("topic", self.topic))
        if self.group is not None:
            about.append(("group", self.group))
        if self.broker is not None:
            about.append(("broker", self.broker))
        text = self.message
        if about:
            text += " (" + ", ".join(f"{name} {value}" for name, value in about) + ")"
        return f"{text}; {self.hint}" if self.hint else text


class UsageError(PocketMQError, ValueError):
    """The call itself is wrong: trying it again never helps. Nothing was sent."""


class Unavailable(PocketMQError):
    """Something is temporarily unavailable: trying again may help."""


class NoNameServer(Unavailable):
    """None of the name servers could be reached."""


class NoRoute(Unavailable):
    """The name servers know no broker that can serve this topic or queue now."""


class BrokerUnreachable(Unavailable):
    """A broker in the route could not be reached, or closed the connection."""


class RequestTimeout(Unavailable):
    """A request other than a send was not answered in time."""


class ConsumerStopped(PocketMQError):
    """The consumer no longer runs: it was closed, or a background task failed (``__cause__``)."""


class GroupConflict(PocketMQError):
    """Two members of a group differ in something on which all members must agree.

    Attributes:
        members: the client ids of both.
        kind: what differs, e.g. ``subscription`` or ``message model``.
    """

    def __init__(
        self,
        message: str = "",
        *,
        members: tuple[str, str] = ("", ""),
        kind: str = "",
        topic: str | None = None,
        queue: MessageQueue | None = None,
        group: str | None = None,
        broker: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, topic=topic, queue=queue, group=group, broker=broker, hint=hint)
        self.members = members
        self.kind = kind


class AlreadySettled(PocketMQError):
    """A message was settled a second time; the first outcome stands."""


class RetryLater(PocketMQError):
    """Raised by a handler to have the message redelivered after ``delay``.

    An orderly queue is paused for that time.

    Args:
        delay: seconds or a ``timedelta``, rounded up to one of the broker's delay levels; None: the
            broker's own growing delays.
    """

    def __init__(self, delay: Duration | None = None) -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        when = "later" if seconds is None else f"in {seconds:g} s"
        super().__init__(f"the handler requests redelivery {when}")
        self.args = (delay,)
        self.delay = seconds


class DeadLetter(PocketMQError):
    """Raised by a handler to move a message that can never be handled to the dead-letter queue.

    Args:
        reason: why, for the log and the event.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler rejected the message")
        self.args = (reason,)
        self.reason = reason


class RemoteError(PocketMQError):
    """A broker or name server answered with an error code.

    Attributes:
        code: the response code (``remoting.protocol.codes.ResponseCode``).
        remark: the error text in the response.
    """

    def __init__(
        self,
        message: str = "",
        *,
        code: int = 1,
        remark: str | None = None,
        topic: str | None = None,
        queue: MessageQueue | None = None,
        group: str | None = None,
        broker: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, topic=topic, queue=queue, group=group, broker=broker, hint=hint)
        self.code = code
        self.remark = remark


class SystemBusy(RemoteError):
    """Code 2 or 215: the broker is overloaded, or one of its quotas is used up at the moment.

    Attributes:
        retry_after: the seconds after which the broker expects to accept the request; 0 if it
            doesn't say.
    """

    retry_after: float = 0.0


class NotSupported(RemoteError):
    """Code 3: the peer doesn't support this request code."""


class MessageIllegal(RemoteError):
    """Code 13: the message exceeds a limit of the broker."""


class ServiceNotAvailable(RemoteError):
    """Code 14: the broker can't store messages now (disk full, shutting down, or a slave)."""


class NoPermission(RemoteError):
    """Code 16: the broker, topic or group doesn't permit this."""


class AccessDenied(NoPermission):
    """The broker's rules, or its check of the signature, refuse the request.

    Apache's brokers of 4.9 answer with code 1, those of 5.x with code 16.
    """


class TopicNotFound(RemoteError):
    """Code 17: no such topic."""


class NotFound(RemoteError):
    """Code 22: no such offset, message or configuration item."""


class SubscriptionInvalid(RemoteError):
    """Code 23: the subscription's expression can't be parsed."""


class GroupNotFound(RemoteError):
    """Code 26: no such consumer group, and the broker doesn't create groups automatically."""


class NotOnline(RemoteError):
    """Code 206: no member of the group is connected."""


class Outcome(Enum):
    """What is known about a message whose send failed."""

    NOT_SENT = "not sent"
    """This send did not store it."""
    UNKNOWN = "unknown"
    """It was sent and not acknowledged: it may be stored, once or more."""


class SendError(PocketMQError):
    """A message was not acknowledged.

    Attributes:
        outcome: whether it may have been stored nevertheless.
    """

    def __init__(
        self,
        message: str = "",
        *,
        outcome: Outcome = Outcome.NOT_SENT,
        topic: str | None = None,
        queue: MessageQueue | None = None,
        group: str | None = None,
        broker: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, topic=topic, queue=queue, group=group, broker=broker, hint=hint)
        self.outcome = outcome


class BufferFull(SendError, Unavailable):
    """The producer's limit of messages or bytes in flight is reached."""


class NotDurable(SendError):
    """Stored, but less durably than ``require_durable`` demands; see ``receipt.status``."""

    receipt: Receipt


def as_send_error(error: PocketMQError) -> SendError:
    """Return a ``SendError`` for an error that prevented a send.

    Returns:
        A ``SendError`` as it is; otherwise an instance of a class derived from both ``SendError``
        and the class of ``error``, with outcome ``NOT_SENT``.
    """
    if isinstance(error, SendError):
        return error
    made = _made_by_send(type(error), error.args, {**vars(error), "outcome": Outcome.NOT_SENT})
    made.__cause__ = error
    return made


@cache
def _of_send(kind: Any) -> type[SendError]:
    """Return a subclass of ``SendError`` that is also a subclass of ``kind``."""

    def reduce(error: SendError) -> tuple[Any, ...]:
        return _made_by_send, (kind, error.args, vars(error))

    if issubclass(SendError, kind):
        return SendError
    body = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce__": reduce}
    return cast("type[SendError]", type(kind.__name__, (SendError, kind), body))


def _made_by_send(
    kind: type[PocketMQError], args: tuple[object, ...], facts: dict[str, Any]
) -> SendError:
    of_send = _of_send(cast(Any, kind))
    made = of_send.__new__(of_send, *args)
    vars(made).update(facts)
    return made


class UnreadableMessage(PocketMQError):
    """A received body can't be decompressed or deserialized."""


_BY_CODE: Final[dict[int, tuple[type[RemoteError], str | None]]] = {
    2: (SystemBusy, "try again later, or send more slowly"),
    215: (SystemBusy, "try again later, or send more slowly"),
    3: (NotSupported, "the peer's version doesn't serve this request"),
    13: (MessageIllegal, "make the body or the properties smaller"),
    14: (ServiceNotAvailable, "look at the broker's disk space and state"),
    16: (NoPermission, "look at the permission of the broker, the topic and the group"),
    17: (TopicNotFound, "create it with Admin.create_topic or `pocketmq topic create`"),
    22: (NotFound, None),
    23: (SubscriptionInvalid, "write tags as 'A || B', or '*' for all"),
    26: (GroupNotFound, "create it with Admin.create_group or `pocketmq group create`"),
    206: (NotOnline, "start a consumer of the group first"),
}


_OF_ACCESS: Final = re.compile(
    "AclException|username cannot be null|^User:|signature failed|has no permission to access"
)
"""What the remarks contain at 4.9.7 (AclException), and at 5.3.3 (AuthenticationException,
AuthorizationException)."""


def remote_error(
    code: int,
    remark: str | None,
    what: str,
    *,
    broker: str | None = None,
    account: str | None = None,
    retry_after: float = 0.0,
    **subject: Unpack[ErrorSubject],
) -> RemoteError:
    """Return the typed error for a response ``code``.

    Args:
        what: names the rejected request.
        account: who signed it; None if nobody did.
        retry_after: see ``SystemBusy``.
    """
    kind, hint = _BY_CODE.get(code, (RemoteError, None))
    if code in {1, 16} and _OF_ACCESS.search(remark or "") is not None:
        kind = AccessDenied
        hint = (
            f"check the keys of account {account}, and its permissions at the broker"
            if account
            else "sign with an account's keys: credentials=, --credentials or POCKETMQ_CREDENTIALS"
        )
    if kind is MessageIllegal and "timer message" in (remark or ""):
        hint = "choose an earlier time, or raise the broker's timerMaxDelaySec"
    words = (remark or "").partition("\n")[0].strip() or "no reason given"
    error = kind(
        f"{what} was refused with code {code}: {words}",
        code=code,
        remark=remark,
        broker=broker,
        hint=hint,
        **subject,
    )
    if isinstance(error, SystemBusy):
        error.retry_after = retry_after
    return error
